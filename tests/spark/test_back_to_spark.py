"""A query of a flock goes on in plain Spark: pandas, timers by the clock, interruptions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.spark.porting import returned_query
from tests.spark.flocks import Count
from tests.spark.side_by_side import Feed, Seen
from tests.spark.taking_over import Alarm, Counting, CountingInPandas, Other
from tests.spark.test_taking_over import DAY, EVENTS, KEYS, back_to_spark, counted, counts, in_spark, run, settings

__all__ = ["settings"]  # the fixture of the settings that Spark's state needs
pytestmark = pytest.mark.long


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    feed = Feed(tmp_path / "feed", EVENTS)
    counted(feed)
    counted(feed)
    return feed


def in_flock(spark: SparkSession, feed: Feed, root: Path, processor: Any, mode: str = "none") -> Seen:
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        transform = flock.transformWithStateInPandas if hasattr(processor, "PANDAS") else flock.transformWithState
        return run(
            transform(feed.stream(spark), "id", processor, processor.OUTPUT, "update", mode, name="op"), root / "new"
        )


def test_a_processor_with_pandas(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    assert counts(in_flock(spark, feed, tmp_path, CountingInPandas())) == [1, 2]
    counted(feed)
    back_to_spark(spark, tmp_path, "op", CountingInPandas, lambda: feed.stream(spark))
    assert counts(run(in_spark(feed.stream(spark), CountingInPandas()), tmp_path / "back")) == [3]


def test_timers_by_the_clock_that_are_due_and_that_are_not(spark: SparkSession, tmp_path: Path) -> None:
    """One timer is due when the query goes on, and fires in the first batch that Spark runs; the other one in a year."""
    feed = Feed(tmp_path / "feed", EVENTS)
    feed.add([(key, DAY, "set") for key in KEYS])
    assert {row[1] for _, row in in_flock(spark, feed, tmp_path, Alarm(), "processingTime").rows} == {"set"}
    back_to_spark(spark, tmp_path, "op", Alarm, lambda: feed.stream(spark), "ProcessingTime")
    feed.add([("new", DAY, "set")])
    seen = Seen()
    writer = in_spark(feed.stream(spark), Alarm(), "ProcessingTime").writeStream.foreachBatch(seen.take)
    query = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "back")).start()
    try:
        seen.wait(lambda rows: len(rows) > len(KEYS))
    finally:
        query.stop()
    rang = [row for _, row in seen.rows if row[0] != "new"]
    assert sorted(rang) == [(key, "rang, 1 left") for key in sorted(KEYS)]


def test_an_interrupted_way_back_begins_again(
    spark: SparkSession, tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flock(spark, feed, tmp_path, Counting())
    counted(feed)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    for step in ("_store", "_commit"):
        with monkeypatch.context() as patched:
            patched.setattr(returned_query, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                back_to_spark(spark, tmp_path, "op", Counting, lambda: feed.stream(spark))
    back_to_spark(spark, tmp_path, "op", Counting, lambda: feed.stream(spark))
    assert counts(run(in_spark(feed.stream(spark), Counting()), tmp_path / "back")) == [3]


def test_what_cannot_go_back_is_refused_in_plain_words(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
        frame = flock.transformWithState(feed.stream(spark), "id", Counting(), Counting.OUTPUT, "update", name="op")
        flock.process(feed.stream(spark).selectExpr("length(id) AS key"), "key", Count(), name="native")
        with pytest.raises(CheckpointMismatch, match="no query has processed a batch with this operator"):
            godwit.state_for_spark(spark, tmp_path / "flock", "op", Counting())
        writer = frame.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(tmp_path / "new")).start()
        query.processAllAvailable()
        with pytest.raises(CheckpointMismatch, match="still runs with the checkpointLocation"):
            godwit.state_for_spark(spark, tmp_path / "flock", "op", Counting())
        query.stop()
        with pytest.raises(CheckpointMismatch, match=r"the flock has value state 'total' .* declares as list state"):
            godwit.state_for_spark(spark, tmp_path / "flock", "op", Other())
        with pytest.raises(DefinitionError, match="not a StatefulProcessor of PySpark"):
            godwit.state_for_spark(spark, tmp_path / "flock", "native", Counting())
        saved = godwit.state_for_spark(spark, tmp_path / "flock", "op", Counting())
    rows = (
        feed.stream(spark)
        .groupBy("id")
        .transformWithState(saved.processor, Counting.OUTPUT, "Update", "None", saved.initialState)
    )
    with pytest.raises(Exception, match="this processor only stores state, and has got input rows"):
        godwit.continue_in_spark(rows, tmp_path / "new", tmp_path / "back", outputMode="update")
    two = rows.unionByName(spark.readStream.format("rate").load().selectExpr("'' AS id", "value AS n"))
    with pytest.raises(CheckpointMismatch, match="has 1 sources, and the DataFrame has 2"):
        godwit.continue_in_spark(two, tmp_path / "new", tmp_path / "other", outputMode="update")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(CheckpointMismatch, match="is not empty"):
        godwit.continue_in_spark(rows, tmp_path / "new", tmp_path / "full", outputMode="update")
