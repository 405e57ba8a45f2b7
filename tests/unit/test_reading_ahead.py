"""The input of a router in real time: all rows in order, together if they have come together, and not too many at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from godwit.spark.realtime.reading_ahead import ROWS_MAX, WAITING_MAX, ReadingAhead


def batch(begin: int, end: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(begin, end), pa.int64())], names=["n"])


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [n for each in batches for n in each.column(0).to_pylist()]


def all_read(batches: list[pa.RecordBatch], failure: Exception | None = None) -> ReadingAhead:
    """A reader that has read all of these batches before the first of them is asked for."""
    done = threading.Event()

    def come() -> Iterator[pa.RecordBatch]:
        yield from batches
        done.set()
        if failure is not None:
            raise failure

    reading = ReadingAhead(come())
    assert done.wait(10)
    return reading


def test_batches_that_have_come_meanwhile_are_handed_over_together() -> None:
    reading = all_read([batch(0, 1), batch(1, 4), batch(4, 5)])
    assert [numbers([each]) for each in reading] == [[0, 1, 2, 3, 4]]


def test_a_batch_is_handed_over_before_the_next_one_comes() -> None:
    asked = threading.Event()

    def come() -> Iterator[pa.RecordBatch]:
        yield batch(0, 1)
        assert asked.wait(10), "the first batch has been handed over"
        yield batch(1, 2)

    reading = iter(ReadingAhead(come()))
    assert numbers([next(reading)]) == [0]
    asked.set()
    assert numbers(list(reading)) == [1]


def test_no_more_rows_than_the_limit_are_handed_over_together() -> None:
    size = ROWS_MAX // 3 + 1
    given = [batch(at * size, (at + 1) * size) for at in range(7)]
    handed = list(all_read(given))
    assert [len(each) for each in handed] == [2 * size, 2 * size, 2 * size, size]
    assert numbers(handed) == numbers(given)


def test_a_batch_above_the_limit_is_handed_over_whole_and_alone() -> None:
    handed = list(all_read([batch(0, 5), batch(5, ROWS_MAX + 10), batch(ROWS_MAX + 10, ROWS_MAX + 11)]))
    assert [len(each) for each in handed] == [5, ROWS_MAX + 5, 1]


def test_the_thread_does_not_read_more_than_may_wait() -> None:
    size, handed = WAITING_MAX // 4, 0

    def come() -> Iterator[pa.RecordBatch]:
        for at in range(20):
            assert at * size <= handed + WAITING_MAX + size, "so many rows wait, and those that are being handed over"
            yield batch(at * size, (at + 1) * size)

    taken = []
    for each in ReadingAhead(come()):
        taken.append(each)
        handed += len(each)
    assert numbers(taken) == list(range(20 * size))


def test_an_input_that_fails_gives_its_rows_and_then_its_failure() -> None:
    reading = iter(all_read([batch(0, 2)], ValueError("the source is gone")))
    assert numbers([next(reading)]) == [0, 1]
    with pytest.raises(ValueError, match="the source is gone"):
        next(reading)


def test_an_input_without_rows_ends() -> None:
    assert list(all_read([])) == []
