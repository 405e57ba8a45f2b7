"""What the demo shows in the end: what each step did to the rows, and whether every row was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.window import Window
from rich.box import SIMPLE
from rich.table import Table

from godwit.demo.steps import StepResult
from godwit.testing.latency import Departures, Steady, interruption
from godwit.testing.open_loop import replay


def steps_table(rows: Departures, steady_from_s: float, done: Sequence[StepResult]) -> Table:
    """Each step, with what rows suffered from its beginning until the next one's."""
    steady = Steady.of(rows.between(steady_from_s, done[0].asked_s))
    title = (
        f"Times in ms; steady latency: mean {steady.mean_ms:,.0f}, sigma {steady.sigma_ms:,.0f}, p99 {steady.p99_ms:,.0f}.\n"
        "disruption: time with rows beyond mean + 5 sigma; jitter: peak p99 - mean"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 0))
    table.add_column("step", no_wrap=True)
    for head in ("keys", "kB", "stall p50/p99/max", "took s", "disruption", "jitter"):
        table.add_column(head, justify="right", no_wrap=True)
    ends = [*(step.asked_s for step in done), float("inf")]
    for step, (from_s, to_s) in zip(done, pairwise(ends), strict=True):
        seen = interruption(rows.between(from_s, to_s), steady, from_s)
        hurt = [_rounded(seen[name]) for name in ("disruption_ms", "peak_jitter_p99_ms")]
        table.add_row(step.name, *_moved(step), f"{step.took_s:.2f}", *hurt)
    return table


def _rounded(value: float | None) -> str:
    return "no rows" if value is None else f"{value:,.0f}"


def _moved(step: StepResult) -> tuple[str, ...]:
    if step.report is None:
        return ("",) * 3
    stall = step.report.stall
    times = "/".join(f"{stall[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")) if stall.rows else "no rows"
    return f"{step.report.keys:,}", f"{step.report.bytes / 1e3:,.0f}", times


def verdict_table(rows: int, keys: int, verdict: dict[str, int]) -> Table:
    table = Table("exactness", "", box=SIMPLE)
    table.columns[1].justify = "right"
    for name, count in {"rows out": rows, "vehicles with state": keys, **verdict}.items():
        table.add_row(name, f"{count:,}")
    return table


def check(spark: SparkSession, options: dict[str, Any], got: pa.Table) -> dict[str, int]:
    """Lost, duplicated, out of order and wrong rows, against the same rows read as a batch."""
    order = Window.partitionBy("car").orderBy("n")
    expected = (
        replay(spark, options)
        .select("car", sf.row_number().over(order).alias("k"), sf.avg("speed").over(order).alias("mean"))
        .toArrow()
    )
    truth: dict[tuple[Any, Any], Any] = dict(
        zip(_pairs(expected, "k"), expected.column("mean").to_pylist(), strict=True)
    )
    pairs = _pairs(got, "n")
    seen = Counter(pairs)
    means: list[Any] = got.column("mean").to_pylist()
    return {
        "lost": sum(pair not in seen for pair in truth),
        "duplicated": sum(count - 1 for count in seen.values()),
        "out of order": _disordered(pairs),
        "wrong averages": sum(
            pair not in truth or abs(truth[pair] - mean) > 1e-9 * abs(truth[pair])
            for pair, mean in zip(pairs, means, strict=True)
        ),
    }


def _disordered(pairs: Sequence[tuple[Any, Any]]) -> int:
    last: dict[Any, int] = {}
    count = 0
    for car, n in pairs:
        count += n < last.get(car, 0)
        last[car] = n
    return count


def _pairs(table: pa.Table, count: str) -> list[tuple[Any, Any]]:
    return list(zip(table.column("car").to_pylist(), table.column(count).to_pylist(), strict=True))
