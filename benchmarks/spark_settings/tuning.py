"""What each setting of `godwit.tune` brings: the same query with all of them, and with one after another left out.

A setting counts when the session starts, so every measurement has a session of its own, in one JVM that is warm. All ways take
turns. The run with all settings stands before and behind each round, and the ratio of a way is that to the mean of the two: so
the drift of the machine, and of a JVM that becomes faster, hits both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

import godwit
from benchmarks.experiments import passing
from benchmarks.inside.names import ARROW_ROWS, WITH_JAVA
from benchmarks.key_count import ways
from benchmarks.running.record import ROOT, circumstances, run_id
from benchmarks.running.scratch import scratch
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, Trigger
from benchmarks.running.watch import Watch
from godwit.errors import DefinitionError
from godwit.testing.kafka import connector_jars

HOSTS: Final = 2
SLOTS: Final = 5
ALL: Final = "none"  # what is left out where all settings are there
EVERYTHING: Final = "all of them"
NO_JAVA: Final = "the Java class"
WARM_BATCHES: Final = 40  # until then the JVM still becomes faster, and the first way would seem slow
# Without one of these no row leaves, so there is nothing to measure.
NEEDED: Final = frozenset(
    {
        "spark.buffer.size",
        "spark.python.udf.pipelined.enabled",
        "spark.sql.streaming.realTimeMode.allowlistCheck",
        "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled",
        "spark.godwit.realTime",
    }
)


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """`batches` of `batch_rows` rows are measured in micro-batches; in real time, `rate` rows a second for `seconds`."""

    batches: int = 30
    batch_rows: int = 500
    rate: int = 500
    seconds: float = 8.0

    def checked(self) -> TuningSettings:
        if min(self.batches, self.batch_rows, self.rate) < 1 or self.seconds <= 0:
            raise DefinitionError("batches, rows, rate and seconds must be over 0")
        return self


def left_out(trigger: Trigger) -> dict[str, dict[str, str]]:
    """By what is left out: the settings of the session."""
    given = {each.name: each.value for each in godwit.tuning(real_time=trigger == REAL_TIME)}
    sessions = {ALL: given}
    for name in given.keys() - NEEDED if trigger == REAL_TIME else given:
        sessions[name] = {other: value for other, value in given.items() if other != name}
    if trigger == REAL_TIME:
        return sessions | {NO_JAVA: given | {WITH_JAVA: "false", ARROW_ROWS: "1"}}
    return sessions | {EVERYTHING: {}}


def series(trigger: Trigger, settings: TuningSettings, runs: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """A line of figures for each way and run; `ratio` is to the runs with all settings before and behind the round."""
    run = run_id()
    measure, figure = (_in_real_time, "p50_ms") if trigger == REAL_TIME else (_in_micro_batches, "batch_ms")
    with _session({}, trigger):
        pass  # the JVM starts here: what it is started with counts for all sessions of this process
    sessions = left_out(trigger)
    watch.phase("warming up")
    measure(sessions[ALL], TuningSettings(batches=WARM_BATCHES, seconds=2.0), watch)
    before = measure(sessions[ALL], settings, watch)
    for repeat in range(runs):
        found = {ALL: before}
        for name in [name for name in sessions if name != ALL][:: -1 if repeat % 2 else 1]:
            watch.phase(f"without {name}, run {repeat + 1} of {runs}")
            found[name] = measure(sessions[name], settings, watch)
        after = measure(sessions[ALL], settings, watch)
        beside = (before[figure] + after[figure]) / 2
        for name, figures in found.items():
            line = {"trigger": trigger, "left_out": name, "repeat": repeat, **figures}
            yield circumstances("tuning", run) | line | {"ratio": round(figures[figure] / beside, 3)}
        before = after


@contextmanager
def _session(given: Mapping[str, str], trigger: Trigger) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, paths)]))
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    if trigger == REAL_TIME:
        settings["spark.driver.extraClassPath"] = os.pathsep.join(map(str, connector_jars()))
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("godwit-tuning")
    spark = builder.config(map={**settings, **given}).getOrCreate()
    tuned = {each.name for each in godwit.tuning(real_time=True)}
    there = {name for name, _ in spark.sparkContext.getConf().getAll()} & tuned
    assert there == given.keys() & tuned, "a setting that is left out is not there"
    try:
        yield spark
    finally:
        spark.stop()


def _in_micro_batches(given: Mapping[str, str], settings: TuningSettings, watch: Watch) -> dict[str, Any]:
    del watch
    (way,) = (way for way in ways.WAYS if way.name == "godwit-native")
    with _session(given, MICRO_BATCH) as spark, scratch() as directory:
        with godwit.Flock(spark, hosts=HOSTS, checkpoint=f"{directory}/godwit") as flock:
            return ways.measure(spark, flock, way, settings.batch_rows, settings.batches, "tuning")


def _in_real_time(given: Mapping[str, str], settings: TuningSettings, watch: Watch) -> dict[str, Any]:
    rows = passing.PassingSettings(rate=settings.rate, steady_s=settings.seconds, hosts=HOSTS).checked()
    with _session(given, REAL_TIME) as spark:
        return passing.measure(spark, rows, watch)
