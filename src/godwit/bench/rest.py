"""What support for moving keys costs while nothing is moved (I7): the same query with it and without, pair by pair."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import SparkSession

import godwit
from godwit.bench import load
from godwit.bench.measures import spread
from godwit.bench.migration import Watch, operator_frame, rate_of, shape, slots
from godwit.bench.record import circumstances, run_id
from godwit.bench.session import session
from godwit.bench.settings import Settings

SWITCH: Final = "GODWIT_TEST_NO_OWNERSHIP"
WARM_UP_BATCHES: Final = 10


def rest(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """One line: rows a second both ways, and the ratio with its spread."""
    spark = session(slots(settings))
    rates: dict[bool, list[float]] = {True: [], False: []}
    try:
        for run in range(runs):
            # Which of the two goes first changes from run to run: whatever drifts hits both alike.
            for support in (True, False) if run % 2 else (False, True):
                watch.phase(f"{'with' if support else 'without'} support, run {run + 1} of {runs}")
                rates[support].append(_rate(spark, settings, batches, batch_rows, support, watch))
    finally:
        spark.stop()
    ratios = [with_ / without for with_, without in zip(rates[True], rates[False], strict=True)]
    asked = {name: asdict(settings)[name] for name in ("keys", "state_bytes", "hosts", "seed")}
    yield (
        circumstances("rest", run_id())
        | asked
        | {
            "batches": batches,
            "batch_rows": batch_rows,
            "with_rows_per_s": spread(rates[True]),
            "without_rows_per_s": spread(rates[False]),
            "ratio": spread(ratios),
            "ratios": [round(ratio, 4) for ratio in ratios],
        }
    )


def _rate(spark: SparkSession, settings: Settings, batches: int, batch_rows: int, support: bool, watch: Watch) -> float:
    rows = (WARM_UP_BATCHES + batches) * batch_rows
    options = {"rows_per_second": 0, "rows_per_batch": batch_rows, "rows": rows, **shape(settings)}
    with (
        tempfile.TemporaryDirectory(prefix="godwit-bench-") as directory,
        _support(support),
        godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit") as flock,
    ):
        running = load.Running(operator_frame(spark, flock, settings, options), f"{directory}/spark")
        running.wait_rows(rows, lambda seen: watch.rows(seen, rows))
        running.finish()
    return rate_of(running.arrivals.batches(), WARM_UP_BATCHES)


@contextmanager
def _support(wanted: bool) -> Iterator[None]:
    """Hosts are given their settings when they start, so the switch is set as long as the flock lives."""
    if wanted:
        yield
        return
    os.environ[SWITCH] = "1"
    try:
        yield
    finally:
        del os.environ[SWITCH]
