"""Ready windows: which rows they hold, when they leave, what they leave behind, and what is refused."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import DefinitionError, ProcessorFailed
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.rows import Outputs, Rows, Times
from godwit.runtime.processor.state_columns import Packer
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.windows import CountSliding, CountTumbling, EventSliding, EventTumbling
from godwit.windows.durations import duration_ms
from godwit.windows.window import Window

SCHEMA = pa.schema({"car": pa.string(), "ts": pa.timestamp("us", "UTC"), "speed": pa.float64(), "name": pa.string()})
N = {"n": ("count",)}
SUM = {"sum": ("sum", "speed")}


class Instance:
    """A window with its state; rows are (car, second, speed, name), the last ones may be left out."""

    def __init__(self, window: Window, schema: pa.Schema = SCHEMA) -> None:
        self.adapter = NativeAdapter(window, schema, ["car"])
        self.schema = schema
        codec = KeyCodec(pa.schema([schema.field("car")]))
        self.state = KeyedState(self.adapter.variables, codec, None, None)
        self.adapter.open(self.state)

    def push(self, *rows: Sequence[Any], mark_s: float = 0, late_s: float | None = None) -> list[tuple[Any, ...]]:
        late_ms = int((mark_s if late_s is None else late_s) * 1000)
        outputs = self.adapter.process(self.rows(rows), Times(0, int(mark_s * 1000), late_ms))
        self.state.commit()
        return plain(outputs)

    def rows(self, rows: Sequence[Sequence[Any]]) -> Rows:
        full = [(*row, *(None,) * (4 - len(row))) for row in rows]
        cells = [(car, None if s is None else moment(s), speed, name) for car, s, speed, name in full]
        columns = [pa.array([c[i] for c in cells], field.type) for i, field in enumerate(self.schema)]
        place: dict[Any, int] = {}
        codes = np.array([place.setdefault((row[0],), len(place)) for row in rows], np.int32)
        return Rows(pa.RecordBatch.from_arrays(columns, schema=self.schema), np.arange(len(rows)), list(place), codes)

    def advance(self, mark_s: float) -> list[tuple[Any, ...]]:
        mark_ms = int(mark_s * 1000)
        outputs = self.adapter.expire(self.state.due(mark_ms), Times(0, mark_ms))
        self.state.commit()
        return plain(outputs)

    def older(self, car: str) -> tuple[int, int]:
        """How many panes of a car are in the map, and how many its value says there are."""
        value = Packer(self.adapter.processor.state).unpack([self.state.value_get(0, (car,))])
        return len(list(self.state.map_items(1, (car,)))), int(value["older"][0])

    def moved(self, window: Window) -> Instance:
        other = Instance(window, self.schema)
        for batch in self.state.export(committed=False):
            other.state.replay(batch)
        return other


def moment(second: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(second, dt.UTC)


def plain(outputs: Outputs) -> list[tuple[Any, ...]]:
    """Output rows, event windows as (start, end) in seconds."""
    return [tuple(_seconds(value) for value in row.values()) for row in outputs.batch.to_pylist()]


def _seconds(value: Any) -> Any:
    return (value["start"].timestamp(), value["end"].timestamp()) if isinstance(value, dict) else value


def test_count_windows_leave_with_the_row_that_fills_them() -> None:
    instance = Instance(CountTumbling(2, N | SUM))
    assert instance.push(("a", 0, 1.0), ("b", 0, 10.0), ("a", 0, 2.0), ("a", 0, 3.0)) == [("a", 0, 2, 3.0)]
    rows = instance.rows([("b", 0, 20.0), ("a", 0, 4.0), ("a", 0, 5.0), ("a", 0, 6.0)])
    outputs = instance.adapter.process(rows, Times(0, 0))
    assert plain(outputs) == [("b", 0, 2, 30.0), ("a", 1, 2, 7.0), ("a", 2, 2, 11.0)]
    assert outputs.row_index.tolist() == [0, 1, 3]


def test_sliding_count_windows_hold_the_last_rows() -> None:
    instance = Instance(CountSliding(3, 1, {"all": ("collect", "speed"), "sum": ("sum", "speed")}))
    assert instance.push(("a", 0, 1.0), ("a", 0, 2.0)) == []
    assert instance.push(("a", 0, 3.0), ("a", 0, 4.0)) == [
        ("a", 0, [1.0, 2.0, 3.0], 6.0),
        ("a", 1, [2.0, 3.0, 4.0], 9.0),
    ]


@pytest.mark.parametrize(("size", "slide"), [(4, 2), (6, 4), (5, 3), (3, 3), (7, 1)])
def test_sliding_count_windows_go_on_for_long(size: int, slide: int) -> None:
    instance = Instance(CountSliding(size, slide, {"first": ("first", "speed"), "last": ("last", "speed")}))
    out = [row for i in range(100) for row in instance.push(("a", 0, float(i)))]
    assert out == [("a", j, float(j * slide), float(j * slide + size - 1)) for j in range((100 - size) // slide + 1)]


def test_count_windows_keep_no_more_than_the_panes_of_one_window() -> None:
    instance = Instance(CountSliding(10, 2, {"all": ("collect", "speed")}))
    sizes = set()
    for _ in range(20):
        instance.push(*[("a", 0, 1.5)] * 10)
        sizes.add(len(instance.state.value_get(0, ("a",)) or b""))
    assert len(sizes) <= 2  # a number that counts rows may take one more byte


def test_panes_in_order_need_no_map() -> None:
    instance = Instance(EventSliding("10 seconds", "5 seconds", "ts", N))
    for second in range(0, 100, 3):
        instance.push(("a", second), mark_s=max(0, second - 2))
        instance.advance(max(0, second - 2))
        assert instance.older("a") == (0, 0)


def test_a_pane_that_lost_its_slot_to_a_newer_one_is_still_there() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", SUM))
    instance.push(("a", 1, 1.0), ("a", 21, 2.0), ("a", 41, 4.0), ("b", 1, 8.0))
    instance.push(("a", 2, 16.0), ("a", 22, 32.0), ("a", 61, 64.0), ("a", 42, 128.0))
    assert instance.older("a") == (3, 3)
    assert sorted(instance.advance(30)) == [
        ("a", (0.0, 10.0), 17.0),
        ("a", (20.0, 30.0), 34.0),
        ("b", (0.0, 10.0), 8.0),
    ]
    assert instance.older("a") == (1, 1)
    assert instance.advance(70) == [("a", (40.0, 50.0), 132.0), ("a", (60.0, 70.0), 64.0)]
    assert instance.state.key_count == 0


def test_aggregates_follow_sparks_rules_for_nulls() -> None:
    functions = ("count", "sum", "avg", "min", "max", "first", "last", "collect")
    instance = Instance(CountTumbling(3, {f: (f, "speed") for f in functions} | {"rows": ("count",)}))
    out = instance.push(("a", 0, None), ("a", 0, 4.0), ("a", 0, 2.0), *[("b", 0, None)] * 3)
    assert out == [
        ("a", 0, 2, 6.0, 3.0, 2.0, 4.0, None, 2.0, [4.0, 2.0], 3),
        ("b", 0, 0, None, None, None, None, None, None, [], 3),
    ]


def test_nan_is_larger_than_any_number() -> None:
    instance = Instance(CountTumbling(2, {"min": ("min", "speed"), "max": ("max", "speed")}))
    out = instance.push(("a", 0, math.nan), ("a", 0, math.inf), ("b", 0, math.nan), ("b", 0, math.nan))
    assert out[0][2] == math.inf
    assert [math.isnan(out[i][j]) for i, j in ((0, 3), (1, 2), (1, 3))] == [True] * 3


def test_values_of_any_atomic_type_can_be_first_and_last() -> None:
    window = CountTumbling(
        2, {"first": ("first", "name"), "last": ("last", "ts"), "min": ("min", "ts"), "names": ("collect", "name")}
    )
    instance = Instance(window)
    instance.push(("a", 9, None, "x"))
    out = instance.push(("a", 5, None, "y"))
    assert out == [("a", 0, "x", moment(5), moment(5), ["x", "y"])]


def test_integers_sum_to_long_and_keep_their_type_as_extremes() -> None:
    schema = pa.schema({"car": pa.string(), "ts": pa.timestamp("us"), "speed": pa.int8(), "name": pa.string()})
    window = CountTumbling(2, {"sum": ("sum", "speed"), "max": ("max", "speed"), "avg": ("avg", "speed")})
    instance = Instance(window, schema)
    assert instance.adapter.output_schema.field("sum").type == pa.int64()
    assert instance.adapter.output_schema.field("max").type == pa.int8()
    assert instance.push(("a", 0, 100), ("a", 0, 101)) == [("a", 0, 201, 101, 100.5)]


@pytest.mark.parametrize("chunks", [[2], [1, 1]], ids=["one-chunk", "two-chunks"])
@pytest.mark.parametrize("window", [CountTumbling, lambda size, a: CountSliding(size, 1, a)])
def test_a_sum_beyond_a_long_is_an_error(window: Any, chunks: list[int]) -> None:
    schema = pa.schema({"car": pa.string(), "ts": pa.timestamp("us"), "speed": pa.int64(), "name": pa.string()})
    instance = Instance(window(2, SUM), schema)
    for count in chunks[:-1]:
        instance.push(*[("a", 0, 2**62)] * count)
    with pytest.raises(ProcessorFailed, match="64-bit"):
        instance.push(*[("a", 0, 2**62)] * chunks[-1])


def test_event_windows_close_when_the_watermark_reaches_their_end_with_no_row_of_the_key() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N))
    assert instance.push(("a", 0), ("a", 9.999), ("b", 10), ("a", 12)) == []
    assert instance.advance(9.999) == []
    assert instance.advance(10) == [("a", (0.0, 10.0), 2)]
    assert instance.advance(10) == []
    assert sorted(instance.advance(20)) == [("a", (10.0, 20.0), 1), ("b", (10.0, 20.0), 1)]


def test_event_windows_leave_nothing_behind() -> None:
    for lateness in ("0 seconds", "5 seconds"):
        instance = Instance(EventSliding("10 seconds", "4 seconds", "ts", N, lateness))
        instance.push(("a", 0), ("a", 30), ("b", 7))
        for second in range(0, 60, 7):
            instance.advance(second)
        assert instance.state.key_count == 0


def test_a_watermark_that_jumps_closes_all_windows_it_passes() -> None:
    instance = Instance(EventSliding("10 seconds", "5 seconds", "ts", N))
    instance.push(("a", 1), ("a", 6), ("a", 21))
    assert instance.advance(1000) == [
        ("a", (-5.0, 5.0), 1),
        ("a", (0.0, 10.0), 2),
        ("a", (5.0, 15.0), 1),
        ("a", (15.0, 25.0), 1),
        ("a", (20.0, 30.0), 1),
    ]


def test_windows_need_not_begin_at_the_epoch() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N, start_time="3 seconds"))
    instance.push(("a", 2), ("a", 3), ("a", -8), mark_s=-100)
    assert instance.advance(13) == [("a", (-17.0, -7.0), 1), ("a", (-7.0, 3.0), 1), ("a", (3.0, 13.0), 1)]


def test_a_row_behind_the_watermark_counts_while_its_window_is_open() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N))
    instance.push(("a", 2), mark_s=8)
    assert instance.advance(10) == [("a", (0.0, 10.0), 1)]


def test_rows_of_a_window_that_closes_with_their_batch_count() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N))
    instance.push(("a", 2), mark_s=25, late_s=9)
    assert instance.advance(25) == [("a", (0.0, 10.0), 1)]
    assert instance.adapter.late_rows == 0


def test_rows_too_late_for_all_their_windows_are_counted_and_leave_no_state() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N))
    instance.push(("a", 2), ("b", None), ("c", 12), mark_s=10)
    assert instance.adapter.late_rows == 2
    assert list(instance.state.keys()) == [("c",)]


def test_a_late_row_gives_out_its_window_again_updated() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N | SUM, allowed_lateness="5 seconds"))
    instance.push(("a", 1, 1.0))
    assert instance.advance(12) == [("a", (0.0, 10.0), 1, 1.0)]
    instance.push(("a", 2, 2.0), mark_s=12)
    instance.push(("a", 3, 4.0), mark_s=12)
    assert instance.advance(12) == [("a", (0.0, 10.0), 3, 7.0)]
    assert instance.advance(14.999) == []
    instance.push(("a", 4, 8.0), mark_s=14.999)
    assert instance.advance(14.999) == [("a", (0.0, 10.0), 4, 15.0)]
    assert instance.advance(15) == []
    instance.push(("a", 5, 16.0), mark_s=15)
    assert (instance.advance(15), instance.adapter.late_rows) == ([], 1)


def test_a_late_row_touches_only_its_own_windows() -> None:
    instance = Instance(EventSliding("10 seconds", "5 seconds", "ts", N, allowed_lateness="20 seconds"))
    instance.push(("a", 1), ("a", 6), ("a", 11))
    assert len(instance.advance(17)) == 3
    instance.push(("a", 2), mark_s=17)
    assert instance.advance(17) == [("a", (-5.0, 5.0), 2), ("a", (0.0, 10.0), 3)]
    assert instance.advance(20) == [("a", (10.0, 20.0), 1)]


def test_forgetting_a_late_window_gives_out_no_other() -> None:
    instance = Instance(EventTumbling("10 seconds", "ts", N, allowed_lateness="10 seconds"))
    instance.push(("a", 12))
    instance.advance(25)
    instance.push(("a", 2), mark_s=25, late_s=19)
    assert instance.advance(25) == [("a", (0.0, 10.0), 1)]


def test_windows_move_with_their_state() -> None:
    def event() -> Window:
        return EventSliding("10 seconds", "5 seconds", "ts", N | SUM)

    instance = Instance(event())
    instance.push(("a", 1, 1.0), ("a", 8, 2.0))
    target = instance.moved(event())
    target.push(("a", 9, 4.0))
    assert target.advance(10) == [("a", (-5.0, 5.0), 1, 1.0), ("a", (0.0, 10.0), 3, 7.0)]

    rows = Instance(CountSliding(4, 2, SUM))
    rows.push(*[("a", 0, float(i)) for i in range(5)])
    assert rows.moved(CountSliding(4, 2, SUM)).push(("a", 0, 5.0)) == [("a", 1, 14.0)]


def test_the_output_schema_is_inferred_from_the_input() -> None:
    schema = NativeAdapter(EventTumbling("1 day", "ts", N | SUM), SCHEMA, ["car"]).output_schema
    stamp = pa.timestamp("us", "UTC")
    assert schema.names == ["car", "window", "n", "sum"]
    assert schema.field("window").type == pa.struct({"start": stamp, "end": stamp})


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: CountTumbling(2, {"m": ("median", "speed")}), "unknown function 'median'"),
        (lambda: CountTumbling(2, {"m": ("avg",)}), "avg takes one column"),
        (lambda: CountTumbling(2, {"m": ("avg", "speed", "name")}), "avg takes one column"),
        (lambda: CountTumbling(2, ["avg"]), "does not name the columns of the output"),  # type: ignore[arg-type]
        (lambda: CountTumbling(2, {}), "at least one aggregate"),
        (lambda: CountTumbling(0, N), "size 0"),
        (lambda: CountTumbling(2.5, N), "size 2.5"),  # type: ignore[arg-type]
        (lambda: CountSliding(2, 3, N), "slide 3"),
        (lambda: EventSliding("1 second", "2 seconds", "ts", N), "longer than size"),
        (lambda: EventTumbling("ten seconds", "ts", N), "not a length of time"),
        (lambda: EventTumbling("1 month", "ts", N), "not a length of time"),
        (lambda: EventTumbling("0 seconds", "ts", N), "more than zero"),
        (lambda: EventTumbling("1500 microseconds", "ts", N), "whole number of milliseconds"),
        (lambda: EventTumbling("1 second", "ts", N, dt.timedelta(seconds=-1)), "at least zero"),
        (lambda: EventTumbling("1 second", "when", N), "no time column 'when'"),
        (lambda: EventTumbling("1 second", "speed", N), "not a timestamp"),
        (lambda: CountTumbling(2, {"m": ("avg", "velocity")}), "no column 'velocity'"),
        (lambda: CountTumbling(2, {"m": ("avg", "name")}), "avg does not take column 'name'"),
        (lambda: CountTumbling(2, {"m": ("max", "name")}), "max does not take column 'name'"),
        (lambda: CountTumbling(2, {"car": ("count",)}), "two columns 'car'"),
        (lambda: CountTumbling(2, {"window": ("count",)}), "two columns 'window'"),
    ],
)
def test_mistakes_are_told_at_definition(make: Any, complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        NativeAdapter(make(), SCHEMA, ["car"])


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10 seconds", 10_000),
        ("1 hour 30 minutes", 5_400_000),
        ("interval 2 days", 172_800_000),
        ("0.5 second", 500),
        (dt.timedelta(milliseconds=7), 7),
    ],
)
def test_durations_are_read(text: Any, ms: int) -> None:
    assert duration_ms(text, "size") == ms
