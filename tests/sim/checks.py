"""What must hold (I1-I7 of docs/internals.md), as a user sees it: outputs that are committed, state in the end, who owns what.

What an operator should have put out is computed here from its committed inputs, batch by batch: first the timers that are due
(after the rows, if lanes are made by key), then the rows that are not late; of these, rows of a hot key are merged if the
operator declares a merge. How rows of several
lanes interleave is nobody's promise, so it is taken from the outputs.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

import pyarrow as pa

from godwit.model.ownership import Ownership
from godwit.model.watermark import BatchWatermark
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.codec import compile_codec
from tests.sim.flock import Flock
from tests.sim.kernel import Breach
from tests.sim.operators import BLOCK_ROWS, HOT_ROWS_MIN, NONE, Bells
from tests.sim.query import Committed, Output, Row, route_hash

LOOK_TURNS = 8
_VERSION = attrgetter("version")
_STATE = compile_codec(pa.schema(list(Bells.state.items())))


UNSEEN_MS = 150  # by so much the watermark of a query is ahead, because of rows that no operator gets to see


class EventTime:
    """Spark's watermark: rows up to `late_ms`, that of the batch before, are late, and timers fire up to it.

    The watermark of a query is one that hosts cannot compute from the rows that reach them.
    """

    def __init__(self, spec: OperatorSpec) -> None:
        self._delay_ms, self._lead = spec.delay_ms, min if spec.watermark_policy == "min" else max
        self._ahead_ms = UNSEEN_MS if spec.watermark_policy == "query" else 0
        self._lanes: dict[int, int] = {}
        self.watermark_ms = 0
        self.late_ms = 0

    def next_batch(self, inputs: dict[int, list[Row]]) -> None:
        for lane, rows in inputs.items():
            if rows:
                self._lanes[lane] = max(self._lanes.get(lane, 0), *(at_ms for _, _, at_ms in rows))
        self.late_ms = self.watermark_ms
        lead_ms = self._lead(self._lanes.values(), default=0)
        self.watermark_ms = max(self.watermark_ms, lead_ms - self._delay_ms + self._ahead_ms)

    def given(self) -> BatchWatermark:
        return BatchWatermark(self.watermark_ms, self.late_ms)


def merged(rows: list[Row]) -> list[Row]:
    """One row instead of those of a hot key, in the place of the last of them: the sum of numbers, the newest time."""
    places: dict[int, list[int]] = {}
    for place, (key, _, _) in enumerate(rows):
        places.setdefault(key, []).append(place)
    left: dict[int, Row] = dict(enumerate(rows))
    for key, of_key in places.items():
        if len(of_key) >= HOT_ROWS_MIN:
            some = [left.pop(place) for place in of_key]
            left[of_key[-1]] = key, sum(n for _, n, _ in some), max(at_ms for _, _, at_ms in some)
    return [row for _, row in sorted(left.items())]


class Checks:
    """Of one operator."""

    def __init__(self, flock: Flock, spec: OperatorSpec, keys: list[int]) -> None:
        self._flock, self._spec, self._operator, self._keys = flock, spec, spec.name, keys
        self._by_key = spec.partitions > 0
        self._time = EventTime(spec)
        flock.watermarks[spec.name] = self._time.given
        self._counts = dict.fromkeys(keys, 0)  # rows whose outputs are committed
        self._rings = dict.fromkeys(keys, 0)  # timers
        self._timers: dict[int, set[int]] = {key: set() for key in keys}  # that are to fire
        self._ownerships: list[Ownership] = []
        self._versions: list[int] = []

    def begins_with(self, initial: list[Row]) -> None:
        for key, number, _ in initial:
            self._counts[key] += number if self._spec.merge else 1

    # -- with every turn ---------------------------------------------------------------------------------------------

    def owners(self) -> None:
        """I1: no key is owned by two hosts. Looked at whenever a host has changed its mind about what it owns."""
        if self._flock.kernel.turns % LOOK_TURNS == 0:
            self._find_ownerships()
        versions = list(map(_VERSION, self._ownerships))
        if versions == self._versions:
            return
        self._versions = versions
        # A process that is taken for lost may go on; it is fenced, and what its memory says counts for nobody.
        up = set(self._flock.up()) - self._flock.recovering
        for key in self._keys:
            owners = [host for host in self._flock.owners(self._operator, route_hash(key)) if host in up]
            if len(owners) > 1:
                raise Breach("I1", f"{self._operator}: key {key} is owned by {' and '.join(owners)}")

    def _find_ownerships(self) -> None:
        """Hosts come and go seldom: they are not looked for with every turn."""
        found = [own for host in self._flock.up() if (own := self._flock.ownership(host, self._operator)) is not None]
        if [*map(id, found)] != [*map(id, self._ownerships)]:
            self._ownerships, self._versions = found, []

    # -- with every batch --------------------------------------------------------------------------------------------

    def committed(self, committed: Committed) -> None:
        """I2, I3: every timer that is due and every row has given its output once, in order, from the state it should see."""
        where = f"{self._operator}, batch {committed.batch}"
        rows, timers = {}, []
        for lane, outputs in committed.outputs.items():
            fired = [row for row in outputs if row["fires_ms"] != NONE]
            rows[lane] = [row for row in outputs if row["fires_ms"] == NONE]
            if outputs != ([*rows[lane], *fired] if self._by_key else [*fired, *rows[lane]]):
                raise Breach("I3", f"{where}, lane {lane}: timers leave {'before' if self._by_key else 'after'} rows")
            if self._by_key and any(route_hash(row["key"]) % self._spec.partitions != lane for row in fired):
                raise Breach("I3", f"{where}, lane {lane}: timers of another lane leave")
            timers += fired
        of_rows = [row for outputs in rows.values() for row in outputs]
        if self._by_key:
            self._check_rows(where, rows, committed.inputs)
            self._set(of_rows)
            self._check_timers(where, timers, committed)
            self._set(timers)
        else:
            self._check_timers(where, timers, committed)
            self._check_rows(where, rows, committed.inputs)
            self._set([*timers, *of_rows])
        self._time.next_batch(committed.inputs)

    def _set(self, outputs: list[Output]) -> None:
        for row in outputs:
            if row["sets_ms"] != NONE:
                self._timers[row["key"]].add(row["sets_ms"])

    def _check_timers(self, where: str, fired: list[Output], committed: Committed) -> None:
        """A timer fires in the first batch in which it is due and a lane has rows, before any row of its key is applied.

        If lanes are made by key, it fires in the first batch in which it is due, after all rows of its key.
        """
        found = Counter((row["key"], row["fires_ms"]) for row in fired)
        pending = {(key, at_ms) for key, timers in self._timers.items() for at_ms in timers}
        due_ms = self._due_ms(committed)
        if wrong := [timer for timer, times in found.items() if times > 1 or timer not in pending or timer[1] > due_ms]:
            raise Breach("I2", f"{where}: timers {wrong} fired twice, without having been set, or before {due_ms}")
        if missed := [timer for timer in pending - found.keys() if timer[1] <= due_ms]:
            raise Breach("I2", f"{where}: timers {missed} are due by {due_ms} and did not fire")
        for row in sorted(fired, key=lambda row: row["fires_ms"]):
            key = row["key"]
            self._rings[key] += 1
            self._timers[key].remove(row["fires_ms"])
            if (row["count"], row["rings"]) != (self._counts[key], self._rings[key]):
                raise Breach("I2", f"{where}: {row} saw another state than {self._counts[key]}, {self._rings[key]}")

    def _due_ms(self, committed: Committed) -> int:
        """Up to when timers fire. The time of a batch is when Spark first began it, in every run."""
        if not any(committed.inputs.values()) and not self._by_key:
            return 0
        if self._spec.time_mode != "eventTime":
            return committed.began_ms
        return self._time.watermark_ms if self._by_key else self._time.late_ms

    def _check_rows(self, where: str, lanes: dict[int, list[Output]], inputs: dict[int, list[Row]]) -> None:
        applied: dict[int, list[tuple[int, int]]] = {}
        for lane, outputs in lanes.items():
            if [(row["key"], row["n"], row["at"]) for row in outputs] != self._applied(inputs[lane]):
                raise Breach("I2", f"{where}, lane {lane}: outputs are not those of its rows, each once, in order")
            last: dict[int, int] = {}
            for row in outputs:
                key, count, weight = row["key"], row["count"], row["n"] if self._spec.merge else 1
                if count < last.get(key, 0) + weight:
                    raise Breach("I3", f"{where}, lane {lane}: key {key} emits {count} after {last[key]}")
                if row["rings"] != self._rings[key]:
                    raise Breach("I2", f"{where}, lane {lane}: {row} saw other timers than {self._rings[key]}")
                last[key] = count
                applied.setdefault(key, []).append((count - weight, count))
        for key, steps in applied.items():
            for before, after in sorted(steps):
                if before != self._counts[key]:
                    raise Breach("I2", f"{where}: key {key} emits {sorted(steps)}, {self._counts[key]} was before")
                self._counts[key] = after

    def _applied(self, rows: list[Row]) -> list[Row]:
        """The rows that an operator gets to see: those in time, merged block by block."""
        if not self._spec.merge:
            return self._in_time(rows)
        if self._by_key:
            return merged(self._in_time(rows))
        blocks = [rows[begin : begin + BLOCK_ROWS] for begin in range(0, len(rows), BLOCK_ROWS)]
        return [row for block in blocks for row in merged(self._in_time(block))]

    def _in_time(self, rows: list[Row]) -> list[Row]:
        by_event = self._spec.time_mode == "eventTime"
        return [row for row in rows if row[2] > self._time.late_ms] if by_event else rows

    # -- at the end --------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """I4, I5: state is as without moves. I6: nothing else is left."""
        for key in self._keys:
            owners = self._flock.owners(self._operator, route_hash(key))
            if len(owners) != 1:
                raise Breach("I6", f"{self._operator}: key {key} is owned by {owners}")
            state, wanted = (
                self._state(owners[0], key),
                (self._counts[key], self._rings[key], sorted(self._timers[key])),
            )
            if state != wanted:
                raise Breach("I4", f"{self._operator}: key {key} ends with {state} at {owners[0]}, not {wanted}")
            for host in self._flock.left():
                if host != owners[0] and self._state(host, key) != (0, 0, []):
                    raise Breach("I6", f"{self._operator}: {host} has a copy of key {key}, which it does not own")

    def _state(self, host: str, key: int) -> tuple[int, int, list[int]]:
        state = self._flock.shared(host, self._operator).instance.state
        payload = state.value_get(0, (key,))
        count, rings = (0, 0) if payload is None else _STATE.decode(payload)
        return count, rings, state.timer_list((key,))
