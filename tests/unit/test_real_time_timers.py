"""In real time a batch lasts for minutes: timers fire, and the watermark goes on, while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.instance import Instance
from godwit.runtime.router.lanes import row_slices
from godwit.runtime.router.route import Route
from tests.unit.test_instance_time import INPUT, NOW_MS, Driver, Timed, chunk, told

FIRST, LATER = BatchRef("q", "run-1", 0), BatchRef("q", "run-2", 0)
GROUPS = 2


def opened(time_mode: str) -> Instance:
    instance = Driver(Timed(), time_mode, delay_ms=10).instance
    instance.key_codec.route_hash = lambda key: key[0]  # type: ignore[method-assign]
    instance.memory.ownership = Ownership.initial("host-0", Routing.spread(["host-0"], GROUPS))
    instance.open(FIRST, "0", NOW_MS, lambda *_: False)
    return instance


def apply(instance: Instance, *rows: tuple[int, int, int], request: BatchRef = FIRST) -> list[int]:
    """(key, event time in milliseconds, timer in milliseconds) each; row numbers go on."""
    batch, numbers, hashes = chunk([(key, at_ms * 1_000, timer_ms) for key, at_ms, timer_ms in rows])
    last = instance.ledger.last_row("0") + 1
    return told(instance.apply(request, "0", Chunk(batch, numbers + last, hashes)))


def fire(
    instance: Instance,
    now_ms: int = NOW_MS,
    event_max_ms: int | None = None,
    known: Mapping[str, int] | None = None,
    request: BatchRef = FIRST,
) -> Work:
    return instance.fire_due(request, "0", now_ms, event_max_ms, known or {})


def test_a_timer_fires_while_the_batch_runs_and_rows_go_on() -> None:
    instance = opened("processingTime")
    assert apply(instance, (1, 0, NOW_MS + 50)) == [-1]
    assert told(fire(instance, NOW_MS + 49)) == []
    work = fire(instance, NOW_MS + 50)
    assert told(work) == [NOW_MS + 50]
    assert work.begun["firings"] == [("host-0/0/1", 1)]
    assert apply(instance, (1, 0, NOW_MS + 60)) == [-1]
    assert told(fire(instance, NOW_MS + 60, known={"host-0": 1})) == [NOW_MS + 60]


def test_a_router_that_has_missed_the_answer_gets_the_outputs_again() -> None:
    instance = opened("processingTime")
    apply(instance, (1, 0, NOW_MS), (2, 0, NOW_MS + 1))
    assert told(fire(instance, NOW_MS)) == [NOW_MS]
    assert told(fire(instance, NOW_MS + 1)) == [NOW_MS, NOW_MS + 1]
    assert told(fire(instance, NOW_MS + 1, known={"host-0": 1})) == [NOW_MS + 1]
    assert told(fire(instance, NOW_MS + 1, known={"host-0": 2})) == []


def test_the_watermark_goes_on_while_the_batch_runs() -> None:
    instance = opened("eventTime")
    apply(instance, (1, 1_000, 1_050))
    assert told(fire(instance, event_max_ms=1_059)) == []
    assert told(fire(instance, event_max_ms=1_060)) == [1_050]
    assert told(fire(instance, event_max_ms=1_060, known={"host-0": 1})) == []
    assert apply(instance, (1, 1_049, 9_000), (1, 1_051, 9_000)) == [-1], "the first row is late by now"
    assert instance.counters.late == 1


def test_a_later_run_begins_with_the_watermark_of_the_beginning() -> None:
    """Its rows come again, and must not be late."""
    instance = opened("eventTime")
    apply(instance, (1, 1_000, 1_050))
    fire(instance, event_max_ms=5_000)
    fire(instance, event_max_ms=5_000)
    instance.open(LATER, "0", NOW_MS, lambda *_: False)
    assert apply(instance, (1, 1_000, 1_050), request=LATER) == [-1]
    assert told(fire(instance, event_max_ms=1_060, request=LATER)) == [1_050]


def test_the_timer_of_a_key_between_two_owners_waits() -> None:
    instance = opened("processingTime")
    apply(instance, (1, 0, NOW_MS), (2, 0, NOW_MS + 1))
    assert instance.memory.ownership is not None
    instance.memory.ownership.cut(Units(frozenset({1})), "host-1")
    assert told(fire(instance, NOW_MS + 1)) == [NOW_MS + 1]


# -- ticks -----------------------------------------------------------------------------------------------------------


def route(**given: Any) -> Route:
    return Route("op", "", Routing.spread(["host-0"], GROUPS), INPUT, ("key",), "", gather=False, **given)


def lane_batch(keys: list[int | None]) -> pa.RecordBatch:
    """A null is a tick."""
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())] * 2, names=["key", "hash"])


def test_a_tick_is_a_slice_without_rows_if_timers_fire_in_real_time() -> None:
    batches = [lane_batch([1, 2]), lane_batch([None]), lane_batch([3])]
    for given, sizes in (
        ({"real_time": True, "timers": True}, [2, 0, 1]),
        ({"real_time": True}, [2, 1]),
        ({"timers": True}, [2, 1]),
    ):
        slices = list(row_slices(batches, route(**given), "0"))
        assert [len(each.rows) for each in slices] == sizes
        assert np.concatenate([each.rows for each in slices]).tolist() == [0, 1, 2]
