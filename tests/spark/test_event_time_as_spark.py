"""Event time as Spark has it: the watermark of the input, and of operators of Spark behind this one.

Every test with a `feature` mark is a row of docs/compatibility.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from tests.spark import api_processors as processors
from tests.spark.processors import FLAVOURS, Flavour
from tests.spark.side_by_side import Case, SideBySide, Table
from tests.spark.test_equivalence import case


@pytest.fixture(scope="module")
def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    root = tmp_path_factory.mktemp("event-time")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        yield SideBySide(spark, flock, root)


TIMED = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "value": pa.int64()})
ZERO = dt.datetime(2024, 1, 1)


def at(seconds: int) -> dt.datetime:
    return ZERO + dt.timedelta(seconds=seconds)


def passing(flavour: Flavour, **more: Any) -> Case:
    return case(processors.Passing, flavour, time="eventTime", watermark=("at", "5 seconds"), event_time="out", **more)


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy("out").count().select(sf.col("out").cast("string"), "count")


@pytest.mark.feature(
    "event time", "`eventTimeColumnName`: operators of Spark behind this one use the watermark of its input"
)
@pytest.mark.long
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_operator_behind_uses_the_watermark(engines: SideBySide, flavour: Flavour) -> None:
    batches: list[Table] = [
        [("a", at(10), 0), ("b", at(15), 0)],
        [("a", at(11), 0), ("c", at(25), 0)],
        [("a", at(5), 0), ("a", at(31), 1)],
        [("a", at(60), 0)],
    ]
    chained = passing(flavour)
    with engines.spark_settings():
        expected = engines.run(counts(chained.on_spark(engines.feed(TIMED, batches).stream(engines.spark))))
    frame = chained.on_flock(engines.flock, engines.feed(TIMED, batches).stream(engines.spark), engines.name())
    given = engines.run(counts(frame))
    assert sorted(expected.by_key()) == [repr((str(at(each)),)) for each in (10, 11, 15, 25, 32)]
    assert given.by_batch() == expected.by_batch()


@pytest.mark.feature("event time", "an output row that is older than the watermark fails the query")
def test_an_output_older_than_the_watermark_is_refused(engines: SideBySide) -> None:
    batches: list[Table] = [[("a", at(100), 0)], [("a", at(101), 0)], [("a", at(102), -50)]]
    with engines.spark_settings(), pytest.raises(PySparkException, match="EMITTING_ROWS_OLDER_THAN_WATERMARK"):
        engines.run(passing("row").on_spark(engines.feed(TIMED, batches).stream(engines.spark)))
    frame = passing("row").on_flock(engines.flock, engines.feed(TIMED, batches).stream(engines.spark), engines.name())
    with pytest.raises(PySparkException, match="older than the watermark") as caught:
        engines.run(frame)
    assert "key=('a',)" in str(caught.value)


@pytest.mark.feature("event time", "`eventTimeColumnName` without a watermark, or of no output column, is refused")
@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("needs a watermark", {"watermark": None, "time": "none"}),
        ("not a column of the output", {"event_time": "at"}),
        ("must be a timestamp", {"event_time": "id"}),
    ],
)
def test_an_event_time_column_that_cannot_be_is_refused(
    engines: SideBySide, message: str, changed: dict[str, Any]
) -> None:
    words = {"time": "eventTime", "watermark": ("at", "5 seconds"), "event_time": "out"} | changed
    with pytest.raises(godwit.errors.DefinitionError, match=message):
        case(processors.Passing, "row", **words).on_flock(
            engines.flock, engines.feed(TIMED).stream(engines.spark), engines.name()
        )


@pytest.mark.feature(
    "event time",
    "`eventTimeColumnName` in front of a second operator of the flock that uses event time",
    spark="the second operator has the watermark of the query",
    godwit="refused: the second operator needs `withWatermark` of its own",
)
def test_a_carried_watermark_is_not_for_another_operator_of_the_flock(engines: SideBySide) -> None:
    first = passing("row").on_flock(engines.flock, engines.feed(TIMED).stream(engines.spark), engines.name())
    with pytest.raises(godwit.errors.DefinitionError, match="carries the watermark of operator 'operator-"):
        case(processors.Passing, "row", time="eventTime").on_flock(
            engines.flock, first.withColumnRenamed("out", "at").withColumn("value", sf.lit(0)), engines.name()
        )


@pytest.mark.feature(
    "event time",
    "rows that a join, a filter or an aggregation behind `withWatermark` drops or holds back",
    spark="count for the watermark",
    godwit="do not: the watermark is that of the rows which reach the operator",
)
@pytest.mark.long
def test_the_watermark_is_that_of_the_rows_which_reach_the_operator(engines: SideBySide) -> None:
    batches: list[Table] = [[("a", at(0), 0)], [("dropped", at(100), 0)], [("a", at(10), 0)], [("a", at(11), 0)]]
    few = engines.spark.createDataFrame([("a",)], "id string")
    passed = case(processors.Passing, "row", time="eventTime")

    def joined() -> DataFrame:
        marked = engines.feed(TIMED, batches).stream(engines.spark).withWatermark("at", "5 seconds")
        return marked.join(sf.broadcast(few), "id")

    with engines.spark_settings():
        expected = engines.run(passed.on_spark(joined()))
    given = engines.run(passed.on_flock(engines.flock, joined(), engines.name()))
    assert [row[1] for _, row in expected.rows] == [at(0), at(10)]
    assert [row[1] for _, row in given.rows] == [at(0), at(10), at(11)]


@pytest.mark.feature(
    "event time",
    "a union of streams, each with `withWatermark`",
    spark="the watermark of the slowest stream",
    godwit="refused: `withWatermark` on the union",
)
def test_a_union_of_streams_with_watermarks_is_refused(engines: SideBySide) -> None:
    """Spark lets the row of `b` fire nothing and takes the one of `c`, because the second stream is behind."""
    batches: list[Table] = [[("a", at(0), 0), ("b", at(100), 0)], [("c", at(10), 1)], [("c", at(11), 1)]]
    stream = engines.feed(TIMED, batches).stream(engines.spark)
    halves = [stream.where(f"value = {n}").withWatermark("at", "5 seconds") for n in (0, 1)]
    passed = case(processors.Passing, "row", time="eventTime")
    with engines.spark_settings():
        seen = engines.run(passed.on_spark(halves[0].union(halves[1])))
    assert sorted(row[0] for _, row in seen.rows) == ["a", "b", "c", "c"]
    with pytest.raises(
        godwit.errors.DefinitionError, match=r"a union of 2 streams .*Call withWatermark\('at', delay\) once"
    ):
        passed.on_flock(engines.flock, halves[0].union(halves[1]), engines.name())
