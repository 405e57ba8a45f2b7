"""What becomes of state on its way from a flock to plain Spark: nothing is lost, and nothing comes back to life."""

from __future__ import annotations

import datetime as dt
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.errors import CheckpointMismatch
from tests.spark import journeys
from tests.spark.journeys import FAR_MS, HOUR_MS, YEAR_MS, Journey
from tests.spark.processors import FLAVOURS_LONG, Flavour, Logic
from tests.spark.test_taking_over import settings

__all__ = ["settings"]  # the fixture of the settings that Spark's state needs

WORDS = pa.schema({"id": pa.string(), "word": pa.string()})
TIMED = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC")})
ZONE = "spark.sql.session.timeZone"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


@pytest.fixture
def journey(spark: SparkSession, tmp_path: Path) -> Any:
    def begun(kind: type[Logic], schema: pa.Schema = WORDS, **more: Any) -> Journey:
        return Journey(spark, tmp_path, kind, schema, **more)

    return begun


def in_flock(job: Journey, batches: int = 1) -> list[tuple[Any, ...]]:
    """A batch of all that is there, as often as is said."""
    with godwit.Flock(job.spark, hosts=1, checkpoint=job.root / "flock") as flock:
        frame = job.in_flock(flock)
        return [row for _ in range(batches) for row in job.run(frame, "new")]


@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_maps_times_and_nulls_are_the_same_in_spark(spark: SparkSession, journey: Any, flavour: Flavour) -> None:
    job = journey(journeys.AllTypes, flavour=flavour)
    with setting(spark, ZONE, "America/New_York"):
        job.feed.add([("a", "write"), ("b", "look")])
        there = in_flock(job)
        query = job.back()
        job.feed.add([("a", "look"), ("b", "look")])
        assert sorted(job.run(query, "back")) == sorted(there)


@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_timers_by_the_clock_keep_their_times_also_if_they_are_due(
    spark: SparkSession, journey: Any, flavour: Flavour
) -> None:
    job = journey(journeys.Clockwork, flavour=flavour, time="processingTime")
    job.feed.add([("a", "x")])
    ((_, now_ms, _), fired) = in_flock(job)
    due, later = [-5, now_ms - 2_001, now_ms - 1_001], [now_ms + YEAR_MS, *FAR_MS]
    assert fired == ("a", now_ms - 1, repr([*due, *later]))
    query = job.back()
    (lasting,) = spark.read.format("statestore").option("stateVarName", "lasting").load(f"{job.root}/back").collect()
    assert lasting["value"]["ttlExpirationMs"] == now_ms + HOUR_MS
    job.feed.add([("b", "x")])
    rang = [(at_ms, left) for key, at_ms, left in job.run(query, "back") if key == "a"]
    assert rang == [(at_ms, repr([*due[place + 1 :], *later])) for place, at_ms in enumerate(due)]


def test_timers_by_event_time_may_be_before_1970(journey: Any) -> None:
    job = journey(journeys.Early, TIMED, time="eventTime", shaped=lambda stream: stream.withWatermark("at", "1 hour"))
    job.feed.add([("a", dt.datetime(1971, 1, 1))])
    assert [row[1] for row in in_flock(job)] == [0, -1]
    query = job.back()
    job.feed.add([("b", dt.datetime(1971, 1, 1))])
    rang = [at_ms for key, at_ms, _ in job.run(query, "back") if key == "a"]
    assert rang == [1, 2, 3, 4, 5], "each fires, in their order"


def test_what_has_lapsed_stays_behind(spark: SparkSession, journey: Any) -> None:
    """What lapses is still stored in the flock, because it had a longer time to live, or others of its list still have."""
    job = journey(journeys.Lapsing, time="processingTime")
    with godwit.Flock(spark, hosts=1, checkpoint=job.root / "flock") as flock:
        for ttl_ms, words in ((HOUR_MS, ("x", "y", "z")), (1, ("y", "last")), (1, ("",))):
            job.settings = {"ttl_ms": ttl_ms}
            frame = job.in_flock(flock)
            job.feed.add([("a", word) for word in words])
            assert job.run(frame, "new")
    job.back()

    def words_of(variable: str, column: str) -> list[str]:
        reader = spark.read.format("statestore").option("stateVarName", variable)
        return [row[0] for row in reader.load(f"{job.root}/back").select(column).collect()]

    assert words_of("list", "list_element.value.word") == ["x", "y", "z"]
    assert sorted(words_of("map", "user_map_key.word")) == ["x", "z"]
    assert words_of("value", "value.value.word") == []


def test_key_columns_may_have_any_name(spark: SparkSession, journey: Any) -> None:
    names = ("host", "Epoch", "timers", "value", "total")
    job = journey(journeys.Total, pa.schema(dict.fromkeys((*names, "word"), pa.string())), keys=names)
    job.feed.add([(*"abcde", "x"), (*"abcdf", "x")])
    in_flock(job)
    query = job.back()
    job.feed.add([(*"abcde", "x")])
    assert job.run(query, "back") == [(repr(tuple("abcde")), 2)]


def test_the_state_of_both_zeros_is_that_of_plus_zero(journey: Any) -> None:
    job = journey(journeys.Total, pa.schema({"x": pa.float64()}), keys=("x",))
    job.feed.add([(-0.0,), (0.0,)])
    in_flock(job)
    query = job.back()
    job.feed.add([(-0.0,)])
    assert job.run(query, "back") == [("(-0.0,)", 1)]
    job.feed.add([(0.0,)])
    assert job.run(query, "back") == [("(0.0,)", 3)]


