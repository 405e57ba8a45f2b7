"""Figures of the benchmark against cases small enough to work out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.running.measures import counted, spread, wrong_keys
from benchmarks.workloads.tally import Tally, ballast
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.rows import Rows, Times
from godwit.state.codec import compile_codec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.testing.latency import Departures, Steady, disruption_ms, drift_ms, interruption, peak_p99_ms, stabilise_s
from godwit.testing.open_loop import Arrivals, settled

EXACT = {"lost": 0, "duplicated": 0, "out_of_order": 0}


def departures(*rows: tuple[float, float]) -> Departures:
    """(left, latency in ms) of each row."""
    left = np.array([row[0] for row in rows], np.float64)
    return Departures.of(left, left - np.array([row[1] for row in rows], np.float64) / 1000)


def test_rows_are_put_in_the_order_in_which_they_left() -> None:
    rows = departures((2.0, 30), (1.0, 10), (3.0, 20))
    assert rows.left_s.tolist() == [1.0, 2.0, 3.0]
    assert rows.latency_ms == pytest.approx([10, 30, 20])


def test_a_span_holds_its_beginning_and_not_its_end() -> None:
    rows = departures((1.0, 1), (2.0, 2), (3.0, 3)).between(1.0, 3.0)
    assert rows.left_s.tolist() == [1.0, 2.0]


def test_steady_latency_has_mean_sigma_and_percentiles() -> None:
    steady = Steady.of(departures(*((at, 10.0 if at % 2 else 30.0) for at in range(100))))
    assert (steady.rows, steady.p50_ms) == (100, pytest.approx(20))
    assert steady.mean_ms == pytest.approx(20)
    assert steady.sigma_ms == pytest.approx(10)
    assert steady.limit_ms == pytest.approx(70)


def test_without_steady_rows_there_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="no row left in the steady part"):
        Steady.of(departures())


def test_a_growing_backlog_shows_as_drift() -> None:
    assert drift_ms(departures(*((at, 10.0 * at) for at in range(10)))) == pytest.approx(50)
    assert drift_ms(departures(*((at, 7.0) for at in range(10)))) == pytest.approx(0)
    assert drift_ms(departures((1.0, 5.0))) == 0


def test_time_that_ends_with_late_rows_is_disrupted() -> None:
    rows = departures((1.0, 5), (1.5, 100), (1.7, 100), (2.0, 5))
    assert disruption_ms(rows, 100.0, since_s=0.9) == pytest.approx(700)


def test_a_silence_before_the_first_late_row_counts_from_the_request() -> None:
    rows = departures((14.0, 3_000), (14.1, 5))
    assert disruption_ms(rows, 100.0, since_s=11.0) == pytest.approx(3_000)


def test_a_moment_is_late_if_any_of_its_rows_is() -> None:
    rows = departures((1.0, 5), (2.0, 5), (2.0, 500), (2.0, 5))
    assert disruption_ms(rows, 100.0, since_s=1.0) == pytest.approx(1_000)


def test_nothing_late_is_no_disruption_and_stable_at_once() -> None:
    rows = departures((1.0, 5), (9.0, 99.9))
    assert disruption_ms(rows, 100.0, since_s=0.0) == 0
    assert stabilise_s(rows, 100.0, since_s=0.0) == 0
    assert disruption_ms(departures(), 100.0, since_s=0.0) == 0


def test_it_is_stable_after_the_last_late_row() -> None:
    rows = departures((1.0, 500), (2.0, 5), (3.0, 500), (4.0, 5))
    assert stabilise_s(rows, 100.0, since_s=0.5) == pytest.approx(2.5)


def test_it_is_not_stable_if_the_last_row_is_late() -> None:
    assert stabilise_s(departures((1.0, 5), (2.0, 500)), 100.0, since_s=0.5) is None


def test_the_peak_is_the_greatest_p99_of_a_window() -> None:
    burst = [(1.01 + at / 10_000, 10.0) for at in range(99)]
    rows = departures(*burst, (1.09, 1_000.0), (1.15, 200.0), (1.16, 200.0))
    assert peak_p99_ms(rows, since_s=1.0) == pytest.approx(200)  # the lone row of the first window is beyond its p99
    assert peak_p99_ms(departures(), since_s=1.0) == 0


def test_jitter_is_measured_from_the_steady_mean() -> None:
    steady = Steady(10, mean_ms=20.0, sigma_ms=4.0, p50_ms=20.0, p99_ms=30.0)
    seen = interruption(departures((1.15, 20), (1.25, 120), (1.35, 20)), steady, since_s=1.0)
    assert seen == {
        "disruption_ms": pytest.approx(100),
        "peak_jitter_p99_ms": pytest.approx(100),
        "peak_jitter_max_ms": pytest.approx(100),
        "stabilise_s": pytest.approx(0.25),
    }


def test_where_no_row_left_nothing_is_claimed() -> None:
    steady = Steady(10, mean_ms=20.0, sigma_ms=4.0, p50_ms=20.0, p99_ms=30.0)
    assert set(interruption(departures(), steady, since_s=1.0).values()) == {None}


def check(pairs: list[tuple[int, int]], by_key: list[int]) -> dict[str, int]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return counted(table[:, 0], table[:, 1], np.array(by_key, np.int64))


def test_each_count_once_and_ascending_is_exact() -> None:
    assert check([(0, 1), (1, 1), (0, 2), (1, 2), (1, 3)], [2, 3]) == EXACT
    assert check([], [0, 0]) == EXACT


def test_a_missing_count_is_lost() -> None:
    assert check([(0, 1), (0, 3)], [3]) == EXACT | {"lost": 1}
    assert check([], [2, 1]) == EXACT | {"lost": 3}


def test_a_repeated_count_is_duplicated() -> None:
    assert check([(0, 1), (0, 1), (0, 2)], [2]) == EXACT | {"duplicated": 1}


def test_a_count_before_a_smaller_one_is_out_of_order() -> None:
    assert check([(0, 2), (0, 1)], [2]) == EXACT | {"out_of_order": 1}


def test_a_count_or_key_that_cannot_be_is_in_excess() -> None:
    assert check([(0, 1), (0, 2), (7, 1), (0, 3)], [2]) == EXACT | {"duplicated": 2}
    assert check([(0, 0), (0, 1)], [1]) == EXACT | {"duplicated": 1}


def test_an_update_applied_twice_loses_one_count_and_adds_another() -> None:
    assert check([(0, 1), (0, 3), (0, 4)], [3]) == EXACT | {"lost": 1, "duplicated": 1}


def test_state_is_wrong_if_it_differs_is_missing_unknown_or_twice() -> None:
    expected = {1: "a", 2: "b", 3: "c"}
    assert wrong_keys([(1, "a"), (2, "b"), (3, "c")], expected) == 0
    assert wrong_keys([(1, "a"), (2, "x"), (3, "c")], expected) == 1
    assert wrong_keys([(1, "a"), (2, "b")], expected) == 1
    assert wrong_keys([(1, "a"), (2, "b"), (3, "c"), (9, "z")], expected) == 1
    assert wrong_keys([(1, "a"), (1, "a"), (2, "b"), (3, "c")], expected) == 1


def test_spread_leaves_out_runs_without_the_figure() -> None:
    assert spread([3.0, None, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "runs": 3}
    assert spread([None]) is None


def test_a_query_has_settled_when_its_batches_get_no_younger() -> None:
    assert not settled([5.0, 4.0, 3.0])
    assert not settled([9.0, 5.0, 4.0, 2.0, 1.0])
    assert settled([5.0, 4.0, 1.0, 0.9, 1.0, 1.1])
    assert settled([1.0, 2.0, 3.0, 4.0]), "it will never catch up"


@dataclass
class Batch:
    """A batch as a sink gets it."""

    due_us: list[int]

    def toArrow(self) -> pa.Table:
        return pa.table({"due": pa.array(self.due_us, pa.int64())})


def test_a_batch_that_is_sent_again_replaces_itself() -> None:
    arrivals = Arrivals()
    for number, batch in ((0, Batch([1, 2])), (1, Batch([3])), (1, Batch([4]))):
        arrivals(batch, number)  # type: ignore[arg-type]
    assert arrivals.count == 3
    assert arrivals.rows().column("due").to_pylist() == [1, 2, 4]
    assert arrivals.wait(3, timeout_s=0)
    assert not arrivals.wait(4, timeout_s=0)


def test_the_tally_counts_on_beside_state_of_the_size_asked_for() -> None:
    schema = pa.schema([("key", pa.int64()), ("due", pa.timestamp("us", tz="UTC"))])
    codec = KeyCodec(pa.schema([schema.field("key")]))
    adapter = NativeAdapter(Tally(state_bytes=100), schema, ["key"])
    state = KeyedState(adapter.variables, codec, None, None)
    adapter.open(state)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7, 8, 7]), pa.array([1, 2, 3], schema.field("due").type)], schema=schema
    )
    rows = Rows(batch, np.arange(3), [(7,), (8,)], np.array([0, 1, 0], np.int32))
    adapter.initialise(rows, Times(0, 0))
    counts = [adapter.process(rows, Times(0, 0)).batch.column("count").to_pylist() for _ in range(2)]
    kept = compile_codec(adapter.variables[1].schema).decode(state.value_get(1, (8,)) or b"")
    assert counts == [[1, 1, 2], [3, 2, 4]]
    assert kept == (ballast(8, 100),)
    assert len(ballast(8, 100)) == 100
    assert ballast(8, 100) != ballast(7, 100)
