"""PySpark processors on chunks: who is called with what, in which order, and what an error says."""

import datetime as dt
import pickle
import threading
from typing import Any
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.errors import (
    DefinitionError,
    OutputMismatch,
    ProcessorFailed,
    StateTooLarge,
    StateTypeError,
    from_json,
)
from godwit.runtime.processor.rows import Adapter, Outputs, Rows, Times
from godwit.spark.pyspark_api.call_settings import CallSettings
from godwit.spark.pyspark_api.stateful import PandasAdapter, RowAdapter, describe
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec

KEY = pa.schema([("key", pa.string())])
OUT = pa.schema([("key", pa.string()), ("n", pa.int64())])
TIMES = Times(processing_ms=5000, watermark_ms=3000)


class Bench:
    """A processor on a host: described, shipped and opened, with empty state."""

    def __init__(
        self,
        flavour: type[Any],
        processor: StatefulProcessor,
        keys: pa.Schema = KEY,
        out: pa.Schema = OUT,
        **options: Any,
    ) -> None:
        time_mode, tz = options.get("time_mode", "none"), options.get("tz", "UTC")
        self.codec = KeyCodec(keys, tz)
        declared = describe(processor, time_mode)
        made: Adapter = flavour(processor, declared.variables, keys, out, CallSettings(**options))
        self.adapter: Adapter = pickle.loads(cloudpickle.dumps(made))
        self.state = KeyedState(declared.variables, self.codec)
        self.adapter.open(self.state)

    def chunk(self, batch: pa.RecordBatch, row_index: Any = None) -> Rows:
        columns = [batch.column(batch.schema.get_field_index(name)) for name in self.codec.schema.names]
        keys = self.codec.from_arrow(columns)
        first = list(dict.fromkeys(keys))
        codes = np.array([first.index(key) for key in keys], np.int32)
        return Rows(batch, np.arange(len(keys)) if row_index is None else np.asarray(row_index), first, codes)

    def run(self, **columns: Any) -> list[tuple[int, dict[str, Any]]]:
        batch = pa.RecordBatch.from_pydict(columns)
        return pairs(self.adapter.process(self.chunk(batch), TIMES))


def pairs(outputs: Outputs) -> list[tuple[int, dict[str, Any]]]:
    return list(zip(outputs.row_index.tolist(), outputs.batch.to_pylist(), strict=True))


