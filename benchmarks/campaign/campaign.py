"""Many runs one after another. Repeats are interleaved, so that a disturbance of the machine hits all systems.

Decides the order of runs and what a line of results says besides its figures. A run that was measured on this commit and
machine is not repeated, so a campaign that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias, assert_never

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from benchmarks import peers
from benchmarks.campaign.cases import Case, Kind
from benchmarks.experiments import costs, failure, migration, passing, rest_in_real_time, throughput
from benchmarks.running.record import circumstances, commit, machine, run_id
from benchmarks.running.session import session
from benchmarks.running.settings import Settings
from benchmarks.running.triggers import MICRO_BATCH, Trigger
from benchmarks.running.watch import Watch
from godwit.errors import DefinitionError, GodwitError

NAME: Final = "evaluation"
FIRST: Final = costs.RestSettings(keys=1_000, batch_rows=2_000, batches=10)  # done for its own sake
FIRST_IN_REAL_TIME: Final = passing.first("native")
AnySettings: TypeAlias = (
    Settings
    | costs.RestSettings
    | rest_in_real_time.LoadedSettings
    | failure.FailureSettings
    | throughput.ThroughputSettings
    | passing.PassingSettings
    | peers.PeerSettings
)
SETTINGS: Final[Mapping[Kind, Callable[..., AnySettings]]] = {
    "migration": Settings,
    "rest": costs.RestSettings,
    "rest-in-real-time": rest_in_real_time.LoadedSettings,
    "failure": failure.FailureSettings,
    "throughput": throughput.ThroughputSettings,
    "passing": passing.PassingSettings,
    "peer": peers.PeerSettings,
}


def campaign(
    cases: Sequence[Case], runs: int, results: Path, watch: Watch, failed: Callable[[str, Exception], None]
) -> Iterator[dict[str, Any]]:
    """A line for each run that the results do not have yet. The watch shows how many runs there are and how many are left.

    `failed` is called with a run that could not be measured; the run is left out, and the next start tries it again.
    """
    run, done = finished(results)
    left = [
        (repeat, case)
        for repeat in range(runs)
        for case in cases
        if repeat < case.runs(runs) and (case.experiment, case.name, repeat) not in done
    ]
    clock = Clock(len(left))
    for trigger, part in groupby(left, key=lambda one: trigger_of(one[1])):
        spark: SparkSession | None = None
        group = list(part)
        try:
            for repeat, case in group:
                watch.phase(f"{clock.text()}: {case.experiment} {case.name}, run {repeat + 1} of {case.runs(runs)}")
                if trigger and spark is None:
                    spark = opened([one for _, one in group], trigger, watch)
                began_s = time.time()
                try:
                    figures = measured(spark, case, repeat, watch)
                except (GodwitError, PySparkException) as error:  # the others can be measured all the same
                    failed(f"{case.experiment} {case.name}, run {repeat + 1}", error)
                    clock.finished_one()
                    continue
                taken = {"repeat": repeat, "took_s": round(time.time() - began_s, 1)}
                yield circumstances(NAME, run) | figures | case.labels() | taken
                clock.finished_one()
        finally:
            if spark is not None:
                spark.stop()


def opened(group: Sequence[Case], trigger: Trigger, watch: Watch) -> SparkSession:
    """A session for all of them. What a JVM does for the first time is slow, which must not be the first one's figure."""
    spark = session(max(FIRST.slots, *(slots(case) for case in group)), trigger)
    if trigger == MICRO_BATCH:
        costs.measure(spark, FIRST, watch)
    else:
        passing.measure(spark, FIRST_IN_REAL_TIME, watch)
    return spark


def measured(spark: SparkSession | None, case: Case, repeat: int, watch: Watch) -> dict[str, Any]:
    settings = replace(settings_of(case), seed=repeat)
    if isinstance(settings, peers.PeerSettings):
        return {"rate_rows_per_s": settings.rate, **peers.measure(settings, watch)}
    assert spark is not None, "one is open for all runs of one trigger"
    match settings:
        case Settings(rate=int(rate)):
            return {"rate_rows_per_s": rate, **migration.measure(spark, settings, rate, watch)}
        case Settings():
            raise DefinitionError("all systems get the same load", todo="Give the case a rate")
        case failure.FailureSettings():
            return {"rate_rows_per_s": settings.rate, **failure.measure(spark, settings, watch)}
        case costs.RestSettings():
            return costs.measure(spark, settings, watch)
        case rest_in_real_time.LoadedSettings():
            return {"rate_rows_per_s": settings.rate, **rest_in_real_time.measure(spark, settings, watch)}
        case passing.PassingSettings():
            return {"rate_rows_per_s": settings.rate, **passing.measure(spark, settings, watch)}
        case throughput.ThroughputSettings():
            return throughput.measure(spark, settings, watch)
        case _:
            assert_never(settings)


def settings_of(case: Case) -> AnySettings:
    return SETTINGS[case.kind](**case.settings).checked()


def trigger_of(case: Case) -> Trigger | None:
    """Of the session that it is measured in; None if it brings its own."""
    return None if case.kind == "peer" else case.trigger


def slots(case: Case) -> int:
    """Task slots that it needs."""
    settings = settings_of(case)
    assert not isinstance(settings, peers.PeerSettings), "it has a session of its own"
    return migration.slots(settings) if isinstance(settings, Settings) else settings.slots


def finished(results: Path) -> tuple[str, set[tuple[str, str, int]]]:
    """The run that goes on, and what has been measured in it: on this commit and machine."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    here, cpu = commit(), machine()["cpu"]
    same = [line for line in lines if line["commit"] == here and line["machine"]["cpu"] == cpu]
    run = max((line["run"] for line in same), default=run_id())
    return run, {(line["experiment"], line["case"], line["repeat"]) for line in same if line["run"] == run}


class Clock:
    """How much is left, judged by what the runs so far took."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began_s = time.monotonic()

    def finished_one(self) -> None:
        self._done += 1

    def text(self) -> str:
        so_far = f"{self._done + 1}/{self._total}"
        if not self._done:
            return so_far
        left_s = (time.monotonic() - self._began_s) / self._done * (self._total - self._done)
        return f"{so_far}, {left_s / 60:.0f} min left"
