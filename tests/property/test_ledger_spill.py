"""A ledger that keeps next to nothing in memory answers as one that keeps everything, and as a dictionary would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from godwit.errors import NotReplayable
from godwit.state.ledger import TIMER_ROW, Entry, Ledger, in_row_order, with_rows

OUTPUT = pa.schema([("n", pa.int64()), ("text", pa.string())])
LANES = ("0", "1", "column-7")
ROWS = 40
Told = list[tuple[int, int, str]]  # outputs: row, n, text

lanes = st.sampled_from(LANES)
row_sets = st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=12).map(sorted)
key_sets = st.sets(st.integers(0, 4), max_size=4)


def hash_of(row: int) -> int:
    return row * row % 5


def check_of(row: int) -> int:
    return row - 20


def outputs_of(lane: str, row: int) -> Told:
    return [(row, row * 10 + n, f"{lane}/{row}") for n in range(row % 3)]


def batch_of(told: Told) -> pa.RecordBatch:
    columns = zip(*told, strict=True) if told else ((), (), ())
    kinds = with_rows(OUTPUT)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)


def entry_of(lane: str, rows: list[int]) -> Entry:
    hashes = np.array([hash_of(row) for row in rows], np.int64)
    outputs = batch_of([told for row in rows for told in outputs_of(lane, row)])
    return Entry(np.array(rows, np.int64), hashes, outputs, checks=np.array([check_of(row) for row in rows], np.int32))


def shown(batches: list[pa.RecordBatch]) -> Told:
    return [tuple(row.values()) for row in in_row_order(batches).to_pylist()] if batches else []


def selects(keys: set[int]) -> Callable[[Any], Any]:
    return lambda hashes: np.isin(hashes, list(keys))


def as_lanes(entries: Any) -> dict[str, tuple[list[tuple[int, int]], Told]]:
    """However the rows are divided into entries."""
    found: dict[str, tuple[list[tuple[int, int]], Told]] = {}
    for lane, entry in entries:
        applied, outputs = found.setdefault(lane, ([], []))
        applied += zip(entry.rows.tolist(), entry.hashes.tolist(), strict=True)
        assert not len(entry.rows) or entry.checks.tolist() == [check_of(row) for row in entry.rows.tolist()]
        outputs += shown([entry.outputs]) if len(entry.outputs) else []
    return {lane: (sorted(applied), sorted(outputs)) for lane, (applied, outputs) in found.items()}


class LedgerModel(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([0, 3_000, 9_000]))
    def start(self, limit: int) -> None:
        self.plain = Ledger(OUTPUT)
        self.small = Ledger(OUTPUT, limit)
        self.applied: dict[str, set[int]] = {lane: set() for lane in LANES}
        self.fired: dict[str, Told] = {lane: [] for lane in LANES}

    def both(self, ask: Callable[[Ledger], Any]) -> Any:
        plain, small = ask(self.plain), ask(self.small)
        assert plain == small
        return plain

    def told(self, lane: str, rows: Any) -> Told:
        return [told for row in sorted(rows) for told in outputs_of(lane, row)]

    # What an instance does

    @rule(lane=lanes, rows=row_sets, makes_room=st.booleans())
    def apply(self, lane: str, rows: list[int], makes_room: bool) -> None:
        if makes_room:
            self.small.make_room()
            assert self.small.memory_bytes <= max(self.small.memory_bytes_max, 600 * len(list(self.small.entries())))
        given, hashes = np.array(rows, np.int64), np.array([hash_of(row) for row in rows], np.int64)

        def unseen(ledger: Ledger) -> list[bool]:
            found = ledger.unseen(lane, given, hashes)
            return [True] * len(rows) if found is None else found.tolist()

        fresh = [row for row, new in zip(rows, self.both(unseen), strict=True) if new]
        assert fresh == [row for row in rows if row not in self.applied[lane]]
        again = np.array([row for row in rows if row not in fresh], np.int64)
        assert self.both(lambda ledger: shown(ledger.recorded(lane, again))) == self.told(lane, again.tolist())
        if fresh:
            entry = entry_of(lane, fresh)
            for ledger in (self.plain, self.small):
                ledger.record(lane, entry.within(entry.part("op", 0, lane)))
            self.applied[lane] |= set(fresh)

    @rule(lane=lanes, rows=row_sets)
    def a_row_with_another_key_is_refused(self, lane: str, rows: list[int]) -> None:
        given, hashes = np.array(rows, np.int64), np.array([hash_of(row) + 100 for row in rows], np.int64)
        known = [row for row in rows if row in self.applied[lane]]
        for ledger in (self.plain, self.small):
            if known:
                with pytest.raises(NotReplayable):
                    ledger.unseen(lane, given, hashes)
                with pytest.raises(NotReplayable):
                    ledger.unseen(lane, given, hashes - 100, given.astype(np.int32))
            else:
                assert ledger.unseen(lane, given, hashes) is None

    @rule(lane=lanes, times=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(sorted))
    def fire(self, lane: str, times: list[int]) -> None:
        told = [(TIMER_ROW + at, at, f"timer {len(self.fired[lane])}") for at in times]
        none = np.empty(0, np.int64)
        for ledger in (self.plain, self.small):
            ledger.record(lane, Entry(none, none, batch_of(told), f"host/{len(self.fired[lane])}"))
        self.fired[lane] += told

    @rule(lane=lanes, rows=row_sets)
    def take_over(self, lane: str, rows: list[int]) -> None:
        fresh = [row for row in rows if row not in self.applied[lane]]
        for ledger in (self.plain, self.small):
            taken = ledger.take_over(lane, entry_of(lane, rows))
            assert (taken is not None and taken.rows.tolist()) == (fresh or False)
            assert taken is None or shown([taken.outputs]) == self.told(lane, fresh)
        self.applied[lane] |= set(fresh)

    @rule(keys=key_sets)
    def drop(self, keys: set[int]) -> None:
        for ledger in (self.plain, self.small):
            ledger.drop(selects(keys))
        for lane in LANES:
            self.applied[lane] = {row for row in self.applied[lane] if hash_of(row) not in keys}

    @rule()
    def clear(self) -> None:
        for ledger in (self.plain, self.small):
            ledger.finished["0"] = 5
            ledger.clear()
            assert ledger.finished == {}
        assert self.small.memory_bytes == self.small.disk_bytes == 0
        self.applied = {lane: set() for lane in LANES}
        self.fired = {lane: [] for lane in LANES}

    # What has to hold

    @rule(keys=key_sets)
    def entries_of_keys_are_handed_over(self, keys: set[int]) -> None:
        found = self.both(lambda ledger: as_lanes(ledger.of(selects(keys))))
        assert {lane: [row for row, _ in applied] for lane, (applied, _) in found.items()} == {
            lane: mine
            for lane, rows in self.applied.items()
            if (mine := sorted(row for row in rows if hash_of(row) in keys))
        }

    @invariant()
    def timers_are_told_in_the_order_in_which_they_fired(self) -> None:
        for lane in LANES:
            found = self.both(lambda ledger, lane=lane: [shown([b]) for b in ledger.timer_outputs(lane)])
            assert [told for each in found for told in each] == self.fired[lane]
            firings = self.both(lambda ledger, lane=lane: ledger.firings(lane))
            assert [count for _, count in firings] == [len(each) for each in found]
        told = self.both(lambda ledger: as_lanes(ledger.timers()))
        assert {lane: outputs for lane, (_, outputs) in told.items()} == {
            lane: sorted(fired) for lane, fired in self.fired.items() if fired
        }

    @invariant()
    def all_entries_are_there(self) -> None:
        found = self.both(lambda ledger: as_lanes(ledger.entries()))
        for lane, rows in self.applied.items():
            applied, outputs = found.get(lane, ([], []))
            assert applied == [(row, hash_of(row)) for row in sorted(rows)]
            assert outputs == sorted([*self.fired[lane], *self.told(lane, rows)])
        assert self.both(lambda ledger: ledger.row_count) == sum(map(len, self.applied.values()))

    @invariant()
    def memory_is_what_is_counted(self) -> None:
        for ledger in (self.plain, self.small):
            stored = [each for lane in ledger.lanes.values() for each in lane._stored]
            assert ledger.memory_bytes == sum(each.size_bytes for each in stored)


TestLedgerModel = LedgerModel.TestCase