class Count(StatefulProcessor):
    """Counts rows; in the Row flavour it gives one output for each row, in the pandas flavour one frame a call."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def before(self) -> int:
        old = self.seen.get()
        return old[0] if old else 0


class RowCount(Count):
    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            assert row.key == key[0]
            self.seen.update((self.before() + 1,))
            yield Row(key=key[0], n=self.before())


class PandasCount(Count):
    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            assert set(frame["key"]) == {key[0]}
            start = self.before()
            self.seen.update((start + len(frame),))
            yield pd.DataFrame({"key": key[0], "n": np.arange(start + 1, start + len(frame) + 1)})


BOTH = pytest.mark.parametrize(("flavour", "count"), [(RowAdapter, RowCount), (PandasAdapter, PandasCount)])


@BOTH
def test_each_key_is_called_once_and_its_outputs_leave_after_its_last_row(flavour, count):
    bench = Bench(flavour, count())
    batch = pa.RecordBatch.from_pydict({"key": ["b", "a", "b", "a", "c"], "v": [1, 2, 3, 4, 5]})
    outputs = bench.adapter.process(bench.chunk(batch, [10, 11, 15, 20, 21]), TIMES)
    assert outputs.batch.schema == OUT
    assert pairs(outputs) == [
        (15, {"key": "b", "n": 1}),
        (15, {"key": "b", "n": 2}),
        (20, {"key": "a", "n": 1}),
        (20, {"key": "a", "n": 2}),
        (21, {"key": "c", "n": 1}),
    ]


@BOTH
def test_state_is_staged_until_it_is_committed(flavour, count):
    bench = Bench(flavour, count())
    assert bench.run(key=["a", "a"])[-1] == (1, {"key": "a", "n": 2})
    bench.state.rollback()
    assert bench.run(key=["a"]) == [(0, {"key": "a", "n": 1})]
    bench.state.commit()
    assert bench.run(key=["a"]) == [(0, {"key": "a", "n": 2})]


@BOTH
@given(chunks=st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), max_size=4))
def test_any_chunks_count_like_a_dict(flavour, count, chunks):
    bench = Bench(flavour, count())
    model: dict[str, int] = {}
    for keys in chunks:
        expected: dict[str, list[int]] = {}
        for key in keys:
            model[key] = model.get(key, 0) + 1
            expected.setdefault(key, []).append(model[key])
        got: dict[str, list[int]] = {}
        for row, output in bench.run(key=keys):
            got.setdefault(output["key"], []).append(output["n"])
            assert row == len(keys) - 1 - keys[::-1].index(output["key"])
        assert got == expected
        bench.state.commit()


class Lazy(StatefulProcessor):
    """Reads state only when its output is iterated, and only some of its input."""

    def init(self, handle):
        self.last = handle.getValueState("last", "v long")

    def handleInputRows(self, key, rows, timerValues):
        first = next(rows)
        return (self.row(key, first) for _ in range(2))

    def row(self, key, first):
        old = self.last.get()
        self.last.update((first.v,))
        return Row(key=key[0], n=old[0] if old else None)


def test_lazy_output_sees_its_own_key_and_unread_rows_do_not_reach_the_next():
    bench = Bench(RowAdapter, Lazy())
    outputs = bench.run(key=["a", "a", "a", "b", "c"], v=[1, 2, 3, 4, 5])
    assert [(o["key"], o["n"]) for _, o in outputs] == [
        ("a", None),
        ("a", 1),
        ("b", None),
        ("b", 4),
        ("c", None),
        ("c", 5),
    ]


class Calls(StatefulProcessor):
    """Writes down how it is called."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def init(self, handle):
        self.handle = handle
        self.log.append("init")

    def handleInputRows(self, key, rows, timerValues):
        given = list(rows)
        self.log.append((key, given, timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()))
        return iter([])

    def handleInitialState(self, key, initialState, timerValues):
        self.log.append((key, initialState))

    def close(self):
        self.log.append("close")


def opened(flavour: type[Any], processor: StatefulProcessor, **options: Any) -> Bench:
    """Not shipped: the test looks into the processor that runs."""
    bench = Bench(flavour, processor, **options)
    bench.adapter._processor = processor
    bench.adapter.open(bench.state)
    return bench


@pytest.mark.feature(
    "life of a processor",
    "`init` and `close`",
    spark="around every batch of every partition",
    godwit="once per instance on a host, and once on the driver",
)
def test_init_and_close_are_called_once_and_the_users_object_is_left_alone_by_describe():
    processor = Calls()
    describe(processor)
    assert processor.log == []
    bench = opened(RowAdapter, processor)
    bench.run(key=["a"])
    bench.run(key=["b"])
    bench.adapter.close()
    bench.adapter.close()
    assert [entry for entry in processor.log if isinstance(entry, str)] == ["init", "close"]


@pytest.mark.parametrize(
    ("time_mode", "told"), [("none", (-1, -1)), ("processingTime", (5000, 3000)), ("eventTime", (5000, 3000))]
)
def test_timer_values_are_those_of_the_batch_and_unknown_without_a_time_mode(time_mode, told):
    processor = Calls()
    opened(RowAdapter, processor, time_mode=time_mode).run(key=["a"])
    assert processor.log[-1][2:] == told


def test_rows_hold_all_columns_the_key_too_and_frames_as_well():
    rows, frames = Calls(), Calls()
    opened(RowAdapter, rows).run(key=["a", "a"], v=[1, None])
    assert rows.log[-1][:2] == (("a",), [Row(key="a", v=1), Row(key="a", v=None)])
    opened(PandasAdapter, frames).run(key=["a", "b", "a"], v=[1, 2, 3])
    (frame,) = frames.log[1][1]
    pd.testing.assert_frame_equal(frame, pd.DataFrame({"key": ["a", "a"], "v": [1, 3]}))


INSTANT = dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC)  # the second 02:30 of that night in Rome


