"""`flock.state`: committed state as a DataFrame, while a batch is under way, after a failure, after a restart."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import godwit
from tests.spark.processors import Keeper, flavoured
from tests.spark.side_by_side import Feed

EVENTS = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "word": pa.string()})
DAY = dt.datetime(2024, 5, 1)
HOUR = dt.timedelta(hours=1)
FIRST = [("a", DAY, "x"), ("b", DAY, "y"), ("a", DAY + HOUR, "x")]
SECOND = [("a", DAY + 2 * HOUR, "z"), ("c", DAY + HOUR, "x"), ("b", DAY + HOUR, "forget")]
AFTER_FIRST = {"a": (2, "x"), "b": (1, "y")}
AFTER_SECOND = {"a": (3, "z"), "b": None, "c": (1, "x")}


class Stage:
    """One operator on a flock, and the query over it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.feed = Feed(root / "feed", EVENTS)
        self.flock: godwit.Flock
        self.open()

    def open(self) -> None:
        self.flock = godwit.Flock(self.spark, hosts=2, checkpoint=self.root / "flock")

    def frame(self) -> DataFrame:
        marked = self.feed.stream(self.spark).withWatermark("at", "1 hour")
        return self.flock.transformWithState(
            marked, "id", flavoured(Keeper, "row"), Keeper.OUTPUT, timeMode="eventTime", name="kept"
        )

    def start(self, frame: DataFrame, sink: Callable[[DataFrame, int], None]) -> StreamingQuery:
        return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.root / "spark")).start()

    def totals(self) -> dict[str, Any]:
        return {row["id"]: row["total"] and tuple(row["total"]) for row in self.flock.state("kept").collect()}


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(spark, tmp_path)
    yield stage
    stage.flock.close()


def consumed(batch: DataFrame, batch_id: int) -> None:
    batch.collect()


def test_every_kind_of_state_has_its_column_also_after_a_restart(stage: Stage) -> None:
    query = stage.start(stage.frame(), consumed)
    stage.feed.add(FIRST)
    query.processAllAvailable()
    stage.feed.add(SECOND)
    query.processAllAvailable()
    state = stage.flock.state("kept")
    kinds = {column.name: column.dataType.simpleString() for column in state.schema}
    assert kinds == {
        "id": "string",
        "host": "string",
        "epoch": "bigint",
        "total": "struct<n:bigint,last:string>",
        "events": "array<struct<word:string,at:timestamp>>",
        "words": "map<struct<word:string>,struct<n:bigint>>",
        "id_state": "struct<same:string>",
        "timers": "array<timestamp>",
    }
    rows = {row["id"]: row.asDict(recursive=True) for row in state.collect()}
    assert {row["host"] for row in rows.values()} <= {"host-0", "host-1"}
    assert rows["a"]["total"] == {"n": 3, "last": "z"}
    assert [(e["word"], e["at"]) for e in rows["a"]["events"]] == [
        ("x", DAY), ("x", DAY + HOUR), ("z", DAY + 2 * HOUR)
    ]  # fmt: skip
    assert {word["word"]: count["n"] for word, count in _map(state, "a").items()} == {"x": 2, "z": 1}
    assert rows["a"]["timers"] == [DAY + 2 * HOUR, DAY + 3 * HOUR]
    assert rows["b"]["total"] is None
    assert not rows["b"]["events"]
    assert rows["a"]["id_state"] is None
    query.stop()
    stage.flock.close()
    stage.open()
    assert {row["id"]: row.asDict(recursive=True) for row in stage.flock.state("kept").collect()} == rows


def _map(state: DataFrame, key: str) -> dict[Any, Any]:
    (row,) = [row for row in state.collect() if row["id"] == key]
    words: dict[Any, Any] = row["words"]
    return words


def test_view_shows_a_batch_only_once_spark_has_committed_it(stage: Stage) -> None:
    reached, released = threading.Event(), threading.Event()

    def held(batch: DataFrame, batch_id: int) -> None:
        rows = batch.collect()
        if any(row["n"] == 3 for row in rows):
            reached.set()
            assert released.wait(120)

    query = stage.start(stage.frame(), held)
    stage.feed.add(FIRST)
    query.processAllAvailable()
    assert stage.totals() == AFTER_FIRST
    stage.feed.add(SECOND)
    assert reached.wait(120)
    assert stage.totals() == AFTER_FIRST
    released.set()
    query.processAllAvailable()
    assert stage.totals() == AFTER_SECOND
    query.stop()


def test_failed_batch_is_not_in_the_view_and_its_retry_is_exact(stage: Stage) -> None:
    def failing(batch: DataFrame, batch_id: int) -> None:
        if any(row["n"] == 3 for row in batch.collect()):
            raise ValueError("a sink that fails")

    frame = stage.frame()
    query = stage.start(frame, failing)
    stage.feed.add(FIRST)
    query.processAllAvailable()
    stage.feed.add(SECOND)
    with pytest.raises(StreamingQueryException, match="a sink that fails"):
        query.processAllAvailable()
    assert stage.totals() == AFTER_FIRST
    stage.flock.close()
    stage.open()
    assert stage.totals() == AFTER_FIRST
    query = stage.start(stage.frame(), consumed)
    query.processAllAvailable()
    assert stage.totals() == AFTER_SECOND
    query.stop()


def test_processor_that_throws_leaves_the_view_as_it_was(stage: Stage) -> None:
    query = stage.start(stage.frame(), consumed)
    stage.feed.add(FIRST)
    query.processAllAvailable()
    stage.feed.add([("a", DAY + HOUR, "z"), ("a", DAY + HOUR, "bad"), ("c", DAY + HOUR, "x")])
    with pytest.raises(StreamingQueryException, match="a bad row"):
        query.processAllAvailable()
    assert stage.totals() == AFTER_FIRST


def test_view_of_an_unknown_operator_names_those_there_are(stage: Stage) -> None:
    stage.frame()
    with pytest.raises(godwit.errors.DefinitionError, match="kept"):
        stage.flock.state("keft")
