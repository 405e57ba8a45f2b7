"""A flock that follows its load by rules: it scales by itself, says why, and the output is as if it had not."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark.cloudpickle
import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.control.rules import Rule, bottleneck, hot_keys
from godwit.errors import DefinitionError, NotEnoughSlots
from tests.spark.flocks import (
    OPERATOR,
    Count,
    Kept,
    KeyCount,
    assert_exact,
    drain,
    start,
    state_of,
    wait_until,
)

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])


class SlowCount(Count):
    """Counts, and takes its time for each row: work of which a host can do only so much, whatever the machine."""

    def __init__(self, row_us: float) -> None:
        self._row_us = row_us

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        time.sleep(len(rows) * self._row_us / 1e6)
        return super().process(rows, state, times)


@dataclass
class Overload:
    """A flock of one host, which can do 1,000 rows a second, and a query that gets more, or fewer, of them."""

    flock: godwit.Flock
    work: KeyCount
    sink: Kept
    query: Any

    @classmethod
    def open(cls, spark: SparkSession, root: Path, per_second: int, rows: int, hosts: int = 1) -> Overload:
        flock = godwit.Flock(spark, hosts=hosts, checkpoint=root / "flock")
        work, sink = KeyCount(rows, keys=60, per_second=per_second), Kept()
        work.per_batch = 2 * per_second  # batches of a few seconds, however far the query is behind
        frame = flock.process(work.stream(spark), "key", SlowCount(1000.0), name=OPERATOR)
        return cls(flock, work, sink, start(frame, sink, root / "spark"))

    def check(self) -> None:
        drain(self.query)
        assert_exact(self.sink.rows(), self.work.truth())
        assert state_of(self.flock) == self.work.truth()

    def decided(self) -> list[dict[str, Any]]:
        return [line for line in self.flock.history() if line["event"] == "decided"]


EVEN = {"host-0": 512, "host-1": 512}
QUICK = bottleneck(metric="useful_mean", above=0.6, for_s=0.5, cool_down_s=1.0)


@pytest.mark.long
def test_overload_makes_the_rules_scale_and_the_history_tells_why(spark: SparkSession, tmp_path: Path) -> None:
    run = Overload.open(spark, tmp_path, per_second=1_400, rows=14_000)
    try:
        scaler = run.flock.autoscale(QUICK, maximum=2, every_s=0.2)
        wait_until(lambda: run.query.exception() or len(run.flock.status()["hosts"]) == 2, 60, "a second host")
        wait_until(lambda: not run.flock._running.requests.keys_move(), 60, "its share")
        assert scaler.running
        run.check()
        (line,) = run.decided()
        assert (line["rule"], line["action"], line["hosts_before"], line["hosts"]) == ("bottleneck", "scale", 1, 2)
        assert "useful_mean above 0.6" in line["reason"]
        assert line["figures"]["useful_mean"] > 0.6
        assert scaler.decisions() == [{name: line[name] for name in scaler.decisions()[0]}]
        events = [(row["event"], row.get("kind")) for row in run.flock.history()]
        assert events.index(("decided", None)) < events.index(("requested", "scale")), "told before it is done"
        assert {name: host["groups"] for name, host in run.flock.status()["hosts"].items()} == EVEN
        assert scaler.decisions()[0]["reason"] in scaler.explain()
        measured = run.flock.measures()[OPERATOR]
        assert set(measured["hosts"]) == {"host-0", "host-1"}
        assert measured["true_rows_per_s"] == pytest.approx(1_000, rel=0.2)
    finally:
        run.flock.close()
    assert not scaler.running


@pytest.mark.long
def test_dry_run_says_the_same_and_does_nothing(spark: SparkSession, tmp_path: Path) -> None:
    run = Overload.open(spark, tmp_path, per_second=1_400, rows=9_000)
    try:
        scaler = run.flock.autoscale(QUICK, maximum=2, every_s=0.2, dry_run=True)
        wait_until(lambda: run.query.exception() or scaler.decisions(), 60, "a decision")
        run.check()
        assert [line["dry_run"] for line in run.decided()] == [True] * len(run.decided())
        assert run.decided()[0]["hosts"] == 2
        assert list(run.flock.status()["hosts"]) == ["host-0"]
        assert [row for row in run.flock.history() if row["event"] == "requested"] == []
        scaler.stop()
        assert not scaler.running
    finally:
        run.flock.close()


@pytest.mark.long
def test_warm_host_is_taken_without_a_start_and_another_is_warmed(spark: SparkSession, tmp_path: Path) -> None:
    run = Overload.open(spark, tmp_path, per_second=1_400, rows=14_000)
    try:
        spare = run.flock.autoscale(bottleneck(for_s=3600.0), maximum=3, every_s=0.2, warm=1)
        wait_until(lambda: len(run.flock.status()["hosts"]) == 2, 60, "a warm host")
        spare.stop()
        wait_until(lambda: not run.flock._running.requests._running, 60)
        assert run.flock.status()["hosts"]["host-1"]["groups"] == 0
        run.flock.autoscale(
            Rule("busy", "useful", "scale-out", above=0.6, for_s=0.5, at_most=2), maximum=3, warm=1, every_s=0.2
        )
        wait_until(lambda: run.flock.status()["hosts"].get("host-1", {}).get("groups") == 512, 60, "its share")
        wait_until(lambda: len(run.flock.status()["hosts"]) == 3, 60, "another warm host")
        run.check()
        history = run.flock.history()
        (scaled,) = [row["migration"] for row in history if row.get("kind") == "scale"]
        (began,) = [row for row in history if row["event"] == "began" and row["migration"] == scaled]
        assert began["joining"] == [], "it was there already"
        assert run.flock.status()["hosts"]["host-2"]["groups"] == 0
    finally:
        run.flock.close()


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"rules": [bottleneck(), bottleneck()]}, DefinitionError, "two rules"),
        ({"rules": hot_keys(), "minimum": 3, "maximum": 2}, DefinitionError, "minimum=3"),
        ({"rules": hot_keys(), "maximum": 99}, NotEnoughSlots, "99 hosts"),
        ({"rules": hot_keys(), "maximum": 2, "warm": 2}, DefinitionError, "warm=2"),
        ({"rules": hot_keys(), "every_s": 0}, DefinitionError, "every_s=0"),
        ({"rules": "/no/such/rules.toml"}, DefinitionError, "cannot be read"),
        ({"rules": hot_keys(operator="nobody")}, DefinitionError, "no operator 'nobody'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_could_not_work_is_refused_when_it_is_set(
    one_host: godwit.Flock, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        one_host.autoscale(**given)
    assert one_host._autoscaler is None


@pytest.fixture(scope="module")
def one_host(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("refused")
    with godwit.Flock(spark, hosts=1, checkpoint=root / "flock") as flock:
        flock.process(KeyCount(10).stream(spark), "key", Count(), name=OPERATOR)
        yield flock


def test_only_one_follows_the_rules_at_a_time(one_host: godwit.Flock) -> None:
    first = one_host.autoscale(QUICK, maximum=2)
    with pytest.raises(DefinitionError, match="already"):
        one_host.autoscale(QUICK, maximum=2)
    first.stop()
    one_host.autoscale(QUICK, maximum=2).stop()
