"""The Spark session of the benchmarks: one set of settings for all that are compared."""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from godwit.bench.settings import MICRO_BATCH, REAL_TIME, Trigger
from godwit.spark import workload_source as workload

# For rows that pass as they come: Python in the path is not on Spark's list for this trigger; a buffer smaller than any row is
# sent at once; and outputs are read by a thread of their own, where Spark's usual one looks for the next row to send first.
REAL_TIME_SETTINGS: Final = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.buffer.size": "64",
    "spark.python.udf.pipelined.enabled": "true",
}


def session(slots: int, trigger: Trigger = MICRO_BATCH) -> SparkSession:
    """The one that is open, or a new one."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
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
    for name, value in (REAL_TIME_SETTINGS if trigger == REAL_TIME else {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    workload.register(spark)
    return spark
