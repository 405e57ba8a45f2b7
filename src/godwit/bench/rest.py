"""What support for moving keys costs while nothing is moved (I7): the same query with it and without, pair by pair.

Other work on the machine makes batches slower and never faster, so a run counts by its quicker batches: their first quartile.
The rate over the whole run is kept beside it.
"""

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
from godwit.bench.measures import quartile_rate, rate_of, spread
from godwit.bench.migration import operator_frame, shape, slots
from godwit.bench.record import circumstances, run_id
from godwit.bench.session import session
from godwit.bench.settings import Settings
from godwit.bench.watch import Watch

SWITCH: Final = "GODWIT_TEST_NO_OWNERSHIP"
WARM_UP_BATCHES: Final = 10
Batches = list[tuple[int, float]]
RATES: Final = (quartile_rate, rate_of)


def rest(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """One line: rows a second both ways, and the ratio with its spread."""
    spark = session(slots(settings))
    found: dict[bool, list[Batches]] = {True: [], False: []}
    try:
        for run in range(runs):
            # Which of the two goes first changes from run to run: whatever drifts hits both alike.
            for support in (True, False) if run % 2 else (False, True):
                watch.phase(f"{'with' if support else 'without'} support, run {run + 1} of {runs}")
                found[support].append(_batches(spark, settings, batches, batch_rows, support, watch))
    finally:
        spark.stop()
    quick, whole = ({way: [rate(run, WARM_UP_BATCHES) for run in found[way]] for way in found} for rate in RATES)
    ratios, ratios_whole = (
        [w / wo for w, wo in zip(rates[True], rates[False], strict=True)] for rates in (quick, whole)
    )
    asked = {name: asdict(settings)[name] for name in ("keys", "state_bytes", "hosts", "seed")}
    yield (
        circumstances("rest", run_id())
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


def _batches(
    spark: SparkSession, settings: Settings, batches: int, batch_rows: int, support: bool, watch: Watch
) -> Batches:
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
    return running.arrivals.batches()


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
