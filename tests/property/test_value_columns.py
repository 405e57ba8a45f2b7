"""Values in columns against values in dictionaries: the same reads, changes, exports and before-images, whatever is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from godwit.state.changes import COLUMN_OP
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key, KeyCodec, KeyColumns
from godwit.state.variables import Variable

SCHEMA = pa.schema([("x", pa.int64())])
ZERO = bytes(9)
VALUE, OTHER = 0, 1
VARIABLES = [Variable("state", "value", SCHEMA), Variable("other", "value", SCHEMA)]
SCHEMAS = {
    "number": pa.schema([("n", pa.int64())]),
    "numbers": pa.schema([("n", pa.int32()), ("day", pa.date32()), ("on", pa.bool_())]),
    "text": pa.schema([("name", pa.string())]),
}
MAKE = {
    "number": lambda n: (None if n == 9 else n * 2**40,),
    "numbers": lambda n: (n, -n, None if n == 9 else n % 2 == 0),
    "text": lambda n: (f"key {n}",),
}
COUNT = 12

numbers = st.integers(0, COUNT - 1)
some = st.lists(numbers, max_size=6, unique=True)
some_again = st.lists(numbers, max_size=8)
values = st.integers(-2, 2)
seeds = st.integers(0, 1000)


class TwoForms(RuleBasedStateMachine):
    """What is done to both: `plain` has dictionaries, `columns` has columns."""

    @initialize(kind=st.sampled_from(sorted(SCHEMAS)))
    def begin(self, kind: str) -> None:
        self.codec = KeyCodec(SCHEMAS[kind])
        self.kind = kind
        self.plain = KeyedState(VARIABLES, self.codec)
        self.columns = KeyedState(VARIABLES, self.codec, in_columns=True)
        self.restores: list[tuple[Any, Any]] = []

    def keys(self, of: Sequence[int]) -> list[Key]:
        return [MAKE[self.kind](n) for n in of]

    def both(self, do: Any) -> Any:
        plain, columns = do(self.plain), do(self.columns)
        assert plain == columns
        return plain

    @rule(of=some, seed=seeds, as_columns=st.booleans(), var=st.sampled_from([VALUE, OTHER]), skip=st.integers(0, 3))
    def read_and_write(self, of: list[int], seed: int, as_columns: bool, var: int, skip: int) -> None:
        keys: Any = self.keys(of)
        if as_columns and keys:
            keys = KeyColumns(self.codec, self.codec.to_arrow(keys))
        positions = np.arange(len(of))[skip:]
        payloads = np.random.default_rng(seed).integers(0, 3, (len(of), 9)).astype(np.uint8)

        def do(state: KeyedState) -> Any:
            before, there = state.value_read(var, keys, ZERO)
            state.value_write(var, keys, positions, payloads[positions])
            return before.tolist(), there.tolist()

        self.both(do)

    @rule(of=some_again, value=values)
    def put(self, of: list[int], value: int) -> None:
        payload = bytes([value % 256]) * 9
        self.both(lambda state: [state.value_put(VALUE, key, payload) for key in self.keys(of)])

    @rule(of=some_again)
    def clear(self, of: list[int]) -> None:
        self.both(lambda state: [state.value_clear(VALUE, key) for key in self.keys(of)])

    @rule(n=numbers, at_ms=st.integers(0, 3))
    def set_timer(self, n: int, at_ms: int) -> None:
        self.both(lambda state: state.timer_put(self.keys([n])[0], at_ms))

    @rule()
    def commit(self) -> None:
        self.restores.clear()
        self.both(lambda state: sorted_rows(state.commit().to_batch(self.codec)))

    @rule()
    def rollback(self) -> None:
        self.restores.clear()
        self.both(KeyedState.rollback)

    @rule(of=some)
    def savepoint(self, of: list[int]) -> None:
        keys = self.keys(of)
        self.restores.append((self.plain.savepoint(keys), self.columns.savepoint(keys)))

    @rule()
    def restore(self) -> None:
        if self.restores:
            for each in self.restores.pop():
                each()

    @rule(saved=some, of=some, seed=seeds)
    def try_and_restore(self, saved: list[int], of: list[int], seed: int) -> None:
        self.savepoint(saved)
        self.read_and_write(of, seed, False, VALUE, 0)
        self.restore()

    @rule()
    def settle(self) -> None:
        self.both(KeyedState.settle)

    @rule(of=some)
    def settle_keys(self, of: list[int]) -> None:
        self.both(lambda state: state.settle_keys(self.keys(of)))

    @rule(of=some)
    def drop(self, of: list[int]) -> None:
        self.rollback()
        self.both(lambda state: sorted_rows(state.drop(self.keys(of)).to_batch(self.codec)))

    @rule()
    def begin_anew(self) -> None:
        self.rollback()
        keys = sorted(self.both(lambda state: state.touched()), key=repr)
        self.both(lambda state: sorted(row for batch in state.stage_revert(keys) for row in sorted_rows(batch)))
        self.commit()
        self.both(lambda state: state.settle_keys(keys))

    @rule(of=some)
    def move_keys(self, of: list[int]) -> None:
        """To a host that has nothing: the present state of the keys, and their state from before the batch."""
        self.rollback()
        keys = self.keys(of)
        for from_columns, into_columns in ((True, True), (True, False), (False, True)):
            origin = self.columns if from_columns else self.plain
            target = KeyedState(VARIABLES, self.codec, in_columns=into_columns)
            for batch in origin.export_keys(keys, 2, 1 << 20):
                target.replay(batch)
            target.settle_keys(keys)
            for batch in origin.export_committed(keys, 2, 1 << 20):
                target.amend(batch)
            for committed in (True, False):
                mine = [row for row in shown(origin, committed) if row[0] in set(map(repr, keys))]
                assert shown(target, committed) == mine

    @invariant()
    def the_same_is_seen(self) -> None:
        every = self.keys(range(COUNT))
        self.both(lambda state: state.value_get_many(VALUE, every))
        self.both(lambda state: [state.value_get(OTHER, key) for key in every])
        self.both(lambda state: [state.contains(key) for key in every])
        self.both(lambda state: state.key_count)
        self.both(lambda state: set(state.keys()))
        self.both(KeyedState.touched)
        self.both(lambda state: set(state.gone()))
        for committed in (True, False):
            self.both(lambda state, committed=committed: shown(state, committed))


def sorted_rows(batch: pa.RecordBatch) -> list[Any]:
    return sorted(map(repr, zip(*[column.to_pylist() for column in batch.columns], strict=True)))


def shown(state: KeyedState, committed: bool) -> list[tuple[str, str]]:
    width = len(state.key_codec.schema)
    rows = [
        row for batch in state.export(committed) for row in zip(*[c.to_pylist() for c in batch.columns], strict=True)
    ]
    return sorted((repr(tuple(row[:width])), repr(row[width:])) for row in rows)


TestTwoForms = TwoForms.TestCase
TestTwoForms.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("kind", ["number", "text"])
def test_many_keys_keep_their_values_through_growth_removal_and_new_numbers(kind: str) -> None:
    codec = KeyCodec(SCHEMAS[kind])
    state = KeyedState(VARIABLES, codec, in_columns=True)
    generator = np.random.default_rng(3)
    model: dict[Key, bytes] = {}
    make: Any = (lambda n: (n << 32,)) if kind == "number" else (lambda n: (f"key {n}",))
    for turn in range(40):
        keys = [make(int(n)) for n in np.unique(generator.integers(0, 20_000, 3_000))]
        if turn % 3 == 2:
            state.drop(keys[:: 1 if turn > 20 else 2])
            for key in keys[:: 1 if turn > 20 else 2]:
                model.pop(key, None)
        else:
            payloads = generator.integers(0, 255, (len(keys), 9)).astype(np.uint8)
            state.value_write(VALUE, keys, np.arange(len(keys)), payloads)
            state.commit()
            model.update(zip(keys, map(bytes, payloads), strict=True))
        state.settle()
        if turn == 30:
            state.drop(list(model)[500:])
            model = dict(list(model.items())[:500])
            state.settle()
        assert state.key_count == len(model)
        every = list(model)
        assert state.value_get_many(VALUE, every) == list(model.values())
    assert set(state.keys()) == set(model)
    assert not state.contains(make(10**6))


def test_changes_of_fixed_width_have_the_form_of_other_changes() -> None:
    codec = KeyCodec(SCHEMAS["number"])
    batches = []
    for in_columns in (True, False):
        state = KeyedState(VARIABLES, codec, in_columns=in_columns)
        state.value_write(VALUE, [(5,), (6,)], np.arange(2), np.arange(18).astype(np.uint8).reshape(2, 9))
        state.commit()
        state.value_clear(VALUE, (5,))
        state.value_put(VALUE, (7,), b"x" * 9)
        batches.append(state.commit().to_batch(codec))
    assert batches[0].equals(batches[1])
    assert batches[0].columns[COLUMN_OP].to_pylist() == [2, 0]
