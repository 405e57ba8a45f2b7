"""Rows reach the router in real time as they are: the Java class that packs them changes no value."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from godwit.spark.realtime.rows_as_they_come import SOURCE, as_they_come

VALUES = {
    "timestamps": "values (timestamp'0001-01-01 00:00:00.000001'), (timestamp'1582-10-04 23:59:59'), "
    "(timestamp'1890-01-01 12:34:56.654321'), (timestamp'2024-10-27 00:30:00'), (timestamp'2024-10-27 01:30:00'), "
    "(timestamp'9999-12-31 23:59:59.999999'), (null)",
    "timestamps between two calendars": "values (timestamp'1582-10-10 12:00:00')",
    "dates": "values (date'0001-01-01'), (date'1582-10-04'), (date'1582-10-15'), (date'1900-02-28'), (date'9999-12-31')",
    "dates between two calendars": "values (date'1582-10-05'), (date'1582-10-10'), (date'1582-10-14')",
    "local times": "values (timestamp_ntz'0001-01-01 00:00:00.000001'), (timestamp_ntz'1582-10-10 01:02:03')",
    "numbers": "values (cast(1.5 as decimal(38, 18)), 1.5d, -0.0d, cast(-0.0 as float), 127y, 1s)",
    "nested": "values (named_struct('a', 1, 'b', array(date'1582-10-10', null)), map('k', array(1, null)), x'00ff')",
    "maps": "values (map(1, 1, 2, 2, 3, 3)), (map(4, null)), (null)",
    "spans": "values (interval '1 02:03:04.000005' day to second), (interval '-100000 00:00:00' day to second)",
}


@pytest.mark.spark
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_no_value_is_changed(spark: SparkSession, values: str, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.sql(VALUES[values])
        expected = frame.toArrow()
        assert as_they_come(frame).toArrow().cast(expected.schema).equals(expected)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives nothing before the input has ended."""
    rows = sum(map(len, batches))
    yield pa.RecordBatch.from_pydict({"id": pa.array([rows], pa.int64())})


@pytest.mark.spark
def test_rows_go_on_where_nothing_comes_back(spark: SparkSession) -> None:
    rows = spark.range(0, 100_000, 1, 2)
    came = as_they_come(rows).mapInArrow(counted, "id long").collect()
    assert sum(row.id for row in came) == 100_000


@pytest.mark.spark
def test_spark_counts_the_answers_for_which_packets_wait(spark: SparkSession) -> None:
    """If Spark called this counter otherwise, packets would not follow the answers, and nothing else would show it."""
    frame: Any = as_they_come(spark.range(10)).mapInArrow(lambda batches: batches, "id long")
    plan = frame._jdf.queryExecution().executedPlan()
    while not plan.metrics().contains("pythonDataReceived"):
        plan = plan.children().apply(0)
    name = plan.metrics().apply("pythonDataReceived").name().get()
    assert f'"{name}"' in resources.files("godwit.spark.realtime").joinpath(SOURCE).read_text()
