"""Many runs one after another: repeats interleaved, so that what happens to the machine hits all alike.

Decides the order of runs and what a line of results says besides its figures. What was measured on this
commit and machine is not run again, so a campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.bench import migration
from godwit.bench.cases import GODWIT, Case
from godwit.bench.record import circumstances, commit, machine, run_id
from godwit.bench.session import session
from godwit.bench.settings import Settings
from godwit.bench.watch import Watch

NAME: Final = "evaluation"


def campaign(cases: Sequence[Case], runs: int, kept: Path, watch: Watch) -> Iterator[dict[str, Any]]:
    """A line for each run that is not among those kept; the number of all, and of those left, is told to the watch."""
    run, done = finished(kept)
    left = [
        (repeat, case) for repeat in range(runs) for case in cases if (case.experiment, case.name, repeat) not in done
    ]
    clock = Clock(len(left))
    for trigger, part in groupby(left, key=lambda one: one[1].trigger if one[1].system == GODWIT else None):
        spark: SparkSession | None = None
        group = list(part)
        try:
            for repeat, case in group:
                watch.phase(f"{clock.told()}: {case.experiment} {case.name}, run {repeat + 1} of {runs}")
                if trigger and spark is None:
                    spark = session(max(migration.slots(settings_of(one)) for _, one in group), trigger)
                began_s = time.time()
                figures = measured(spark, case, repeat, watch)
                told = {"repeat": repeat, "took_s": round(time.time() - began_s, 1)}
                yield circumstances(NAME, run) | case.told() | told | figures
                clock.finished_one()
        finally:
            if spark is not None:
                spark.stop()


def measured(spark: SparkSession | None, case: Case, repeat: int, watch: Watch) -> dict[str, Any]:
    if case.system == GODWIT:
        assert spark is not None, "one is open for all runs of one trigger"
        settings = settings_of(case)
        assert settings.rate is not None, "all systems get the same load"
        figures = migration.measure(spark, replace(settings, seed=repeat), settings.rate, watch)
        return {"rate_rows_per_s": settings.rate, **figures}
    from godwit.bench import peers

    given = peers.PeerSettings(**{**case.settings, "seed": repeat}).checked()
    return {"rate_rows_per_s": given.rate, **peers.measure(given, watch)}


def settings_of(case: Case) -> Settings:
    return Settings(**case.settings).checked()


def finished(kept: Path) -> tuple[str, set[tuple[str, str, int]]]:
    """The run that goes on, and what has been measured in it: on this commit and machine."""
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
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

    def told(self) -> str:
        so_far = f"{self._done + 1}/{self._total}"
        if not self._done:
            return so_far
        left_s = (time.monotonic() - self._began_s) / self._done * (self._total - self._done)
        return f"{so_far}, {left_s / 60:.0f} min left"