@pytest.mark.parametrize(
    ("flavour", "instant"),
    [
        (RowAdapter, INSTANT.astimezone(ZoneInfo("Europe/Rome"))),
        (PandasAdapter, pd.Timestamp("2024-10-27 02:30")),
    ],
)
def test_keys_are_tuples_of_what_spark_gives(flavour, instant):
    keys = pa.schema(
        [("i", pa.int32()), ("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("w", pa.timestamp("us"))]
    )
    processor = Calls()
    bench = opened(flavour, processor, keys=keys, tz="Europe/Rome")
    wall = INSTANT.replace(tzinfo=None)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([v], t) for v, t in zip((7, INSTANT.date(), INSTANT, wall), keys.types, strict=True)], schema=keys
    )
    bench.adapter.process(bench.chunk(batch), TIMES)
    (key, *_) = processor.log[-1]
    assert key == (7, INSTANT.date(), instant, wall)
    assert type(key[2]) is type(instant)
    assert key[2].utcoffset() == instant.utcoffset()


def test_a_null_in_a_key_is_none():
    processor = Calls()
    opened(RowAdapter, processor).run(key=pa.array(["a", None], pa.string()))
    assert [entry[0] for entry in processor.log[1:]] == [("a",), (None,)]


def test_initial_state_comes_row_by_row_or_as_one_frame_for_each_key():
    batch = pa.RecordBatch.from_pydict({"key": ["a", "b", "a"], "v": [1, 2, 3]})
    rows, frames = Calls(), Calls()
    for flavour, processor in ((RowAdapter, rows), (PandasAdapter, frames)):
        bench = opened(flavour, processor)
        bench.adapter.initialise(bench.chunk(batch), TIMES)
    assert rows.log[1:] == [(("a",), Row(key="a", v=1)), (("a",), Row(key="a", v=3)), (("b",), Row(key="b", v=2))]
    assert [(key, frame["v"].tolist()) for key, frame in frames.log[1:]] == [(("a",), [1, 3]), (("b",), [2])]


# --- timers


