"""The tester finds out whether a declared merge keeps its promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import DefinitionError
from godwit.runtime.processor.rows import column
from godwit.testing import Tester
from godwit.testing.states import check_same
from godwit.windows import EventTumbling

ROWS = [{"car": car, "speed": speed, "rows": 1} for car in "ab" for speed in (0.1, 0.2, 0.3, 50.0)]
SCHEMA = "car string, speed double, rows bigint"


class Speeds(godwit.Processor):
    state = {"n": pa.int64(), "total": pa.float64(), "top": pa.float64()}
    output_schema = pa.schema([("car", pa.string()), ("mean", pa.float64())])
    merge = {"speed": "sum", "rows": "sum"}

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        np.add.at(state["n"], rows.codes, column(rows.batch, "rows"))
        np.add.at(state["total"], rows.codes, column(rows.batch, "speed"))
        return self.emit_at(rows, rows.last, mean=state["total"] / state["n"])


class Counting(Speeds):
    """Counts rows as they come, which is not what it says of them."""

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> None:
        state["n"] += rows.counts


class Topped(Speeds):
    """Keeps the largest value of what it says may be summed."""

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> None:
        np.maximum.at(state["top"], rows.codes, column(rows.batch, "speed"))


def check(processor: godwit.Processor, rows: Sequence[dict[str, Any]] = ROWS, **options: Any) -> None:
    Tester(processor, SCHEMA, "car", **options).check_merge(rows)


def test_merge_that_keeps_its_promise_passes() -> None:
    check(Speeds())


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (Counting(), r"car 'a': 'state' is \{'n': 4, .*\} if its rows are applied one by one, and \{'n': 1"),
        (Topped(), r"car 'a': 'state' is .*'top': 50.0\} if its rows are applied one by one, and .*'top': 50.6"),
    ],
)
def test_merge_that_does_not_names_key_and_variable(processor: godwit.Processor, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check(processor)


def test_what_was_processed_before_is_left_as_it_is() -> None:
    tester = Tester(Speeds(), SCHEMA, "car")
    tester.process(ROWS[:1])
    tester.check_merge(ROWS)
    assert tester.process(ROWS[1:2]) == [{"car": "a", "mean": pytest.approx(0.15)}]


def test_processor_without_a_merge_is_told_so() -> None:
    class Plain(Speeds):
        merge = {}

    with pytest.raises(DefinitionError, match="declares no merge"):
        check(Plain())


def test_window_promises_by_itself() -> None:
    window = EventTumbling("1 second", "at", {"n": ("sum", "rows")}, merge=True)
    tester = Tester(window, "car string, rows bigint, at timestamp", "car", timeMode="eventTime", eventTime="at")
    with pytest.raises(DefinitionError, match="not for its user to promise"):
        tester.check_merge([])


def test_event_time_must_be_declared_as_for_a_flock() -> None:
    class Timed(Speeds):
        merge = {"speed": "sum", "rows": "sum", "at": "first"}

    with pytest.raises(DefinitionError, match="the event time 'at' by 'first'"):
        Tester(Timed(), f"{SCHEMA}, at timestamp", "car", timeMode="eventTime", eventTime="at")


def test_states_differ_by_key_variable_or_a_key_that_is_missing() -> None:
    one = [{"k": 1, "n": [0.1 + 0.2, None]}, {"k": float("nan"), "n": [float("nan")]}]
    check_same(one, [{"k": float("nan"), "n": [float("nan")]}, {"k": 1, "n": [0.3, None]}], ["k"])
    with pytest.raises(AssertionError, match="k nan: has state if its rows are applied one by one, and none if merged"):
        check_same(one, one[:1], ["k"])
    with pytest.raises(AssertionError, match="k nan: has state if its rows are applied merged, and none if one by one"):
        check_same(one[:1], one, ["k"])
    with pytest.raises(AssertionError, match=r"k 1: 'n' is \[0.3.*, and \[0.4"):
        check_same(one, [{"k": 1, "n": [0.4, None]}, one[1]], ["k"])
