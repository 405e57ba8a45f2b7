"""The same query with a feature and without it, pair by pair, at full speed: what the feature costs.

Other work on the machine makes batches slower and never faster, so a run is judged by the first quartile of its batch times.
The rate over the whole run stands beside it. Which of the two goes first changes from run to run, so that drift hits both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import SparkSession

import godwit
from benchmarks.experiments.migration import operator_frame, shape, slots
from benchmarks.running.measures import quartile_rate, rate_of, spread
from benchmarks.running.record import circumstances, run_id
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch
from godwit.testing import open_loop

WARM_UP_BATCHES: Final = 10
ASKED: Final = ("keys", "state_bytes", "skew", "hosts", "seed")
Batches = list[tuple[int, float]]
Without = Callable[[], AbstractContextManager[None]]


def compared(
    name: str,
    what: str,
    without: Without,
    settings: Settings,
    runs: int,
    batches: int,
    batch_rows: int,
    watch: Watch,
    options: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """One line: rows a second both ways, and the ratio with its spread.

    `without` takes it away as long as it is entered; `options` of the flock bring it.
    """
    spark = session(slots(settings))
    batches_of: dict[bool, list[Batches]] = {True: [], False: []}
    try:
        for run in range(runs):
            for there in (True, False) if run % 2 else (False, True):
                watch.phase(f"{'with' if there else 'without'} {what}, run {run + 1} of {runs}")
                if there:
                    batches_of[there].append(_batches(spark, settings, batches, batch_rows, options or {}, watch))
                else:
                    with without():
                        batches_of[there].append(_batches(spark, settings, batches, batch_rows, {}, watch))
    finally:
        spark.stop()
    asked = {field: asdict(settings)[field] for field in ASKED} | {"batches": batches, "batch_rows": batch_rows}
    yield circumstances(name, run_id()) | asked | _figures(batches_of)


def _figures(batches_of: dict[bool, list[Batches]]) -> dict[str, Any]:
    quick, whole = (
        {there: [rate(run, WARM_UP_BATCHES) for run in batches_of[there]] for there in batches_of}
        for rate in (quartile_rate, rate_of)
    )
    ratios, ratios_whole = (
        [w / wo for w, wo in zip(rates[True], rates[False], strict=True)] for rates in (quick, whole)
    )
    return {
        "with_rows_per_s": spread(quick[True]),
        "without_rows_per_s": spread(quick[False]),
        "ratio": spread(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio_whole_runs": spread(ratios_whole),
    }


def _batches(
    spark: SparkSession, settings: Settings, batches: int, batch_rows: int, given: Mapping[str, Any], watch: Watch
) -> Batches:
    rows = (WARM_UP_BATCHES + batches) * batch_rows
    options = {"rows_per_second": 0, "rows_per_batch": batch_rows, "rows": rows, **shape(settings)}
    with (
        scratch() as directory,
        godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit", **given) as flock,
    ):
        running = open_loop.Running(operator_frame(spark, flock, settings, options), f"{directory}/spark")
        running.wait_rows(rows, lambda seen: watch.rows(seen, rows))
        running.finish()
    return running.arrivals.batches()
