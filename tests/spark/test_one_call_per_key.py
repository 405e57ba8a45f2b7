"""Where Spark partitions the input by key: one call per key and batch, and timers in the same batch, as in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.errors import DefinitionError
from tests.spark import processors
from tests.spark.one_by_one import in_real_time, numbers
from tests.spark.processors import FLAVOURS_LONG, Flavour, flavoured
from tests.spark.side_by_side import Case, Feed, Seen, SideBySide, Table

ROWS = pa.schema({"id": pa.string(), "value": pa.int64()})
# Two sources, so that a batch has two partitions, and keys that have rows in both.
LEFT: list[Table] = [[("a", 1), ("b", 2), ("a", 3)], [("a", 4)], [("c", 5), ("a", 6)]]
RIGHT: list[Table] = [[("b", 10), ("a", 11), ("c", 12)], [("b", 13), ("a", 14)], [("c", 15), ("d", 16)]]

CALLS = 8  # keys with rows in a batch


@pytest.fixture(scope="module")
def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    root = tmp_path_factory.mktemp("one_call")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        yield SideBySide(spark, flock, root)


def case(flavour: Flavour = "row", time: str = "processingTime", **options: object) -> Case:
    kind = processors.Calls
    return Case(flavoured(kind, flavour), kind.OUTPUT, pandas=flavour == "pandas", time=time, options=options)


def stream(engines: SideBySide) -> DataFrame:
    left, right = (engines.feed(ROWS, batches).stream(engines.spark) for batches in (LEFT, RIGHT))
    return left.union(right)


def run(engines: SideBySide, frame: DataFrame) -> Seen:
    """Until all rows and timers are out. By processing time Spark runs batches without data for ever."""
    with engines.running(frame) as (_, seen):
        seen.wait(lambda rows: sum(row[1] == "timer" for row in rows) == CALLS)
    return seen


def batch(engines: SideBySide) -> DataFrame:
    left, right = (engines.feed(ROWS, batches[:1]).batch(engines.spark) for batches in (LEFT, RIGHT))
    return left.union(right)


@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_a_stream(engines: SideBySide, flavour: Flavour) -> None:
    """Each key is called once in a batch, with all its rows, and its timer that is due fires in that batch, after them."""
    with engines.spark_settings():
        expected = run(engines, case(flavour).on_spark(stream(engines)))
    given = run(engines, case(flavour).on_flock(engines.flock, stream(engines), engines.name()))
    with_rows = {number: keys for number, keys in expected.by_batch().items() if number < len(LEFT)}
    assert {number: given.by_batch()[number] for number in with_rows} == with_rows
    assert with_rows[0]["('a',)"] == ["('rows', '1 3 11')", "('timer', '3')"]


@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_a_batch_dataframe(engines: SideBySide, flavour: Flavour) -> None:
    with engines.spark_settings():
        expected = sorted(map(tuple, case(flavour).on_spark(batch(engines)).collect()))
    given = case(flavour).on_flock(engines.flock, batch(engines), engines.name()).collect()
    assert sorted(map(tuple, given)) == expected
    assert ("a", "timer", "3") in expected


@pytest.mark.feature("batch DataFrames", "timers of initial state fire, also for keys without rows")
def test_timers_that_initial_state_has_set_fire_on_a_batch_dataframe(engines: SideBySide) -> None:
    """Also those of keys without rows: most partitions have no rows here."""
    initial = engines.spark.createDataFrame([(f"k{n}", n, "") for n in range(20)], "id string, start long, note string")
    kind = processors.SeededDue
    seeded = Case(flavoured(kind, "row"), kind.OUTPUT, time="processingTime", initial=initial)
    feed = engines.feed(ROWS, [[("k1", 1)]])
    with engines.spark_settings():
        expected = sorted(map(tuple, seeded.on_spark(feed.batch(engines.spark)).collect()))
    ours = seeded.on_flock(engines.flock, feed.batch(engines.spark), engines.name())
    assert len(expected) == 21
    for _ in range(2):
        assert sorted(map(tuple, ours.collect())) == expected


def test_without_the_exchange_a_key_is_called_once_per_partition(engines: SideBySide) -> None:
    ours = case(partitions="input").on_flock(engines.flock, stream(engines), engines.name())
    with engines.running(ours) as (query, seen):
        query.processAllAvailable()
    calls = [row for row in seen.by_batch()[0]["('a',)"] if "rows" in row]
    assert sorted(calls) == ["('rows', '1 3')", "('rows', '11')"]


def test_a_timer_that_is_due_on_a_batch_frame_is_refused_without_the_exchange(engines: SideBySide) -> None:
    ours = case(partitions="input").on_flock(engines.flock, batch(engines), engines.name())
    with pytest.raises(PySparkException, match="timers do not fire on a batch DataFrame"):
        ours.collect()


def test_without_batches_without_data_timers_wait_for_data(engines: SideBySide) -> None:
    """The timer of `b` is due in the second batch, in which only other keys have rows, and rings there."""
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    engines.spark.conf.set(name, "false")
    try:
        feed = engines.feed(ROWS, [[("a", 0), ("b", 1)], *([(key, 0)] for key in "acdef")])
        alarm = Case(flavoured(processors.LaterAlarm, "row"), processors.LaterAlarm.OUTPUT, time="processingTime")
        seen = engines.run(alarm.on_flock(engines.flock, feed.stream(engines.spark), engines.name()))
    finally:
        engines.spark.conf.unset(name)
    assert seen.by_batch()[1]["('b',)"] == ["('rang',)"]
    assert max(seen.by_batch()) == 5, "and no batch was run for the timers that were left"
    assert len(seen.by_key()["('f',)"]) == 1, "its timer waits"


def test_the_number_of_partitions_is_fixed_with_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    frame = Feed(tmp_path / "feed", ROWS).stream(spark)
    for given, fixed in (({"partitions": 3}, 3), ({}, 3), ({"partitions": 5}, 5)):
        with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
            case(**given).on_flock(flock, frame, "calls")
            assert flock._running.operators.known("calls")[0].partitions == fixed


@pytest.mark.parametrize("wrong", [0, -1, True, "key", 2.5])
def test_wrong_numbers_of_partitions_are_refused(engines: SideBySide, wrong: object) -> None:
    with pytest.raises(DefinitionError, match=r"partitions=.* is not allowed"):
        case(partitions=wrong).on_flock(engines.flock, stream(engines), engines.name())


def test_the_slowest_partition_cannot_be_followed_through_the_exchange(engines: SideBySide) -> None:
    with pytest.raises(DefinitionError, match='partitions="input"'):
        case(watermark_policy="min").on_flock(engines.flock, stream(engines), engines.name())


@pytest.mark.long
def test_a_batch_without_rows_for_the_operator(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows are filtered out before the exchange, so Spark may run no task; the next run goes on all the same."""
    feed = Feed(tmp_path / "feed", ROWS)
    seen: list[tuple[object, ...]] = []
    for rows in ([("a", 1)], [("out", 2)], [("a", 3)]):
        feed.add(rows)
        with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
            frame = case().on_flock(flock, feed.stream(spark).where("id != 'out'"), "calls")
            writer = frame.writeStream.foreachBatch(lambda some, _: seen.extend(map(tuple, some.collect())))
            query = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True).start()
            query.awaitTermination()
    assert [row for row in seen if row[1] == "rows"] == [("a", "rows", "1"), ("a", "rows", "3")]


@pytest.mark.long
def test_the_real_time_trigger_is_refused(spark: SparkSession, engines: SideBySide, tmp_path: Path) -> None:
    rows = numbers(spark).selectExpr("'a' AS id", "value")
    frame = case(time="none").on_flock(engines.flock, rows, engines.name())
    with in_real_time(frame, tmp_path / "spark") as query:
        with pytest.raises(PySparkException, match="real_time=True"):
            query.awaitTermination(60)
