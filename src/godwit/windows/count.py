"""Windows of so many rows of a key, in the order in which they came.

A pane is as many rows as size and slide are both multiples of. The pane being filled is a value; finished
panes that later windows still need are a list, which grows at its end and is cut to what is needed when it is
twice as long, so that the changes to write stay in proportion to the rows. A window leaves with the row that
fills it; one that is not full stays in the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.native import Columns, States, zeros
from godwit.runtime.rows import Index, Outputs, Rows, Times
from godwit.state.variables import Variable
from godwit.windows.aggregate import Mask
from godwit.windows.aggregates import AggregateSpec
from godwit.windows.panes import PaneList
from godwit.windows.window import WINDOW, Window

SEEN: Final = "seen"  # rows of the key so far
KEPT: Final = "kept"  # finished panes in its list


@dataclass(frozen=True, slots=True)
class _Filled:
    """The panes that a chunk's rows fall in, key by key: key i has `count[i]` of them, from `first[i]` on."""

    panes: Columns
    first: Index
    count: Index
    finished: Index  # how many of them are full, by key
    of_row: Index  # the pane of each row


class CountSliding(Window):
    """A window over the last `size` rows of a key, every `slide` rows, the first when there are `size`.

    `window` is its number, from 0.
    """

    def __init__(self, size: int, slide: int, aggregates: Mapping[str, AggregateSpec]) -> None:
        super().__init__(aggregates)
        if not (_is_whole(size) and _is_whole(slide) and 0 < slide <= size):
            raise DefinitionError(f"size {size!r} and slide {slide!r}: whole numbers with 0 < slide <= size are needed")
        self._pane = math.gcd(size, slide)
        self._panes_per_window = size // self._pane
        self._panes_per_slide = slide // self._pane

    def process(self, rows: Rows, state: States, times: Times) -> Outputs | None:
        seen = state[SEEN].copy()
        number = seen[rows.codes] + rows.rank  # of the row, among all of its key
        filled = self._fill(rows, state, seen, number)
        ends_pane = (number + 1) % self._pane == 0
        past_first = (number + 1) // self._pane - self._panes_per_window  # panes before the window that ends here
        done = np.flatnonzero(ends_pane & (past_first >= 0) & (past_first % self._panes_per_slide == 0))
        if self._panes_per_window == 1:
            windows = {name: column[filled.of_row[done]] for name, column in filled.panes.items()}
        else:
            windows = self._slide(rows, state, filled, done)
        if not len(done):
            return None
        numbers = past_first[done] // self._panes_per_slide
        return self.emit_at(rows, done, **{WINDOW: numbers}, **self.panes.results(windows))

    def open(self) -> None:
        if self.more_variables:
            self._list = PaneList(1, self.more_variables[0].schema)

    def _declare(self, input_schema: pa.Schema) -> None:
        if self._panes_per_window > 1:
            self.state = {SEEN: pa.int64(), KEPT: pa.int64(), **self.panes.fields}
            self.more_variables = (Variable("panes", "list", pa.schema(self.panes.fields)),)
        else:
            self.state = {SEEN: pa.int64(), **self.panes.fields}

    def _window_type(self, input_schema: pa.Schema) -> pa.DataType:
        return pa.int64()

    def _fill(self, rows: Rows, state: States, seen: Index, number: Index) -> _Filled:
        """Add the rows to the open panes and those after; leave in the state what is open afterwards."""
        full_before, full_after = seen // self._pane, (seen + rows.counts) // self._pane
        is_open = (seen + rows.counts) % self._pane > 0
        count = full_after - full_before + is_open
        first = np.cumsum(count) - count
        of_row = first[rows.codes] + number // self._pane - full_before[rows.codes]
        panes = {name: zeros(int(count.sum()), state[name].dtype) for name in self.panes.fields}
        for name, column in panes.items():
            column[first] = state[name]
        self.panes.add(panes, of_row, rows)
        for name, column in panes.items():
            state[name][is_open] = column[first + count - 1][is_open]
            state[name][~is_open] = zeros(1, column.dtype)[0]
        state[SEEN] = seen + rows.counts
        return _Filled(panes, first, count, full_after - full_before, of_row)

    def _slide(self, rows: Rows, state: States, filled: _Filled, done: Index) -> Columns:
        """Windows that end with the rows `done`; finished panes go to the list."""
        needed = self._panes_per_window - 1
        after = state[KEPT] + filled.finished
        too_long = after >= 2 * self._panes_per_window
        looks_back = too_long.copy()
        looks_back[rows.codes[done]] = True
        looked_at = np.flatnonzero(looks_back)
        lists, kept = self._list.read(state, looked_at)
        joined, shift = _join(kept, state[KEPT], looked_at, filled)
        windows = self.panes.fold(joined, shift[filled.of_row[done]] - needed, np.full(len(done), needed + 1))
        self._keep(state, filled, dict(zip(looked_at.tolist(), lists, strict=True)), too_long)
        state[KEPT] = np.where(too_long, needed, after)
        return windows

    def _keep(self, state: States, filled: _Filled, lists: dict[int, list[bytes]], too_long: Mask) -> None:
        finished = np.repeat(filled.first, filled.finished) + _within(filled.finished)
        payloads = self._list.pack({name: column[finished] for name, column in filled.panes.items()})
        end = np.cumsum(filled.finished)
        changed = np.flatnonzero(filled.finished)
        bounds = zip((end - filled.finished)[changed].tolist(), end[changed].tolist(), strict=True)
        for owner, (low, high) in zip(changed.tolist(), bounds, strict=True):
            if too_long[owner]:
                self._list.replace(state, owner, (lists[owner] + payloads[low:high])[1 - self._panes_per_window :])
            else:
                self._list.append(state, owner, payloads[low:high])


class CountTumbling(CountSliding):
    """A window for every `size` rows of a key. `window` is its number, from 0."""

    def __init__(self, size: int, aggregates: Mapping[str, AggregateSpec]) -> None:
        super().__init__(size, size, aggregates)


def _is_whole(number: object) -> bool:
    return isinstance(number, int)


def _within(counts: Index) -> Index:
    """0, 1, .. counts[0] - 1, 0, 1, .. counts[1] - 1, .."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


def _join(kept: Columns, kept_count: Index, looked_at: Index, filled: _Filled) -> tuple[Columns, Index]:
    """Each key's kept panes followed by those just filled, and where a filled pane went."""
    ahead = np.zeros(len(filled.count), np.int64)
    ahead[looked_at] = kept_count[looked_at]
    start = np.cumsum(ahead + filled.count) - filled.count - ahead
    old = np.repeat(start, ahead) + _within(ahead)
    new = np.repeat(start + ahead, filled.count) + _within(filled.count)
    joined = {}
    for name, column in filled.panes.items():
        joined[name] = np.empty(len(old) + len(new), column.dtype)
        joined[name][old], joined[name][new] = kept[name], column
    return joined, new
