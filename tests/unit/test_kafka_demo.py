"""The demo on Kafka without Kafka: its line of latency, what it prints, and what it finds in a topic that is not right."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from godwit.demo.kafka_outcome import REPEATED, exact, verdict
from godwit.demo.latency_line import BARS, SILENT, WINDOW_S, LatencyLine, Mark, bar
from godwit.demo.latency_view import LiveView, PlainView, View, view
from godwit.demo.steps import StepResult

# -- the line --------------------------------------------------------------------------------------------------------


def line_of(*p99_ms: float | None) -> LatencyLine:
    """A window for each value, with one result or none."""
    line = LatencyLine(100.0)
    for at, latency_ms in enumerate(p99_ms):
        if latency_ms is not None:
            line.add(100.0 + (at + 0.5) * WINDOW_S, latency_ms)
    line.close(100.0 + len(p99_ms) * WINDOW_S + 0.001)
    return line


@pytest.mark.parametrize(
    ("p99_ms", "drawn"),
    [
        (0.0, "▁"),
        (9.9, "▁"),
        (10.0, "▂"),
        (19.9, "▂"),
        (20.0, "▃"),
        (639.0, "▇"),
        (640.0, "█"),
        (9e9, "█"),
        (None, "·"),
    ],
)
def test_a_bar_is_a_step_higher_for_twice_the_latency(p99_ms: float | None, drawn: str) -> None:
    assert bar(p99_ms) == drawn


def test_a_window_has_the_p99_of_the_results_that_came_in_it() -> None:
    line = LatencyLine(0.0)
    for number in range(101):
        line.add(0.001 * number, float(number))
    line.add(WINDOW_S, 7.0)
    assert line.p99_ms == [99.0]
    line.close(2 * WINDOW_S)
    assert line.p99_ms == [99.0, 7.0]


def test_windows_without_results_are_shown_as_such() -> None:
    assert line_of(5, None, None, 700).bars(0, 4) == f"▁{SILENT}{SILENT}█"


def test_what_happened_is_marked_under_the_windows_in_which_it_happened() -> None:
    line = line_of(*[5.0] * 10)
    marks = [Mark("A", 100.3, 100.7), Mark("B", 101.25, 101.3)]
    assert line.marked(marks, 0, 10) == " A──  B"
    assert line.marked(marks, 2, 8) == "──  B", "a mark that began before the part goes on in it"
    assert line.marked(marks, 4, 6) == ""


def test_what_still_happens_is_marked_until_the_newest_window() -> None:
    line = line_of(*[5.0] * 6)
    bars, marked = line.newest([Mark("A", 100.5)], width=4)
    assert (bars, marked) == ("▁▁▁▁", "A───")
    assert line.newest([Mark("A", 99.0)], width=3) == ("▁▁▁", "───"), "the letter is out of sight"


def test_the_whole_time_is_cut_into_strips_of_full_seconds() -> None:
    line = line_of(*[5.0] * 12)
    assert list(line.strips([Mark("A", 102.1, 102.15)], width=8 + 7)) == [
        "   0 s  ▁▁▁▁▁",
        "   1 s  ▁▁▁▁▁",
        "   2 s  ▁▁",
        "        A",
    ]
    assert list(line.strips([], width=80, to_s=101.1)) == ["   0 s  ▁▁▁▁▁▁"], "nothing happened after the last result"


# -- on a screen -----------------------------------------------------------------------------------------------------


def result(latency_ms: float, came_s: float) -> tuple[dict[str, Any], float]:
    return {"due": round((came_s - latency_ms / 1e3) * 1e6)}, came_s


def shown_by(kind: type[View], seconds: float) -> str:
    """What is printed while a result comes in every window, and one step happens."""
    came: list[tuple[dict[str, Any], float]] = []
    console = Console(file=io.StringIO(), width=80, force_terminal=kind is LiveView)
    with kind(console, came, list) as shown:
        began_s = shown.line.from_s
        shown.begin()
        shown.say("scale 2 to 3")
        came += [result(15.0, began_s + (at + 0.5) * WINDOW_S) for at in range(round(seconds / WINDOW_S))]
        shown.show(len(came))
        shown.end(StepResult("scale 2 to 3", time.time(), 0.5))
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def test_a_file_gets_a_line_every_five_seconds_and_one_for_each_step() -> None:
    lines = shown_by(PlainView, 11.0).splitlines()
    bars = "▂" * 25
    assert lines == [
        "  scale 2 to 3",
        f"   0 s  {bars}  55 results",
        f"   5 s  {bars}  55 results",
        "  A scale 2 to 3: 0.50 s",
    ]


def test_a_terminal_has_the_line_with_its_marks_and_what_the_bars_mean() -> None:
    shown = shown_by(LiveView, 3.0)
    assert "A scale 2 to 3: 0.50 s" in shown
    assert f"{BARS[0]} < 10 ms, each step doubles" in shown
    assert max(map(len, shown.replace("\r", "\n").splitlines())) <= 80


def test_who_looks_decides_what_is_shown() -> None:
    assert isinstance(view(Console(file=io.StringIO(), force_terminal=True), [], list), LiveView)
    assert isinstance(view(Console(file=io.StringIO()), [], list), PlainView)


# -- what is in the topic --------------------------------------------------------------------------------------------

TRUTH = {(0, 0): ("a", 1, 50.0), (0, 1): ("a", 2, 60.0), (1, 0): ("b", 1, 30.0)}


def record(at: tuple[int, int], n: int = 0, mean: float = 0.0) -> dict[str, Any]:
    """The right result of the report there, unless told otherwise."""
    car, true_n, true_mean = TRUTH.get(at, ("a", 9, 1.0))
    return {"partition": at[0], "offset": at[1], "car": car, "n": n or true_n, "mean": mean or true_mean}


RIGHT = [record((0, 0)), record((1, 0)), record((0, 1))]


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (RIGHT, {}),
        (RIGHT[:2], {"lost": 1}),
        ([*RIGHT, record((0, 0))], {REPEATED: 1}),
        ([*RIGHT, record((0, 1), n=3)], {"doubled": 1}),
        ([RIGHT[2], RIGHT[1], RIGHT[0]], {"out of order": 1}),
        ([RIGHT[0], RIGHT[1], record((0, 1), mean=61.0)], {"wrong": 1}),
        ([RIGHT[0], RIGHT[1], record((0, 1), n=3)], {"wrong": 1}),
        ([*RIGHT, record((7, 7))], {"wrong": 1}),
    ],
)
def test_what_is_not_right_in_a_topic_is_counted(records: list[dict[str, Any]], found: dict[str, int]) -> None:
    counted = verdict(records, TRUTH)
    assert {name: count for name, count in counted.items() if count} == found
    assert exact(counted) == (found.keys() <= {REPEATED}), "a reader skips equal repeats"
