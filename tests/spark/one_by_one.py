"""A query with the real-time trigger on Spark's memory source for it: enough to see whether it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

ALLOWED = "spark.sql.streaming.realTimeMode.allowlistCheck"


def numbers(spark: SparkSession) -> DataFrame:
    """A stream with the column `value`, in which one row is waiting."""
    jvm: Any = spark._jvm
    clock = getattr(jvm.org.apache.spark.sql.execution.datasources.v2, "LowLatencyClock$")
    stream = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream(
        0,
        spark._jsparkSession,  # type: ignore[attr-defined]
        1,
        getattr(clock, "MODULE$").getClock(),
        jvm.org.apache.spark.sql.Encoders.STRING(),
    )
    stream.addData(0, jvm.scala.jdk.javaapi.CollectionConverters.asScala(["1"]))
    return DataFrame(stream.toDF(), spark).selectExpr("bigint(value) AS value")


@contextmanager
def in_real_time(frame: DataFrame, checkpoint: Path) -> Iterator[StreamingQuery]:
    spark = frame.sparkSession
    spark.conf.set(ALLOWED, "false")
    try:
        writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
        query = writer.option("asyncProgressTrackingEnabled", "false").trigger(realTime="5 seconds").start()
        yield query
        query.stop()
    finally:
        spark.conf.unset(ALLOWED)