def test_instants_that_pandas_does_not_tell_apart_are_refused(spark: SparkSession, journey: Any) -> None:
    """In New York it is half past one both times."""
    job = journey(journeys.Total, TIMED, keys=("at",), flavour="pandas")
    job.feed.add([("a", dt.datetime(2024, 11, 3, hour, 30)) for hour in (5, 6)])
    with setting(spark, ZONE, "America/New_York"):
        assert len(in_flock(job)) == 2
        with pytest.raises(
            PySparkException, match=r"two keys that Spark takes for one with pandas.*2024-11-03 01:30:00"
        ):
            job.back()


def test_state_that_the_user_has_made_comes_at_the_time_of_the_newest_batch(spark: SparkSession, journey: Any) -> None:
    job = journey(journeys.Dated, time="processingTime")
    job.feed.add([("a", "x")])
    ((_, now_ms),) = in_flock(job)
    initial = spark.createDataFrame([("a",)], "id string").groupBy("id")
    whole = job.in_spark(job.processor, initial, rows=False)
    godwit.continue_in_spark(whole, job.root / "new", job.root / "back", outputMode="update")
    job.feed.add([("a", "x")])
    assert job.run(job.in_spark(), "back") == [("a", now_ms)]


def test_a_query_with_other_state_of_spark_does_not_go_back(journey: Any) -> None:
    job = journey(journeys.Total, shaped=lambda stream: stream.dropDuplicates(["word"]))
    job.feed.add([("a", "x"), ("a", "y")])
    in_flock(job)
    with pytest.raises(
        CheckpointMismatch, match=r"has a stateful operator dedupe of Spark, and its state would be lost"
    ):
        job.back()


def rows_of_files(job: Journey, frame: DataFrame, checkpoint: str) -> list[int]:
    """What a file sink has written, at the path of the checkpoint, after a run of the query."""
    path = str(job.root / f"files-{checkpoint}")
    writer = frame.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(job.root / checkpoint)).start(path)
    assert query.awaitTermination(240)
    return sorted(row["n"] for row in job.spark.read.parquet(path).collect())


def test_a_file_sink_with_a_new_path_gets_all_rows_and_a_warning_says_why(
    spark: SparkSession, journey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of the sink is compacted with its second batch, which reads all entries from batch 0 on."""
    job = journey(journeys.Total, mode="append")
    with setting(spark, "spark.sql.streaming.fileSink.log.compactInterval", "2"):
        with godwit.Flock(spark, hosts=1, checkpoint=job.root / "flock") as flock:
            job.feed.add([("a", "x")])
            job.feed.add([("a", "x")])
            assert rows_of_files(job, job.in_flock(flock), "new") == [1, 2]
        with pytest.raises(CheckpointMismatch, match="files-new is not empty: its file sink would take"):
            job.back(path=job.root / "files-new")
        with caplog.at_level(logging.WARNING, "godwit"):
            query = job.back(path=job.root / "files-back")
        for _ in range(3):
            job.feed.add([("a", "x")])
        assert rows_of_files(job, query, "back") == [3, 4, 5]
        job.back(path=job.root / "files-back")
    (warning,) = [each for each in caplog.records if each.name == "godwit.porting"]
    assert "begins with batch 1, and the query of the flock has ended with batch 1" in warning.getMessage()
    assert "Give a file sink a new path" in warning.getMessage()


def test_another_checkpoint_than_that_of_the_state_is_refused(journey: Any) -> None:
    """A copy from before the last batch has the same query id, and would give the rows of that batch a second time."""
    job = journey(journeys.Total)
    with godwit.Flock(job.spark, hosts=1, checkpoint=job.root / "flock") as flock:
        frame = job.in_flock(flock)
        job.feed.add([("a", "x")])
        job.run(frame, "new")
        shutil.copytree(job.root / "new", job.root / "earlier")
        job.feed.add([("a", "x")])
        job.run(frame, "new")
        with pytest.raises(CheckpointMismatch, match=r"belongs to the query with the checkpointLocation .*/new, not"):
            job.back("earlier")
        saved = godwit.state_for_spark(job.spark, job.root / "flock", "op", job.processor)
        job.feed.add([("a", "x")])
        job.run(frame, "new")
    whole = job.in_spark(saved.processor, saved.initialState, rows=False)
    with pytest.raises(CheckpointMismatch, match="is as of batch 1, and the query has committed batch 2"):
        godwit.continue_in_spark(whole, job.root / "new", job.root / "back", outputMode="update")
    job.back()


def test_the_processor_of_the_way_back_refuses_another_batch(journey: Any) -> None:
    job = journey(journeys.Clockwork, time="processingTime")
    job.feed.add([("a", "x")])
    in_flock(job)
    saved = godwit.state_for_spark(job.spark, job.root / "flock", "op", job.processor)
    whole = job.in_spark(saved.processor, saved.initialState, rows=False)
    with pytest.raises(Exception, match=r"Give the frame to godwit.continue_in_spark"):
        job.run(whole, "alone")


def test_a_processor_with_other_fields_is_refused(journey: Any) -> None:
    job = journey(journeys.Total)
    job.feed.add([("a", "x")])
    in_flock(job)
    job.kind = Wider
    with pytest.raises(
        CheckpointMismatch,
        match=r"has value state 'total' \(n int64\), .* declares as value state 'total' \(n int64, more",
    ):
        job.back()


class Wider(journeys.Total):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, more string")
