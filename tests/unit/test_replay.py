"""A batch that begins anew, in an instance by itself: timers, late rows, and what a row holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import BatchIncomplete, NotReplayable, ProcessorFailed
from godwit.model.progress import BatchRef, Progress
from godwit.runtime.chunk import chunk_bytes
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.merging import fold
from godwit.state.ledger import Entry, Ledger, with_rows
from godwit.transport.wire import CHECK, HASH, ROW
from tests.unit.test_instance import Sum, instance_of, rows, totals, welcome
from tests.unit.test_instance_time import NOW_MS, Driver, Timed, chunk

FIRST, AGAIN = BatchRef("q", "run-1", 1), BatchRef("q", "run-2", 1)


def checked(*values: tuple[int, int, int], checks: list[int]) -> Chunk:
    return replace(Chunk(*rows(*values)), checks=np.array(checks, np.int32))


def begun(request: BatchRef = FIRST) -> Instance:
    instance = instance_of(Sum())
    for batch in range(request.batch + 1):
        instance.open(BatchRef("q", "run-1", batch), "0", batch + 1, welcome)
    return instance


def test_a_row_that_comes_again_with_other_values_is_refused_and_nothing_of_its_chunk_is_applied() -> None:
    """Before: it was answered as if it were the row that had been applied."""
    instance = begun()
    instance.apply(FIRST, "0", checked((1, 0, 5), checks=[50]))
    again = checked((1, 0, 5), (2, 0, 6), checks=[50, 60])
    assert totals(instance.apply(FIRST, "0", again)) == [5, 6]
    with pytest.raises(NotReplayable, match=r"other values.*operator=sum, batch=1, lane=0, row=1"):
        instance.apply(FIRST, "0", checked((1, 0, 5), (2, 0, 7), (3, 0, 1), checks=[50, 70, 10]))
    assert instance.state.key_count == 2
    assert instance.batch.spoiled


def test_checks_go_into_the_log_and_to_other_hosts_and_rows_without_them_are_not_compared() -> None:
    entry = Entry(np.arange(2), np.array([7, 8]), empty(), checks=np.array([1, -2], np.int32))
    info, body = entry.part("sum", 1, "0")
    back = Entry.from_part(info, memoryview(body), Sum.output_schema)
    assert back.checks is not None
    assert back.checks.tolist() == [1, -2]
    sent = chunk_bytes.chunk_of(chunk_bytes.chunk_body(checked((1, 0, 5), (2, 0, 6), checks=[3, 4])))
    assert sent.checks is not None
    assert sent.checks.tolist() == [3, 4]
    assert sent.batch.schema.names == ["key", "at", "v"]
    old_info, old_body = Entry(np.arange(2), np.array([7, 8]), empty()).part("sum", 1, "0")
    ledger = Ledger(Sum.output_schema)
    ledger.record("0", Entry.from_part(old_info, memoryview(old_body), Sum.output_schema))
    unseen = ledger.unseen("0", np.arange(3), np.array([7, 8, 9]), np.array([5, 6, 7], np.int32))
    assert unseen is not None
    assert unseen.tolist() == [False, False, True], "of a log from before there were checks"


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], with_rows(Sum.output_schema))


def test_a_merged_row_has_the_checks_of_all_that_it_stands_for() -> None:
    whole = [2**31 - 1, 5, -7, 2**31 - 1]
    block = pa.record_batch(
        [
            pa.array([1, 1, 2, 1]),
            pa.array([1, 2, 3, 4]),
            pa.array(whole, pa.int32()),
            pa.array(range(4)),
            pa.array([9] * 4),
        ],
        names=["key", "v", CHECK, ROW, HASH],
    )
    merged = fold(block, [np.array([0, 1, 3])], (("v", "sum"),))
    expected = (2 * (2**31 - 1) + 5 + 2**31) % 2**32 - 2**31
    assert merged.column(CHECK).to_pylist() == [-7, expected]
    other = block.set_column(2, CHECK, pa.array([2**31 - 1, 6, -7, 2**31 - 1], pa.int32()))
    assert fold(other, [np.array([0, 1, 3])], (("v", "sum"),)).column(CHECK).to_pylist() != [-7, expected]


def test_timers_of_a_batch_that_begins_anew_fire_again_with_the_times_they_had() -> None:
    driver = Driver(Timed(), "processingTime")
    driver.open()
    driver.push((1, 0, NOW_MS + 5))
    fired = driver.open(now_ms=NOW_MS + 10)
    assert told(fired) == [(NOW_MS + 5, NOW_MS + 10)]
    again = driver.instance.open(BatchRef("query", "again", driver.number), "0", NOW_MS + 99, welcome)
    assert told(again) == [(NOW_MS + 5, NOW_MS + 10)], "not by the clock of the replay"
    assert driver.instance.state.next_timer_ms() is None


def told(work: Any) -> list[tuple[int, int]]:
    found = [batch.select([2, 3]).to_pydict() for batch in work.outputs]
    return [pair for columns in found for pair in zip(*columns.values(), strict=True)]


def test_late_rows_are_counted_once() -> None:
    driver = Driver(Timed(), "eventTime")
    for at in (10_000_000, 20_000_000):
        driver.open()
        driver.push((1, at, 10**9))
    driver.open()
    request = BatchRef("query", "again", driver.number)
    driver.instance.apply(driver._request, "0", Chunk(*chunk([(1, 5_000, 10**9)])))
    assert driver.instance.counters.late == 1
    driver.instance.open(request, "0", NOW_MS, welcome)
    assert driver.instance.counters.late == 0
    driver.instance.apply(request, "0", Chunk(*chunk([(1, 5_000, 10**9)])))
    assert driver.instance.counters.late == 1


def test_a_run_that_goes_on_with_the_next_batch_reverts_nothing() -> None:
    instance = begun()
    instance.apply(FIRST, "0", Chunk(*rows((1, 0, 5))))
    instance.finish(FIRST, "0", 1, None)
    instance.open(BatchRef("q", "run-2", 2), "0", 9, welcome)
    assert totals(instance.apply(BatchRef("q", "run-2", 2), "0", Chunk(*rows((1, 0, 1))))) == [6]


def test_a_run_that_finds_nothing_applied_has_nothing_to_revert() -> None:
    instance = begun()
    instance.open(AGAIN, "0", 9, welcome)
    assert instance.progress == Progress("q", "run-2", 1, ("run-1",), attempt=0)


def test_a_lane_with_fewer_rows_than_were_applied_of_it_is_refused_though_it_had_not_ended() -> None:
    instance = begun()
    instance.apply(FIRST, "0", Chunk(*rows((1, 0, 5), (2, 0, 5), (3, 0, 5))))
    with pytest.raises(NotReplayable, match="had 3 rows before and has 2 now"):
        instance.finish(FIRST, "0", 2, None)


def test_a_lane_whose_first_rows_failed_is_not_taken_for_committed() -> None:
    """As a foreachBatch does that swallows what a processor throws. Before: the rows were missing without a word."""
    processor = Sum()
    instance = instance_of(processor)
    instance.open(FIRST, "0", 1, welcome)
    processor.fault = ValueError("no")
    with pytest.raises(ProcessorFailed):
        instance.apply(FIRST, "0", Chunk(*rows((1, 0, 5))))
    processor.fault = None
    with pytest.raises(BatchIncomplete, match=r"never read to their end \(0\)"):
        instance.open(BatchRef("q", "run-1", 2), "0", 2, welcome)
    instance.open(AGAIN, "1", 3, welcome)
    instance.apply(AGAIN, "1", Chunk(*rows((1, 0, 5))))
    instance.finish(AGAIN, "1", 1, None)
    instance.open(BatchRef("q", "run-2", 2), "1", 4, welcome)
