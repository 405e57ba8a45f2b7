"""An instance and time: which rows are late, when timers fire and through which lane, when a further batch is wanted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import DefinitionError, StaleRun
from godwit.model.progress import BatchRef
from godwit.model.watermark import BatchWatermark
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.native import NativeAdapter, Timers
from godwit.runtime.processor.rows import Outputs, Rows, Times
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.states_of_keys import States
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.windows import EventTumbling

INPUT = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us")), ("timer_ms", pa.int64())])
NOW_MS = 1_000_000


class Timed(godwit.Processor):
    """Sets the timer that a row asks for; tells of rows (what = -1) and of timers (what = their time)."""

    output_schema = pa.schema([("key", pa.int64()), ("what", pa.int64()), ("now_ms", pa.int64())])

    def process(self, rows: Rows, state: States, times: Times) -> Outputs:
        self._set(rows, state)
        return self.emit(rows, what=np.full(len(rows), -1), now_ms=np.full(len(rows), times.processing_ms))

    def initialise(self, rows: Rows, state: States, times: Times) -> None:
        self._set(rows, state)

    def on_timer(self, timers: Timers, state: States, times: Times) -> Outputs:
        return self.emit(timers, what=timers.expiry_ms, now_ms=np.full(len(timers), times.processing_ms))

    def _set(self, rows: Rows, state: States) -> None:
        state.set_timer(rows.codes, rows.batch.column("timer_ms").to_numpy())


class Driver:
    """Takes an instance through batches of one query."""

    def __init__(self, processor: godwit.Processor, time_mode: Any, **spec: Any) -> None:
        adapter = NativeAdapter(processor, INPUT, ["key"])
        key_schema = pa.schema([INPUT.field("key")])
        made = OperatorSpec(
            "timed",
            "Timed",
            "native",
            key_schema,
            adapter.output_schema,
            adapter.variables,
            time_mode=time_mode,
            event_time="at" if time_mode == "eventTime" else None,
            lateness_ms=processor.allowed_lateness_ms,
            **spec,
        )
        codec = KeyCodec(key_schema, "UTC")
        self.instance = Instance("timed", made, KeyedState(made.variables, codec), codec)
        self.instance.attach(made, adapter)
        self.number = -1

    def open(self, lane: str = "0", now_ms: int = NOW_MS, carries: bool = True) -> Work:
        self.number += 1
        return self.open_too(lane, now_ms, carries)

    def open_too(self, lane: str, now_ms: int = NOW_MS, carries: bool = True) -> Work:
        return self.instance.open(self._request, lane, now_ms, lambda *_: False, carries)

    def push(self, *rows: tuple[int, int, int], lane: str = "0") -> Work:
        """(key, event time in microseconds, timer in milliseconds) each, and the lane is done."""
        work = self.instance.apply(self._request, lane, Chunk(*chunk(rows)))
        self.finish(max(at for _, at, _ in rows) // 1000, len(rows), lane)
        return work

    def finish(self, event_max_ms: int | None = None, count: int = 0, lane: str = "0") -> None:
        self.instance.finish(self._request, lane, count, event_max_ms)

    @property
    def _request(self) -> BatchRef:
        return BatchRef("query", "run", self.number)


def chunk(rows: Sequence[tuple[int, int, int]]) -> tuple[pa.RecordBatch, Any, Any]:
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INPUT, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=INPUT)
    return batch, np.arange(len(rows)), np.array(columns[0], np.int64)


def told(work: Work) -> list[int]:
    return [what for batch in work.outputs for what in batch.column("what").to_pylist()]


def test_row_less_than_a_millisecond_after_the_watermark_is_not_late() -> None:
    driver = Driver(Timed(), "eventTime")
    for at_ms in (5, 6):
        driver.open()
        driver.push((1, at_ms * 1000, 10**9))
    driver.open()
    assert len(told(driver.push((1, 5_000, 10**9), (2, 5_001, 10**9), (3, 4_999, 10**9)))) == 1
    assert driver.instance.counters.late == 2


def test_rows_that_a_window_leaves_out_are_counted_as_late() -> None:
    driver = Driver(EventTumbling("1 second", "at", {"n": "count"}), "eventTime")
    for at_s in (10, 20):
        driver.open()
        driver.push((1, at_s * 10**6, 0))
    driver.open()
    # One is so late that it is not given to the window, the window itself leaves out the next, two are in time.
    driver.push((1, 2 * 10**6, 0), (1, 9_400_000, 0), (1, 9_500_000, 0), (1, 10_500_000, 0), (1, 30 * 10**6, 0))
    assert driver.instance.status()["late"] == 3


def test_rows_between_the_two_watermarks_still_count_for_their_window() -> None:
    """The window [10, 11) closes at the end of the third batch, whose rows it still takes."""
    driver = Driver(EventTumbling("1 second", "at", {"n": "count"}), "eventTime")
    for at_s in (10, 20):
        driver.open()
        driver.push((1, at_s * 10**6, 0))
    driver.open()
    driver.push((1, 10_500_000, 0))
    windows = [batch.column("n").to_pylist() for batch in driver.open().outputs]
    assert windows == [[2]]


def test_outputs_of_timers_leave_through_the_lane_that_opens_the_batch_and_no_other() -> None:
    driver = Driver(Timed(), "processingTime")
    driver.open()
    driver.push((1, 0, NOW_MS + 5), (2, 0, NOW_MS + 6))
    assert told(driver.open("1", NOW_MS + 10)) == [NOW_MS + 5, NOW_MS + 6]
    assert told(driver.open_too("0", NOW_MS + 10)) == []
    assert told(driver.open_too("1", NOW_MS + 10)) == [NOW_MS + 5, NOW_MS + 6]
    assert told(driver.open("0", NOW_MS + 20)) == []


def test_a_lane_without_rows_leaves_timers_to_one_that_has_some() -> None:
    driver = Driver(Timed(), "processingTime")
    driver.open()
    driver.push((1, 0, NOW_MS + 5))
    assert told(driver.open("empty-0", NOW_MS + 10, carries=False)) == []
    assert told(driver.open_too("empty-0", NOW_MS + 10, carries=False)) == []
    assert told(driver.open_too("1", NOW_MS + 10)) == [NOW_MS + 5]


def test_timers_that_no_lane_could_carry_fire_in_the_next_batch() -> None:
    driver = Driver(Timed(), "processingTime")
    driver.open()
    driver.push((1, 0, NOW_MS + 5))
    assert told(driver.open("empty-0", NOW_MS + 10, carries=False)) == []
    assert driver.instance.timers.due(NOW_MS + 10)
    assert told(driver.open("0", NOW_MS + 20)) == [NOW_MS + 5]


def test_timer_of_initial_state_waits_for_the_rows_of_the_first_batch() -> None:
    driver = Driver(Timed(), "processingTime")
    driver.instance.initialise("initial", *chunk([(1, 0, 7)]), NOW_MS)
    assert told(driver.open()) == []
    driver.push((1, 0, 10**9))
    assert driver.instance.timers.due(NOW_MS)
    assert told(driver.open()) == [7]


def test_further_batch_is_wanted_until_time_stands_still_and_nothing_is_due() -> None:
    driver = Driver(Timed(), "eventTime", delay_ms=10)
    driver.open()
    assert not driver.instance.timers.due(NOW_MS)
    driver.push((1, 50_000, 30), (2, 50_000, 41))
    assert driver.instance.timers.due(NOW_MS)  # the watermark is to go from 0 to 40
    assert told(driver.open()) == []
    driver.finish()
    assert driver.instance.timers.due(NOW_MS)  # and then the timer at 30 is to fire
    assert told(driver.open()) == [30]
    driver.finish()
    assert not driver.instance.timers.due(NOW_MS)


def test_timer_for_a_time_that_is_over_is_refused_on_a_batch_frame() -> None:
    driver = Driver(Timed(), "processingTime", ephemeral=True)
    driver.open()
    with pytest.raises(DefinitionError, match="do not fire on a batch DataFrame"):
        driver.push((1, 0, NOW_MS))
    with pytest.raises(DefinitionError, match="do not fire on a batch DataFrame"):
        driver.finish(count=1)


def test_batch_frame_has_no_late_rows() -> None:
    driver = Driver(Timed(), "eventTime", ephemeral=True)
    driver.open()
    assert told(driver.push((1, -5_000, 10**9))) == [-1]
    assert driver.instance.batch.times.watermark_ms == -1


def test_a_host_asks_for_the_watermark_of_the_query_once_in_a_batch() -> None:
    asked: list[int] = []

    def ask(request: BatchRef) -> BatchWatermark:
        asked.append(request.batch)
        return BatchWatermark(1_000 * request.batch, 1_000 * (request.batch - 1))

    instance = Driver(Timed(), "eventTime", watermark_policy="query").instance
    for batch in (1, 2):
        for lane in ("0", "1", "0"):
            instance.open(BatchRef("q", "r", batch), lane, NOW_MS, lambda *_: False, ask_watermark=ask)
        times = instance.batch.times
        assert (times.watermark_ms, times.late_ms) == (1_000 * batch, 1_000 * (batch - 1))
    instance.open(BatchRef("q", "later", 2), "0", NOW_MS, lambda *_: False, ask_watermark=ask)  # the batch comes again
    assert asked == [1, 2]
    assert (instance.batch.times.watermark_ms, instance.batch.times.late_ms) == (2_000, 1_000)


def test_a_batch_whose_watermark_the_driver_does_not_tell_has_not_begun() -> None:
    def ask(request: BatchRef) -> BatchWatermark:
        raise StaleRun("the batch is over")

    instance = Driver(Timed(), "eventTime", watermark_policy="query").instance
    with pytest.raises(StaleRun):
        instance.open(BatchRef("q", "r", 0), "0", NOW_MS, lambda *_: False, ask_watermark=ask)
    assert instance.progress.batch == -1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_host_that_was_brought_into_a_batch_asks_for_its_watermark_too(restarted: bool) -> None:
    """Keys that move bring the batch of their origin along before a lane opens here."""
    asked: list[int] = []

    def ask(request: BatchRef) -> BatchWatermark:
        asked.append(request.batch)
        return BatchWatermark(1_000 * request.batch, 1_000 * (request.batch - 1))

    def opened(instance: Instance, batch: int) -> None:
        instance.open(BatchRef("q", "r", batch), "0", NOW_MS, lambda *_: False, ask_watermark=ask)

    origin, target = (Driver(Timed(), "eventTime", watermark_policy="query").instance for _ in range(2))
    opened(origin, 1)
    opened(target, 1)
    opened(origin, 2)
    target.batches.catch_up(origin.progress, NOW_MS)
    if restarted:
        mark, target = target.batch.to_mark(), Driver(Timed(), "eventTime", watermark_policy="query").instance
        target.batch.restore(json.loads(json.dumps(mark | {"late": 0})), target.spec)
    opened(target, 2)
    opened(target, 2)
    assert asked == [1, 1, 2, 2]
    assert (target.batch.times.watermark_ms, target.batch.times.late_ms) == (2_000, 1_000)


def test_a_host_knows_the_watermark_of_a_batch_from_the_host_that_brought_it_there() -> None:
    def ask(request: BatchRef) -> BatchWatermark:
        return BatchWatermark(2_000, 1_000)

    def never(request: BatchRef) -> BatchWatermark:
        raise AssertionError("the watermark is known")

    origin, target = (Driver(Timed(), "eventTime", watermark_policy="query").instance for _ in range(2))
    origin.open(BatchRef("q", "r", 2), "0", NOW_MS, lambda *_: False, ask_watermark=ask)
    target.batches.catch_up(origin.progress, NOW_MS)
    target.batches.merge_watermark(origin.batch.watermark.to_dict(), same_batch=True)
    target.open(BatchRef("q", "r", 2), "0", NOW_MS, lambda *_: False, ask_watermark=never)
    assert (target.batch.times.watermark_ms, target.batch.times.late_ms) == (2_000, 1_000)
