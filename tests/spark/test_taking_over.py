"""A job goes from plain Spark to a flock and back: its state, its offsets, its timers and its watermark go with it."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import godwit
from godwit.errors import CheckpointMismatch, DefinitionError
from tests.spark.side_by_side import SPARK_SETTINGS, Feed, Seen
from tests.spark.taking_over import HOUR_MS, Counting, Expiring, Other, Remembering, Renamed

EVENTS = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "word": pa.string()})
DAY = dt.datetime(2024, 5, 1)
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
KEYS = [f"k{n}" for n in range(20)]


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in SPARK_SETTINGS}
    for name, value in SPARK_SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


def counted(feed: Feed, word: str = "x", times: int = 1) -> None:
    feed.add([(key, DAY, word) for key in KEYS for _ in range(times)])


def run(frame: DataFrame, checkpoint: Path) -> Seen:
    """A query on all that is there, to its end."""
    seen = Seen()
    writer = frame.writeStream.foreachBatch(seen.take).outputMode("update")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return seen


def in_spark(frame: DataFrame, processor: Any, mode: str = "None") -> DataFrame:
    return transformed(frame, processor, type(processor), mode)


def transformed(frame: DataFrame, processor: Any, kind: Any, mode: str = "None", initial: Any = None) -> DataFrame:
    """Plain Spark, with Rows or with pandas, as the class of the processor says."""
    grouped = frame.groupBy("id")
    transform = grouped.transformWithStateInPandas if hasattr(kind, "PANDAS") else grouped.transformWithState
    return transform(processor, kind.OUTPUT, "Update", mode, initial)


def counts(seen: Seen) -> list[int]:
    """The counts of all keys, which are the same for every key."""
    by_key: dict[str, list[int]] = {}
    for _, (key, n) in seen.rows:
        by_key.setdefault(key, []).append(n)
    assert sorted(by_key) == sorted(KEYS)
    assert len({tuple(each) for each in by_key.values()}) == 1, by_key
    return by_key[KEYS[0]]


def test_one_count_from_spark_to_a_flock_and_back_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", EVENTS)
    counted(feed)
    counted(feed, times=2)
    assert counts(run(in_spark(feed.stream(spark), Counting()), tmp_path / "old")) == [1, 2, 3]

    counted(feed)
    for start in range(2):  # the program starts again, unchanged: state and offsets are taken over once
        with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "flock") as flock:
            frame = flock.transformWithState(
                feed.stream(spark),
                "id",
                Counting(),
                Counting.OUTPUT,
                initialState=godwit.spark_state(spark, tmp_path / "old"),
                name="count",
            )
            godwit.continue_spark_query(frame, tmp_path / "old", tmp_path / "new")
            assert counts(run(frame, tmp_path / "new")) == [4 + start]
        counted(feed)
        shutil.rmtree(tmp_path / "old", ignore_errors=True)

    for start in range(2):  # as before, without a flock
        back_to_spark(spark, tmp_path, "count", Counting, lambda: feed.stream(spark))
        assert counts(run(in_spark(feed.stream(spark), Counting()), tmp_path / "back")) == [6 + start]
        counted(feed)


def back_to_spark(
    spark: SparkSession, root: Path, operator: str, processor: Any, stream: Callable[[], DataFrame], mode: str = "None"
) -> None:
    """The query of root/new goes on as one of plain Spark with root/back."""
    saved = godwit.state_for_spark(spark, root / "flock", operator, processor())
    whole = transformed(stream().where("false"), saved.processor, processor, mode, saved.initialState)
    godwit.continue_in_spark(whole, root / "new", root / "back", outputMode="update")


@pytest.mark.long
def test_lists_maps_timers_and_the_watermark_go_on_in_a_flock_and_in_spark_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    hours = [0, 0.2, 3, 3.2, 1.5, 6]  # the row of 1.5 comes late
    feed = Feed(tmp_path / "feed", EVENTS)

    def add(part: slice) -> None:
        for at, hour in list(enumerate(hours))[part]:
            feed.add([(key, DAY + dt.timedelta(hours=hour), f"w{at % 2}") for key in KEYS[:5]])

    def marked() -> DataFrame:
        return feed.stream(spark).withWatermark("at", "10 minutes")

    add(slice(0, 3))
    spark.conf.set(NO_DATA, "false")  # the timers that are due are left to the flock
    try:
        before = run(in_spark(marked(), Remembering(), "EventTime"), tmp_path / "old")
    finally:
        spark.conf.unset(NO_DATA)
    assert not [row for _, row in before.rows if row[1] != "rows"]
    add(slice(3, None))
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "flock") as flock:
        state = godwit.spark_state(spark, tmp_path / "old")
        frame = flock.transformWithState(
            marked(), "id", Remembering(), Remembering.OUTPUT, timeMode="eventTime", initialState=state, name="all"
        )
        godwit.continue_spark_query(frame, tmp_path / "old", tmp_path / "new")
        after = run(frame, tmp_path / "new")
    in_spark_alone = run(in_spark(marked(), Remembering(), "EventTime"), tmp_path / "whole").rows
    hours += [6.2, 5.5, 9, 12]  # the row of 5.5 comes late
    add(slice(6, None))
    back_to_spark(spark, tmp_path, "all", Remembering, marked, "EventTime")
    again = run(in_spark(marked(), Remembering(), "EventTime"), tmp_path / "back")
    in_spark_alone += run(in_spark(marked(), Remembering(), "EventTime"), tmp_path / "whole").rows
    both = Seen(before.rows + after.rows + again.rows)
    assert both.by_key() == Seen(in_spark_alone).by_key()
    timers = [row[1] for _, row in both.rows if row[1].startswith("timer") and row[0] == KEYS[0]]
    assert len(timers) == len(set(timers)) == 7


@pytest.mark.long
def test_a_ttl_ends_when_it_would_have_ended_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", EVENTS)
    counted(feed, "write")

    def once(frame: DataFrame, checkpoint: Path) -> list[str]:
        seen = Seen()
        writer = frame.writeStream.foreachBatch(seen.take).outputMode("update").trigger(once=True)
        assert writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(300)
        return sorted({row[1] for _, row in seen.rows})

    written = {name: Expiring(ttl_ms) for name, ttl_ms in (("long", 10 * HOUR_MS), ("short", 1))}
    for name, processor in written.items():
        assert once(in_spark(feed.stream(spark), processor, "ProcessingTime"), tmp_path / name) == [
            "(True, True, True)"
        ]
    counted(feed, "look")
    for name, shown in (("long", "(True, True, True)"), ("short", "(False, False, False)")):
        with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / f"flock-{name}") as flock:
            # The new TTL is for what is written from now on: what was there keeps its end.
            frame = flock.transformWithState(
                feed.stream(spark),
                "id",
                Expiring(5 * HOUR_MS),
                Expiring.OUTPUT,
                timeMode="processingTime",
                initialState=godwit.spark_state(spark, tmp_path / name),
                name="ttl",
            )
            godwit.continue_spark_query(frame, tmp_path / name, tmp_path / f"new-{name}")
            assert once(frame, tmp_path / f"new-{name}") == [shown]


@pytest.mark.long
def test_what_does_not_fit_is_refused_in_plain_words(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", EVENTS)
    counted(feed)
    run(in_spark(feed.stream(spark), Counting()), tmp_path / "old")
    running = in_spark(feed.stream(spark), Counting()).writeStream.format("noop").outputMode("update")
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:

        def define(
            at: int, processor: StatefulProcessor, path: str, keys: str = "id", operator_id: int = 0
        ) -> DataFrame:
            state = godwit.spark_state(spark, tmp_path / path, operator_id)
            return flock.transformWithState(
                feed.stream(spark), keys, processor, Counting.OUTPUT, initialState=state, name=f"op{at}"
            )

        for at, (said, given) in enumerate(
            (
                ("is not the checkpointLocation of a streaming query", (Counting(), "feed")),
                (
                    "operator 3; its stateful operators are 0: transformWithState",
                    (Counting(), "old", "id", 3),
                ),
                (r"the state is by \(id string", (Counting(), "old", "at")),
                ("it is a value state in the checkpoint and a list state now", (Other(), "old")),
                ("has state variable 'total', which init does not declare", (Renamed(), "old")),
            )
        ):
            with pytest.raises(CheckpointMismatch, match=said):
                define(at, *given)
        with pytest.raises(DefinitionError, match="over a stream only"):
            flock.transformWithState(
                feed.batch(spark),
                "id",
                Counting(),
                Counting.OUTPUT,
                initialState=godwit.spark_state(spark, tmp_path / "old"),
                name="batch",
            )
        query = running.option("checkpointLocation", str(tmp_path / "old")).start()
        try:
            with pytest.raises(CheckpointMismatch, match="still runs with the checkpointLocation"):
                define(9, Counting(), "old")
            for same in (f"{tmp_path}/old/", f"file://{tmp_path}/old", f"{tmp_path}/feed/../old"):
                with pytest.raises(CheckpointMismatch, match="still runs with the checkpointLocation"):
                    godwit.spark_state(spark, same).start()
        finally:
            query.stop()
        frame = define(10, Counting(), "old")
        two = frame.unionByName(
            frame.sparkSession.readStream.format("rate").load().selectExpr("'' AS id", "value AS n")
        )
        with pytest.raises(CheckpointMismatch, match="the old query has 1 sources, and the DataFrame has 2"):
            godwit.continue_spark_query(two, tmp_path / "old", tmp_path / "two")
        run(feed.stream(spark).groupBy("id").count(), tmp_path / "aggregated")
        with pytest.raises(CheckpointMismatch, match="a stateful operator stateStoreSave of Spark"):
            godwit.continue_spark_query(frame, tmp_path / "aggregated", tmp_path / "two")
        writer = frame.writeStream.format("noop").outputMode("update")
        fresh = writer.option("checkpointLocation", str(tmp_path / "fresh")).trigger(availableNow=True).start()
        with pytest.raises(Exception, match="taken over from query"):
            fresh.awaitTermination(300)


@pytest.mark.long
def test_a_batch_that_spark_has_planned_is_the_first_one_of_the_flock(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", EVENTS)
    counted(feed)
    counted(feed)
    run(in_spark(feed.stream(spark), Counting()), tmp_path / "old")
    (tmp_path / "old" / "commits" / "1").unlink()  # as if the query had been stopped within its batch
    counted(feed)
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "flock") as flock:
        state = godwit.spark_state(spark, tmp_path / "old")
        frame = flock.transformWithState(
            feed.stream(spark), "id", Counting(), Counting.OUTPUT, initialState=state, name="count"
        )
        godwit.continue_spark_query(frame, tmp_path / "old", tmp_path / "new")
        seen = run(frame, tmp_path / "new")
    assert counts(seen) == [2, 3]
    assert sorted({batch for batch, _ in seen.rows}) == [1, 2]
    ids = [json.loads((tmp_path / name / "metadata").read_text())["id"] for name in ("old", "new")]
    assert ids[0] == ids[1]
