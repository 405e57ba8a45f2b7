"""What an instance is told to have done: shares of the time, rates, waits, for time that the test makes up."""

from __future__ import annotations

import pytest

from godwit.runtime.load.gauges import LONG_S, SHORT_S, Gauges


def worked(gauges: Gauges, began_s: float, ended_s: float, rows: int = 0) -> None:
    gauges.begins(began_s)
    gauges.ends(ended_s, rows)


def test_useful_time_is_the_share_of_the_window() -> None:
    gauges = Gauges(began_s=0.0)
    for second in range(100):
        worked(gauges, second + 0.1, second + 0.5, rows=40)
    short, long = gauges.window(100.0, SHORT_S), gauges.window(100.0, LONG_S)
    assert short["useful"] == pytest.approx(0.4)
    assert long["useful"] == pytest.approx(0.4)
    assert short["rows_per_s"] == pytest.approx(40)
    assert short["true_rows_per_s"] == pytest.approx(100), "rows per second of useful time, whatever the load"


def test_what_is_older_than_the_window_does_not_count() -> None:
    gauges = Gauges(began_s=0.0)
    worked(gauges, 0.0, 50.0, rows=1)
    assert gauges.window(56.5, SHORT_S)["useful"] == 0.0
    assert gauges.window(56.5, LONG_S)["useful"] == pytest.approx(50 / 56.5)
    assert gauges.window(500.0, LONG_S)["useful"] == 0.0


def test_long_work_counts_in_every_second_that_it_took() -> None:
    gauges = Gauges(began_s=0.0)
    worked(gauges, 10.5, 13.25, rows=8)
    assert gauges.window(14.0, 1)["useful"] == pytest.approx(0.25)
    assert gauges.window(14.0, 4)["useful"] == pytest.approx(2.75 / 4)
    assert gauges.window(14.0, 1)["true_rows_per_s"] == pytest.approx(8 / 2.75), (
        "its rows too: the rate is that of all of it"
    )


def test_work_longer_than_all_slots_is_not_more_than_all_the_time() -> None:
    gauges = Gauges(began_s=0.0)
    worked(gauges, 0.0, 1000.25, rows=8)
    assert gauges.window(1000.25, LONG_S)["useful"] == pytest.approx(1.0)


def test_work_under_way_counts_already() -> None:
    gauges = Gauges(began_s=0.0)
    gauges.begins(10.0)
    assert gauges.window(20.0, SHORT_S)["useful"] == pytest.approx(1.0)
    gauges.ends(20.0, 5)
    assert gauges.window(20.0, SHORT_S)["useful"] == pytest.approx(1.0)


def test_young_instance_is_not_held_to_time_before_its_life() -> None:
    gauges = Gauges(began_s=100.0)
    worked(gauges, 100.0, 101.0, rows=10)
    assert gauges.window(102.0, LONG_S)["useful"] == pytest.approx(0.5)


def test_waits_are_told_by_mean_and_maximum() -> None:
    gauges = Gauges(began_s=0.0)
    for waited_s in (0.001, 0.002, 0.009):
        gauges.waited(3.0, waited_s)
    window = gauges.window(4.0, SHORT_S)
    assert (window["wait_ms"], window["wait_ms_max"]) == (pytest.approx(4.0), pytest.approx(9.0))


def test_idle_instance_has_no_true_rate() -> None:
    assert Gauges(began_s=0.0).window(10.0, SHORT_S) == {
        "useful": 0.0,
        "rows_per_s": 0.0,
        "true_rows_per_s": None,
        "wait_ms": 0.0,
        "wait_ms_max": 0.0,
    }
