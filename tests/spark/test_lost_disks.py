"""Hosts on disks of their own that are lost, one with its host: the query goes on from the backup, and nothing changes."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from godwit.spark.change import lost_hosts
from tests.spark.flocks import pid_of, wait_until
from tests.spark.stage import Stage, staged


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_hosts, "REPLACE_AFTER_S", 0.5)


def disks_of(root: Path, count: int = 3) -> dict[str, Any]:
    return {"disks": [root / f"disk-{at}" for at in range(count)], "backup": True}


def backups(stage: Stage) -> dict[str, dict[str, Any]]:
    return {host: told["backup"] for host, told in stage.flock.status()["hosts"].items() if told["backup"]}


def wait_stands(stage: Stage, hosts: int) -> dict[str, str]:
    """Who keeps whose, as soon as all are kept."""

    def stands() -> dict[str, str]:
        found = backups(stage)
        all_of_them = len(found) == hosts and all(each["state"] == "stands" for each in found.values())
        return {host: each["peer"] for host, each in found.items()} if all_of_them else {}

    return wait_until(stands, what="every host has a backup")


def lose_disk(stage: Stage, host: str) -> None:
    """As when it breaks: all that was on it is gone, nothing can be written there again, and the host is lost with it."""
    disk = (stage.root / "flock" / "hosts" / host).resolve().parent.parent
    pid: int = wait_until(lambda: pid_of(stage.flock, host), what=f"{host} serves")
    shutil.rmtree(disk)
    disk.write_text("")
    with suppress(ProcessLookupError):  # it may have noticed, and ended
        os.kill(pid, signal.SIGKILL)


def events(stage: Stage, *names: str) -> list[dict[str, Any]]:
    return [line for line in stage.flock.history() if line["event"] in names]


def test_a_host_whose_disk_is_lost_goes_on_from_its_backup_on_another(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=8_000, hosts=3, **disks_of(tmp_path)) as stage:
        stage.start()
        stage.runs()
        keepers = wait_stands(stage, 3)
        assert all(keeper != host for host, keeper in keepers.items()), "a host's backup is at another, on another disk"
        run = stage.query.runId
        lose_disk(stage, "host-1")
        (told,) = wait_until(lambda: events(stage, "restored"), what="the history tells of it")
        assert told["host"] == "host-1"
        wait_stands(stage, 3)
        assert stage.sink.row_count < stage.work.rows, "rows came all the time"
        assert stage.query.runId == run
        stage.check()


@pytest.mark.long
def test_others_take_over_from_the_backup(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=12_000, hosts=3, recovery="parallel", **disks_of(tmp_path)) as stage:
        stage.start()
        stage.runs()
        wait_stands(stage, 3)
        lose_disk(stage, "host-1")
        (told,) = wait_until(lambda: events(stage, "lost"), what="the history tells of it")
        assert told["recovery"] == "taken over", told
        wait_until(lambda: len(stage.owners()) == 3, what="a new host has its share")
        keepers = wait_stands(stage, 3)
        assert "host-1" not in keepers
        stage.check()
        kept = {path.name for path in tmp_path.glob("disk-*/*/host-*/backups/*")}
        assert "host-1" not in kept, "nobody keeps what nobody needs"


@pytest.mark.long
def test_a_flock_that_is_opened_again_without_one_of_its_disks(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=6_000, **disks_of(tmp_path)) as stage:
        stage.start()
        stage.runs()
        wait_stands(stage, 2)
        stage.flock.close()
        disk = (stage.root / "flock" / "hosts" / "host-0").resolve().parent.parent
        shutil.rmtree(disk)
        stage.open(2)
        stage.define()
        stage.start()
        assert [line["host"] for line in events(stage, "restored")] == ["host-0"]
        stage.check()


@pytest.mark.long
def test_a_disk_that_is_lost_without_a_backup_is_an_error_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    given = disks_of(tmp_path) | {"backup": False}
    with staged(spark, tmp_path, work=6_000, wait_s=5, **given) as stage:
        stage.start()
        stage.runs()
        lose_disk(stage, "host-0")
        wait_until(lambda: stage.flock.status()["hosts"]["host-0"].get("state") == "failed", what="it is given up")
        told = stage.flock.status()["hosts"]["host-0"]["error"]
        assert "GODWIT-CHECKPOINT-CORRUPT" in told
        assert "directory of host-0 is gone" in told
        assert "start_from" in told


@pytest.mark.long
def test_backups_follow_the_hosts_that_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=12_000, **disks_of(tmp_path)) as stage:
        stage.start()
        stage.runs()
        wait_stands(stage, 2)
        stage.flock.scale(3)
        wait_stands(stage, 3)
        stage.flock.scale(1)
        wait_until(lambda: next(iter(backups(stage).values()))["state"] == "none", what="there is nobody to keep it")
        stage.flock.scale(2)
        wait_stands(stage, 2)
        stage.check()
