"""A flock that runs is copied, and another one goes on from the copy, also with another number of hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.errors import CheckpointUnusable, DefinitionError
from tests.spark.flocks import OPERATOR, Count, Kept, drain, start, state_of
from tests.spark.stage import staged


def test_another_flock_goes_on_from_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    """The rows after the copy are the same for both; so is what both end with."""
    with staged(spark, tmp_path / "first", work=5_000) as stage:
        stage.start()
        stage.runs()
        copied = stage.flock.checkpoint(tmp_path / "copy")
        assert stage.sink.row_count < stage.work.rows, "rows came all the time"
        stage.check()
    (spark_copy,) = copied["spark"].values()
    shutil.copytree(spark_copy, tmp_path / "again" / "spark")
    with godwit.Flock(spark, hosts=3, checkpoint=tmp_path / "again" / "flock", start_from=copied["path"]) as flock:
        frame = flock.process(stage.work.stream(spark), "key", Count(), name=OPERATOR)
        before, sink = state_of(flock), Kept()
        query = start(frame, sink, tmp_path / "again" / "spark")
        drain(query)
        assert len(flock.status()["hosts"]) == 3
        assert 0 < sum(before.values()) < stage.work.rows, "it began in the middle"
        assert state_of(flock) == stage.work.truth()
        assert_goes_on(sink, before, stage.work.truth())


def assert_goes_on(sink: Kept, before: dict[int, int], truth: dict[int, int]) -> None:
    """Every key gives the counts that follow those of the copy; of the batch that was in progress, none of them twice."""
    seen: dict[int, list[int]] = {}
    for key, count, *_ in sink.rows():
        seen.setdefault(key, []).append(count)
    for key, count in truth.items():
        assert seen.get(key, []) == list(range(before.get(key, 0) + 1, count + 1))


def test_what_cannot_be_copied_or_started_from_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path / "first", work=2_000) as stage:
        stage.start()
        stage.runs()
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(CheckpointUnusable, match="not empty"):
            stage.flock.checkpoint(tmp_path / "full")
        stage.check()
    with pytest.raises(CheckpointUnusable, match="not a copy of a flock"):
        godwit.Flock(spark, checkpoint=tmp_path / "new", start_from=tmp_path / "full")


@pytest.mark.long
def test_nothing_is_copied_while_keys_move(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path / "first", work=4_000, ballast_bytes=20_000) as stage:
        stage.start()
        stage.runs()
        move = stage.flock.move(OPERATOR, groups=list(range(200)), to="host-1", wait=False, rate_bytes_per_s=200_000)
        with pytest.raises(DefinitionError, match="keys are being moved"):
            stage.flock.checkpoint(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        move.abort("long enough")
        move.wait(60)
        stage.check()
