"""A host that is stopped, so that Spark never hears of it: noticed by its silence, and then lost as any other host is."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.errors import DefinitionError
from tests.spark.flocks import KeyCount, pid_of, wait_until
from tests.spark.stage import Stage, staged


def lines(stage: Stage, *events: str) -> list[dict[str, Any]]:
    return [line for line in stage.flock.history() if line["event"] in events]


def stop_host(stage: Stage, host: str) -> int:
    pid: int = wait_until(lambda: pid_of(stage.flock, host), what=f"{host} serves")
    os.kill(pid, signal.SIGSTOP)
    return pid


def continue_host(pid: int) -> None:
    with suppress(ProcessLookupError):  # Spark has ended it by now
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("recovery", "done"),
    [pytest.param("parallel", "taken over"), pytest.param("storage", "storage", marks=pytest.mark.long)],
)
def test_a_stopped_host_is_noticed_by_its_silence(
    spark: SparkSession, tmp_path: Path, recovery: str, done: str
) -> None:
    with staged(spark, tmp_path, work=4_000, hosts=3, recovery=recovery) as stage:
        stage.start()
        stage.runs()
        run = stage.query.runId
        pid = stop_host(stage, "host-1")
        wait_until(lambda: lines(stage, "lost"), what="it is lost")
        stage.runs()
        continue_host(pid)
        stage.runs()
        silent, lost = lines(stage, "silent", "lost")
        assert (silent["event"], silent["host"]) == ("silent", "host-1")
        assert 1.0 <= silent["for_s"] < 5.0, silent
        assert (lost["host"], lost["recovery"]) == ("host-1", done)
        assert lost["noticed"] == f"no heartbeat for {silent['for_s']:.1f} s"
        assert stage.query.runId == run
        stage.check()


@pytest.mark.long
def test_no_false_alarm_under_full_load(spark: SparkSession, tmp_path: Path) -> None:
    work = KeyCount(2_000_000, keys=10_000, per_batch=100_000)
    with staged(spark, tmp_path, work=work, hosts=4) as stage:
        stage.start()
        wait_until(lambda: stage.query.exception() or stage.sink.row_count >= work.rows, 200, "all rows")
        assert lines(stage, "silent", "lost", "alive") == []


@pytest.mark.parametrize("silent_s", [0, 0.4, -1, float("nan"), float("inf"), True, "1"])
def test_times_that_are_not_possible(spark: SparkSession, tmp_path: Path, silent_s: Any) -> None:
    with pytest.raises(DefinitionError, match=r"silent_s=.* is not allowed\. Give 0\.5 seconds or more .*, or None"):
        godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "ck", silent_s=silent_s)
