"""Whole schedules of moves under load, by every protocol: output per key, its order and state are the same as with none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from godwit.control.moves import groups_in
from godwit.control.step_order import ORDERS
from godwit.spark.change.migration_handle import Migration
from tests.spark.flocks import OPERATOR, KeyCount
from tests.spark.stage import Answer, Stage, left_alone, staged

LONG = pytest.mark.long
PROTOCOLS = ("pause", "fetch", "push", "live", "live-unordered", "standby")  # that move while the query runs
KEYS = 120
WORK = KeyCount(16_000, keys=KEYS, per_batch=250)


@pytest.fixture(scope="module")
def unmoved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[KeyCount], Answer]:
    """The answer of a run in which nothing moves, made once for as many rows."""
    found: dict[int, Answer] = {}

    def answer(work: KeyCount) -> Answer:
        if work.rows not in found:
            found[work.rows] = left_alone(spark, tmp_path_factory.mktemp("unmoved"), work)
        return found[work.rows]

    return answer


# -- out and in, single keys, and a drain ----------------------------------------------------------------------------


def scaled(stage: Stage, hosts: int, **options: Any) -> None:
    stage.runs()
    report = stage.flock.scale(hosts, **options).report()
    assert (report["outcome"], report["groups_moved"]) == ("done", report["groups_minimum"])
    assert report["groups_moved"] > 0
    assert len(stage.flock.status()["hosts"]) == hosts


@pytest.mark.parametrize(
    "protocol", [*(pytest.param(p, marks=LONG) for p in (*PROTOCOLS[:3], "live-unordered", "restart")), "live"]
)
def test_two_four_three_one_two_then_single_keys_and_a_drain(
    spark: SparkSession, tmp_path: Path, unmoved: Callable[[KeyCount], Answer], protocol: str
) -> None:
    with staged(spark, tmp_path, work=WORK) as stage:
        options: dict[str, Any] = {"protocol": protocol}
        if protocol == "restart":
            options["restart"] = stage.start
        stage.start()
        for hosts in (4, 3, 1, 2):
            scaled(stage, hosts, **options)
        assert stage.owners() == {"host-0": 512, "host-4": 512}, "names of hosts that left are not used again"
        stage.runs()
        apart = stage.flock.move(OPERATOR, keys=list(range(20)), to="host-4", **options).report()
        assert apart["keys_moved_apart"] > 0
        stage.runs()
        gone = stage.flock.drain("host-0", **options).report()
        assert (gone["groups_moved"], gone["groups_minimum"]) == (512, 512)
        assert stage.owners() == {"host-4": 1024}
        stage.runs()
        assert stage.answer() == unmoved(WORK)


def taken_over(stage: Stage, leaving: str, *heirs: str) -> None:
    """Copies of all that a host has on those that stay, which then take over from it."""
    rows = [row for row in stage.flock.routing(OPERATOR) if row["host"] == leaving]
    groups = sorted(group for row in rows for group in groups_in(row["groups"]))
    for at, heir in enumerate(heirs):
        stage.flock.standby(OPERATOR, groups=groups[at :: len(heirs)], to=heir)
    stage.runs()
    report = stage.flock.drain(leaving, protocol="standby").report()
    assert (report["outcome"], report["groups_moved"]) == ("done", len(groups))


@pytest.mark.long
def test_the_same_schedule_by_copies_that_take_over(
    spark: SparkSession, tmp_path: Path, unmoved: Callable[[KeyCount], Answer]
) -> None:
    """A host can hold copies only once it is there: it joins by `scale`, which moves by another protocol."""
    with staged(spark, tmp_path, work=WORK) as stage:
        stage.start()
        scaled(stage, 4)
        stage.runs()
        taken_over(stage, "host-3", "host-0", "host-1", "host-2")
        taken_over(stage, "host-2", "host-0", "host-1")
        taken_over(stage, "host-1", "host-0")
        assert stage.owners() == {"host-0": 1024}
        scaled(stage, 2)
        keys = list(range(20))
        stage.flock.standby(OPERATOR, keys=keys, to="host-4")
        stage.runs()
        apart = stage.flock.move(OPERATOR, keys=keys, to="host-4", protocol="standby").report()
        assert apart["keys_moved_apart"] > 0
        stage.flock.standby(OPERATOR, to="host-4")
        stage.runs()
        stage.flock.drain("host-0", protocol="standby")
        assert stage.owners() == {"host-4": 1024}
        stage.runs()
        assert stage.answer() == unmoved(WORK)


# -- a move every second ---------------------------------------------------------------------------------------------


def turns(count: int) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Protocol, order, what moves and where to. Thirty turns bring every protocol together with every order."""
    for at in range(count):
        round_, place = divmod(at, len(PROTOCOLS))
        groups, keys = list(range(place, 1024, 16)), list(range(place, KEYS, len(PROTOCOLS)))
        what = {"groups": groups} if round_ % 2 == 0 else {"keys": keys}
        yield PROTOCOLS[place], list(ORDERS)[at % len(ORDERS)], what, f"host-{(place + round_) % 3}"


def turn(stage: Stage, protocol: str, order: str, what: dict[str, Any], to: str) -> Migration:
    """Ask for it, and go on; where others move some of the same keys it is put in line."""
    if protocol == "standby":
        stage.flock.standby(OPERATOR, **what, to=to, order=order)
        return stage.flock.move(OPERATOR, **what, to=to, protocol="standby")
    return stage.flock.move(OPERATOR, **what, to=to, protocol=protocol, order=order, wait=False)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [len(PROTOCOLS), len(PROTOCOLS) * len(ORDERS)])
def test_a_move_every_second(
    spark: SparkSession, tmp_path: Path, unmoved: Callable[[KeyCount], Answer], seconds: int
) -> None:
    """A second is over when the rows of a second have come through. The long run is stopped and started in the middle too."""
    per_second = 2_000
    work = replace(WORK, rows=per_second * (seconds + 2), per_batch=per_second, per_second=per_second)
    with staged(spark, tmp_path, work=work, hosts=3) as stage:
        stage.start()
        asked = []
        for second, (protocol, order, what, to) in enumerate(turns(seconds), 1):
            stage.comes_to(second * per_second)
            asked.append(turn(stage, protocol, order, what, to))
            if second == 2 * len(PROTOCOLS):
                options = {"protocol": "restart", "restart": stage.start}
                asked.append(stage.flock.move(OPERATOR, groups=list(range(6, 1024, 16)), to="host-1", **options))
        for migration in asked:
            assert migration.wait(120)
            report = migration.report()
            assert report["outcome"] == "done", report
            assert report["groups_moved"] + report["keys_moved_apart"] > 0, report
        assert stage.answer() == unmoved(work)
