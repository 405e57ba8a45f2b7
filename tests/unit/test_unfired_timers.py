"""Timers that came from a lost host and have not had their turn: when they fire, by which lane, and what is written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointCorrupt, WorkLost
from godwit.model.ownership import Ownership
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.runtime.durable.batch_in_progress import fired_of
from godwit.runtime.liveness.wills import check_inherited, write_will
from godwit.runtime.messages import LaneOpened
from godwit.runtime.router.link import Link
from godwit.runtime.router.links import Links
from godwit.runtime.router.route import Route, Task
from tests.unit.test_instance_time import NOW_MS, Driver, Timed, told

GROUPS = 4
HERE, CAME = Units(frozenset({0, 1})), Units(frozenset({2, 3}))
UNFIRED = {"fired": False, "due": None}


def heir() -> Driver:
    """In the second batch, having fired its own; keys 2 and 3 came with their timers, and are served."""
    driver = Driver(Timed(), "processingTime")
    driver.instance.memory.ownership = Ownership.initial("heir", Routing.spread(["heir"], GROUPS))
    driver.instance.key_codec.route_hash = lambda key: key[0]  # type: ignore[method-assign]
    driver.open()
    driver.push((0, 0, NOW_MS + 1), (2, 0, NOW_MS + 2), (3, 0, NOW_MS + 3))
    for unit in CAME.groups:
        assert driver.instance.ownership is not None
        driver.instance.ownership.cut(Units(frozenset({unit})), "lost")
    assert told(driver.open("0", NOW_MS + 10)) == [NOW_MS + 1]
    driver.instance.timers.inherit(CAME, UNFIRED, same_batch=True, lost=True)
    assert driver.instance.ownership is not None
    driver.instance.ownership.resume(CAME)
    return driver


def test_the_next_lane_that_has_rows_fires_them_and_gets_them_again_when_it_is_repeated() -> None:
    driver = heir()
    assert told(driver.open_too("empty", NOW_MS + 20, carries=False)) == []
    assert told(driver.open_too("1", NOW_MS + 20)) == [NOW_MS + 2, NOW_MS + 3]
    assert told(driver.open_too("1", NOW_MS + 20)) == [NOW_MS + 2, NOW_MS + 3]
    assert told(driver.open_too("0", NOW_MS + 20)) == [NOW_MS + 1]
    assert told(driver.open_too("2", NOW_MS + 20)) == []


def test_a_lane_that_has_fired_before_gets_both_firings() -> None:
    work = (driver := heir()).open_too("0", NOW_MS + 20)
    assert told(work) == [NOW_MS + 1, NOW_MS + 2, NOW_MS + 3]
    assert work.begun["firings"] == [("heir/1/1", 1), ("heir/1/2", 2)]
    assert not driver.instance.batch.unfired


def test_what_nobody_came_for_fires_in_the_next_batch() -> None:
    driver = heir()
    assert told(driver.open("0", NOW_MS + 20)) == [NOW_MS + 2, NOW_MS + 3]


def test_what_is_still_between_two_owners_stays_unfired() -> None:
    driver = heir()
    assert driver.instance.ownership is not None
    driver.instance.ownership.cut(Units(frozenset({3})), "other")
    assert told(driver.open_too("1", NOW_MS + 20)) == [NOW_MS + 2]
    assert driver.instance.batch.unfired == Units(frozenset({3}))


def test_a_restart_finds_them_and_up_to_when_they_fire() -> None:
    mark, _ = heir().instance.mark_part()
    again = Driver(Timed(), "processingTime").instance
    again.recovery.mark(mark)
    assert again.batch.unfired == CAME
    assert again.batch.due is not None
    assert again.batch.due.processing_ms == NOW_MS + 10


def test_a_mark_of_an_earlier_version_tells_up_to_when_timers_fire_too() -> None:
    mark, _ = heir().instance.mark_part()
    old = {name: value for name, value in mark.items() if name not in ("unfired", "firings", "before", "joined")}
    again = Driver(Timed(), "processingTime").instance
    again.recovery.mark(old | {"due": None})
    assert again.batch.due is not None
    assert again.batch.due.processing_ms == NOW_MS + 10
    assert not again.batch.unfired


@pytest.mark.parametrize(
    ("mark", "fired"),
    [
        ({"fired": True}, HERE),
        ({"fired": True, "unfired": Units(frozenset({1})).to_dict()}, Units(frozenset({0}))),
        ({"fired": False}, Units()),
        ({"fired": False, "fired_elsewhere": [Units(frozenset({1, 2})).to_dict()]}, Units(frozenset({1}))),
    ],
)
def test_what_has_fired_is_known_unit_by_unit(mark: dict[str, Any], fired: Units) -> None:
    assert fired_of(HERE, mark) == fired


def test_heirs_of_an_heir_that_has_not_fired_get_what_it_came_with() -> None:
    mark, _ = heir().instance.mark_part()
    second = heir().instance
    second.batch.unfired = Units()
    second.timers.inherit(HERE | CAME, mark, same_batch=True, lost=True)
    assert second.batch.unfired == CAME
    unfired = heir().instance
    unfired.batch.fired = False
    unfired.timers.inherit(HERE | CAME, mark, same_batch=True, lost=True)
    assert unfired.batch.fired_elsewhere == [HERE]


def test_a_key_that_was_apart_when_its_group_fired_elsewhere_has_not_fired() -> None:
    """Nor has it once it is one of the group again, here or at the next owner."""
    driver = heir()
    instance, ownership = driver.instance, driver.instance.ownership
    assert ownership is not None
    key = GROUPS + 2  # of group 2
    ownership.keys[key] = replace(ownership.groups[2], epoch=3)
    instance.batch.fired = False
    fired = {"fired": True, "due": None, "unfired": Units().to_dict()}
    instance.timers.inherit(CAME, fired, same_batch=True, lost=False)
    del ownership.keys[key]
    assert instance.timers._own([(1, (2,)), (2, (key,)), (3, (0,))]) == [(2, (key,)), (3, (0,))]
    mark, _ = instance.mark_part()
    follower = heir().instance
    follower.batch.fired, follower.batch.unfired = False, Units()
    follower.timers.inherit(CAME, mark, same_batch=True, lost=False)
    assert follower.timers._own([(1, (2,)), (2, (key,))]) == [(2, (key,))]


# -- what a lost host had answered -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answered", "lost"), [({1: 4, 2: 7}, False), ({2: 8}, True), ({1: 5}, True), ({3: 9}, True), ({}, False)]
)
def test_what_a_lost_host_had_answered_is_compared_with_its_will(
    tmp_path: Path, answered: dict[int, int], lost: bool
) -> None:
    directory = tmp_path / "hosts" / "host-0"
    check_inherited(directory, answered)  # it has left by itself: there is no will
    write_will(directory, "w", {"host-1": {"op": HERE}}, {1: 5, 2: 8})
    if lost:
        with pytest.raises(WorkLost, match=r"its heirs do not have.*host=host-0"):
            check_inherited(directory, answered)
    else:
        check_inherited(directory, answered)


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ([4, 4, 4], None),
        ([None, None, None], None),
        ([4, None, 4], None),
        ([4, 3, 4], "host-1"),
    ],
)
def test_a_host_that_has_missed_a_batch_is_named(tmp_path: Path, before: list[int | None], behind: str | None) -> None:
    routing = Routing.spread([f"host-{at}" for at in range(len(before))], GROUPS)
    schema = Driver(Timed(), "none").instance.spec.output_schema
    route = Route("op", str(tmp_path), routing, schema, ("key",), "token")
    request: Any = None
    links = Links(route, Task(request, "0"), schema, None, routing)  # type: ignore[arg-type]
    for at, batch in enumerate(before):
        link = Link(f"host-{at}", route, Task(request, "0"), schema, lambda _: False)
        link.opened = LaneOpened(0, 1, before=batch)
        links._links[link.host] = link
    if behind is None:
        links.check_committed()
        return
    with pytest.raises(CheckpointCorrupt, match=f"the log of {behind} ends in batch 3, but batch 4 was committed"):
        links.check_committed()
