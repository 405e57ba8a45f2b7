"""The Spark session of the benchmarks: the same settings for everything that is compared."""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.running.record import ROOT
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, Trigger

# For rows that pass as they come: Python in the path is not on Spark's list for this trigger; a buffer smaller than any row is
# sent at once; and outputs are read by a thread of their own, where Spark's usual one looks for the next row to send first.
REAL_TIME_SETTINGS: Final = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.buffer.size": "64",
    "spark.python.udf.pipelined.enabled": "true",
}


# Where a query uses Spark's own state: as Spark's users are advised to store it.
STATE_STORE: Final = "spark.sql.streaming.stateStore"
ROCKSDB_SETTINGS: Final = {
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}


def session(slots: int, trigger: Trigger = MICRO_BATCH) -> SparkSession:
    """The open session, or a new one. Its Python workers can import `benchmarks`, whose processors they run."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, paths)]))
    builder = (
        SparkSession.builder.master(f"local[{slots}]")
        .appName("godwit-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100000")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    )
    more = ROCKSDB_SETTINGS | (REAL_TIME_SETTINGS if trigger == REAL_TIME else {})
    for name, value in more.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
