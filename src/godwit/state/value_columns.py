"""A variable that holds one value of fixed width per key, for callers who read and write many keys at once.

Decides how such values are staged, installed and undone: all of it in numpy columns, by the number of the key (`key_numbers`),
with no Python object for a key or a value. A single key costs more here than in `values`. There is no time to live, and all
values stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from godwit.errors import InvariantBroken
from godwit.state.changes import CLEAR, PUT, Changes
from godwit.state.columns import Beside, Mask, Numbers, Payloads, grown, rows_at, rows_of_bytes, set_rows
from godwit.state.key_numbers import AnyKeys, NotFixed, numbers_for
from godwit.state.keys import Key, KeyCodec, keys_at
from godwit.state.spill import Spill
from godwit.state.table import InstalledKeys, InstallStage, Ops, Row

_VACANT_MIN: Final = 1_000  # below so many numbers without a value, numbering anew is not worth its while
_BESIDE_BYTES: Final = 9  # of a key: whether it has a value, and where its entries in the stage and in the undo are
_BLOCK_KEYS: Final = 10_000  # made into rows at once


class ValueColumns:
    """Payloads of one width by key. A number may be without a value: its key was removed, or its stage was rolled back."""

    def __init__(self, var: int, key_codec: KeyCodec, width: int) -> None:
        self.var = var
        self.width = width
        self.count = 0
        self._numbers = numbers_for(key_codec)
        self._payloads: Payloads = np.empty((0, width), np.uint8)
        self._there: Mask = np.empty(0, np.bool_)
        self._stage = Beside(width)
        self._undo = Beside(width)
        # Keys that were read are usually written next, and keys that were written installed next.
        self._found: tuple[Sequence[Key], Numbers] | None = None
        self._written: tuple[Sequence[Key], Numbers] | None = None

    # -- many keys at once -------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[Key]) -> tuple[Payloads, Mask]:
        """Payloads of the keys, and which keys have one; the others have zeros. The caller may change both."""
        numbers = self._find(keys)
        self._found = (keys, numbers)
        return self._read(numbers)

    def write(self, keys: Sequence[Key], positions: Numbers, payloads: Payloads) -> None:
        """Stage payloads of the keys at these positions. The keys are distinct."""
        found = self._found
        numbers = found[1] if found is not None and found[0] is keys else self._find(keys)
        self._found = None
        if len(positions) < len(keys):
            numbers, keys = numbers[positions], keys_at(keys, positions)
        numbers = self._with_new(keys, numbers)
        self._written = (keys, numbers)
        self._stage.put(numbers, payloads, True, new=not self._stage)

    # -- as every variable with one value ----------------------------------------------------------------------------

    def get(self, key: Key) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        payloads, there = self._read(self._find(keys))
        return [data if has else None for data, has in zip(rows_of_bytes(payloads), there.tolist(), strict=True)]

    def put(self, key: Key, payload: bytes) -> None:
        self.put_many([key], [payload])

    def put_many(self, keys: Sequence[Key], payloads: Sequence[bytes]) -> None:
        self._put_all(keys, self._from_bytes(b"".join(payloads), len(keys)), True)

    def clear(self, key: Key) -> None:
        self.clear_many([key])

    # -- a table -----------------------------------------------------------------------------------------------------

    @property
    def staged(self) -> bool:
        return bool(self._stage)

    @property
    def bytes_estimate(self) -> int:
        """Without what only stands beside: a stage, and the state before the batch."""
        return self.count * (self._numbers.key_bytes + self.width + _BESIDE_BYTES)

    def contains(self, key: Key) -> bool:
        return not self.missing([key])

    def missing(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Those of the keys that have no value."""
        numbers = self._find(keys)
        return keys_at(keys, (~self._has(numbers)).nonzero()[0])

    def each_key(self) -> Iterator[Key]:
        return iter(self._numbers.keys(np.flatnonzero(self._there[: len(self._numbers)])))

    def key_list(self) -> list[Key]:
        return list(self.each_key())

    def clear_many(self, keys: Iterable[Key]) -> None:
        numbers = self._find(list(keys))
        self._stage.put(numbers[numbers >= 0], None, False)

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        # Only a PUT has a value, and the last row of a key is the one that counts: just what a stage is.
        there = values.is_valid().to_numpy(zero_copy_only=False)
        payloads = np.zeros((len(values), self.width), np.uint8)
        payloads[there] = self._from_arrow(values.drop_null() if values.null_count else values)
        self._put_all(keys, payloads, there)

    def expire(self, now_ms: int) -> None:
        """Nothing here has a time to live."""

    def set_ttl(self, ttl_ms: int | None) -> None:
        """A table without a time to live stays without."""

    def prepare(self, changes: Changes) -> InstallStage:
        numbers, payloads, puts = self._stage.entries()
        had = self._there[numbers]
        cleared = numbers[had & ~puts]
        if not puts.all():
            payloads, had, numbers = payloads[puts], had[puts], numbers[puts]
        changes.add(self.var, CLEAR, self._keys(cleared))
        changes.add(self.var, PUT, self._keys(numbers), None, payloads)
        before = [(each, rows_at(self._payloads, each), self._there[each]) for each in (numbers, cleared) if len(each)]
        added = numbers[~had]
        self._undo.reserve(len(numbers) + len(cleared))

        def install() -> InstalledKeys:
            self._stage.clear()
            for entries in before:
                self._undo.put_missing(*entries)
            set_rows(self._payloads, numbers, payloads)
            self._there[added] = True
            self._there[cleared] = False
            self.count += len(added) - len(cleared)
            moves = InstalledKeys(self._keys(added), self._keys(cleared))
            self._written = None
            return moves

        return install

    def rollback(self) -> None:
        self._stage.clear()
        self._written = None

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        before = self._stage.of(self._find(keys))

        def restore() -> None:
            numbers = self._find(keys)
            self._stage.discard(numbers[numbers >= 0])
            self._stage.put(*before)

        return restore

    def settle(self) -> None:
        self._undo.clear()
        if len(self._numbers) - self.count > max(_VACANT_MIN, self.count) and not self.staged:
            self._number_anew()

    @property
    def undo_bytes(self) -> int:
        return self._undo.size_bytes

    def spill_undo(self, disk: Spill) -> None:
        """It stays in memory: where memory is limited, there are no such tables."""

    def rows(self, committed: bool) -> Iterator[Row]:
        for begin in range(0, len(self._numbers), _BLOCK_KEYS):
            yield from self._rows(np.arange(begin, min(begin + _BLOCK_KEYS, len(self._numbers))), committed)

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        numbers = self._find(keys)
        return self._rows(numbers[numbers >= 0], committed)

    def touched(self) -> Collection[Key]:
        return self._numbers.keys(self._undo.entries()[0])

    def touched_among(self, keys: Sequence[Key]) -> list[Key]:
        """Those of the keys that have changed since the last settled moment."""
        return list(keys_at(keys, np.flatnonzero(self._undo.has(self._find(keys)))))

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        pairs = [(key, value or b"") for key, _, value in rows]
        keys = [key for key, _ in pairs]
        payloads = self._from_bytes(b"".join([value for _, value in pairs]), len(pairs))
        self._undo.put(self._numbered(cleared), None, False)
        self._undo.put(self._numbered(keys), payloads, True)

    def settle_keys(self, keys: Iterable[Key]) -> None:
        numbers = self._find(keys if isinstance(keys, Sequence) else list(keys))
        self._undo.discard(numbers[numbers >= 0])

    # -- by number ---------------------------------------------------------------------------------------------------

    def _find(self, keys: Sequence[Key]) -> Numbers:
        return self._numbers.find(keys)

    def _keys(self, numbers: Numbers) -> Sequence[Key]:
        if not len(numbers):
            return ()
        if self._written is not None and _equal(self._written[1], numbers):
            return self._written[0]  # as they came
        return self._numbers.keys(numbers)

    def _has(self, numbers: Numbers) -> Mask:
        if not len(self._numbers):
            return np.zeros(len(numbers), np.bool_)
        has: Mask = self._there[numbers] & (numbers >= 0)
        return has

    def _read(self, numbers: Numbers) -> tuple[Payloads, Mask]:
        there = self._has(numbers)
        some = len(self._numbers) > 0
        payloads = rows_at(self._payloads, numbers) if some else np.zeros((len(numbers), self.width), np.uint8)
        self._stage.lay_over(numbers, payloads, there)
        if not there.all():
            payloads[~there] = 0
        return payloads, there

    def _put_all(self, keys: Sequence[Key], payloads: Payloads, there: Mask | bool) -> None:
        self._stage.put(self._numbered(keys), payloads, there)

    def _numbered(self, keys: Sequence[Key]) -> Numbers:
        """The numbers of the keys, which may repeat; keys without one get one."""
        numbers = self._find(keys)
        if (numbers >= 0).all():
            return numbers
        self._with_new(list(dict.fromkeys(keys_at(keys, np.flatnonzero(numbers < 0)))))
        return self._find(keys)

    def _with_new(self, keys: Sequence[Key], numbers: Numbers | None = None) -> Numbers:
        """The numbers, with new ones for keys that have none. The keys are distinct. `numbers`: None if none has."""
        numbers = np.full(len(keys), -1, np.int64) if numbers is None else numbers
        new = (numbers < 0).nonzero()[0]
        if not len(new):
            return numbers
        self._found = None
        self._cover(len(self._numbers) + len(new))
        numbers[new] = self._add(keys_at(keys, new))
        return numbers

    def _cover(self, count: int) -> None:
        """Make room for so many numbers, before there are so many."""
        self._payloads, self._there = grown(self._payloads, count), grown(self._there, count)
        self._stage.cover(count)
        self._undo.cover(count)

    def _add(self, keys: Sequence[Key]) -> Numbers:
        try:
            return self._numbers.add(keys)
        except NotFixed:  # the first key with a null: from now on a dictionary has the numbers, the same ones
            self._numbers = AnyKeys(self._numbers.keys(np.arange(len(self._numbers))))
            return self._numbers.add(keys)

    def _number_anew(self) -> None:
        """Most numbers have no value any more."""
        stay = np.flatnonzero(self._there[: len(self._numbers)])
        self._numbers = self._numbers.only(stay)
        self._payloads, self._there = rows_at(self._payloads, stay), np.ones(len(stay), np.bool_)
        self._stage, self._undo = Beside(self.width), Beside(self.width)
        self._found = self._written = None
        self._cover(len(stay))

    def _rows(self, numbers: Numbers, committed: bool) -> Iterator[Row]:
        payloads, there = rows_at(self._payloads, numbers), self._there[numbers]
        if committed:
            self._undo.lay_over(numbers, payloads, there)
        keys = self._numbers.keys(numbers[there])
        return zip(keys, [None] * len(keys), rows_of_bytes(payloads[there]), strict=True)

    def _from_arrow(self, values: pa.Array[Any]) -> Payloads:
        _, ends, data = values.buffers()
        if not len(values) or ends is None or data is None:
            return self._from_bytes(b"", len(values))
        offsets = np.frombuffer(memoryview(ends), np.int32, len(values) + 1, values.offset * 4)
        return self._from_bytes(memoryview(data)[offsets[0] : offsets[-1]], len(values))

    def _from_bytes(self, data: bytes | memoryview, count: int) -> Payloads:
        if len(data) != count * self.width:
            raise InvariantBroken(
                f"{count} values of {self.width} bytes each are expected, not {len(data)} bytes", variable=self.var
            )
        return np.frombuffer(data, np.uint8).reshape(count, self.width)


def _equal(some: Numbers, others: Numbers) -> bool:
    return len(some) == len(others) and bool((some == others).all())
