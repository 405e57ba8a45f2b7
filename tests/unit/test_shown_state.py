"""State as `Flock.state` shows it: windows as a list of their panes with times and aggregates, timers as timestamps."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

import godwit
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.states_of_keys import States
from godwit.spark.checkpoint.shown_state import shown_columns, shown_rows, shown_schema
from godwit.testing import Tester
from godwit.windows import CountSliding, CountTumbling, EventSliding, EventTumbling

DAY = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def minute(count: float) -> dt.datetime:
    return DAY + dt.timedelta(minutes=count)


def shown(tester: Tester) -> dict[Any, dict[str, Any]]:
    spec, changes = tester._spec, list(tester._instance.state.export(committed=False))
    rows = [row for part in shown_rows(spec, changes, "host-0", 1) for row in part.to_pylist()]
    assert all(list(row) == shown_schema(spec).names for row in rows)
    return {row["car"]: row for row in rows}


def drive(processor: Any, schema: str, rows: list[dict[str, Any]], **options: Any) -> Tester:
    tester = Tester(processor, schema, "car", **options)
    tester.process(rows)
    return tester


def test_tumbling_windows_are_a_list_with_start_end_and_aggregates() -> None:
    window = EventTumbling("10 minutes", "at", {"n": ("count",), "mean": ("avg", "speed"), "cars": ("collect", "word")})
    rows = [
        {"car": "a", "at": minute(m), "speed": s, "word": w}
        for m, s, w in ((1, 10.0, "x"), (2, 30.0, "y"), (15, 7.0, None))
    ]
    options = {"timeMode": "eventTime", "eventTime": "at", "delay_ms": 3_600_000}
    found = shown(drive(window, "car string, at timestamp, speed double, word string", rows, **options))["a"]
    assert found["windows"] == [
        {"start": DAY, "end": minute(10), "rows": 2, "n": 2, "mean": 20.0, "cars": ["x", "y"]},
        {"start": minute(10), "end": minute(20), "rows": 1, "n": 1, "mean": 7.0, "cars": []},
    ]
    assert found["next_end"] == minute(10)
    assert found["timers"] == [minute(10)]


def test_sliding_windows_show_their_panes_also_those_that_lost_their_slot() -> None:
    window = EventSliding("10 minutes", "5 minutes", "at", {"rows": ("count",), "start": ("sum", "speed")})
    rows = [{"car": "a", "at": minute(m), "speed": float(m)} for m in (1, 6, 7, 200, 16)]
    options = {"timeMode": "eventTime", "eventTime": "at", "delay_ms": 36_000_000}
    tester = drive(window, "car string, at timestamp, speed double", rows, **options)
    panes = shown(tester)["a"]["panes"]
    assert [(pane["start"], pane["end"], pane["rows"], pane["start_value"]) for pane in panes] == [
        (minute(0), minute(5), 1, 1.0),
        (minute(5), minute(10), 2, 13.0),
        (minute(15), minute(20), 1, 16.0),
        (minute(200), minute(205), 1, 200.0),
    ]


def test_windows_of_rows_show_which_rows() -> None:
    rows = [{"car": "a", "speed": float(n)} for n in range(8)]
    tumbling = shown(drive(CountTumbling(3, {"total": ("sum", "speed")}), "car string, speed double", rows))["a"]
    assert tumbling["windows"] == [{"first_row": 6, "next_row": 9, "rows": 2, "total": 13.0}]
    assert tumbling["rows_seen"] == 8
    assert tumbling["timers"] is None
    sliding = shown(drive(CountSliding(4, 2, {"total": ("sum", "speed")}), "car string, speed double", rows[:7]))["a"]
    assert [(pane["first_row"], pane["rows"], pane["total"]) for pane in sliding["panes"]] == [(4, 2, 9.0), (6, 1, 6.0)]


class Laps(godwit.Processor):
    """The last three laps, and a field that only looks like an element."""

    state = {"lap": pa.list_(pa.float64(), 3), "lap_total": pa.float64()}
    output_schema = pa.schema([("car", pa.string())])

    def process(self, rows: godwit.Rows, state: States, times: godwit.Times) -> None:
        state["lap"][:, 0] = 7.0
        state["lap_total"] += rows.counts


def test_elements_of_a_field_are_shown_together() -> None:
    found = shown(drive(Laps(), "car string", [{"car": "a"}]))["a"]
    assert found["state"] == {"lap": [7.0, 0.0, 0.0], "lap_total": 1.0}


def test_state_that_was_stored_without_the_description_is_shown_as_it_is() -> None:
    spec = drive(Laps(), "car string", [{"car": "a"}])._spec
    older = spec.to_dict()
    plain = spec.variables[0].schema.remove_metadata()
    older["variables"] = [type(spec.variables[0])("state", "value", plain).to_json()]
    columns = shown_columns(OperatorSpec.from_dict(older))
    assert [field.name for field in columns[0].field.type] == ["lap_0", "lap_1", "lap_2", "lap_total"]


def test_a_timer_beyond_the_calendar_is_shown_at_its_end_or_beginning() -> None:
    from godwit.spark.checkpoint.shown_state import _moments

    found = _moments(pa.array([[1_000, 2**62], None, [], [-(2**63), -1_000]], pa.list_(pa.int64()))).to_pylist()
    assert found[0] == [dt.datetime.fromtimestamp(1, dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.UTC)]
    assert found[1:3] == [None, []]
    assert found[3] == [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]


def test_adapters_and_packers_take_the_description_for_nothing() -> None:
    """Whether state has a description or not, its bytes are the same."""
    window = CountTumbling(2, {"n": ("count",)})
    adapter = NativeAdapter(window, pa.schema({"car": pa.string()}), ("car",))
    assert adapter.variables[0].schema.equals(adapter.variables[0].schema.remove_metadata())
