"""Windows of a number of rows of a key, in the order in which the rows came.

The rows of a pane are the greatest common divisor of size and slide. The last panes of a key, as many as make a window, are a
ring in its state: pane p, full or still open, is element p modulo their number. A window is emitted with the row that fills
it; a window that is not full stays in the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.processor.rows import Index, Outputs, Rows, Times
from godwit.runtime.processor.state_columns import Columns, zeros
from godwit.runtime.processor.states_of_keys import States
from godwit.windows.aggregate import Mask
from godwit.windows.aggregates import AggregateSpec
from godwit.windows.pane_view import PaneView, stored_schema
from godwit.windows.window import WINDOW, Window

SEEN: Final = "seen"  # rows of the key so far
_PANES_MAX: Final = 10_000  # a key's state is rewritten as a whole, and has a field for each of them


@dataclass(frozen=True, slots=True)
class _Filled:
    """The panes that a chunk's rows fall in, key after key, and what they are of each key."""

    panes: Columns
    first: Index  # the place of the key's first one in the columns
    start: Index  # its number
    stop: Index  # the number after the last one's
    is_open: Mask  # whether the last one has still room


class CountSliding(Window):
    """A window over the last `size` rows of a key, every `slide` rows, the first when there are `size`.

    `window` is its number, from 0.
    """

    def __init__(self, size: int, slide: int, aggregates: Mapping[str, AggregateSpec]) -> None:
        super().__init__(aggregates)
        if not (_is_whole(size) and _is_whole(slide) and 0 < slide <= size):
            raise DefinitionError(f"size {size!r} and slide {slide!r}: whole numbers with 0 < slide <= size are needed")
        self._pane = math.gcd(size, slide)
        self._count = size // self._pane  # panes in a window
        if self._count > _PANES_MAX:
            raise DefinitionError(
                f"size {size} and slide {slide} make {self._count} panes a window, more than {_PANES_MAX}",
                todo="Use a slide that has a larger factor in common with the size",
            )
        self._panes_per_slide = slide // self._pane

    def process(self, rows: Rows, state: States, times: Times) -> Outputs | None:
        seen = state[SEEN].copy()
        number = seen[rows.codes] + rows.rank  # of the row, among all of its key
        filled = self._fill(rows, state, seen, number)
        before = (number + 1) // self._pane - self._count  # panes before the window that ends with this row's pane
        ends_pane = (number + 1) % self._pane == 0
        done = np.flatnonzero(ends_pane & (before >= 0) & (before % self._panes_per_slide == 0))
        windows = self._windows(state, filled, rows.codes[done].astype(np.int64), before[done])
        self._keep(state, filled)
        state[SEEN] = seen + rows.counts
        if not len(done):
            return None
        return self.emit_at(
            rows, done, **{WINDOW: before[done] // self._panes_per_slide}, **self.panes.results(windows)
        )

    def _declare(self, input_schema: pa.Schema) -> None:
        ring = {name: pa.list_(kind, self._count) for name, kind in self.panes.fields.items()}
        whole = self._count == 1
        view = PaneView("count", self._pane, self._count, whole, None, self.panes.aggregates)
        self.state = stored_schema({SEEN: pa.int64(), **ring}, view)

    def _window_type(self, input_schema: pa.Schema) -> pa.DataType:
        return pa.int64()

    def _fill(self, rows: Rows, state: States, seen: Index, number: Index) -> _Filled:
        """Add the rows to the open panes and those that follow."""
        start, stop = seen // self._pane, -(-(seen + rows.counts) // self._pane)
        first = np.cumsum(stop - start) - (stop - start)
        panes: Columns = {}
        for name in self.panes.fields:
            ring = state[name]
            panes[name] = zeros(int((stop - start).sum()), ring.dtype)
            panes[name][first] = ring[np.arange(len(ring)), start % self._count]
        self.panes.add(panes, first[rows.codes] + number // self._pane - start[rows.codes], rows)
        return _Filled(panes, first, start, stop, (seen + rows.counts) % self._pane > 0)

    def _windows(self, state: States, filled: _Filled, owners: Index, start: Index) -> Columns:
        """Windows of these keys that begin with these panes, from the ring and what was filled."""
        panes = {name: np.concatenate([state[name].reshape(-1), column]) for name, column in filled.panes.items()}
        shift = self._count * len(filled.first) + filled.first[owners] - filled.start[owners]

        def place(step: int) -> Index:
            pane = start + step
            in_ring = pane < filled.start[owners]
            return np.where(in_ring, owners * self._count + pane % self._count, shift + pane)

        return self.panes.fold(panes, place(0), ((slice(None), place(step)) for step in range(1, self._count)))

    def _keep(self, state: States, filled: _Filled) -> None:
        """Put the last panes into the ring, and nothing into the place of the one that comes next."""
        count = filled.stop - filled.start
        owners = np.repeat(np.arange(len(count)), count)
        pane = np.arange(len(owners)) - filled.first[owners] + filled.start[owners]
        last = np.flatnonzero(pane >= filled.stop[owners] - self._count)
        closed = np.flatnonzero(~filled.is_open)
        for name, column in filled.panes.items():
            state[name][owners[last], pane[last] % self._count] = column[last]
            state[name][closed, filled.stop[closed] % self._count] = zeros(1, column.dtype)[0]


class CountTumbling(CountSliding):
    """A window for every `size` rows of a key. `window` is its number, from 0."""

    def __init__(self, size: int, aggregates: Mapping[str, AggregateSpec]) -> None:
        super().__init__(size, size, aggregates)


def _is_whole(number: object) -> bool:
    return isinstance(number, int)
