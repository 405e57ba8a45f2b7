"""One key with more and more of the rows, with a declared merge and without it: rows a second, pair by pair.

Rows are made in the JVM and thrown away as they leave, as in `throughput`. In one half of the runs a row costs what the machine
needs for it; in the other half it takes its host a fixed time more, so that the one owner of the hot key is the bottleneck also
on a machine with cores to spare. The counts of all keys are checked at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.experiments.throughput import ThroughputSettings, committed, rates, timed_batches
from benchmarks.inside.names import column, running_sum
from benchmarks.running.measures import spread, wrong_keys
from benchmarks.running.record import circumstances, run_id
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from benchmarks.running.watch import Watch

NAME: Final = "weighed"
SHARES: Final = (0, 50, 90, 99)  # of the rows, in percent, that one key has beside its part of the others
ROWS_US: Final = (0.0, 5.0)


class Weighed(godwit.Processor):
    """How many rows each key has had, of rows that say how many they stand for; each takes its time."""

    state = MappingProxyType({"n": pa.int64()})
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def __init__(self, row_us: float, merges: bool) -> None:
        self._row_us = row_us
        self.merge = {"rows": "sum"} if merges else {}

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        time.sleep(len(rows) * self._row_us / 1e6)
        count = running_sum(rows, column(rows.batch, "rows"), state["n"])
        state["n"] = count[rows.last]
        return self.emit(rows, count=count)


@dataclass(frozen=True, slots=True)
class HotKey:
    """One line: `share` percent of the rows have one key, and a row takes `row_us` beside what it costs."""

    share: int
    row_us: float
    size: ThroughputSettings


def hot_key(size: ThroughputSettings, shares: Sequence[int], runs: int, watch: Watch) -> Iterator[dict[str, Any]]:
    run = run_id()
    spark = session(size.slots)
    try:
        for asked in (HotKey(share, row_us, size) for row_us in ROWS_US for share in shares):
            yield circumstances("hot-key", run) | _line(spark, asked, runs, watch)
    finally:
        spark.stop()


def _line(spark: SparkSession, asked: HotKey, runs: int, watch: Watch) -> dict[str, Any]:
    by_merging: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for repeat in range(runs):
        for merges in (True, False) if repeat % 2 else (False, True):
            way = "merged" if merges else "one by one"
            watch.phase(f"{asked.share} % of the rows, {asked.row_us:g} us a row, {way}, run {repeat + 1} of {runs}")
            by_merging[merges].append(_run(spark, asked, merges, watch))
    rows_per_s = {merges: [each["rows_per_s"] for each in by_merging[merges]] for merges in by_merging}
    pairs = zip(rows_per_s[True], rows_per_s[False], strict=True)
    size = asked.size
    return {
        "share": asked.share,
        "row_us": asked.row_us,
        **{name: getattr(size, name) for name in ("keys", "hosts", "lanes", "batch_rows", "warm_up", "batches")},
        "merged_rows_per_s": spread(rows_per_s[True]),
        "rows_per_s": spread(rows_per_s[False]),
        "ratio": spread([merged / plain for merged, plain in pairs]),
        "applied_share": spread([each["applied_share"] for each in by_merging[True]]),
        "wrong_state": sum(each["wrong_state"] for each in (*by_merging[True], *by_merging[False])),
    }


def _run(spark: SparkSession, asked: HotKey, merges: bool, watch: Watch) -> dict[str, Any]:
    size = asked.size
    with (
        scratch() as directory,
        godwit.Flock(spark, hosts=size.hosts, checkpoint=f"{directory}/godwit") as flock,
    ):
        frame = flock.process(_rows(spark, asked), "key", Weighed(asked.row_us, merges), name=NAME)
        checkpoint = Path(directory) / "spark"
        batches = timed_batches(frame, "append", size, checkpoint, watch)
        watch.phase("checking")
        counts = [(row.key, row.n) for row in flock.state(NAME).select("key", "state.n").collect()]
        applied = flock.status()["operators"][NAME]["rows"]
        sent = committed(checkpoint) * size.batch_rows
    return {
        **rates(batches, size.batch_rows),
        "applied_share": round(applied / sent, 4),
        "wrong_state": wrong_keys(counts, _expected(spark, asked, sent)),
    }


def _rows(spark: SparkSession, asked: HotKey) -> DataFrame:
    options = {"rowsPerBatch": asked.size.batch_rows, "numPartitions": asked.size.lanes}
    source = spark.readStream.format("rate-micro-batch").options(**options).load()
    return source.select(_key("value", asked), sf.lit(1).cast("long").alias("rows"))


def _key(name: str, asked: HotKey) -> Column:
    """Key 0 has its share, and what is left goes to all."""
    hot = sf.pmod(sf.xxhash64(name, sf.lit("hot")), sf.lit(100)) < asked.share
    return (
        sf.when(hot, sf.lit(0).cast("long")).otherwise(sf.pmod(sf.xxhash64(name), sf.lit(asked.size.keys))).alias("key")
    )


def _expected(spark: SparkSession, asked: HotKey, rows: int) -> dict[int, int]:
    counted = spark.range(rows).select(_key("id", asked)).groupBy("key").count()
    return {row.key: row["count"] for row in counted.collect()}
