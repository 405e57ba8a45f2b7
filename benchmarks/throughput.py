"""Key-count by Spark's own state and by Godwit, on the same rows in the same run: rows a second and batch latency.

The ways are interleaved and repeated, so that noise of the machine hits all alike. Rows a second are the rows of a batch over
the median time of a batch (trigger execution: planning, work, offset and commit files) after a warm-up.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.processors import COUNTS, Blob, NativeCount, PandasCount
from benchmarks.record import keep, run_id, say
from benchmarks.session import session
from godwit.bench.scratch import scratch

KEYS = 10_000


@dataclass(frozen=True)
class Way:
    """One of the ways to count."""

    name: str
    build: Callable[[DataFrame, godwit.Flock, str], DataFrame]
    output_mode: str
    batch_rows_max: int  # beyond this a batch would take minutes


WAYS = [
    Way("copy", lambda frame, flock, name: frame.mapInArrow(lambda batches: batches, frame.schema), "append", 10**9),
    Way(
        "spark-pandas",
        lambda frame, flock, name: frame.groupBy("key").transformWithStateInPandas(
            PandasCount(), COUNTS, outputMode="append", timeMode="none"
        ),
        "append",
        5_000,
    ),
    Way("spark-sql", lambda frame, flock, name: frame.groupBy("key").count(), "update", 10**9),
    Way(
        "godwit-unchanged",
        lambda frame, flock, name: flock.transformWithStateInPandas(frame, "key", PandasCount(), COUNTS, name=name),
        "append",
        10**9,
    ),
    Way(
        "godwit-native",
        lambda frame, flock, name: flock.process(frame, "key", NativeCount(), name=name),
        "append",
        10**9,
    ),
]


def rows_source(spark: SparkSession, batch_rows: int) -> DataFrame:
    """Rows made in the JVM, so that the source costs next to nothing: the key is a hash of the row's number."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_rows).option("numPartitions", 2)
    return source.load().select(sf.pmod(sf.xxhash64("value"), sf.lit(KEYS)).alias("key"), "timestamp")


def measure(
    spark: SparkSession, flock: godwit.Flock, way: Way, batch_rows: int, batches: int, name: str
) -> dict[str, Any]:
    warm_up = max(4, batches // 3)
    with scratch() as directory:
        frame = way.build(rows_source(spark, batch_rows), flock, name)
        writer = frame.writeStream.format("noop").outputMode(way.output_mode)
        query = writer.option("checkpointLocation", directory).start()
        while (query.lastProgress or {"batchId": -1})["batchId"] < warm_up + batches:
            if query.exception() is not None:
                raise query.exception()
            query.awaitTermination(0.2)
        progress = [each for each in query.recentProgress if each["batchId"] >= warm_up]
        query.stop()
    times_ms = [each["durationMs"]["triggerExecution"] for each in progress]
    median_ms = statistics.median(times_ms)
    return {
        "way": way.name,
        "batch_rows": batch_rows,
        "keys": KEYS,
        "batches": len(times_ms),
        "batch_ms": median_ms,
        "batch_ms_p90": sorted(times_ms)[int(len(times_ms) * 0.9)],
        "work_ms": statistics.median(each["durationMs"]["addBatch"] for each in progress),
        "rows_per_second": batch_rows * 1000 / median_ms,
    }


def memory_per_key(spark: SparkSession, keys: int, value_bytes: int) -> dict[str, Any]:
    """What a host's process holds for many keys, against what it holds for none."""
    with scratch() as directory:
        with godwit.Flock(spark, hosts=1, checkpoint=f"{directory}/godwit") as flock:
            process = psutil.Process(flock.status()["hosts"]["host-0"]["pid"])
            empty_bytes = process.memory_info().rss
            source = (
                spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100_000).option("numPartitions", 2)
            )
            payload = sf.substring(
                sf.repeat(sf.sha2(sf.col("value").cast("string"), 512), -(-value_bytes // 128)), 1, value_bytes
            )
            frame = source.load().where(sf.col("value") < keys)
            frame = frame.select(sf.col("value").alias("key"), payload.cast("binary").alias("payload"))
            blobs = flock.process(frame, "key", Blob(), name="blob")
            query = blobs.writeStream.format("noop").option("checkpointLocation", f"{directory}/spark").start()
            while flock.status()["operators"]["blob"]["keys"] < keys:
                query.awaitTermination(0.5)
            query.stop()
            full_bytes = process.memory_info().rss
    return {
        "way": "memory",
        "keys": keys,
        "value_bytes": value_bytes,
        "host_bytes": full_bytes,
        "bytes_per_key": (full_bytes - empty_bytes) / keys,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="how often each way is measured (default 3)")
    parser.add_argument(
        "--batches", type=int, default=30, help="batches measured each time, after a warm-up (default 30)"
    )
    parser.add_argument("--small", type=int, default=500, help="rows of a small batch (default 500)")
    parser.add_argument("--large", type=int, default=100_000, help="rows of a large batch (default 100000)")
    parser.add_argument("--ways", nargs="*", default=[way.name for way in WAYS], help="which ways to measure")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory of 1 M keys x 100 B")
    options = parser.parse_args()
    spark, run = session(4), run_id()
    with scratch() as directory:
        with godwit.Flock(spark, hosts=2, checkpoint=directory) as flock:
            for repeat in range(options.repeats):
                for way in (way for way in WAYS if way.name in options.ways):
                    for size in dict.fromkeys((options.small, min(options.large, way.batch_rows_max))):
                        batches = options.batches if way.name != "spark-pandas" else max(8, options.batches // 3)
                        name = f"{way.name}-{size}-{repeat}"
                        row = measure(spark, flock, way, size, batches, name) | {"repeat": repeat}
                        keep("throughput", run, [row])
                        say(f"{name}: {row['batch_ms']:.0f} ms a batch, {row['rows_per_second']:,.0f} rows/s")
    if not options.no_memory:
        row = memory_per_key(spark, 1_000_000, 100)
        path = keep("throughput", run, [row])
        say(
            f"1 M keys x 100 B: host {row['host_bytes'] / 1e6:.0f} MB, {row['bytes_per_key']:.0f} B a key; kept in {path}"
        )
    spark.stop()


if __name__ == "__main__":
    main()
