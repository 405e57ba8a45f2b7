"""How rows of a batch are told apart: by position, by content, by lane and sequence columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import NotReplayable
from godwit.model.routing import Routing
from godwit.runtime.router import lanes
from godwit.runtime.router.lanes import RowSlice, row_slices
from godwit.runtime.router.route import Numbering, Route


def route(numbering: Numbering, gather: bool = False, event_time: str | None = None) -> Route:
    return Route(
        operator="speed",
        checkpoint="/ck",
        routing=Routing.spread(["host-0"], 4),
        output_schema=pa.schema([]),
        key_names=("car",),
        token="t",
        numbering=numbering,
        gather=gather,
        event_time=event_time,
    )


def batch(
    cars: Sequence[Any], *extra: Sequence[int | None], hashes: Sequence[int | None] | None = None
) -> pa.RecordBatch:
    """Rows as Spark hands them over: the user's column, what the numbering needs, and the routing hash."""
    columns: list[Any] = [pa.array(cars)]
    columns += [pa.array(values, pa.int64()) for values in extra]
    columns.append(pa.array(hashes or [len(car) for car in cars], pa.int64()))
    return pa.RecordBatch.from_arrays(columns, names=["car", *(f"extra{i}" for i in range(len(extra))), "hash"])


def cars(found: Sequence[RowSlice]) -> list[list[str]]:
    return [window.batch.column("car").to_pylist() for window in found]


def rows(found: Sequence[RowSlice]) -> list[list[int]]:
    return [window.rows.tolist() for window in found]


def test_rows_are_numbered_by_their_place_across_batches() -> None:
    found = list(row_slices([batch(["a", "bb"]), batch([]), batch(["c"])], route("position"), "3"))
    assert rows(found) == [[0, 1], [2]]
    assert cars(found) == [["a", "bb"], ["c"]]
    assert [window.hashes.tolist() for window in found] == [[1, 2], [1]]
    assert {window.lane for window in found} == {"3"}
    assert found[0].batch.schema.names == ["car"], "the user's columns only"


def test_rows_are_gathered_so_that_a_key_comes_once() -> None:
    found = list(row_slices([batch(["a"]), batch(["b"]), batch(["a"])], route("position", gather=True), "0"))
    assert cars(found) == [["a", "b", "a"]]


def test_gathering_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "CHUNK_ROWS_MAX", 2)
    found = list(row_slices([batch(["a"]) for _ in range(5)], route("position", gather=True), "0"))
    assert rows(found) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("numbering", ["position", "content", "columns"])
def test_no_rows_make_no_window(numbering: Numbering) -> None:
    extra = [[]] * lanes.EXTRA[numbering]
    assert list(row_slices([batch([], *extra)], route(numbering), "0")) == []
    assert list(row_slices([], route(numbering), "0")) == []


def test_rows_without_a_hash_only_make_the_batch_happen() -> None:
    found = list(
        row_slices([batch(["a", None, "c"], hashes=[1, None, 2]), batch([None], hashes=[None])], route("position"), "0")
    )
    assert cars(found) == [["a", "c"]]
    assert rows(found) == [[0, 1]], "they take no number"


def test_content_gives_an_order_of_its_own_whatever_order_rows_come_in() -> None:
    one = row_slices([batch(["a", "b"], [30, 10]), batch(["c"], [20])], route("content"), "0")
    other = row_slices([batch(["c", "a", "b"], [20, 30, 10])], route("content"), "0")
    assert cars(list(one)) == cars(list(other)) == [["b", "c", "a"]]


def test_content_is_cut_into_chunks_with_numbers_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "CHUNK_ROWS_MAX", 2)
    found = list(row_slices([batch(["a", "b", "c"], [3, 1, 2])], route("content"), "0"))
    assert (cars(found), rows(found)) == ([["b", "c"], ["a"]], [[0, 1], [2]])


def test_event_time_comes_before_content() -> None:
    at = pa.array([dt.datetime(2024, 1, 2), None, dt.datetime(2024, 1, 1)], pa.timestamp("us"))
    whole = pa.RecordBatch.from_arrays(
        [pa.array(["late", "never", "early"]), at, pa.array([1, 2, 3], pa.int64()), pa.array([7, 8, 9], pa.int64())],
        names=["car", "at", "content", "hash"],
    )
    found = list(row_slices([whole], route("content", event_time="at"), "0"))
    assert cars(found) == [["never", "early", "late"]]
    assert found[0].hashes.tolist() == [8, 9, 7]


def test_columns_make_a_lane_for_each_value_with_its_own_numbers() -> None:
    found = list(row_slices([batch(["a", "b", "c", "d"], [7, 5, 7, 5], [100, 3, 101, 4])], route("columns"), "0"))
    assert [window.lane for window in found] == ["column-7", "column-5"]
    assert (cars(found), rows(found)) == ([["a", "c"], ["b", "d"]], [[100, 101], [3, 4]])


@pytest.mark.parametrize("sequence", [[5, 4], [5, 5]])
def test_a_sequence_that_does_not_ascend_is_refused_with_its_values(sequence: list[int]) -> None:
    said = rf"sequence column goes from 5 to {sequence[1]}.*lane=column-1.*strictly ascends"
    with pytest.raises(NotReplayable, match=said):
        list(row_slices([batch(["a", "b"], [1, 1], sequence)], route("columns"), "0"))


@pytest.mark.parametrize("gather", [True, False])
def test_a_sequence_that_repeats_in_a_later_chunk_is_refused(gather: bool) -> None:
    """Otherwise its row would pass for one that came before, and be lost."""
    given = [batch(["a"], [1], [5]), batch(["b"], [1], [5])]
    with pytest.raises(NotReplayable, match="goes from 5 to 5"):
        list(row_slices(given, route("columns", gather=gather), "0"))


def test_lanes_ascend_each_on_its_own_across_chunks() -> None:
    given = [batch(["a", "b"], [1, 2], [5, 50]), batch(["c", "d"], [2, 1], [51, 6])]
    assert rows(list(row_slices(given, route("columns"), "0"))) == [[5], [50], [51], [6]]


def test_a_null_sequence_is_refused() -> None:
    with pytest.raises(NotReplayable, match="lane or sequence column is null"):
        list(row_slices([batch(["a", "b"], [1, 1], [5, None])], route("columns"), "0"))


def test_numbers_are_whole_words() -> None:
    (found,) = row_slices([batch(["a", "b"])], route("position"), "0")
    assert found.rows.dtype == found.hashes.dtype == np.int64
