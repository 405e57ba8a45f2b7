"""What asynchronous progress tracking saves: the milliseconds of a small batch with and without it, in one run.

Both ways have the same rows, processor and settings; they are interleaved, and the order changes from pair to pair, so that
drift of the machine hits both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.key_count.processors import NativeCount
from benchmarks.key_count.ways import KEYS, wait_committed
from benchmarks.running.record import circumstances, run_id
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from godwit.errors import DefinitionError

LANES: Final = 2
WAYS: Final = ("synchronous", "asynchronous")


@dataclass(frozen=True, slots=True)
class TrackingSettings:
    """`interval_ms`: between two entries of Spark's log, with asynchronous progress."""

    batch_rows: int = 500
    batches: int = 60
    interval_ms: int = 1_000
    hosts: int = 2

    def checked(self) -> TrackingSettings:
        if min(self.batch_rows, self.batches, self.hosts) < 1 or self.interval_ms < 0:
            raise DefinitionError("rows, batches and hosts must be over 0, and the interval must not be below 0")
        return self


def _rows(spark: SparkSession, batch_rows: int) -> DataFrame:
    """Rows made in the JVM: each partition is a lane, in which the value ascends."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_rows)
    key = sf.pmod(sf.xxhash64("value"), sf.lit(KEYS)).alias("key")
    lane = sf.pmod("value", sf.lit(LANES)).alias("lane")
    return source.option("numPartitions", LANES).load().select(key, lane, "value")


def measure(
    spark: SparkSession, flock: godwit.Flock, way: str, settings: TrackingSettings, name: str
) -> dict[str, Any]:
    warm_up = max(8, settings.batches // 3)
    frame = flock.process(
        _rows(spark, settings.batch_rows), "key", NativeCount(), name=name, lane="lane", sequence="value"
    )
    with scratch() as directory:
        writer = frame.writeStream.format("noop").option("checkpointLocation", directory)
        if way == "asynchronous":
            writer = writer.option("asyncProgressTrackingEnabled", "true")
            writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", str(settings.interval_ms))
        query = writer.start()
        wait_committed(query, warm_up + settings.batches)
        progress = [each for each in query.recentProgress if each["batchId"] >= warm_up]
        instances = list(flock.status().operators[name].instances.values())
        query.stop()
    times = [each["durationMs"]["triggerExecution"] for each in progress]
    began = [datetime.fromisoformat(each["timestamp"]) for each in progress]
    between_ms = (began[-1] - began[0]).total_seconds() * 1_000 / (len(began) - 1)
    return {
        "way": way,
        "batch_rows": settings.batch_rows,
        "interval_ms": settings.interval_ms if way == "asynchronous" else None,
        "batches": len(times),
        "batch_ms": statistics.median(times),
        "between_ms": round(between_ms, 1),
        "work_ms": statistics.median(each["durationMs"]["addBatch"] for each in progress),
        "hosts_ms": round(sum(one.busy_s for one in instances) * 1_000 / instances[0].batch, 2),
        "ledger_bytes": sum(one.ledger_bytes for one in instances),
    }


def series(settings: TrackingSettings, pairs: int) -> Iterator[dict[str, Any]]:
    """Both ways, pair by pair; the first pair warms the session up and is not given."""
    spark, run = session(settings.hosts + LANES), run_id()
    with scratch() as directory, godwit.Flock(spark, hosts=settings.hosts, checkpoint=directory) as flock:
        for pair in range(pairs + 1):
            order = WAYS if pair % 2 == 0 else WAYS[::-1]
            lines = [measure(spark, flock, way, settings, f"{way}-{pair}") for way in order]
            for line in lines if pair else ():
                yield circumstances("progress-tracking", run) | {"pair": pair} | line
    spark.stop()
