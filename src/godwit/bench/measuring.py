"""What measuring costs: rows a second of the same query with gauges and hot keys counted, and without, pair by pair.

As for the support of moving keys (`rest`): a run counts by its quicker batches, and which of the two goes first alternates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import SparkSession

import godwit
from godwit.bench import load
from godwit.bench.measures import quartile_rate, rate_of, spread
from godwit.bench.migration import operator_frame, shape, slots
from godwit.bench.record import circumstances, run_id
from godwit.bench.session import session
from godwit.bench.settings import Settings
from godwit.bench.watch import Watch
from godwit.runtime.gauges import SWITCH

WARM_UP_BATCHES: Final = 10
Batches = list[tuple[int, float]]


def measuring(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """One line: rows a second both ways, and the ratio with its spread."""
    spark = session(slots(settings))
    found: dict[bool, list[Batches]] = {True: [], False: []}
    try:
        for run in range(runs):
            for measured in (True, False) if run % 2 else (False, True):
                watch.phase(f"{'with' if measured else 'without'} measuring, run {run + 1} of {runs}")
                with _switched(spark, measured):
                    found[measured].append(_batches(spark, settings, batches, batch_rows, watch))
    finally:
        spark.stop()
    quick, whole = (
        {way: [rate(run, WARM_UP_BATCHES) for run in found[way]] for way in found} for rate in (quartile_rate, rate_of)
    )
    ratios, ratios_whole = ([w / wo for w, wo in zip(r[True], r[False], strict=True)] for r in (quick, whole))
    asked = {name: asdict(settings)[name] for name in ("keys", "state_bytes", "skew", "hosts", "seed")}
    yield (
        circumstances("measuring", run_id())
        | asked
        | {
            "batches": batches,
            "batch_rows": batch_rows,
            "with_rows_per_s": spread(quick[True]),
            "without_rows_per_s": spread(quick[False]),
            "ratio": spread(ratios),
            "ratios": [round(ratio, 4) for ratio in ratios],
            "ratio_whole_runs": spread(ratios_whole),
        }
    )


def _batches(spark: SparkSession, settings: Settings, batches: int, batch_rows: int, watch: Watch) -> Batches:
    rows = (WARM_UP_BATCHES + batches) * batch_rows
    options = {"rows_per_second": 0, "rows_per_batch": batch_rows, "rows": rows, **shape(settings)}
    with (
        tempfile.TemporaryDirectory(prefix="godwit-bench-") as directory,
        godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit") as flock,
    ):
        running = load.Running(operator_frame(spark, flock, settings, options), f"{directory}/spark")
        running.wait_rows(rows, lambda seen: watch.rows(seen, rows))
        running.finish()
    return running.arrivals.batches()


@contextmanager
def _switched(spark: SparkSession, measured: bool) -> Iterator[None]:
    """Spark gives a host the environment that its context names when the host is started."""
    environment = spark.sparkContext.environment
    if measured:
        yield
        return
    environment[SWITCH] = "1"
    try:
        yield
    finally:
        del environment[SWITCH]
