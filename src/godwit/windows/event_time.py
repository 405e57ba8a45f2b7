"""Windows of a span of event time, as Spark's `window()`: from the epoch on, start inclusive, end exclusive.

A window is emitted when the watermark reaches its end, by a timer of its key: no row is needed, so windows of an idle key
close, too. A row counts for every window that is not yet past its allowed lateness, even if the row itself is behind the
watermark, as in Spark. If such a window was emitted already, it is emitted again, updated, once per micro-batch. Decides this
from two watermarks: the one that closes windows and the one by which rows are late. It must not know where they come from.

A key has one timer for the next end at which a window of its panes closes, however many windows overlap, one for
each closed window that a late row changed, and, when no window is left to close, one to drop its last panes.
Timers that are due at the same watermark have to come in one call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.processor.merging import pane_way
from godwit.runtime.processor.native import Timers
from godwit.runtime.processor.rows import Index, Outputs, Rows, Times, values_of
from godwit.runtime.processor.states_of_keys import States
from godwit.windows.aggregate import Mask
from godwit.windows.aggregates import AggregateSpec, merge_by
from godwit.windows.durations import Duration, duration_ms
from godwit.windows.pane_view import PaneView, stored_schema
from godwit.windows.store import PaneStore
from godwit.windows.window import WINDOW, Window

WAITS: Final = "waits"  # whether a window of the key has still to close
NEXT: Final = "next_end_us"  # when the next one does
_SLOTS_MAX: Final = 24  # slots are rewritten with every row of the key: more of them cost more than they spare
_FAR_US: Final = 2**62  # beyond any event time; keeps a watermark of "never" or "all" within 64 bits


class EventSliding(Window):
    """A window of `size` of event time, starting every `slide`; `window` is a struct of its start and end.

    Rows go by order of arrival within each piece of time that no window divides, and piece by piece in a window: that
    is what `first`, `last` and `collect` see.

    merge: many rows of a hot key may come as one, for sums, minima and maxima; rows are then counted by a sum of ones. Whole
    numbers come out the same, sums of floats but for their last digits.
    """

    keeps_new = False  # a key that brought only late rows leaves nothing behind

    def __init__(
        self,
        size: Duration,
        slide: Duration,
        time_column: str,
        aggregates: Mapping[str, AggregateSpec],
        allowed_lateness: Duration = "0 seconds",
        start_time: Duration = "0 seconds",
        *,
        merge: bool = False,
    ) -> None:
        super().__init__(aggregates)
        self.merges = merge
        size_ms, slide_ms = duration_ms(size, "size"), duration_ms(slide, "slide")
        lateness_ms = duration_ms(allowed_lateness, "allowed_lateness", zero_allowed=True)
        if slide_ms > size_ms:
            raise DefinitionError(
                f"slide {slide!r} is longer than size {size!r}: rows between windows would be lost",
                todo="Use a slide of at most the size",
            )
        self.time_column: str = time_column
        # A row that much behind the watermark may still be in an open window; exactly which, is decided here.
        self.allowed_lateness_ms = size_ms + lateness_ms
        self._size, self._slide, self._lateness = size_ms * 1_000, slide_ms * 1_000, lateness_ms * 1_000
        self._pane = math.gcd(size_ms, slide_ms) * 1_000
        # Panes of a window, some more that are filled until it closes, and those that late rows may change.
        count = self._size // self._pane
        self._slots = min(count + count // 4 + 1 - -self._lateness // self._pane, _SLOTS_MAX)
        self._offset = duration_ms(start_time, "start_time", zero_allowed=True) * 1_000 % self._slide

    def process(self, rows: Rows, state: States, times: Times) -> Outputs | None:
        moment, known = values_of(rows.batch.column(self.time_column))
        late_us = _micros(times.late_ms) - self._lateness
        taken = self._last_end(moment) > late_us
        if known is not None:
            taken &= known
        start = (moment - (moment - self._offset) % self._pane)[taken]
        owners, starts, of_row = _pairs(rows.codes[taken].astype(np.int64), start, len(rows.keys))
        panes = self._store.load(state, owners, starts)
        self.panes.add(panes, of_row, rows, taken)
        self._store.save(state, owners, starts, panes)
        self._await(state, owners, starts, late_us, _micros(times.watermark_ms))
        self.late_rows += len(rows) - len(of_row)
        return None

    def on_timer(self, timers: Timers, state: States, times: Times) -> Outputs | None:
        watermark_us = _micros(times.watermark_ms)
        owners, starts, panes = self._store.read(state)
        who, end, timer = self._closing(timers, owners, starts, _pending(state), watermark_us)
        low, high = _ranges(owners, starts, who, (end - self._size, end))
        done = np.flatnonzero(high > low)
        windows = self.panes.fold(panes, low[done], _following(low[done], high[done]))
        self._settle(state, owners, starts, watermark_us)
        bounds = self._bounds(end[done])
        return self.emit_at(timers, timer[done], **{WINDOW: bounds}, **self.panes.results(windows))

    def open(self) -> None:
        self._store = PaneStore(self.panes.fields, self._pane, self._slots, var=1)

    def bind(self, input_schema: pa.Schema, key_names: Sequence[str]) -> pa.Schema:
        output = super().bind(input_schema, key_names)
        if self.merges:
            others = [name for name in input_schema.names if name not in (*key_names, self.time_column)]
            self.merge = merge_by(self._specs, others) | {self.time_column: pane_way(self._pane, self._offset)}
        return output

    def _declare(self, input_schema: pa.Schema) -> None:
        slots = PaneStore.value_fields(self.panes.fields, self._slots)
        tz = (
            getattr(input_schema.field(self.time_column).type, "tz", None)
            if self.time_column in input_schema.names
            else None
        )
        view = PaneView("event", self._pane, self._slots, self._pane == self._size, tz, self.panes.aggregates)
        self.state = stored_schema({WAITS: pa.bool_(), NEXT: pa.int64(), **slots}, view)
        self.more_variables = (PaneStore.variable(self.panes.fields),)

    def _window_type(self, input_schema: pa.Schema) -> pa.DataType:
        if self.time_column not in input_schema.names:
            raise DefinitionError(
                f"the input has no time column {self.time_column!r}",
                todo=f"It has {', '.join(input_schema.names)}",
            )
        kind = input_schema.field(self.time_column).type
        if not pa.types.is_timestamp(kind):
            raise DefinitionError(f"time column {self.time_column!r} is {kind}, not a timestamp")
        self._moment: pa.DataType = pa.timestamp("us", tz=kind.tz)
        return pa.struct([pa.field("start", self._moment), pa.field("end", self._moment)])

    def _last_end(self, moment: Index) -> Index:
        """When the last window that contains this moment closes."""
        last: Index = moment - (moment - self._offset) % self._slide + self._size
        return last

    def _next_end(self, moment: Index) -> Index:
        """The first end of a window after this moment."""
        following: Index = moment - (moment - self._offset - self._size) % self._slide + self._slide
        return following

    def _ends(self, starts: Index) -> Iterator[tuple[Index, Mask]]:
        """The ends of all windows that hold each pane, one per pane at a time, and which panes have one still."""
        last = self._last_end(starts)
        for back in range(0, self._size, self._slide):
            yield last - back, last - back > starts

    def _soonest(self, starts: Index, owners: Index, watermark_us: int, soonest: Index) -> Index:
        """The next end at which a window of a key's panes closes, if it is before the one given."""
        upcoming = self._next_end(np.maximum(starts, watermark_us))
        comes = upcoming <= self._last_end(starts)
        result = soonest.copy()
        np.minimum.at(result, owners[comes], upcoming[comes])
        return result

    def _await(self, state: States, owners: Index, starts: Index, late_us: int, watermark_us: int) -> None:
        """Set the timers that emit the windows of these panes, which just got rows."""
        pending = _pending(state)
        soonest = self._soonest(starts, owners, watermark_us, pending)
        sooner = soonest < pending
        state[WAITS][sooner], state[NEXT][sooner] = True, soonest[sooner]
        state.set_timer(sooner, soonest[sooner] // 1_000)
        behind = self._next_end(starts) <= watermark_us
        owners, starts = owners[behind], starts[behind]
        for end, exists in self._ends(starts) if len(starts) else ():
            again = exists & (late_us < end) & (end <= watermark_us)
            state.set_timer(owners[again], end[again] // 1_000)

    def _closing(
        self, timers: Timers, owners: Index, starts: Index, pending: Index, watermark_us: int
    ) -> tuple[Index, Index, Index]:
        """Windows to give out: their keys, ends, and the timers they leave with."""
        expiry, codes = timers.expiry_ms * 1_000, timers.codes.astype(np.int64)
        is_end = (expiry - self._size - self._offset) % self._slide == 0
        again = np.flatnonzero(is_end & (expiry < pending[codes]))  # from `pending` on, none is out yet
        closing = [
            (owners[now], end[now])
            for end, exists in self._ends(starts)
            if (now := exists & (pending[owners] <= end) & (end <= watermark_us)).any()
        ]
        who = np.concatenate([codes[:0], *(who for who, _ in closing)])
        who, end, _ = _pairs(who, np.concatenate([expiry[:0], *(end for _, end in closing)]), len(timers.keys))
        who, end = np.concatenate([codes[again], who]), np.concatenate([expiry[again], end])
        timer = np.concatenate([again, timers.first[who[len(again) :]]])
        order = np.lexsort((end, timer))
        return who[order], end[order], timer[order]

    def _settle(self, state: States, owners: Index, starts: Index, watermark_us: int) -> None:
        """Drop panes that no row may change any more, and set each key's next timer."""
        until = self._last_end(starts) + self._lateness
        left = until > watermark_us
        needed_until = np.full(len(state.keys), -_FAR_US)
        np.maximum.at(needed_until, owners[left], until[left])
        over = ~left & (needed_until > -_FAR_US)[owners]
        self._store.forget(state, owners[over], starts[over])
        state.remove(needed_until == -_FAR_US)
        soonest = self._soonest(starts[left], owners[left], watermark_us, np.full(len(state.keys), _FAR_US))
        waits = soonest < _FAR_US
        state[WAITS], state[NEXT] = waits, np.where(waits, soonest, 0)
        state.set_timer(waits, soonest[waits] // 1_000)
        idle = ~waits & (needed_until > -_FAR_US)
        state.set_timer(idle, needed_until[idle] // 1_000)

    def _bounds(self, end: Index) -> pa.Array[Any]:
        bounds = [pa.array(each).cast(self._moment) for each in (end - self._size, end)]
        return pa.StructArray.from_arrays(bounds, names=["start", "end"])


class EventTumbling(EventSliding):
    """A window for every `size` of event time; `window` is a struct of its start and end."""

    def __init__(
        self,
        size: Duration,
        time_column: str,
        aggregates: Mapping[str, AggregateSpec],
        allowed_lateness: Duration = "0 seconds",
        start_time: Duration = "0 seconds",
        *,
        merge: bool = False,
    ) -> None:
        super().__init__(size, size, time_column, aggregates, allowed_lateness, start_time, merge=merge)


def _pending(state: States) -> Index:
    """The first end of a window, by key, that is not out yet; of those before it, any that had rows are."""
    return np.where(state[WAITS], state[NEXT], _FAR_US)


def _micros(ms: int) -> int:
    return max(-_FAR_US, min(ms * 1_000, _FAR_US))


def _pairs(codes: Index, start: Index, key_count: int) -> tuple[Index, Index, Index]:
    """The different (key, pane start) pairs among rows, and which of them each row is."""
    starts, which = np.unique(start, return_inverse=True)
    pair = codes * len(starts) + which
    space = key_count * len(starts)
    if space <= 8 * len(pair) + 1_024:  # dense enough to mark in a table, which saves a sort
        marks = np.zeros(space, np.bool_)
        marks[pair] = True
        pairs = np.flatnonzero(marks)
        of_row = (np.cumsum(marks) - 1)[pair]
    else:
        pairs, of_row = np.unique(pair, return_inverse=True)
    width = max(1, len(starts))
    return pairs // width, starts[pairs % width], of_row


def _following(low: Index, high: Index) -> Iterator[tuple[Index, Index]]:
    """For windows of the panes from `low` up to `high`: step by step, which have one more pane, and which it is."""
    for step in range(1, int((high - low).max(initial=0))):
        going = np.flatnonzero(high - low > step)
        yield going, low[going] + step


def _ranges(owners: Index, starts: Index, codes: Index, bounds: tuple[Index, Index]) -> tuple[Index, Index]:
    """For each key, which of its panes (sorted by owner and start) lie between the bounds."""
    different, which = np.unique(starts, return_inverse=True)
    width = len(different) + 1
    place = owners * width + which
    low, high = (np.searchsorted(place, codes * width + np.searchsorted(different, b)) for b in bounds)
    return low, high
