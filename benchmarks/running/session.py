"""The Spark session of the benchmarks: the same settings for everything that is compared."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from functools import cache
from typing import Final

from pyspark.sql import SparkSession

import godwit
from benchmarks.running.record import ROOT
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, Trigger
from godwit.testing.kafka import KafkaBroker, connector_jars

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
    for name, value in ROCKSDB_SETTINGS.items():
        builder = builder.config(name, value)
    if trigger == REAL_TIME:
        jars = os.pathsep.join(map(str, connector_jars()))
        builder = godwit.tune(builder, real_time=True).config("spark.driver.extraClassPath", jars)
    return builder.getOrCreate()


@cache
def broker() -> KafkaBroker:
    """The Kafka broker of this process, which ends with the process."""
    directory = tempfile.TemporaryDirectory(prefix="godwit-kafka-")
    started = KafkaBroker(directory.name).start()
    atexit.register(directory.cleanup)
    atexit.register(started.stop)
    return started
