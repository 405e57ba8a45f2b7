"""A host that is lost while a query runs: its keys go on elsewhere, the query does not restart, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from godwit.runtime.takeover import rescue
from godwit.spark.change import lost_hosts
from tests.spark.flocks import OPERATOR, kill_host, wait_until
from tests.spark.stage import Stage, staged


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_hosts, "REPLACE_AFTER_S", 0.5)


def lost(stage: Stage) -> list[dict[str, Any]]:
    return [line for line in stage.flock.history() if line["event"] == "lost"]


def wait_lost(stage: Stage, count: int = 1) -> list[dict[str, Any]]:
    return wait_until(lambda: len(lost(stage)) >= count and lost(stage), what="the history tells of it")


def wait_even(stage: Stage, hosts: int) -> None:
    """Until a new host has joined and has its share."""
    least = 1024 // hosts
    wait_until(
        lambda: len(stage.owners()) == hosts and min(stage.owners().values()) >= least, what="the keys are spread again"
    )


def test_the_others_take_over_its_keys_and_a_new_host_joins(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=8_000, hosts=3, recovery="parallel") as stage:
        stage.start()
        stage.runs()
        run = stage.query.runId
        kill_host(stage.flock, "host-1")
        (told,) = wait_lost(stage)
        assert told["recovery"] == "taken over", told
        assert sorted(told["heirs"]) == ["host-0", "host-2"]
        wait_even(stage, 3)
        assert "host-1" not in stage.owners()
        assert stage.sink.row_count < stage.work.rows, "rows came all the time"
        assert stage.query.runId == run
        stage.check()


@pytest.mark.long
def test_copies_that_stand_take_over(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=8_000) as stage:
        stage.start()
        stage.runs()
        copies = stage.flock.standby(OPERATOR, to="host-1")
        stage.runs()
        kill_host(stage.flock, "host-0")
        (told,) = wait_lost(stage)
        assert told["heirs"]["host-1"]["by_copies"], told
        assert copies.wait(60)
        wait_even(stage, 2)
        assert stage.sink.row_count < stage.work.rows, "rows came all the time"
        stage.check()


@pytest.mark.long
def test_copies_on_a_host_that_is_lost_are_given_up(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=12_000, recovery="parallel") as stage:
        stage.start()
        stage.runs()
        copies = stage.flock.standby(OPERATOR, to="host-1")
        kill_host(stage.flock, "host-1")
        (told,) = wait_lost(stage)
        assert told["recovery"] == "taken over", told
        wait_until(lambda: copies.report()["outcome"] == "aborted", what="the copies are given up")
        wait_even(stage, 2)
        stage.check()


@pytest.mark.long
def test_an_heir_that_is_lost_right_after_the_will_is_dealt_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own end waits for that of the takeover, and what is asked of it there must not wait for it."""
    with staged(spark, tmp_path, work=12_000, hosts=3, recovery="parallel") as stage:
        stage.start()
        stage.runs()
        plain = rescue.write_will
        struck = iter(["host-0"])

        def armed(*args: Any) -> None:
            plain(*args)
            for host in struck:
                kill_host(stage.flock, host)

        monkeypatch.setattr(rescue, "write_will", armed)
        kill_host(stage.flock, "host-1")
        wait_lost(stage, 2)
        stage.runs()
        stage.check()


@pytest.mark.long
def test_where_nobody_can_take_over_hosts_start_again(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=8_000, recovery="parallel") as stage:
        stage.start()
        stage.runs()
        kill_host(stage.flock, "host-0")
        kill_host(stage.flock, "host-1")
        wait_lost(stage)
        stage.runs()
        stage.check()


@pytest.mark.long
def test_a_host_that_is_lost_again_and_again_is_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=20_000) as stage:
        stage.start()
        for count in range(1, 4):
            stage.runs()
            kill_host(stage.flock, "host-0")
            wait_lost(stage, count)
        assert [line["recovery"] for line in lost(stage)] == ["storage", "storage", "taken over"]
        assert "3 times" in stage.flock.status()["quarantined"]["host-0"]
        wait_even(stage, 2)
        assert "host-0" not in stage.owners()
        stage.check()


@pytest.mark.long
def test_hosts_lost_one_after_another(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=30_000, recovery="parallel") as stage:
        stage.start()
        for count in range(1, 6):
            stage.runs()
            kill_host(stage.flock, sorted(stage.owners())[count % len(stage.owners())])
            wait_lost(stage, count)
        stage.check()
