"""Hosts killed with SIGKILL between two steps of a migration, under every protocol: the answer stays what it was.

State is heavy and the link narrow, so that a move lasts; the kill comes when the first step has been handed over, and the
history proves that it came before the last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from godwit.spark.change.migration_handle import Migration
from tests.spark.flocks import OPERATOR, kill_host, under_way, wait_until
from tests.spark.stage import Stage, staged

LONG = pytest.mark.long
GROUPS = list(range(0, 512, 2))  # half of what host-0 has
ORIGIN, TARGET = "host-0", "host-1"
BALLAST_BYTES = 48 << 10  # some 30 keys move: more than push and fetch put into one parcel
SLOW: dict[str, Any] = {"step_units": 16, "rate_bytes_per_s": 1_000_000}
MANY = {"step_units": 1}  # steps of copies are handed over at one time: only their number makes it last
PROTOCOLS = ("pause", "fetch", "push", "live", "live-unordered", "standby")
QUICK = {("live", ORIGIN)}  # part of every test run; the simulator has all of them there


def kills() -> list[Any]:
    pairs = [(protocol, killed) for protocol in PROTOCOLS for killed in (ORIGIN, TARGET)]
    return [pytest.param(*pair, marks=() if pair in QUICK else LONG) for pair in pairs]


def moving(stage: Stage, protocol: str) -> tuple[Migration, Migration]:
    """What was asked for, and the request whose moves do it: copies that stand do it for who hands over."""
    if protocol == "standby":
        copies = stage.flock.standby(OPERATOR, groups=GROUPS, to=TARGET, **SLOW | MANY)
        stage.runs()
        return stage.flock.move(OPERATOR, groups=GROUPS, to=TARGET, protocol="standby", wait=False), copies
    move = stage.flock.move(OPERATOR, groups=GROUPS, to=TARGET, protocol=protocol, wait=False, **SLOW)
    return move, move


def became(stage: Stage, migration: Migration) -> list[tuple[str, str]]:
    """What the history tells of each try: its name, and whether units moved or stayed by it."""
    lines = [line for line in stage.flock.history(OPERATOR) if line.get("migration") == migration.id]
    return [(line["move"].rpartition("-")[2], line["event"]) for line in lines if "move" in line]


@pytest.mark.parametrize(("protocol", "killed"), kills())
def test_a_host_killed_on_the_way_changes_nothing(
    spark: SparkSession, tmp_path: Path, protocol: str, killed: str
) -> None:
    with staged(spark, tmp_path, work=8_000, ballast_bytes=BALLAST_BYTES) as stage:
        stage.start()
        stage.runs()
        move, carried = moving(stage, protocol)
        wait_until(lambda: under_way(move), what="some of it is there")
        kill_host(stage.flock, killed)
        assert move.wait(120)
        assert stage.sink.row_count < stage.work.rows, "rows came all the time"
        assert move.report()["groups_moved"] == len(GROUPS)
        told = became(stage, carried)
        assert told[:2] == [("1", "moved"), ("1", "stayed")], "killed between two steps"
        assert told[-1][1] == "moved"
        assert stage.owners() == {ORIGIN: 256, TARGET: 768}
        stage.check()


@pytest.mark.long
@pytest.mark.parametrize("killed", [ORIGIN, TARGET])
def test_a_host_killed_while_copies_are_made_has_them_made_again(
    spark: SparkSession, tmp_path: Path, killed: str
) -> None:
    with staged(spark, tmp_path, work=8_000, ballast_bytes=BALLAST_BYTES) as stage:
        stage.start()
        stage.runs()
        copies = stage.flock.standby(OPERATOR, groups=GROUPS, to=TARGET, wait=False, **SLOW)
        wait_until(lambda: copies.progress()["bytes"], what="some of it is copied")
        assert copies.progress()["phase"] == "moving", "not all of it"
        kill_host(stage.flock, killed)
        assert copies.wait(120)
        assert copies.progress()["phase"] == "standing"
        assert became(stage, copies) == [("1", "stayed")]
        assert stage.owners() == {ORIGIN: 512, TARGET: 512}, "a copy owns nothing"
        stage.runs()
        moved = stage.flock.move(OPERATOR, groups=GROUPS, to=TARGET, protocol="standby").report()
        assert moved["groups_moved"] == len(GROUPS)
        stage.check()
