"""Columns of entries by number: payloads of one width for each, and what stands beside them for a while."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]
Payloads: TypeAlias = npt.NDArray[np.uint8]  # a row of bytes for each entry
_STAYING_ROWS_MAX: Final = 1 << 16  # the memory of so many entries is used again
A = TypeVar("A", bound=npt.NDArray[Any])


def grown(column: A, count: int, fill: int = 0) -> A:
    """The column with room for so many rows: at least twice as long if it has to grow, so that growing costs little."""
    if count <= len(column):
        return column
    longer: A = np.empty((max(count, 2 * len(column), 16), *column.shape[1:]), column.dtype)  # type: ignore[assignment]
    longer[: len(column)] = column
    longer[len(column) :] = fill
    return longer


def rows_at(payloads: Payloads, numbers: npt.NDArray[np.integer[Any]]) -> Payloads:
    """A copy of these rows. Several times as fast as an index."""
    return payloads.take(numbers, axis=0)


def set_rows(payloads: Payloads, numbers: Numbers, rows: Payloads) -> None:
    """Set these rows, each as one item: faster than byte by byte. Where a number repeats, the last row stays."""
    item = f"V{payloads.shape[1]}"
    payloads.view(item)[numbers, 0] = np.ascontiguousarray(rows).view(item)[:, 0]


def rows_of_bytes(payloads: Payloads) -> list[bytes]:
    cells: list[bytes] = np.ascontiguousarray(payloads).view(f"V{payloads.shape[1]}").ravel().tolist()
    return cells


class Beside:
    """Entries that stand beside those of a table, by number: a stage, or what entries were before a batch.

    An entry is a payload, or that there is none. `_at` says where the entry of a number is, so whatever `_at` does not point to
    counts no more.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._at: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._forget()

    def _forget(self) -> None:
        self._count = 0
        self._distinct = True  # whether every entry counts
        self._numbers: Numbers = np.empty(0, np.int64)
        self._payloads: Payloads = np.empty((0, self._width), np.uint8)
        self._there: Mask = np.empty(0, np.bool_)

    def __bool__(self) -> bool:
        return self._count > 0 and (self._distinct or len(self._live()) > 0)

    @property
    def size_bytes(self) -> int:
        return self._count * (self._width + 9)

    def reserve(self, count: int) -> None:
        """Make room for so many more entries, so that putting them cannot fail."""
        needed = self._count + count
        self._numbers, self._there = grown(self._numbers, needed), grown(self._there, needed)
        self._payloads = grown(self._payloads, needed)

    def cover(self, count: int) -> None:
        """Numbers up to this count may be put."""
        self._at = grown(self._at, count, fill=-1)

    def put(self, numbers: Numbers, payloads: Payloads | None, there: Mask | bool, new: bool = False) -> None:
        """Set entries, in place of those that the numbers have. Of a number that comes twice, the last entry counts.

        `new`: the numbers are distinct, and none has an entry yet.
        """
        self._distinct = self._distinct and new
        self.reserve(len(numbers))
        begin, end = self._count, self._count + len(numbers)
        self._numbers[begin:end] = numbers
        self._there[begin:end] = there
        self._payloads[begin:end] = 0 if payloads is None else payloads
        self._count = end  # before `_at`: so `clear` reaches all of this after an interrupt, too
        self._at[numbers] = np.arange(begin, end, dtype=np.int32)  # where a number repeats, the last assignment stays

    def put_missing(self, numbers: Numbers, payloads: Payloads, there: Mask) -> None:
        """Set the entries of numbers that have none. The numbers are distinct."""
        at = (self._at[numbers] < 0).nonzero()[0]
        if len(at) == len(numbers):
            self.put(numbers, payloads, there, new=True)
        elif len(at):
            self.put(numbers[at], rows_at(payloads, at), there[at], new=True)

    def discard(self, numbers: Numbers) -> None:
        self._at[numbers] = -1
        self._distinct = False

    def clear(self) -> None:
        if self._count:
            self._at[self._numbers[: self._count]] = -1
            self._count, self._distinct = 0, True
            if len(self._numbers) > _STAYING_ROWS_MAX:
                self._forget()

    def has(self, numbers: Numbers) -> Mask:
        """Which of the numbers have an entry. NO_NUMBER has none."""
        if not self._count:
            return np.zeros(len(numbers), np.bool_)
        mask: Mask = (self._at[numbers] >= 0) & (numbers >= 0)
        return mask

    def lay_over(self, numbers: Numbers, payloads: Payloads, there: Mask) -> None:
        """Replace what the numbers have with their entries here."""
        mask = self.has(numbers)
        if mask.any():
            at = self._at[numbers[mask]]
            set_rows(payloads, np.flatnonzero(mask), rows_at(self._payloads, at))
            there[mask] = self._there[at]

    def entries(self) -> tuple[Numbers, Payloads, Mask]:
        """A copy of the entries, in the order in which they were last set."""
        if self._distinct:
            end = self._count
            return self._numbers[:end].copy(), self._payloads[:end].copy(), self._there[:end].copy()
        live = self._live()
        return self._numbers[live], rows_at(self._payloads, live), self._there[live]

    def of(self, numbers: Numbers) -> tuple[Numbers, Payloads, Mask]:
        """A copy of the entries of these numbers."""
        chosen = np.unique(numbers[self.has(numbers)])
        at = self._at[chosen]
        return chosen, rows_at(self._payloads, at), self._there[at]

    def _live(self) -> Numbers:
        here = self._at[self._numbers[: self._count]] == np.arange(self._count, dtype=np.int32)
        live: Numbers = np.flatnonzero(here)
        return live
