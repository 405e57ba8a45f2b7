"""Settings of Spark that are worth setting for a flock, each with its reason. They count when the session starts.

What they bring is measured by `python -m benchmarks tuning`. No setting here changes what a query computes.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from godwit.spark.realtime.started_session import check_not_started
from godwit.spark.supported_pyspark import check_real_time

REAL_TIME: Final = "spark.godwit.realTime"  # operators are for the real-time trigger
_log = logging.getLogger("godwit.tune")


@dataclass(frozen=True, slots=True)
class Tuned:
    """A setting, and why it is worth setting."""

    name: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.why}"


ALWAYS: Final = (
    Tuned(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "100000",
        "fewer, larger Arrow batches between the JVM and Python",
    ),
    Tuned(
        "spark.hadoop.fs.AbstractFileSystem.file.impl",
        "org.apache.hadoop.fs.local.RawLocalFs",
        "Spark's checkpoint files on a local disk without a second file for each checksum",
    ),
    Tuned(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "no TCP between the JVM and its Python workers, which holds a small message back until the one before is acknowledged",
    ),
    Tuned(
        "spark.ui.showConsoleProgress",
        "false",
        "hosts are jobs that do not end, and a progress bar would show them for as long as the flock is open",
    ),
)
IN_REAL_TIME: Final = (
    Tuned(REAL_TIME, "true", "operators hand rows on as they come, unless their definition says otherwise"),
    Tuned(
        "spark.sql.streaming.realTimeMode.allowlistCheck",
        "false",
        "Python operators are not on Spark's list for the real-time trigger",
    ),
    Tuned(
        "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled",
        "false",
        "a flock supports asynchronous progress tracking with micro-batches only",
    ),
    Tuned(
        "spark.python.udf.pipelined.enabled",
        "true",
        "outputs are read by a thread of their own, and do not wait for the next input row",
    ),
    Tuned(
        "spark.buffer.size",
        "256",
        "an Arrow batch with one row is sent at once; a larger buffer waits until it is full",
    ),
)


def tune(builder: SparkSession.Builder, *, real_time: bool = False) -> SparkSession.Builder:
    """Set what is worth setting for a flock, before the session is made; returns the builder.

    real_time: for queries with the real-time trigger. `godwit.tuning()` has the settings and their reasons, as has the log of
    `godwit.tune` at level INFO. A setting that comes after this call replaces a tuned one.
    Spark's Python workers run the interpreter of this program, unless PYSPARK_PYTHON names another one.

    Where a session runs already that was started without these settings, this raises a `DefinitionError` for real time, in
    which rows would wait for ever, and writes a warning into the log otherwise.
    """
    if real_time:
        check_real_time()
    check_not_started([each.name for each in tuning(real_time=real_time)], real_time)
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # the one setting that Spark takes from the environment only
    for each in tuning(real_time=real_time):
        _log.info("%s", each)
        builder = builder.config(each.name, each.value)
    return builder


def tuning(*, real_time: bool = False) -> tuple[Tuned, ...]:
    """What `tune` sets, and why."""
    return (*ALWAYS, *(IN_REAL_TIME if real_time else ()))
