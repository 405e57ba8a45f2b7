"""Keyed state against plain dictionaries: its views, what it logs, and that spilling changes nothing."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from godwit.state.changes import latest
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.variables import Variable

KEY_SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])
CODEC = KeyCodec(KEY_SCHEMA)
SCHEMA = pa.schema([("x", pa.int64())])
TTL_MS = 100
VARIABLES = [
    Variable("value", "value", SCHEMA),
    Variable("brief value", "value", SCHEMA, ttl_ms=TTL_MS),
    Variable("list", "list", SCHEMA),
    Variable("brief list", "list", SCHEMA, ttl_ms=TTL_MS),
    Variable("map", "map", SCHEMA, SCHEMA),
    Variable("brief map", "map", SCHEMA, SCHEMA, ttl_ms=TTL_MS),
]
VALUES, LISTS, MAPS, BRIEF = [0, 1], [2, 3], [4, 5], [1, 3, 5]
KEYS = [("a", 1), (None, 0), ("long" * 200, 7)]
TIMES = [5, 10, 120, -3]

keys = st.sampled_from(KEYS)
key_lists = st.lists(keys, max_size=3, unique=True)
values, lists, maps = (st.sampled_from(of_kind) for of_kind in (VALUES, LISTS, MAPS))
payloads = st.binary(min_size=1, max_size=8)
elements = st.lists(payloads, max_size=3)
subs = st.sampled_from([b"p", b"q", b"r"])
times = st.sampled_from(TIMES)

# What a processor does with the state: the name of a method and its arguments.
steps = st.one_of(
    st.tuples(st.just("value_put"), values, keys, payloads),
    st.tuples(st.just("value_put_many"), values, key_lists, payloads),
    st.tuples(st.just("value_clear"), values, keys),
    st.tuples(st.just("list_put"), lists, keys, elements),
    st.tuples(st.just("list_append"), lists, keys, elements),
    st.tuples(st.just("list_append"), lists, keys, elements),
    st.tuples(st.just("list_clear"), lists, keys),
    st.tuples(st.just("map_put"), maps, keys, subs, payloads),
    st.tuples(st.just("map_put_again"), maps, keys, subs, payloads),
    st.tuples(st.just("map_remove"), maps, keys, subs),
    st.tuples(st.just("map_clear"), maps, keys),
    st.tuples(st.just("timer_put"), keys, times),
    st.tuples(st.just("timer_put"), keys, times),
    st.tuples(st.just("timer_remove"), keys, times),
)


@dataclass
class Model:
    """State as plain dictionaries; a payload of a brief variable stands beside its expiry."""

    values: dict = field(default_factory=dict)
    lists: dict = field(default_factory=dict)
    maps: dict = field(default_factory=dict)
    timers: dict = field(default_factory=dict)

    def view(self, now_ms: int) -> dict:
        """What is there to be read, by (variable, key)."""
        seen = {at: payload for at, (payload, expiry) in self.values.items() if expiry > now_ms}
        for at, elements in self.lists.items():
            seen[at] = [payload for payload, expiry in elements if expiry > now_ms]
        for at, entries in self.maps.items():
            seen[at] = [(sub, payload) for sub, (payload, expiry) in entries.items() if expiry > now_ms]
        for key, expiries in self.timers.items():
            seen["timers", key] = sorted(expiries)
        return {place: what for place, what in seen.items() if what}


EVERYWHERE = [(var, key) for var in (*VALUES, *LISTS, *MAPS, "timers") for key in KEYS]


def view_of(state: KeyedState, places=EVERYWHERE) -> dict:
    seen: dict = {}
    for var, key in places:
        if var in VALUES:
            seen[var, key] = state.value_get(var, key)
        elif var in LISTS:
            seen[var, key] = state.list_get(var, key)
        elif var in MAPS:
            items = seen[var, key] = list(state.map_items(var, key))
            assert state.map_exists(var, key) == bool(items)
            assert [state.map_get(var, key, sub) for sub, _ in items] == [payload for _, payload in items]
        else:
            seen[var, key] = state.timer_list(key)
    return {place: what for place, what in seen.items() if what}


def unordered(view: dict) -> dict:
    return {at: dict(what) if at[0] in MAPS else what for at, what in view.items()}


class KeyedStateModel(RuleBasedStateMachine):
    @initialize(spills=st.booleans())
    def start(self, spills: bool) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.limit = 1_500 if spills else None  # a handful of entries
        self.state = self.new_state()
        self.now_ms = 0
        self.log: list[pa.RecordBatch] = []
        self.staged, self.merged, self.committed = Model(), Model(), Model()

    def teardown(self) -> None:
        self.state.close()
        self.scratch.cleanup()

    def new_state(self) -> KeyedState:
        return KeyedState(VARIABLES, CODEC, Path(self.scratch.name), self.limit)

    def stamped(self, var: int, payload: bytes) -> tuple[bytes, float]:
        return payload, float("inf") if VARIABLES[var].ttl_ms is None else self.now_ms + TTL_MS

    # What a processor does, to the state and to the model

    def value_put(self, var, key, payload):
        self.state.value_put(var, key, payload)
        self.staged.values[var, key] = self.stamped(var, payload)

    def value_put_many(self, var, some, payload):
        self.state.value_put_many(var, some, [payload + b"%d" % i for i in range(len(some))])
        for i, key in enumerate(some):
            self.staged.values[var, key] = self.stamped(var, payload + b"%d" % i)

    def value_clear(self, var, key):
        self.state.value_clear(var, key)
        self.staged.values.pop((var, key), None)

    def list_put(self, var, key, elements):
        self.state.list_put(var, key, elements)
        self.staged.lists[var, key] = [self.stamped(var, e) for e in elements]

    def list_append(self, var, key, elements):
        self.state.list_append(var, key, elements)
        self.staged.lists.setdefault((var, key), []).extend(self.stamped(var, e) for e in elements)

    def list_clear(self, var, key):
        self.state.list_clear(var, key)
        self.staged.lists.pop((var, key), None)

    def map_put(self, var, key, sub, payload):
        self.state.map_put(var, key, sub, payload)
        entries = self.staged.maps.setdefault((var, key), {})
        if sub in entries and entries[sub][1] <= self.now_ms:
            del entries[sub]
        entries[sub] = self.stamped(var, payload)

    def map_put_again(self, var, key, sub, payload):
        self.map_remove(var, key, sub)
        self.map_put(var, key, sub, payload)

    def map_remove(self, var, key, sub):
        self.state.map_remove(var, key, sub)
        self.staged.maps.get((var, key), {}).pop(sub, None)

    def map_clear(self, var, key):
        self.state.map_clear(var, key)
        self.staged.maps.pop((var, key), None)

    def timer_put(self, key, at_ms):
        self.state.timer_put(key, at_ms)
        self.staged.timers.setdefault(key, set()).add(at_ms)

    def timer_remove(self, key, at_ms):
        self.state.timer_remove(key, at_ms)
        self.staged.timers.get(key, set()).discard(at_ms)

    # What an instance does

    @rule(
        chunk=st.lists(steps, min_size=2, max_size=12), end=st.sampled_from(["commit", "commit", "settle", "rollback"])
    )
    def process(self, chunk, end):
        for name, *arguments in chunk:
            getattr(self, name)(*arguments)
            self.check_view(name, *arguments)
        if end == "rollback":
            self.rollback()
        else:
            self.commit()
        if end == "settle":
            self.state.settle()
            self.committed = copy.deepcopy(self.merged)

    @rule(some=key_lists)
    def drop(self, some):
        self.log.append(self.state.drop(some).to_batch(CODEC))
        for part in (self.staged.values, self.staged.lists, self.staged.maps):
            for at in [at for at in part if at[1] in some]:
                del part[at]
        for key in some:
            self.staged.timers.pop(key, None)
        self.merged = copy.deepcopy(self.staged)

    @rule(step_ms=st.sampled_from([1, 60, 60, 150]), fails=st.booleans())
    def time_passes(self, step_ms, fails):
        self.now_ms += step_ms
        self.state.now_ms = self.now_ms
        self.state.expire_ttl(self.now_ms)
        if fails:
            self.rollback()
            self.state.expire_ttl(self.now_ms)
        self.commit()
        self.check_nothing_expired_stays()

    @rule(step_ms=st.sampled_from([1, 60, 150]))
    def time_passes_unseen(self, step_ms):
        self.now_ms += step_ms
        self.state.now_ms = self.now_ms

    def commit(self):
        self.log.append(self.state.commit().to_batch(CODEC))
        self.merged = copy.deepcopy(self.staged)

    def rollback(self):
        self.state.rollback()
        self.staged = copy.deepcopy(self.merged)

    # What has to hold

    def check_view(self, name, *arguments):
        """Looks only at what was written, because reading keeps things in memory."""
        where = ("timers", *arguments)[:2] if name.startswith("timer") else arguments[:2]
        if name != "value_put_many":
            assert view_of(self.state, [where]).get(where) == self.staged.view(self.now_ms).get(where)

    def check_nothing_expired_stays(self):
        live_of: dict = {}
        for batch in self.state.export(committed=False):
            for row in batch.to_pylist():
                if row["var"] in BRIEF:
                    expiry = int.from_bytes(row["value"][:8], "little", signed=True)
                    live_of.setdefault((row["var"], row["name"]), []).append(expiry > self.now_ms)
        for (var, _), live in live_of.items():
            assert 2 * sum(live) > len(live) if var in LISTS else all(live)

    @rule()
    def all_is_seen_as_the_model_has_it(self):
        assert view_of(self.state) == self.staged.view(self.now_ms)
        for var in VALUES:
            assert self.state.value_get_many(var, KEYS) == [self.state.value_get(var, key) for key in KEYS]

    @invariant()
    def keys_are_those_with_state(self):
        found = list(self.state.keys())
        assert len(found) == len(set(found)) == self.state.key_count
        assert [key for key in KEYS if self.state.contains(key)] == [key for key in KEYS if key in found]
        assert {at[1] for at in self.merged.view(self.now_ms)} <= set(found) <= {at[1] for at in self.merged.view(-1)}
        assert (self.state.bytes_estimate > 0) == bool(found)

    @invariant()
    def due_timers_are_those_merged(self):
        merged = [(at_ms, key) for key, expiries in self.merged.timers.items() for at_ms in expiries]
        for until_ms in TIMES:
            due = sorted((t for t in merged if t[0] <= until_ms), key=lambda t: (t[0], CODEC.pack(t[1])))
            assert self.state.due(until_ms) == due
        assert self.state.next_timer_ms() == min((at_ms for at_ms, _ in merged), default=None)

    @invariant()
    def exports_show_the_merged_and_the_committed_state(self):
        assert self.restored(list(self.state.export(committed=False))) == self.merged.view(self.now_ms)
        batches = list(self.state.export(committed=True, rows_max=2))
        assert all(batch.num_rows <= 2 for batch in batches)
        assert unordered(self.restored(batches)) == unordered(self.committed.view(self.now_ms))

    @invariant()
    def the_log_brings_everything_back(self):
        assert self.restored(self.log) == self.merged.view(self.now_ms)

    @rule(data=st.data())
    def what_still_matters_of_the_log_brings_everything_back(self, data):
        cut = data.draw(st.integers(0, len(self.log)))
        older = self.compacted(self.log[:cut], keep_removals=False)
        newer = self.compacted(self.log[cut:], keep_removals=True)
        assert self.restored(self.compacted(self.log, keep_removals=False)) == self.merged.view(self.now_ms)
        assert self.restored(older + newer) == self.merged.view(self.now_ms)

    def compacted(self, batches: list[pa.RecordBatch], keep_removals: bool) -> list[pa.RecordBatch]:
        if not batches:
            return []
        return latest(pa.Table.from_batches(batches), KEY_SCHEMA.names, keep_removals).to_batches()

    def restored(self, batches: list[pa.RecordBatch]) -> dict:
        """What a fresh state shows after replaying these."""
        state = self.new_state()
        state.now_ms = self.now_ms
        for batch in batches:
            state.replay(batch)
        assert list(state.export(committed=True)) == []
        view = view_of(state)
        state.close()
        return view


TestKeyedStateModel = KeyedStateModel.TestCase
