"""Migrations one after another in one Spark session; protocols are interleaved, so that a disturbance hits all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.experiments import migration
from benchmarks.running.record import circumstances, run_id
from benchmarks.running.session import session
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch


def migrations(settings: Sequence[Settings], runs: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """A line of figures for each run of each protocol."""
    run = run_id()
    spark = session(max(migration.slots(each) for each in settings), settings[0].trigger)
    try:
        first = settings[0]
        capacity = None if first.rate is not None else migration.capacity(spark, first, watch)
        for repeat in range(runs):
            for each in settings:
                rate = first.rate if capacity is None else max(1, int(capacity * first.load))
                assert rate is not None, "given or measured"
                watch.phase(f"{each.protocol}, run {repeat + 1} of {runs}")
                figures = migration.measure(spark, replace(each, seed=each.seed + repeat), rate, watch)
                labels = {
                    "repeat": repeat,
                    "rate_rows_per_s": rate,
                    "capacity_rows_per_s": capacity and round(capacity),
                }
                yield circumstances("migration", run) | labels | figures
    finally:
        spark.stop()
