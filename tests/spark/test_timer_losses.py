"""Hosts are lost while timers fire, under Spark: others take over each time, and every timer fires once, before later rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.model.routing import GROUPS
from godwit.spark.change import lost_hosts
from tests.integration.bells import Bells
from tests.spark.flocks import OPERATOR, Kept, KeyCount, drain, kill_host, pid_of, reach, start, wait_until

HOSTS = 3
KILLS = 5  # if a sixth host were lost within a minute, nobody would take over any more


def spread(flock: godwit.Flock) -> bool:
    """Whether all hosts have their share, and nothing is being moved."""
    owned: Counter[str] = Counter()
    for row in flock.routing(OPERATOR):
        owned[row["host"]] += row["group_count"]
    return len(owned) == HOSTS and min(owned.values()) >= GROUPS // HOSTS and not flock._running.requests.keys_move()


def check(sink: Kept, work: KeyCount) -> None:
    """A key's timer tells, in the next batch, how many rows it had had."""
    counts: Counter[int] = Counter()
    due: set[int] = set()
    for batch, rows in sorted(sink.by_batch.items()):
        rings = [(key, count) for key, count, n in rows if n < 0]
        assert rings or not rows or not due, f"batch {batch}: timers did not fire"
        if rows:
            assert sorted(rings) == sorted((key, counts[key]) for key in due), f"batch {batch}"
            due = set()
        for key, count, n in rows:
            if n >= 0:
                counts[key] += 1
                due.add(key)
                assert count == counts[key], (batch, key)
    assert counts == work.truth()
    assert not due, "the last timers have fired, too"


@pytest.mark.long
def test_hosts_that_are_lost_while_they_fire_are_taken_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_hosts, "REPLACE_AFTER_S", 0.2)
    signals = tmp_path / "signals"
    signals.mkdir()
    work, sink = KeyCount(60_000, keys=120, per_batch=250, per_second=1_500), Kept()
    with godwit.Flock(spark, hosts=HOSTS, checkpoint=tmp_path / "flock", recovery="parallel") as flock:
        bells = Bells(str(signals))
        frame = flock.process(work.stream(spark), "key", bells, timeMode="processingTime", name=OPERATOR)
        query = start(frame, sink, tmp_path / "spark")
        reach(query, sink, 3)
        for kill in range(KILLS):
            wait_until(lambda: spread(flock), what="a new host has its share")
            reach(query, sink, len(sink.by_batch) + 2)
            victim = sorted({row["host"] for row in flock.routing(OPERATOR)})[kill % HOSTS]
            pid = wait_until(lambda host=victim: pid_of(flock, host))
            (signals / f"hold-{pid}").touch()
            wait_until(lambda pid=pid: (signals / f"held-{pid}").exists(), what="it is firing")
            kill_host(flock, victim)
            lost = wait_until(lambda n=kill: [line for line in flock.history() if line["event"] == "lost"][n:])
            assert lost[0]["recovery"] == "taken over", lost
        assert sink.row_count < 2 * work.rows, "rows came all the time"
        drain(query)
        check(sink, work)
