"""What the real-time benchmark puts in and takes out, without a query: rows as records, and rows that were sent again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.running.measures import counted
from benchmarks.running.realtime import RECORD_ROWS, first_sent, records
from godwit.workload import LaneBy, Workload
from godwit.workload.numbered_rows import lane_batches

START_MS = 1_700_000_000_000


def load(lane_by: LaneBy = "key", rows: int = 5 * RECORD_ROWS + 7) -> Workload:
    return Workload(rows_per_second=300, keys=20, lanes=2, lane_by=lane_by, rows=rows, seed=3)


def parsed(lines: list[str]) -> tuple[set[int], list[tuple[int, int]]]:
    """The starts that records tell, and the (number, key) of their rows in order."""
    words = [line.split(" ") for line in lines]
    pairs = [tuple(map(int, word.split(":"))) for line in words for word in line[1:]]
    return {int(line[0]) for line in words}, [(number, key) for number, key in pairs]


def received(*rows: tuple[int, int, int, int]) -> pa.Table:
    """(run, key, count, due) of each row, in the order in which they left."""
    names = ("run", "key", "count", "due")
    return pa.table({name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(names)})


def kept(rows: pa.Table) -> list[tuple[int, int, int, int]]:
    return [tuple(row[name] for name in ("run", "key", "count", "due")) for row in first_sent(rows).to_pylist()]


# -- in --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane_by", ["key", "row"])
@pytest.mark.parametrize("lane", [0, 1])
def test_a_lane_has_the_rows_that_the_workload_gives_it(lane_by: LaneBy, lane: int) -> None:
    workload = load(lane_by)
    starts, rows = parsed(list(records(workload, lane, START_MS)))
    expected = pa.Table.from_batches(lane_batches(workload, lane, 0, workload.end, START_MS))
    assert starts == {START_MS * 1_000}
    assert rows == list(zip(expected["n"].to_pylist(), expected["key"].to_pylist(), strict=True))


def test_no_record_has_more_rows_than_are_taken_from_it() -> None:
    sizes = [line.count(":") for line in records(load("row"), 0, START_MS)]
    assert max(sizes) == RECORD_ROWS
    assert sizes[:-1] == [RECORD_ROWS] * (len(sizes) - 1)


def test_a_lane_without_rows_has_no_record() -> None:
    assert list(records(load("row", rows=1), 1, START_MS)) == []


# -- out -------------------------------------------------------------------------------------------------------------


def test_what_a_run_had_given_does_not_count_again_in_the_next() -> None:
    first = [(0, 7, 1, 100), (0, 8, 1, 101), (0, 7, 2, 102)]
    again = [(1, key, count, due) for _, key, count, due in first]
    assert kept(received(*first, *again, (1, 7, 3, 103))) == [*first, (1, 7, 3, 103)]


def test_a_row_counts_where_it_left_first_whichever_run_is_seen_first() -> None:
    assert kept(received((1, 7, 1, 100), (0, 7, 1, 100))) == [(0, 7, 1, 100)]


def test_what_one_run_gives_twice_is_a_mistake() -> None:
    rows = received((0, 7, 1, 100), (0, 7, 1, 100))
    assert len(kept(rows)) == 2
    found = first_sent(rows)
    counts = counted(found["key"].to_numpy(), found["count"].to_numpy(), np.bincount([7]))
    assert (counts["lost"], counts["duplicated"]) == (0, 1)


@pytest.mark.parametrize("otherwise", [(1, 7, 2, 100), (1, 8, 1, 100), (1, 7, 1, 101)])
def test_what_a_later_run_gives_otherwise_is_a_mistake(otherwise: tuple[int, int, int, int]) -> None:
    assert kept(received((0, 7, 1, 100), otherwise)) == [(0, 7, 1, 100), otherwise]


def test_where_nothing_came_nothing_is_kept() -> None:
    assert kept(received()) == []
