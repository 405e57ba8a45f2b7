"""Native processors through their adapter: state as columns, timers, outputs, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import DefinitionError, OutputMismatch, ProcessorFailed, StateTypeError
from godwit.runtime.processor.native import NativeAdapter, Processor, Timers
from godwit.runtime.processor.rows import Outputs, Rows, Times, column, running_sum
from godwit.runtime.processor.states_of_keys import States
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec

CARS = pa.schema({"car": pa.string(), "speed": pa.float64()})
NOW = Times(processing_ms=0, watermark_ms=0)
FORM = {"in_columns": False}


@pytest.fixture(params=[False, True], ids=["by-key", "in-columns"], autouse=True)
def in_columns(request: pytest.FixtureRequest) -> None:
    """Every test is run with both forms of a table in memory."""
    FORM["in_columns"] = request.param


def group(batch: pa.RecordBatch, codec: KeyCodec) -> Rows:
    place: dict[Any, int] = {}
    keys = codec.from_arrow([batch.column(name) for name in codec.schema.names])
    codes = np.array([place.setdefault(key, len(place)) for key in keys], np.int32)
    return Rows(batch, np.arange(len(codes)) * 10, list(place), codes)


class Instance:
    """A processor with its state, and chunks as lists of rows."""

    def __init__(self, processor: Processor, schema: pa.Schema = CARS, keys: Sequence[str] = ("car",)) -> None:
        self.schema = schema
        self.adapter = NativeAdapter(processor, schema, keys)
        self.codec = KeyCodec(pa.schema([schema.field(name) for name in keys]))
        self.state = KeyedState(self.adapter.variables, self.codec, **FORM)
        self.adapter.open(self.state)

    def rows(self, rows: Sequence[tuple[Any, ...]]) -> Rows:
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(self.schema)]
        return group(pa.RecordBatch.from_arrays(columns, schema=self.schema), self.codec)

    def push(self, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        outputs = self.adapter.process(self.rows(rows), NOW)
        self.state.commit()
        return values(outputs)

    def fire(self, until_ms: int) -> Outputs:
        outputs = self.adapter.expire(self.state.due(until_ms), Times(0, until_ms))
        self.state.commit()
        return outputs


def values(outputs: Outputs) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in outputs.batch.to_pylist()]


class KeyCount(Processor):
    state = pa.schema({"n": pa.int64()})
    output_schema = pa.schema({"car": pa.string(), "n": pa.int64()})

    def process(self, rows: Rows, state: States, times: Times) -> Outputs:
        n = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, n=n)


class MeanSpeed(Processor):
    state = pa.schema({"total": pa.float64(), "n": pa.int64()})
    output_schema = pa.schema({"car": pa.string(), "mean": pa.float64()})

    def process(self, rows: Rows, state: States, times: Times) -> Outputs:
        total = running_sum(rows, column(rows.batch, "speed"), state["total"])
        n = state["n"][rows.codes] + rows.rank + 1
        state["total"], state["n"] = total[rows.last], state["n"] + rows.counts
        return self.emit(rows, mean=total / n)


class Custom(Processor):
    """What a test wants done with the state, giving out nothing."""

    output_schema = pa.schema({"car": pa.string()})

    def __init__(self, work: Any, state: dict[str, pa.DataType]) -> None:
        self.work = work
        self.state = state

    def process(self, rows: Rows, state: States, times: Times) -> Outputs | None:
        result: Outputs | None = self.work(self, rows, state)
        return result


def test_state_goes_on_from_chunk_to_chunk() -> None:
    instance = Instance(KeyCount())
    assert instance.push(("a", 0.0), ("b", 0.0), ("a", 0.0)) == [("a", 1), ("b", 1), ("a", 2)]
    assert instance.push(("b", 0.0), ("c", 0.0), ("a", 0.0)) == [("b", 2), ("c", 1), ("a", 3)]


def test_outputs_carry_the_index_of_their_row() -> None:
    instance = Instance(KeyCount())
    outputs = instance.adapter.process(instance.rows([("a", 0.0), ("b", 0.0)]), NOW)
    assert outputs.row_index.tolist() == [0, 10]


def test_a_chunk_rolled_back_leaves_state_as_it_was() -> None:
    instance = Instance(KeyCount())
    instance.push(("a", 0.0))
    instance.adapter.process(instance.rows([("a", 0.0)]), NOW)
    instance.state.rollback()
    assert instance.push(("a", 0.0)) == [("a", 2)]


def test_state_moves_as_changes() -> None:
    origin, target = Instance(MeanSpeed()), Instance(MeanSpeed())
    origin.push(("a", 1.0), ("b", 5.0), ("a", 2.0))
    for batch in origin.state.export(committed=False):
        target.state.replay(batch)
    assert target.push(("a", 3.0), ("b", 7.0)) == [("a", 2.0), ("b", 6.0)]


def test_new_keys_are_told_and_start_at_zero() -> None:
    seen: list[Any] = []

    def look(processor: Custom, rows: Rows, state: States) -> None:
        seen.append((state.is_new.tolist(), state["n"].tolist(), state["name"].tolist()))
        state["n"] = 0  # kept, though it is what a new key has

    instance = Instance(Custom(look, {"n": pa.int64(), "name": pa.string()}))
    instance.push(("a", 0.0))
    instance.push(("b", 0.0), ("a", 0.0))
    assert seen == [([True], [0], [None]), ([True, False], [0, 0], [None, None])]


def test_fields_of_varying_width_are_object_columns() -> None:
    def remember(processor: Custom, rows: Rows, state: States) -> None:
        seen.append(state["names"].tolist())
        for position in range(len(rows.keys)):
            state["names"][position] = [*(state["names"][position] or ()), f"row {rows.counts[position]}"]
        state["n"] += rows.counts

    seen: list[Any] = []
    instance = Instance(Custom(remember, {"n": pa.int32(), "names": pa.list_(pa.string())}))
    for _ in range(2):
        instance.push(("a", 0.0), ("b", 0.0), ("a", 0.0))
    assert [[list(names or ()) for names in chunk] for chunk in seen] == [[[], []], [["row 2"], ["row 1"]]]


@pytest.mark.parametrize("given", [np.zeros(3), np.array(["x"]), np.array([300])], ids=["shape", "type", "range"])
def test_state_that_does_not_fit_is_refused_with_the_field(given: Any) -> None:
    def assign(processor: Custom, rows: Rows, state: States) -> None:
        state["small"] = given

    with pytest.raises(StateTypeError) as caught:
        Instance(Custom(assign, {"small": pa.int8()})).push(("a", 0.0))
    assert caught.value.fields["field"] == "small"


def test_an_unknown_state_field_is_named() -> None:
    with pytest.raises(ProcessorFailed, match=r"'m'.*Declared: n"):
        Instance(Custom(lambda *given: given[2]["m"], {"n": pa.int64()})).push(("a", 0.0))


def test_removed_keys_are_gone_and_the_others_written() -> None:
    def count_to_two(processor: Custom, rows: Rows, state: States) -> None:
        state["n"] += rows.counts
        state.remove(state["n"] >= 2)

    instance = Instance(Custom(count_to_two, {"n": pa.int64()}))
    instance.push(("a", 0.0), ("b", 0.0))
    instance.push(("a", 0.0))
    assert list(instance.state.keys()) == [("b",)]


def test_only_changed_keys_are_written() -> None:
    def bump(processor: Custom, rows: Rows, state: States) -> None:
        state["n"][np.array([key == ("a",) for key in rows.keys])] += 1

    instance = Instance(Custom(bump, {"n": pa.int64()}))
    instance.push(("a", 0.0), ("b", 0.0))
    instance.adapter.process(instance.rows([("a", 0.0), ("b", 0.0)]), NOW)
    assert len(instance.state.commit()) == 1


class Alarm(Processor):
    """Rings at the times that come as speeds; counts its rings."""

    state = pa.schema({"rings": pa.int64()})
    output_schema = pa.schema({"car": pa.string(), "at": pa.int64(), "rings": pa.int64()})

    def process(self, rows: Rows, state: States, times: Times) -> None:
        state.set_timer(rows.codes, column(rows.batch, "speed").astype(np.int64))

    def on_timer(self, timers: Timers, state: States, times: Times) -> Outputs:
        rings = state["rings"][timers.codes] + timers.rank + 1
        state["rings"] += timers.counts
        state.remove(state["rings"] >= 3)
        return self.emit(timers, at=timers.expiry_ms, rings=rings)


def test_timers_that_are_due_fire_once_in_order() -> None:
    instance = Instance(Alarm())
    instance.push(("b", 20.0), ("a", 10.0), ("a", 20.0), ("a", 30.0))
    outputs = instance.fire(20)
    assert values(outputs) == [("a", 10, 1), ("a", 20, 2), ("b", 20, 1)]
    assert outputs.row_index.tolist() == [0, 1, 2]
    assert instance.state.due(29) == []
    assert values(instance.fire(30)) == [("a", 30, 3)]
    assert list(instance.state.keys()) == [("b",)]


def test_timers_can_be_listed_and_deleted() -> None:
    seen = []

    def rearrange(processor: Custom, rows: Rows, state: States) -> None:
        state.set_timer(slice(None), 50)
        state.set_timer(np.array([True, False]), 20)
        state.delete_timer([0], 50)
        seen.extend([state.timers(0), state.timers(1)])

    Instance(Custom(rearrange, {"n": pa.int64()})).push(("a", 0.0), ("b", 0.0))
    assert seen == [[20], [50]]


def test_a_timer_for_a_key_with_no_state_keeps_none() -> None:
    class Quiet(Alarm):
        def on_timer(self, timers: Timers, state: States, times: Times) -> None:
            assert state["rings"].tolist() == [0]

    instance = Instance(Quiet())
    instance.push(("a", 5.0))
    instance.state.value_clear(0, ("a",))
    instance.state.commit()
    instance.fire(5)
    assert instance.state.key_count == 0


def test_timers_without_on_timer_are_an_error() -> None:
    instance = Instance(Custom(lambda *given: given[2].set_timer([0], 1), {"n": pa.int64()}))
    instance.push(("a", 0.0))
    with pytest.raises(ProcessorFailed, match="on_timer"):
        instance.fire(1)


def test_key_columns_of_timers_have_the_types_of_the_input() -> None:
    schema = pa.schema({"day": pa.date32(), "at": pa.timestamp("us", "UTC"), "speed": pa.float64()})

    class Echo(Alarm):
        output_schema = pa.schema({"day": pa.date32(), "at": pa.timestamp("us", "UTC")})

        def on_timer(self, timers: Timers, state: States, times: Times) -> Outputs:
            return self.emit(timers)

    instance = Instance(Echo(), schema, ["day", "at"])
    key = (dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC))
    instance.push((*key, 7.0))
    assert values(instance.fire(7)) == [key]


@pytest.mark.parametrize(
    ("emit", "complaint"),
    [
        (lambda p, rows: p.emit(rows, speedy=[1]), "speedy"),
        (lambda p, rows: p.emit(rows, n=[1, 2, 3]), "3 values for 1 rows"),
        (lambda p, rows: p.emit(rows, n=["x"]), "must be int64"),
        (lambda p, rows: p.emit(rows), "'n' is neither"),
        (lambda *given: given[1], "what emit"),
    ],
    ids=["unknown", "length", "type", "missing", "not-outputs"],
)
def test_outputs_that_do_not_match_are_refused(emit: Any, complaint: str) -> None:
    class Wrong(KeyCount):
        def process(self, rows: Rows, state: States, times: Times) -> Any:
            return emit(self, rows)

    with pytest.raises(OutputMismatch, match=complaint):
        Instance(Wrong()).push(("a", 0.0))


def test_emit_at_gives_rows_for_some_positions_and_copies_input_columns() -> None:
    class Fast(Processor):
        output_schema = CARS

        def process(self, rows: Rows, state: States, times: Times) -> Outputs:
            return self.emit_at(rows, np.flatnonzero(column(rows.batch, "speed") > 1))

    instance = Instance(Fast())
    outputs = instance.adapter.process(instance.rows([("a", 1.0), ("b", 2.0), ("c", 3.0)]), NOW)
    assert (values(outputs), outputs.row_index.tolist()) == ([("b", 2.0), ("c", 3.0)], [10, 20])


def test_masked_values_become_nulls() -> None:
    class Half(KeyCount):
        def process(self, rows: Rows, state: States, times: Times) -> Outputs:
            return self.emit(rows, n=np.ma.masked_array([1, 2], [False, True]))

    assert Instance(Half()).push(("a", 0.0), ("b", 0.0)) == [("a", 1), ("b", None)]


def test_definitions_are_checked_against_the_input() -> None:
    with pytest.raises(DefinitionError, match="'bus'"):
        NativeAdapter(KeyCount(), CARS, ["bus"])
    with pytest.raises(DefinitionError, match="output_schema"):
        NativeAdapter(Processor(), CARS, ["car"])


def test_columns_with_nulls_need_a_fill() -> None:
    batch = pa.record_batch({"x": pa.array([1, None]), "t": pa.array([0, 10**6], pa.timestamp("us"))})
    assert column(batch, "x", fill=-1).tolist() == [1, -1]
    assert column(batch, "t").tolist() == [0, 10**6]
    with pytest.raises(ProcessorFailed, match="'x' holds nulls"):
        column(batch, "x")
    with pytest.raises(ProcessorFailed, match="no column 'y'"):
        column(batch, "y")


def test_initial_rows_set_up_state() -> None:
    class Started(KeyCount):
        def initialise(self, rows: Rows, state: States, times: Times) -> None:
            state["n"] = column(rows.batch, "speed").astype(np.int64)

    instance = Instance(Started())
    instance.adapter.initialise(instance.rows([("a", 40.0)]), NOW)
    assert instance.push(("a", 0.0)) == [("a", 41)]
    with pytest.raises(DefinitionError, match="initial"):
        Instance(KeyCount()).adapter.initialise(instance.rows([("a", 40.0)]), NOW)


def test_an_adapter_can_be_shipped() -> None:
    class Local(KeyCount):
        pass

    adapter = cloudpickle.loads(cloudpickle.dumps(NativeAdapter(Local(), CARS, ["car"])))
    state = KeyedState(adapter.variables, KeyCodec(pa.schema([CARS.field("car")])), None, None)
    adapter.open(state)
    rows = group(pa.RecordBatch.from_pylist([{"car": "a", "speed": 1.0}], schema=CARS), state.key_codec)
    assert values(adapter.process(rows, NOW)) == [("a", 1)]


@pytest.mark.parametrize("cut", [0, 1, 17, 150, 299])
def test_running_sums_are_the_same_to_the_last_bit_however_rows_are_cut(cut: int) -> None:
    generator = np.random.default_rng(7)
    cars = [f"c{int(c)}" for c in np.minimum(generator.zipf(1.5, 300), 40)]
    rows = list(zip(cars, (generator.random(300) * 10.0 ** generator.integers(-8, 8, 300)).tolist(), strict=True))
    totals: dict[str, tuple[float, int]] = {}
    expected = []
    for car, speed in rows:
        total, n = totals.get(car, (0.0, 0))
        totals[car] = total + speed, n + 1
        expected.append((car, (total + speed) / (n + 1)))
    instance = Instance(MeanSpeed())
    first = instance.push(*rows[:cut]) if cut else []
    assert first + instance.push(*rows[cut:]) == expected
