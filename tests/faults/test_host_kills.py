"""Hosts killed with SIGKILL in the middle of batches: nothing is lost, repeated or out of order."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.control import recent_losses
from tests.faults.kills import POINTS, KilledCount
from tests.spark.flocks import (
    OPERATOR,
    Kept,
    KeyCount,
    RowCount,
    assert_exact,
    drain,
    kill_host,
    reach,
    start,
    state_of,
)

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a host is killed here, it is started again."""
    monkeypatch.setattr(recent_losses, "FLAPS_MAX", 1000)
    monkeypatch.setattr(recent_losses, "STORM_MAX", 1000)


@pytest.mark.long
def test_both_hosts_killed_at_every_named_point(spark: SparkSession, tmp_path: Path) -> None:
    counted = KeyCount(rows=200 * (len(POINTS) + 2), per_batch=200)
    plan = {point: batch for batch, point in enumerate(POINTS, 1)}
    (tmp_path / "marks").mkdir()
    sink = Kept()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        processor = KilledCount(plan, tmp_path / "marks")
        counts = flock.process(counted.stream(spark), "key", processor, name=OPERATOR)
        query = start(counts, sink, tmp_path / "spark")
        drain(query)
        assert_exact(sink.rows(), counted.truth())
        assert state_of(flock) == counted.truth()
        restarts = {host: found["restarts"] for host, found in flock.status()["hosts"].items()}
    marks = {path.name for path in (tmp_path / "marks").iterdir()}
    assert marks == {f"host-{i}-{point}" for i in range(2) for point in POINTS}
    assert restarts == {"host-0": len(POINTS), "host-1": len(POINTS)}


@pytest.mark.long
def test_hosts_of_a_stateful_processor_killed_from_outside_while_batches_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    counted = KeyCount(rows=2400, per_batch=300, lanes=3)
    sink = Kept()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        counts = flock.transformWithState(counted.stream(spark), "key", RowCount(), RowCount.output, name=OPERATOR)
        query = start(counts, sink, tmp_path / "spark")
        for done, host in ((1, "host-0"), (3, "host-1"), (4, "host-0"), (4, "host-1"), (6, "host-0")):
            reach(query, sink, done)
            kill_host(flock, host)
        drain(query)
        assert_exact(sink.rows(), counted.truth())
        assert state_of(flock) == counted.truth()
        assert sum(found["restarts"] for found in flock.status()["hosts"].values()) == 5
