"""A task that waits for a host tells the driver, and ends when the driver has had it killed; real streams, no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.errors import HostUnavailable
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.liveness.slot_offers import SlotOffers, TaskSlot
from godwit.runtime.liveness.waits import Waits
from godwit.runtime.messages import OfferSlot, SlotTaken
from godwit.runtime.reading.state_reader import StateReader
from godwit.runtime.router.link import Link
from godwit.runtime.router.route import Route, Task
from godwit.transport import typed
from godwit.transport.flight import Service
from tests.integration.nest import operator_of
from tests.spark.flocks import Count

TOKEN = "secret"
NEEDED = "needs its task slot"


@dataclass
class Driver:
    """Has every task killed that asks for the given time."""

    leave_at: int = 1
    asked: list[int] = field(default_factory=list)

    def waits(self, request: OfferSlot) -> SlotTaken:
        self.asked.append(request.attempt)
        return SlotTaken(len(self.asked) >= self.leave_at)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def address(driver: Driver) -> Iterator[str]:
    service = Service("127.0.0.1", TOKEN, typed.actions({OfferSlot: driver.waits}))
    yield f"127.0.0.1:{service.port}"
    service.stop(2.0)


def link(checkpoint: Path, controller: str, attempt: int | None, wait_s: float = 30.0) -> Link:
    schema = pa.schema([("key", pa.int64())])
    routing = Routing.spread(["host-0"], 4)
    route = Route("count", str(checkpoint), routing, schema, ("key",), TOKEN, wait_s=wait_s, controller=controller)
    return Link("host-0", route, Task(BatchRef("q", "r", 0), "0", attempt=attempt), schema, lambda _: False)


def test_a_router_that_waits_for_a_lease_leaves_when_its_slot_is_needed(
    tmp_path: Path, driver: Driver, address: str
) -> None:
    driver.leave_at = 2
    began_s = time.monotonic()
    with pytest.raises(HostUnavailable, match=NEEDED):
        link(tmp_path, address, 77).connect()
    assert driver.asked == [77, 77]
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("attempt", [None, 77])
def test_without_a_driver_or_a_task_a_router_waits_as_long_as_it_should(tmp_path: Path, attempt: int | None) -> None:
    with pytest.raises(HostUnavailable, match=r"has not served for 0\.8 s"):
        link(tmp_path, "" if attempt else "127.0.0.1:1", attempt, wait_s=0.8).connect()


def test_a_driver_that_is_gone_does_not_end_the_wait(tmp_path: Path) -> None:
    with pytest.raises(HostUnavailable, match=r"has not served for 0\.8 s"):
        link(tmp_path, "127.0.0.1:1", 77, wait_s=0.8).connect()


def test_a_wait_for_an_answer_ends_too_because_its_host_may_wait_for_a_lost_one(
    tmp_path: Path, driver: Driver, address: str
) -> None:
    ended, slot = threading.Event(), TaskSlot(address, TOKEN, 5)
    with Waits().over(tmp_path, None, ended.set, slot):
        assert ended.wait(20)
    assert driver.asked == [5]
    with pytest.raises(HostUnavailable, match=NEEDED):
        slot.check()


def test_a_task_that_has_left_asks_no_more(driver: Driver, address: str) -> None:
    offers = SlotOffers(TaskSlot(address, TOKEN, 5), 0.0)
    assert offers.taken()
    assert offers.taken()
    assert driver.asked == [5]


def test_a_reader_of_state_leaves_too(tmp_path: Path, driver: Driver, address: str) -> None:
    reader = StateReader(
        operator_of(Count()).spec, str(tmp_path), (("host-0", frozenset({0})),), -1, "", TOKEN, controller=address
    )
    with pytest.raises(HostUnavailable, match=NEEDED):
        list(reader.read(0, 9))
    assert driver.asked == [9]
