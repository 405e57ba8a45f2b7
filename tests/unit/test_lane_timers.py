"""Timers that fire at the end of their lane: later runs of the batch, hosts that restart, and hosts that stop meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from godwit.errors import GodwitError, StaleGeneration
from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.durable.work import Work
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OpenLane
from tests.unit.test_instance_time import NOW_MS, Driver, Timed, chunk, told

LANE = "0"
GROUPS = 2
FIRST, LATER = BatchRef("q", "run-1", 0), BatchRef("q", "run-2", 0)


class Parts:
    """A changelog in memory."""

    def __init__(self) -> None:
        self.parts: list[NewPart] = []

    def draft(self, parts: Iterable[NewPart]) -> list[NewPart]:
        return list(parts)

    def append(self, draft: list[NewPart]) -> int:
        self.parts += draft
        return len(self.parts)

    def fail(self, error: GodwitError) -> None:
        raise error


def instance_by_key(time_mode: str = "processingTime") -> Instance:
    """With two lanes; the routing hash of a key is the key itself."""
    instance = Driver(Timed(), time_mode, partitions=2).instance
    instance.key_codec.route_hash = lambda key: key[0]  # type: ignore[method-assign]
    instance.memory.ownership = Ownership.initial("host-0", Routing.spread(["host-0"], GROUPS))
    return instance


def run_lane(instance: Instance, request: BatchRef, *rows: tuple[int, int, int]) -> Work:
    """The rows of the lane, and then its timers."""
    instance.open(request, LANE, NOW_MS, lambda *_: False)
    if rows:
        instance.apply(request, LANE, Chunk(*chunk(rows)))
    return instance.fire(request, LANE)


def test_a_later_run_of_a_batch_fires_a_lane_that_had_nothing_to_fire_in_the_earlier_run() -> None:
    """Nothing was applied here, so nothing is reverted; but the later run may have other rows, or other lanes."""
    instance = instance_by_key()
    assert told(run_lane(instance, FIRST)) == []
    assert told(run_lane(instance, LATER, (4, 0, NOW_MS - 1))) == [NOW_MS - 1]


def test_a_lane_that_had_nothing_to_fire_has_fired_after_a_restart_too() -> None:
    """The next owner of the key may have a later clock, and must not fire for a second attempt of the lane."""
    instance, log = instance_by_key(), Parts()
    instance.durable.journal = cast(Any, log)
    assert told(run_lane(instance, FIRST, (4, 0, NOW_MS + 5))) == []
    restarted = instance_by_key()
    for info, body in log.parts:
        restarted.recovery.take("host-0", info, memoryview(bytes(body)))
    assert restarted.batch.fired_lanes.has_fired(4, int(LANE), GROUPS)


def test_a_host_that_stops_does_not_fire_while_a_key_is_between_two_owners() -> None:
    """The next generation would take the key for one whose timers have fired."""
    instance = instance_by_key()
    instance.open(FIRST, LANE, NOW_MS, lambda *_: False)
    instance.apply(FIRST, LANE, Chunk(*chunk([(0, 0, NOW_MS - 1), (4, 0, NOW_MS - 2)])))
    shared = SharedInstance(instance)
    shared.ownership.cut(Units(frozenset({0})), "host-1")
    services = SimpleNamespace(stopping=lambda: True, log=SimpleNamespace(flush=lambda _: None), host="host-0")
    exchange = LaneExchange(cast(Any, services), lambda _: None)
    with pytest.raises(StaleGeneration):
        exchange._fire(shared, OpenLane("timed", "q", "run-1", 0, LANE))
    assert not instance.batch.fired_lanes.has_fired(0, int(LANE), GROUPS)


def test_a_batch_has_sparks_time_whatever_the_clocks_of_its_hosts_say() -> None:
    """A key that moves after its rows were applied has the same time at its next owner: no timer is due there earlier."""
    for clock_ms in (NOW_MS - 1_000, NOW_MS + 1_000):
        instance = instance_by_key()
        instance.open(FIRST, "empty-1", clock_ms, lambda *_: False, carries=False)
        instance.open(FIRST, LANE, clock_ms, lambda *_: False, batch_ms=NOW_MS)
        instance.apply(FIRST, LANE, Chunk(*chunk([(4, 0, NOW_MS), (2, 1, NOW_MS + 1)])))
        assert told(instance.fire(FIRST, LANE)) == [NOW_MS]


def test_the_time_of_a_batch_is_the_same_after_a_restart() -> None:
    instance, log = instance_by_key(), Parts()
    instance.durable.journal = cast(Any, log)
    instance.open(FIRST, "empty-1", NOW_MS + 9, lambda *_: False, carries=False)
    instance.open(FIRST, LANE, NOW_MS + 9, lambda *_: False, batch_ms=NOW_MS)
    restarted = instance_by_key()
    for info, body in log.parts:
        restarted.recovery.take("host-0", info, memoryview(bytes(body)))
    assert restarted.batch.times.processing_ms == NOW_MS
