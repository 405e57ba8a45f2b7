"""Key-count by Spark's own state and by Godwit, on the same rows in the same run: rows a second and batch latency.

The ways are interleaved and repeated, so that noise of the machine hits all alike. Rows a second are the rows of a batch over
the median time of a batch (trigger execution: planning, work, offset and commit files) after a warm-up.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import godwit
from benchmarks.key_count.processors import COUNTS, Blob, NativeCount, PandasCount, blob_rows
from benchmarks.running.record import circumstances, keep, run_id, say
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from godwit.errors import DefinitionError

KEYS = 10_000
PARTITIONS = 2  # by key; as many as the source has
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Way:
    """One of the ways to count."""

    name: str
    build: Callable[[DataFrame, godwit.Flock, str], DataFrame]
    output_mode: str
    batch_rows_max: int  # beyond this a batch would take minutes


def _copied(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(lambda batches: batches, frame.schema)


def _unchanged(flock: godwit.Flock, frame: DataFrame, name: str, partitions: int | Literal["input"]) -> DataFrame:
    return flock.transformWithStateInPandas(frame, "key", PandasCount(), COUNTS, name=name, partitions=partitions)


WAYS = [
    Way("copy", lambda frame, flock, name: _copied(frame), "append", 10**9),
    Way("copy-exchange", lambda frame, flock, name: _copied(frame.repartition(PARTITIONS, "key")), "append", 10**9),
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
        lambda frame, flock, name: _unchanged(flock, frame, name, PARTITIONS),
        "append",
        10**9,
    ),
    Way(
        "godwit-unchanged-input",
        lambda frame, flock, name: _unchanged(flock, frame, name, "input"),
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


def wait_committed(query: StreamingQuery, batch: int) -> None:
    """Until Spark has committed this batch; a query that fails raises its error here."""
    while (query.lastProgress or {"batchId": -1})["batchId"] < batch:
        query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # takes parts of a second, too


def measure(
    spark: SparkSession, flock: godwit.Flock, way: Way, batch_rows: int, batches: int, name: str
) -> dict[str, Any]:
    warm_up = max(4, batches // 3)
    with scratch() as directory:
        frame = way.build(rows_source(spark, batch_rows), flock, name)
        writer = frame.writeStream.format("noop").outputMode(way.output_mode)
        query = writer.option("checkpointLocation", directory).start()
        wait_committed(query, warm_up + batches)
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
            frame = blob_rows(spark, keys, value_bytes, batch_rows=100_000)
            blobs = flock.process(frame, "key", Blob(), name="blob")
            query = blobs.writeStream.format("noop").option("checkpointLocation", f"{directory}/spark").start()
            while flock.status()["operators"]["blob"]["keys"] < keys:
                query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # takes parts of a second, too
            query.stop()
            full_bytes = process.memory_info().rss
    return {
        "way": "memory",
        "keys": keys,
        "value_bytes": value_bytes,
        "host_bytes": full_bytes,
        "bytes_per_key": (full_bytes - empty_bytes) / keys,
    }


@dataclass(frozen=True)
class Plan:
    """`sizes`: rows of a small and of a large batch. `ways`: None for all."""

    repeats: int
    batches: int
    sizes: tuple[int, int]
    ways: Sequence[str] | None
    memory: bool

    def checked(self) -> Plan:
        known = [way.name for way in WAYS]
        unknown = [name for name in self.ways or () if name not in known]
        if unknown:
            raise DefinitionError(f"there is no way {unknown[0]!r}", todo=f"There are: {', '.join(known)}")
        if min(self.repeats, self.batches, *self.sizes) < 1:
            raise DefinitionError("--repeats, --batches, --small and --large must be 1 or more")
        return self

    def chosen(self) -> list[Way]:
        return [way for way in WAYS if self.ways is None or way.name in self.ways]

    def sizes_of(self, way: Way) -> Iterable[int]:
        small, large = self.sizes
        return dict.fromkeys((small, min(large, way.batch_rows_max)))

    def batches_of(self, way: Way) -> int:
        return max(8, self.batches // 3) if way.name == "spark-pandas" else self.batches


def run(plan: Plan) -> None:
    """Append a line to the results for each way, size and repeat."""
    spark, began = session(4), run_id()
    with scratch() as directory, godwit.Flock(spark, hosts=2, checkpoint=directory) as flock:
        for repeat in range(plan.repeats):
            for way in plan.chosen():
                for size in plan.sizes_of(way):
                    name = f"{way.name}-{size}-{repeat}"
                    row = measure(spark, flock, way, size, plan.batches_of(way), name) | {"repeat": repeat}
                    keep("throughput", circumstances("throughput", began) | row)
                    say(f"{name}: {row['batch_ms']:.0f} ms a batch, {row['rows_per_second']:,.0f} rows/s")
    if plan.memory:
        row = memory_per_key(spark, 1_000_000, 100)
        path = keep("throughput", circumstances("throughput", began) | row)
        say(f"1 M keys x 100 B: host {row['host_bytes'] / 1e6:.0f} MB, {row['bytes_per_key']:.0f} B a key")
        say(f"results are in {path}")
    spark.stop()
