"""Key-count by number of keys: rows a second and the memory of the hosts, beside Spark SQL in the same session.

First every key comes once, so that its state is there; then rows of random keys are measured. A limit of time ends what would
take too long: then the line says how many keys had come.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import godwit
from benchmarks.key_count.ways import LOOK_EVERY_S, WAYS, Way
from benchmarks.running.record import circumstances, keep, run_id, say
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from godwit.errors import DefinitionError

COMPARED: Final = ("godwit-native", "spark-sql")
WARM_UP_BATCHES: Final = 6
HOSTS: Final = 2


@dataclass(frozen=True)
class KeysPlan:
    """`keys`: how many, one after the other. `limit_s`: for each number of keys and way."""

    keys: Sequence[int]
    repeats: int
    batches: int
    batch_rows: int
    limit_s: float

    def checked(self) -> KeysPlan:
        if min(self.repeats, self.batches, self.batch_rows, *self.keys) < 1 or self.limit_s <= 0:
            raise DefinitionError("--keys, --repeats, --batches and --large must be 1 or more, --limit over 0")
        return self

    @property
    def ways(self) -> list[Way]:
        return [way for way in WAYS if way.name in COMPARED]


def every_key_first(spark: SparkSession, keys: int, batch_rows: int) -> DataFrame:
    """Rows made in the JVM: each key once, then the hash of the row's number says which key comes."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_rows).option("numPartitions", 2)
    random = sf.pmod(sf.xxhash64("value"), sf.lit(keys))
    return source.load().select(
        sf.when(sf.col("value") < keys, sf.col("value")).otherwise(random).alias("key"), "timestamp"
    )


def wait_until(query: StreamingQuery, batch: int, deadline_s: float) -> int:
    """Until this batch is committed, or the time is over. The newest batch that is committed."""
    while True:
        newest = int((query.lastProgress or {"batchId": -1})["batchId"])
        if newest >= batch or time.monotonic() > deadline_s:
            return newest
        query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # takes parts of a second, too


def measure(spark: SparkSession, way: Way, keys: int, plan: KeysPlan) -> dict[str, Any]:
    """One number of keys in one way, with hosts of its own, so that their memory is that of these keys."""
    last = max(-(-keys // plan.batch_rows), WARM_UP_BATCHES) + plan.batches
    with scratch() as directory, godwit.Flock(spark, hosts=HOSTS, checkpoint=f"{directory}/godwit") as flock:
        frame = way.build(every_key_first(spark, keys, plan.batch_rows), flock, "keys")
        writer = frame.writeStream.format("noop").outputMode(way.output_mode)
        query = writer.option("checkpointLocation", f"{directory}/spark").start()
        newest = wait_until(query, last, time.monotonic() + plan.limit_s)
        progress = [each for each in query.recentProgress if newest - plan.batches < each["batchId"] <= newest]
        full_bytes = hosts_bytes(flock)
        query.stop()
    times_ms = [each["durationMs"]["triggerExecution"] for each in progress]
    median_ms = statistics.median(times_ms) if times_ms else float("inf")
    godwits = way.name.startswith("godwit")
    return {
        "way": way.name,
        "keys": keys,
        "keys_reached": min(keys, (newest + 1) * plan.batch_rows),
        "batch_rows": plan.batch_rows,
        "batches": len(times_ms),
        "batch_ms": median_ms,
        "rows_per_second": plan.batch_rows * 1000 / median_ms,
        "hosts_bytes": full_bytes if godwits else None,
    }


def hosts_bytes(flock: godwit.Flock) -> int:
    """What the processes of all hosts hold."""
    hosts = flock.status()["hosts"].values()
    return sum(int(psutil.Process(host["pid"]).memory_info().rss) for host in hosts)


def run(plan: KeysPlan) -> None:
    """Append a line to benchmarks/results/keys.jsonl for each number of keys, way and repeat."""
    spark, began = session(4), run_id()
    for repeat in range(plan.repeats):
        for keys in plan.keys:
            for way in plan.ways:
                row = measure(spark, way, keys, plan) | {"repeat": repeat}
                keep("keys", circumstances("keys", began) | row)
                memory = "" if row["hosts_bytes"] is None else f", hosts {row['hosts_bytes'] / 1e6:,.0f} MB"
                say(f"{keys:,} keys, {way.name}: {row['rows_per_second']:,.0f} rows/s{memory}")
    spark.stop()