class Timed(StatefulProcessor):
    """Each row sets timers at its numbers; a timer says how many timers its key still has."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.registerTimer(row.v)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        assert timerValues.getCurrentWatermarkInMs() == 3000
        yield Row(key=key[0], n=expiredTimerInfo.getExpiryTimeInMs())
        yield Row(key=key[0], n=len(list(self.handle.listTimers())))


def test_timers_fire_in_order_and_are_gone_after_their_outputs():
    bench = Bench(RowAdapter, Timed(), time_mode="eventTime")
    bench.run(key=["a", "b", "a"], v=[100, 50, 200])
    bench.state.commit()
    due = bench.state.due(150)
    assert pairs(bench.adapter.expire(due, TIMES)) == [
        (0, {"key": "b", "n": 50}),
        (0, {"key": "b", "n": 1}),
        (1, {"key": "a", "n": 100}),
        (1, {"key": "a", "n": 2}),
    ]
    bench.state.commit()
    assert bench.state.due(1000) == [(200, ("a",))]


class PandasTimed(Timed):
    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            self.handle.registerTimer(int(frame["v"].max()))
            yield pd.DataFrame()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"key": [key[0]], "n": [expiredTimerInfo.getExpiryTimeInMs()]})


def test_pandas_timers_fire_too():
    bench = Bench(PandasAdapter, PandasTimed(), time_mode="processingTime")
    assert bench.run(key=["a", "a"], v=[100, 300]) == []
    bench.state.commit()
    assert pairs(bench.adapter.expire(bench.state.due(300), TIMES)) == [(0, {"key": "a", "n": 300})]


def test_a_processor_without_a_timer_handler_just_loses_its_timer():
    class Silent(RowCount):
        pass

    bench = Bench(RowAdapter, Silent(), time_mode="processingTime")
    bench.state.timer_put(("a",), 1)
    bench.state.commit()
    assert pairs(bench.adapter.expire([(1, ("a",))], TIMES)) == []
    bench.state.commit()
    assert bench.state.next_timer_ms() is None


# --- errors


def broken(key: str) -> int:
    raise ValueError(f"no luck with {key}")


class Broken(RowCount):
    def handleInputRows(self, key, rows, timerValues):
        yield from super().handleInputRows(key, rows, timerValues)
        if key[0] == "b":
            broken(key[0])


def test_an_exception_names_the_key_and_shows_the_users_frames_only():
    bench = Bench(RowAdapter, Broken())
    with pytest.raises(ProcessorFailed) as caught:
        bench.run(key=["a", "b", "c"])
    error = caught.value
    assert error.fields["key"] == ("b",)
    assert error.fields["exception"] == "ValueError"
    assert "handleInputRows raised ValueError: no luck with b" in error.message
    assert isinstance(error.__cause__, ValueError)
    assert "in broken" in error.fields["trace"]
    assert "in handleInputRows" in error.fields["trace"]
    assert "stateful.py" not in error.fields["trace"]
    assert "convert.py" not in error.fields["trace"]
    assert bench.adapter.current_key is None
    assert from_json(error.to_json()).fields["trace"] == error.fields["trace"]


def test_a_processor_goes_on_after_it_failed():
    bench = Bench(RowAdapter, Broken())
    with pytest.raises(ProcessorFailed):
        bench.run(key=["a", "b"])
    bench.state.rollback()
    assert bench.run(key=["a"]) == [(0, {"key": "a", "n": 1})]


class FailsIn(StatefulProcessor):
    """Fails in one of its methods, or in none."""

    def __init__(self, method: str) -> None:
        self.method = method

    def step(self, method: str) -> None:
        if method == self.method:
            raise KeyError(method)

    def init(self, handle):
        self.step("init")

    def handleInputRows(self, key, rows, timerValues):
        next(rows)
        return iter([next(rows)])  # there is no second row: StopIteration

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.step("handleExpiredTimer")
        return iter([])

    def handleInitialState(self, key, initialState, timerValues):
        self.step("handleInitialState")

    def close(self):
        self.step("close")


@pytest.mark.parametrize("method", ["init", "close"])
def test_what_fails_on_the_driver_fails_at_definition(method):
    with pytest.raises(ProcessorFailed, match=f"{method} raised KeyError"):
        describe(FailsIn(method))


def test_failures_of_every_method_say_which():
    rows = pa.RecordBatch.from_pydict({"key": ["a"]})

    def bench(method: str) -> Bench:
        made = Bench(RowAdapter, FailsIn(""), time_mode="eventTime")
        made.adapter._processor.method = method
        return made

    with pytest.raises(ProcessorFailed, match="handleInputRows raised StopIteration"):
        bench("").run(key=["a"])
    with pytest.raises(ProcessorFailed, match="handleExpiredTimer raised KeyError"):
        bench("handleExpiredTimer").adapter.expire([(5, ("a",))], TIMES)
    initial = bench("handleInitialState")
    with pytest.raises(ProcessorFailed, match="handleInitialState raised KeyError"):
        initial.adapter.initialise(initial.chunk(rows), TIMES)
    with pytest.raises(ProcessorFailed, match="close raised KeyError"):
        bench("close").adapter.close()
    again = bench("init")
    with pytest.raises(ProcessorFailed, match="init raised KeyError"):
        again.adapter.open(again.state)


class Misuses(Count):
    def __init__(self, misuse: str) -> None:
        self.misuse = misuse

    def init(self, handle):
        super().init(handle)
        self.handle = handle
        if self.misuse == "state in init":
            self.seen.get()

    def handleInputRows(self, key, rows, timerValues):
        match self.misuse:
            case "wrong type":
                self.seen.update(("many",))
            case "timer":
                self.handle.registerTimer(5)
            case "late":
                self.handle.getValueState("more", "n long")
        return iter([])


@pytest.mark.parametrize(
    ("misuse", "error", "says"),
    [
        ("wrong type", StateTypeError, "int64"),
        ("timer", DefinitionError, "timeMode"),
        ("late", DefinitionError, "outside of init"),
    ],
)
def test_misuse_of_state_keeps_its_own_error_with_key_and_the_users_line(misuse, error, says):
    with pytest.raises(error, match=says) as caught:
        Bench(RowAdapter, Misuses(misuse)).run(key=["a"])
    assert caught.value.fields["key"] == ("a",)
    assert "test_stateful_adapters.py" in caught.value.fields["trace"]
    assert "handle.py" not in caught.value.fields["trace"]


def test_state_used_in_init_is_refused_at_definition():
    with pytest.raises(DefinitionError, match="outside"):
        describe(Misuses("state in init"))


class Big(Count):
    def init(self, handle):
        self.text = handle.getValueState("text", "s string")

    def handleInputRows(self, key, rows, timerValues):
        self.text.update(("x" * 1000,))
        return iter([])


def test_state_over_the_limit_is_refused():
    with pytest.raises(StateTooLarge) as caught:
        Bench(RowAdapter, Big(), value_bytes_max=999).run(key=["a"])
    assert (caught.value.fields["variable"], caught.value.fields["key"]) == ("text", ("a",))
    assert Bench(RowAdapter, Big()).run(key=["a"]) == []


class Wrong(StatefulProcessor):
    def __init__(self, outputs: dict[str, Any]) -> None:
        self.outputs = outputs

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        return iter([self.outputs[key[0]]])


@pytest.mark.parametrize(
    ("flavour", "good", "bad"),
    [
        (RowAdapter, Row(key="x", n=1), Row(key="x", n="one")),
        (RowAdapter, Row(key="x", n=1), Row(key="x")),
        (RowAdapter, Row(key="x", n=1), "no row"),
        (PandasAdapter, pd.DataFrame({"key": ["x"], "n": [1]}), pd.DataFrame({"key": ["x"], "n": ["one"]})),
        (PandasAdapter, pd.DataFrame({"key": ["x"], "n": [1]}), pd.DataFrame({"key": ["x"]})),
    ],
)
def test_output_that_does_not_fit_names_the_key_that_gave_it(flavour, good, bad):
    out = pa.schema([("key", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    bench = Bench(flavour, Wrong({"a": good, "b": bad, "c": good}), out=out)
    with pytest.raises(OutputMismatch) as caught:
        bench.run(key=["a", "b", "c"])
    assert caught.value.fields["key"] == ("b",)


# --- definition and shipping


def test_describe_gives_variables_and_removed_names():
    class Evolved(RowCount):
        def init(self, handle):
            handle.deleteIfExists("older")
            super().init(handle)

    declared = describe(Evolved())
    assert [(v.name, v.kind) for v in declared.variables] == [("seen", "value")]
    assert declared.removed == ("older",)


def test_only_stateful_processors_and_known_time_modes_are_taken():
    with pytest.raises(DefinitionError, match="StatefulProcessor"):
        describe(object())
    with pytest.raises(DefinitionError, match="timeMode"):
        describe(RowCount(), "sometimes")


def test_an_adapter_is_not_usable_before_it_is_open():
    adapter = RowAdapter(RowCount(), (), KEY, OUT)
    assert adapter.current_key is None
    with pytest.raises(DefinitionError, match="not open"):
        adapter.expire([], TIMES)
    adapter.close()


class Two(StatefulProcessor):
    def init(self, handle):
        self.one = handle.getValueState("one", "n long")
        self.two = handle.getValueState("two", "n long")

    def handleInputRows(self, key, rows, timerValues):
        self.two.update((2,))
        return iter([])


def test_state_made_by_an_older_definition_may_keep_its_variables_in_another_order():
    bench = Bench(RowAdapter, Two())
    state = KeyedState(bench.adapter.variables[::-1], bench.codec)
    bench.adapter.open(state)
    bench.run(key=["a"])
    assert state.value_get(0, ("a",)) is not None
    assert state.value_get(1, ("a",)) is None


class KeepsALock(RowCount):
    """Opens what cannot be pickled in init, as PySpark asks for."""

    def init(self, handle):
        super().init(handle)
        self.lock = threading.Lock()


def test_an_adapter_is_shipped_before_it_opens_anything():
    assert Bench(RowAdapter, KeepsALock()).run(key=["a"]) == [(0, {"key": "a", "n": 1})]


class Peeks(RowCount):
    def __init__(self) -> None:
        self.adapter: Any = None
        self.peeked: list[Any] = []

    def handleInputRows(self, key, rows, timerValues):
        self.peeked.append(self.adapter.current_key)
        yield from super().handleInputRows(key, rows, timerValues)


def test_an_observer_sees_which_key_is_worked_on():
    processor = Peeks()
    bench = opened(RowAdapter, processor)
    processor.adapter = bench.adapter
    bench.run(key=["a", "b"])
    assert processor.peeked == [("a",), ("b",)]
    assert bench.adapter.current_key is None
