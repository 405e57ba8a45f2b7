"""What the real-time benchmark puts in and takes out, without a query: rows as records, and rows that were sent again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.running.measures import counted
from benchmarks.running.realtime import first_sent
from godwit.testing.kafka_load import SEPARATOR, records
from godwit.workload import LaneBy, Shape, Workload
from godwit.workload.numbered_rows import lane_batches

START_MS = 1_700_000_000_000
LINES = {
    "key-count": "{key}\t\t{n}\t{due}",
    "traffic": "{car}\t{speed}\t{n}\t{due}",
    "word-count": "{line}\t{n}\t{due}",
}


def load(shape: Shape = "key-count", lane_by: LaneBy = "row", rows: int = 700) -> Workload:
    return Workload(shape, rows_per_second=300, keys=20, lanes=2, lane_by=lane_by, rows=rows, seed=3)


def received(*rows: tuple[int, int, int, int]) -> pa.Table:
    """(run, key, count, due) of each row, in the order in which they left."""
    names = ("run", "key", "count", "due")
    return pa.table({name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(names)})


def kept(rows: pa.Table) -> list[tuple[int, int, int, int]]:
    return [tuple(row[name] for name in ("run", "key", "count", "due")) for row in first_sent(rows).to_pylist()]


# -- in --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", LINES)
@pytest.mark.parametrize("lane", [0, 1])
def test_a_lane_has_the_rows_that_the_workload_gives_it(shape: Shape, lane: int) -> None:
    workload = load(shape)
    sent = [value.decode() for value, partition, _ in records(workload, START_MS) if partition == lane]
    rows = pa.Table.from_batches(lane_batches(workload, lane, 0, workload.end, START_MS))
    rows = rows.set_column(rows.column_names.index("due"), "due", rows["due"].cast(pa.int64()))
    assert [float(each) if "." in each else each for line in sent for each in line.split(SEPARATOR)] == [
        float(each) if "." in each else each
        for row in rows.to_pylist()
        for each in LINES[shape].format(**row).split(SEPARATOR)
    ]


def test_the_lane_of_a_key_is_the_same_for_all_of_its_rows() -> None:
    lanes: dict[bytes, set[int]] = {}
    for value, partition, _ in records(load(lane_by="key"), START_MS):
        lanes.setdefault(value.split(b"\t")[0], set()).add(partition)
    assert all(len(each) == 1 for each in lanes.values())
    assert len(lanes) == 20


def test_a_row_is_sent_when_it_is_due() -> None:
    due = [at_us for _, _, at_us in records(load(), START_MS)]
    assert due == [START_MS * 1_000 + n * 1_000_000 // 300 for n in range(700)]


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
