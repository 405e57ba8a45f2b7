"""A host killed with SIGKILL, by size of its state: how long until it serves again, and how fast it loads."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.processors import Blob
from benchmarks.record import keep, run_id, say
from benchmarks.session import session
from godwit.bench.scratch import scratch

VALUE_BYTES = 1_000


def fill(spark: SparkSession, flock: godwit.Flock, directory: str, keys: int) -> None:
    batch_rows = min(20_000, keys)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_rows).option("numPartitions", 2)
    payload = sf.substring(
        sf.repeat(sf.sha2(sf.col("value").cast("string"), 512), -(-VALUE_BYTES // 128)), 1, VALUE_BYTES
    )
    frame = source.load().where(sf.col("value") < keys)
    frame = frame.select(sf.col("value").alias("key"), payload.cast("binary").alias("payload"))
    query = (
        flock.process(frame, "key", Blob(), name="blob")
        .writeStream.format("noop")
        .option("checkpointLocation", directory)
        .start()
    )
    last = -(-keys // batch_rows) - 1  # only what Spark has committed must survive
    while (query.lastProgress or {"batchId": -1})["batchId"] < last:
        if query.exception() is not None:
            raise query.exception()
        query.awaitTermination(0.2)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 100, 400], help="state sizes in MB")
    parser.add_argument("--repeats", type=int, default=3, help="kills per size (default 3)")
    options = parser.parse_args()
    spark, run, rows = session(3), run_id(), []
    for megabytes in options.sizes:
        for row in measure(spark, megabytes, options.repeats):
            rows.append(row)
            say(f"{megabytes} MB: away {row['away_s']:.2f} s, loaded in {row['load_s']:.2f} s")
    spark.stop()
    say(f"kept in {keep('recovery', run, rows)}")


if __name__ == "__main__":
    main()
