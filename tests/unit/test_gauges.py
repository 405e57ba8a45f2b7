"""What an instance is told to have done: shares of the time, rates, waits, for time that the test makes up."""

from __future__ import annotations

import pytest

from godwit.runtime.gauges import LONG_S, SHORT_S, Gauges
from godwit.runtime.work import Counters


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


def test_switched_off_it_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GODWIT_TEST_NO_MEASURES", "1")
    gauges = Gauges(began_s=0.0)
    worked(gauges, 1.0, 2.0, rows=10)
    gauges.waited(2.0, 0.5)
    assert gauges.window(3.0, SHORT_S)["useful"] == 0.0
    assert gauges.window(3.0, SHORT_S)["wait_ms"] == 0.0


# -- what comes in ---------------------------------------------------------------------------------------------------


def counters(batches: list[tuple[int, int]], rows: int) -> Counters:
    """From (began at ms, rows of the batches before), and rows by now."""
    found = Counters(rows=rows)
    found.recent.extend(batches)
    return found


def test_query_that_keeps_up_is_offered_what_it_applies() -> None:
    assert counters([(0, 0), (500, 100), (1000, 200), (1500, 300), (2000, 400)], 500).offered() == pytest.approx(200)


def test_query_that_falls_behind_is_offered_more_than_it_applies() -> None:
    """1,000 rows a second come, 500 are applied: each batch has the rows of the time that the one before took."""
    found = counters([(0, 0), (0, 0), (1000, 500), (3000, 1500), (7000, 3500)], 3600)
    assert found.offered() == pytest.approx(1000)
    assert found.rate() == pytest.approx(500)


def test_the_first_batch_tells_nothing_of_when_its_successor_came() -> None:
    """Spark has planned it long before it comes here, while Python starts: the next one has the rows of all that time."""
    found = counters([(3000, 0), (3500, 100), (4000, 800), (4500, 900)], 900)
    assert found.offered() == pytest.approx(200)


def test_query_that_catches_up_is_offered_less() -> None:
    found = counters([(0, 0), (8000, 8000), (12_000, 12_000), (14_000, 14_000), (15_000, 15_000)], 15_400)
    assert found.offered() == pytest.approx(500, rel=0.01)


def test_rows_of_the_last_batch_count_as_soon_as_they_tell_more() -> None:
    before = counters([(0, 0), (1000, 100), (2000, 200), (3000, 300)], 300)
    after = counters([(0, 0), (1000, 100), (2000, 200), (3000, 300)], 2300)
    assert before.offered() == pytest.approx(100)
    assert after.offered() == pytest.approx(1050), "2,100 rows in two seconds"


@pytest.mark.parametrize(
    "batches", [[], [(0, 0)], [(0, 0), (10, 5)], [(0, 0), (9, 1), (99, 2)], [(7, 0), (7, 1), (7, 2)]]
)
def test_too_few_batches_tell_nothing(batches: list[tuple[int, int]]) -> None:
    assert counters(batches, 10).offered() is None
