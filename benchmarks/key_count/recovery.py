"""A host killed with SIGKILL, by size of its state: how long until it serves again, and how fast it loads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

import godwit
from benchmarks.key_count.processors import Blob, blob_rows
from benchmarks.key_count.ways import wait_committed
from benchmarks.running.record import circumstances, keep, run_id, say
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session

VALUE_BYTES = 1_000


def fill(spark: SparkSession, flock: godwit.Flock, directory: str, keys: int) -> None:
    batch_rows = min(20_000, keys)
    frame = blob_rows(spark, keys, VALUE_BYTES, batch_rows)
    query = (
        flock.process(frame, "key", Blob(), name="blob")
        .writeStream.format("noop")
        .option("checkpointLocation", directory)
        .start()
    )
    wait_committed(query, -(-keys // batch_rows) - 1)  # only committed rows must survive
    query.stop()


def kill_and_wait(flock: godwit.Flock) -> dict[str, Any]:
    before = flock.status()["hosts"]["host-0"]
    began = time.monotonic()
    os.kill(before["pid"], signal.SIGKILL)
    while True:
        host = flock.status()["hosts"]["host-0"]
        if host["state"] == "serving" and host["generation"] > before["generation"]:
            return {"away_s": time.monotonic() - began, "load_s": host["load_s"]}
        time.sleep(0.005)


def measure(spark: SparkSession, megabytes: int, repeats: int) -> list[dict[str, Any]]:
    keys = megabytes * 1_000_000 // VALUE_BYTES
    with scratch() as directory:
        with godwit.Flock(spark, hosts=1, checkpoint=f"{directory}/godwit") as flock:
            fill(spark, flock, f"{directory}/spark", keys)
            rows = [kill_and_wait(flock) for _ in range(repeats)]
            assert flock.status()["operators"]["blob"]["keys"] == keys, "state was lost"
    return [
        row | {"state_mb": megabytes, "keys": keys, "load_mb_per_second": megabytes / row["load_s"]} for row in rows
    ]


def run(sizes_mb: Sequence[int], repeats: int) -> None:
    """Append a line to the results for each kill."""
    spark, began = session(3), run_id()
    for megabytes in sizes_mb:
        for row in measure(spark, megabytes, repeats):
            path = keep("recovery", circumstances("recovery", began) | row)
            say(f"{megabytes} MB: away {row['away_s']:.2f} s, loaded in {row['load_s']:.2f} s; stored in {path}")
    spark.stop()
