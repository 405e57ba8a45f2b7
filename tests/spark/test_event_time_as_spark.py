"""Event time as Spark has it: the watermark of the input, and of operators of Spark behind this one.

Every test with a `feature` mark is a row of docs/compatibility.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from tests.spark import api_processors as api
from tests.spark.processors import FLAVOURS, Flavour, Logic
from tests.spark.side_by_side import Case, Seen, SideBySide, Table
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
    return case(api.Passing, flavour, time="eventTime", watermark=("at", "5 seconds"), event_time="out", **more)


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


@pytest.fixture
def only_with_data(spark: SparkSession) -> Iterator[None]:
    """With processing time, Spark runs batches without data for ever."""
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(setting, False)
    yield
    spark.conf.unset(setting)


@pytest.mark.feature(
    "event time", "an output row that is older than the watermark fails the query, whatever the `timeMode`"
)
@pytest.mark.parametrize("mode", ["eventTime", "none", pytest.param("processingTime", marks=pytest.mark.long)])
def test_an_output_older_than_the_watermark_is_refused(engines: SideBySide, only_with_data: None, mode: str) -> None:
    batches: list[Table] = [[("a", at(100), 0)], [("a", at(101), 0)], [("a", at(102), -50)]]
    passed = case(api.Passing, "row", time=mode, watermark=("at", "5 seconds"), event_time="out")
    with engines.spark_settings(), pytest.raises(PySparkException, match="EMITTING_ROWS_OLDER_THAN_WATERMARK"):
        engines.run(passed.on_spark(engines.feed(TIMED, batches).stream(engines.spark)))
    frame = passed.on_flock(engines.flock, engines.feed(TIMED, batches).stream(engines.spark), engines.name())
    with pytest.raises(PySparkException, match="older than the watermark") as caught:
        engines.run(frame)
    assert "key=('a',)" in str(caught.value)


@pytest.mark.feature("event time", "`getCurrentWatermarkInMs` by `timeMode`, and that only `eventTime` drops late rows")
@pytest.mark.parametrize("mode", ["processingTime", pytest.param("none", marks=pytest.mark.long)])
def test_the_watermark_that_a_processor_sees(engines: SideBySide, only_with_data: None, mode: str) -> None:
    marked = case(api.Marked, "row", time=mode, watermark=("at", "5 seconds"))
    expected, given = engines.both(marked, TIMED, STEPS)
    assert given.by_batch() == expected.by_batch()
    assert len(expected.rows) == sum(map(len, STEPS))


@pytest.mark.feature(
    "event time",
    "`eventTimeColumnName` with processing time",
    spark="the watermark ends there: an aggregation behind gives no rows",
    godwit="the watermark goes on",
)
@pytest.mark.long
def test_the_watermark_goes_on_behind_an_operator_by_processing_time(engines: SideBySide, only_with_data: None) -> None:
    passed = case(api.Passing, "row", time="processingTime", watermark=("at", "5 seconds"), event_time="out")
    batches: list[Table] = [[("a", at(0), 0)], [("a", at(100), 0)], [("a", at(101), 0)], [("a", at(102), 0)]]
    with engines.spark_settings():
        none = engines.run(counts(passed.on_spark(engines.feed(TIMED, batches).stream(engines.spark))))
    frame = passed.on_flock(engines.flock, engines.feed(TIMED, batches).stream(engines.spark), engines.name())
    given = engines.run(counts(frame))
    assert (none.rows, list(given.by_key())) == ([], [repr((str(at(0)),))])


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
        case(api.Passing, "row", **words).on_flock(
            engines.flock, engines.feed(TIMED).stream(engines.spark), engines.name()
        )


@pytest.mark.feature(
    "event time",
    "`eventTimeColumnName` in front of a second operator that uses event time: one watermark for both",
)
def test_two_operators_in_a_row_have_one_watermark(engines: SideBySide) -> None:
    """The second operator gets outputs of timers of the first, which fire at the watermark, and is not late for them."""
    first = case(api.Closing, "row", time="eventTime", watermark=("at", "5 seconds"), event_time="at")
    second = case(api.Silent, "row", time="eventTime")

    def chained(engine: str) -> DataFrame:
        stream = engines.feed(TIMED, STEPS).stream(engines.spark)
        if engine == "spark":
            return second.on_spark(first.on_spark(stream))
        return second.on_flock(engines.flock, first.on_flock(engines.flock, stream, engines.name()), engines.name())

    expected, given = both(engines, chained)
    assert any("timer" in row for rows in expected.by_key().values() for row in rows)
    assert given.by_batch() == expected.by_batch()


def test_a_second_watermark_on_the_way_is_refused(engines: SideBySide) -> None:
    """Spark stops such a query when the watermark moves."""
    first = case(api.Passing, "row", time="eventTime", watermark=("at", "5 seconds"))
    again = case(api.Passing, "row", time="eventTime", watermark=("at", "5 seconds"))
    stream = engines.feed(TIMED, STEPS).stream(engines.spark)
    copied = stream.withWatermark("at", "5 seconds").mapInArrow(lambda batches: batches, stream.schema)
    with pytest.raises(PySparkException, match="Redefining watermark is disallowed"):
        engines.run(copied.withWatermark("at", "5 seconds"))
    middle = first.on_flock(engines.flock, stream, engines.name()).selectExpr("id", "out AS at", "0L AS value")
    with pytest.raises(godwit.errors.DefinitionError, match="has a watermark already") as caught:
        again.on_flock(engines.flock, middle, engines.name())
    assert "eventTimeColumnName" in str(caught.value)


def both(engines: SideBySide, shaped: Callable[[str], DataFrame]) -> tuple[Seen, Seen]:
    with engines.spark_settings():
        expected = engines.run(shaped("spark"))
    return expected, engines.run(shaped("godwit"))


STEPS: list[Table] = [
    [("a", at(0), 0), ("b", at(3), 0)],
    [("dropped", at(100), 0), ("b", at(4), 0)],
    [("a", at(10), 0), ("b", at(97), 1)],
    [("a", at(11), 0), ("c", at(120), 1)],
    [("dropped", at(200), 1), ("c", at(96), 1), ("b", at(130), 0)],
    [("c", at(190), 0), ("a", at(131), 0), ("b", at(205), 1)],
]


def joined(stream: DataFrame) -> DataFrame:
    few = stream.sparkSession.createDataFrame([("a",), ("b",), ("c",)], "id string")
    return stream.withWatermark("at", "5 seconds").join(sf.broadcast(few), "id")


def filtered(stream: DataFrame) -> DataFrame:
    return stream.withWatermark("at", "5 seconds").where("id <> 'dropped'")


def united(stream: DataFrame) -> DataFrame:
    """In Spark the stream that is behind counts."""
    halves = [stream.where(f"value = {n}").withWatermark("at", "5 seconds") for n in (0, 1)]
    return halves[0].union(halves[1])


def aggregated(stream: DataFrame) -> DataFrame:
    """Windows leave when the watermark has passed them, long behind the newest rows."""
    windows = stream.withWatermark("at", "5 seconds").groupBy(sf.window("at", "5 seconds").alias("w"), "id").count()
    return windows.select("id", sf.col("w.end").alias("end"), "count").selectExpr("id", "end AS at", "count AS value")


def windowed(stream: DataFrame) -> DataFrame:
    """The window itself is the event time here."""
    windows = stream.withWatermark("at", "5 seconds").groupBy(sf.window("at", "5 seconds").alias("w"), "id").count()
    return windows.selectExpr("id", "w", "w.end AS at", "count AS value")


def stream_joined(stream: DataFrame) -> DataFrame:
    """A join of two streams hands on an earlier watermark than that of the query: a row may still find its partner."""
    left = stream.withWatermark("at", "5 seconds").alias("left")
    right = stream.selectExpr("id AS other", "at AS later").withWatermark("later", "5 seconds")
    near = sf.expr("id = other AND later BETWEEN at AND at + INTERVAL 8 SECONDS")
    return left.join(right, near).select("id", "at", "value")


@pytest.mark.feature(
    "event time",
    "the watermark is that of the query: rows that a filter, a join or an aggregation drops or holds back count",
)
@pytest.mark.parametrize(
    "shaped",
    [
        joined,
        united,
        pytest.param(filtered, marks=pytest.mark.long),
        pytest.param(aggregated, marks=pytest.mark.long),
        pytest.param(windowed, marks=pytest.mark.long),
        pytest.param(stream_joined, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", [api.Passing, api.Silent])
def test_the_watermark_is_that_of_the_query(
    engines: SideBySide, shaped: Callable[[DataFrame], DataFrame], kind: type[Logic]
) -> None:
    """Which rows are late, and in which batch timers fire. Files are read in the same batches by both engines."""
    passed = case(kind, "row", time="eventTime")

    def made(engine: str) -> DataFrame:
        shape = shaped(engines.feed(TIMED, STEPS).stream(engines.spark))
        on_flock = engine == "godwit"
        return passed.on_flock(engines.flock, shape, engines.name()) if on_flock else passed.on_spark(shape)

    expected, given = both(engines, made)
    assert in_any_order(given) == in_any_order(expected)  # behind a shuffle, rows of a key come in any order
    assert len(expected.rows) > 3


def in_any_order(seen: Seen) -> dict[int, list[str]]:
    batches = {batch for batch, _ in seen.rows}
    return {batch: sorted(repr(row) for number, row in seen.rows if number == batch) for batch in batches}


@pytest.mark.feature("event time", "a union of streams, each with `withWatermark`: the slowest counts")
def test_a_union_with_a_slow_stream(engines: SideBySide) -> None:
    """The row of `b` fires nothing and the one of `c` is not late, because the second stream is behind."""
    batches: list[Table] = [[("a", at(0), 0), ("b", at(100), 0)], [("c", at(10), 1)], [("c", at(11), 1)]]
    passed = case(api.Passing, "row", time="eventTime")
    shape = united(engines.feed(TIMED, batches).stream(engines.spark))
    seen = engines.run(passed.on_flock(engines.flock, shape, engines.name()))
    assert sorted(row[0] for _, row in seen.rows) == ["a", "b", "c", "c"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [api.Passing, api.Silent])
def test_two_sources_of_one_query_share_its_watermark(engines: SideBySide, kind: type[Logic]) -> None:
    """The operator reads one of them only; the other one is behind, and Spark lets it hold the watermark back."""
    slow = [[("x", at(n), 0)] for n in range(len(STEPS))]
    passed = case(kind, "row", time="eventTime")

    def made(engine: str) -> DataFrame:
        marked = engines.feed(TIMED, STEPS).stream(engines.spark).withWatermark("at", "5 seconds")
        beside = engines.feed(TIMED, slow).stream(engines.spark).withWatermark("at", "5 seconds")
        on_flock = engine == "godwit"
        out = passed.on_flock(engines.flock, marked, engines.name()) if on_flock else passed.on_spark(marked)
        columns = [sf.lit(None).cast(field.dataType).alias(field.name) for field in out.schema.fields[1:]]
        return out.unionByName(beside.select("id", *columns))

    expected, given = both(engines, made)
    assert given.by_batch() == expected.by_batch()


@pytest.mark.long
def test_a_query_that_starts_again_goes_on_with_its_watermark(engines: SideBySide, tmp_path: Path) -> None:
    """Half of the batches in one run, half in the next; rows that only the query has seen count in the second one, too."""
    passed = case(api.Silent, "row", time="eventTime")
    runs: dict[str, list[dict[int, dict[str, list[str]]]]] = {"spark": [], "godwit": []}
    for engine, seen in runs.items():
        feed, name = engines.feed(TIMED), engines.name()
        for half in (STEPS[:3], STEPS[3:]):
            for rows in half:
                feed.add(rows)
            with engines.spark_settings():
                shape = joined(feed.stream(engines.spark))
                on_flock = engine == "godwit"
                frame = passed.on_flock(engines.flock, shape, name) if on_flock else passed.on_spark(shape)
                seen.append(run_at(tmp_path / engine, frame).by_batch())
    assert runs["godwit"] == runs["spark"]


def test_a_batch_that_is_done_again_leads_to_a_batch_without_data_too(engines: SideBySide, tmp_path: Path) -> None:
    """The batch that moves the watermark fails, and the next run does it again: then timers fire without further rows."""
    passed = case(api.Silent, "row", time="eventTime")
    runs: dict[str, dict[int, dict[str, list[str]]]] = {}
    for engine in ("spark", "godwit"):
        stream = engines.feed(TIMED, [[("a", at(0), 0)], [("b", at(100), 0)]]).stream(engines.spark)
        with engines.spark_settings():
            marked = stream.withWatermark("at", "5 seconds")
            on_flock = engine == "godwit"
            frame = passed.on_flock(engines.flock, marked, engines.name()) if on_flock else passed.on_spark(marked)
            with pytest.raises(PySparkException, match="not this time"):
                run_at(tmp_path / engine, frame, failing)
            runs[engine] = run_at(tmp_path / engine, frame).by_batch()
    assert any("timer" in row for rows in runs["spark"].values() for key in rows.values() for row in key)
    assert runs["godwit"] == runs["spark"]


def failing(batch: DataFrame, number: int) -> None:
    if any(row.id == "b" for row in batch.collect()):
        raise ValueError("not this time")


def run_at(checkpoint: Path, frame: DataFrame, take: Callable[[DataFrame, int], None] | None = None) -> Seen:
    seen = Seen()
    query = frame.writeStream.foreachBatch(take or seen.take).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watermark_policy": "min", "partitions": "input"}, r"a union of 2 streams .* watermark_policy='min'"),
    ],
)
def test_an_operator_with_a_watermark_of_its_own_takes_no_union(
    engines: SideBySide, options: dict[str, Any], message: str
) -> None:
    passed = case(api.Passing, "row", time="eventTime", options=options)
    with pytest.raises(godwit.errors.DefinitionError, match=message) as caught:
        passed.on_flock(engines.flock, united(engines.feed(TIMED, STEPS).stream(engines.spark)), engines.name())
    assert "Call withWatermark('at', delay) once, on the union" in str(caught.value)


def test_an_operator_with_a_watermark_of_its_own_takes_no_carried_one(engines: SideBySide) -> None:
    first = passing("row").on_flock(engines.flock, engines.feed(TIMED).stream(engines.spark), engines.name())
    own = case(api.Passing, "row", time="eventTime", options={"watermark_policy": "min", "partitions": "input"})
    with pytest.raises(godwit.errors.DefinitionError, match="carries the watermark of operator 'operator-"):
        own.on_flock(engines.flock, first.withColumnRenamed("out", "at").withColumn("value", sf.lit(0)), engines.name())
