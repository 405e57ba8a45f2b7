"""Exactly once and in order on real Spark, without kills: restarts, repeated evaluation, chains, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import godwit
from godwit.errors import NotEnoughSlots
from godwit.spark.define.operator_definition import Definition
from godwit.spark.define.operator_frame import exchanged, hashed, numbering, partitioned
from godwit.spark.define.row_identity import row_identity
from tests.spark.flocks import (
    OPERATOR,
    Count,
    Kept,
    KeyCount,
    RowCount,
    assert_exact,
    drain,
    reach,
    start,
    state_of,
)


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    """One for all tests that need nothing special of it: each uses an operator name of its own."""
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path_factory.mktemp("flock") / "godwit") as flock:
        yield flock


class Failing(RowCount):
    """Throws at a row while a file exists: the cause can be taken away without another definition."""

    def __init__(self, cause: str, at: int) -> None:
        self.cause = cause
        self.at = at

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            if row.n == self.at and Path(self.cause).exists():
                raise ValueError(f"row {row.n} is not to my liking")
            yield row


def failure(query: Any, timeout_s: float = 120.0) -> str:
    """How the query ended."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(timeout_s)
    return str(caught.value)


def test_a_batch_whose_processor_throws_changes_nothing_and_is_exact_once_the_cause_is_gone(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    counted = KeyCount(rows=900, per_batch=300)
    cause, sink = tmp_path / "cause", Kept()
    cause.touch()
    processor = Failing(str(cause), at=450)
    counts = flock.transformWithState(counted.stream(spark), "key", processor, RowCount.output, name="failing")
    said = failure(start(counts, sink, tmp_path / "spark"))
    for part in ("GODWIT-PROCESSOR-FAILED", "operator=failing", "key=", "batch=1", "row 450 is not to my liking"):
        assert part in said
    assert sorted(sink.by_batch) == [0]
    assert state_of(flock, "failing") == KeyCount(rows=300).truth(), "state is that of the batch before"
    assert "batch=1" in failure(start(counts, sink, tmp_path / "spark")), "and it still fails, at the same place"
    cause.unlink()
    query = start(counts, sink, tmp_path / "spark")
    drain(query)
    query.stop()
    assert_exact(sink.rows(), counted.truth())
    assert state_of(flock, "failing") == counted.truth()


def test_a_batch_that_is_evaluated_twice_gives_the_same_rows_and_changes_state_once(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    counted = KeyCount(rows=900, per_batch=300, lanes=3)
    first, again = Kept(), Kept()

    def twice(frame: DataFrame, batch: int) -> None:
        first(frame, batch)
        again(frame, batch)
        assert frame.count() == len(first.by_batch[batch])

    counts = flock.process(counted.stream(spark), "key", Count(), name="twice")
    query = start(counts, twice, tmp_path / "spark")
    drain(query)
    query.stop()
    assert first.by_batch == again.by_batch
    assert_exact(first.rows(), counted.truth())
    assert state_of(flock, "twice") == counted.truth()


@pytest.mark.parametrize("shape", ["coalesced", "behind"])
def test_a_batch_evaluated_again_in_a_plan_of_another_shape_changes_state_once(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path, shape: str
) -> None:
    """Coalescing runs several partitions in one task, a union shifts task numbers: lanes must not follow them."""
    counted = KeyCount(rows=600, per_batch=300, keys=1, lanes=3, lane_by="row")
    plain, other = Kept(), Kept()

    def evaluate(frame: DataFrame, batch: int) -> None:
        plain(frame, batch)
        if shape == "coalesced":
            other(frame.coalesce(1), batch)
        else:
            ahead = spark.range(2).select(*[(-1 - sf.col("id")).alias(column) for column in frame.columns])
            other(ahead.union(frame).where("key >= 0"), batch)

    counts = flock.process(counted.stream(spark), "key", Count(), name=f"shape-{shape}")
    query = start(counts, evaluate, tmp_path / "spark")
    drain(query)
    query.stop()
    assert plain.by_batch == other.by_batch
    assert state_of(flock, f"shape-{shape}") == counted.truth()


def test_a_stopped_query_goes_on_where_it_was(spark: SparkSession, flock: godwit.Flock, tmp_path: Path) -> None:
    counted = KeyCount(rows=2000, per_batch=200)
    sink = Kept()
    counts = flock.process(counted.stream(spark), "key", Count(), name="stopped")
    for done in (2, 5):
        query = start(counts, sink, tmp_path / "spark")
        reach(query, sink, done)
        query.stop()
    query = start(counts, sink, tmp_path / "spark")
    drain(query)
    query.stop()
    assert_exact(sink.rows(), counted.truth())
    assert state_of(flock, "stopped") == counted.truth()


def test_a_flock_closed_and_opened_again_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    counted = KeyCount(rows=1200, per_batch=300)
    sink = Kept()
    for done in (2, 4):
        with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "godwit") as flock:
            counts = flock.process(counted.stream(spark), "key", Count(), name=OPERATOR)
            query = start(counts, sink, tmp_path / "spark")
            reach(query, sink, done)
            if done == 4:
                drain(query)
                assert state_of(flock) == counted.truth()
    assert_exact(sink.rows(), counted.truth())


def test_operators_in_a_chain_and_queries_beside_each_other_are_exact(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    """The second counts what the first gives, per the same key: it must give the same once more."""
    counted, beside = KeyCount(rows=900, per_batch=300), KeyCount(rows=600, per_batch=200, keys=11)
    chained, single = Kept(), Kept()
    first = flock.process(counted.stream(spark), "key", Count(), name="first")
    second = flock.transformWithState(first, "key", RowCount(), RowCount.output, name="second")
    queries = [
        start(second, chained, tmp_path / "chained"),
        start(flock.process(beside.stream(spark), "key", Count(), name="beside"), single, tmp_path / "beside"),
    ]
    for query in queries:
        drain(query)
        query.stop()
    assert_exact(chained.rows(), counted.truth())
    assert_exact(single.rows(), beside.truth())
    assert state_of(flock, "first") == state_of(flock, "second") == counted.truth()
    assert state_of(flock, "beside") == beside.truth()


def test_a_batch_frame_gives_what_the_stream_gives_whenever_it_is_evaluated(
    spark: SparkSession, flock: godwit.Flock
) -> None:
    counted = KeyCount(rows=700, per_batch=200)
    counts = flock.process(counted.batch(spark), "key", Count(), name="batch")
    for _ in range(2):
        assert_exact([(row["key"], row["count"], row["n"]) for row in counts.collect()], counted.truth())


SHUFFLES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "repartition": lambda frame: frame.repartition("n"),
    "join": lambda frame: frame.join(frame.sparkSession.range(5).withColumnRenamed("id", "key"), "key"),
    "aggregation": lambda frame: frame.groupBy("key").agg(sf.max("n").alias("n")),
    "deduplication": lambda frame: frame.dropDuplicates(["key", "n"]),
}
KEPT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "plain": lambda frame: frame,
    "filtered": lambda frame: frame.where("n > 1").withColumn("n", sf.col("n") + 1).select("key", "n"),
    "union": lambda frame: frame.union(frame),
    "an operator by key": lambda frame: after_operator(exchanged(partitioned(hashed(frame, ["key"]), 3), 3)),
}


def after_operator(lanes: DataFrame) -> DataFrame:
    """As the frame of an operator whose lanes are made by key: its router puts the rows of each lane in order."""
    return lanes.mapInArrow(lambda batches: batches, "key long, n long, h long, lane int").select("key", "n")


@pytest.mark.parametrize("shape", [*SHUFFLES, *KEPT])
def test_a_shuffle_before_the_operator_is_seen_in_the_plan(spark: SparkSession, shape: str) -> None:
    """Its rows come in any order, so they are told apart by what they hold; all others by their place."""
    frame = (SHUFFLES | KEPT)[shape](KeyCount(rows=100).stream(spark).select("key", "n"))
    definition = Definition(frame, ("key",), Count(), "seen", "native", None, "append", "none", {})
    assert numbering(definition, row_identity(definition)) == ("content" if shape in SHUFFLES else "position")


# -- refusals --------------------------------------------------------------------------------------------------------


def test_asynchronous_progress_tracking_is_refused(spark: SparkSession, flock: godwit.Flock, tmp_path: Path) -> None:
    counts = flock.process(KeyCount(rows=100).stream(spark), "key", Count(), name="asynchronous")
    writer = counts.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.option("asyncProgressTrackingEnabled", "true").start()
    said = failure(query)
    assert "GODWIT-UNSUPPORTED-QUERY" in said
    assert "asyncProgressTrackingEnabled" in said


def test_continuous_processing_is_refused(spark: SparkSession, flock: godwit.Flock, tmp_path: Path) -> None:
    rates = spark.readStream.format("rate").load().selectExpr("value AS key", "value AS n")
    counts = flock.process(rates, "key", Count(), name="continuous")
    writer = (
        counts.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(continuous="1 second")
    )
    with pytest.raises(Exception, match=r"(?i)continuous"):  # by Spark itself, which has no mapInArrow there
        writer.start()


def reordered(seed: Callable[[], int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            turn = seed() % max(len(batch), 1)
            yield pa.concat_batches([batch.slice(turn), batch.slice(0, turn)])  # type: ignore[attr-defined]

    return body


def test_an_input_that_replays_in_another_order_is_detected(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    counted = KeyCount(rows=200, per_batch=100)

    def seed() -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        return 0 if context is None else context.stageId()

    stream = counted.stream(spark)
    shuffled = stream.mapInArrow(reordered(seed), stream.schema)
    sink = Kept()

    def twice(frame: DataFrame, batch: int) -> None:
        frame.collect()
        sink(frame, batch)

    counts = flock.process(shuffled, "key", Count(), name="shuffled")
    said = failure(start(counts, twice, tmp_path / "spark"))
    assert "GODWIT-NOT-REPLAYABLE" in said
    assert "operator=shuffled" in said
    assert sink.by_batch == {}


def test_a_batch_evaluated_outside_its_query_is_refused(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    """A plain thread does not carry the batch's identity, so its rows cannot be told from new ones."""
    counted = KeyCount(rows=300, per_batch=100)
    said: list[str] = []

    def aside(frame: DataFrame, batch: int) -> None:
        def evaluate() -> None:
            try:
                frame.collect()
            except PythonException as error:
                said.append(str(error))

        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        frame.collect()

    counts = flock.process(counted.stream(spark), "key", Count(), name="aside")
    query = start(counts, aside, tmp_path / "spark")
    drain(query)
    query.stop()
    assert len(said) == 3
    assert all("GODWIT-UNSUPPORTED-QUERY" in text and "InheritableThread" in text for text in said), said[0]
    assert state_of(flock, "aside") == counted.truth()


def test_too_few_slots_are_refused_with_the_number_that_is_needed(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughSlots, match=r"6 hosts need 7 task slots .* Spark has 6"):
        godwit.Flock(spark, hosts=6, checkpoint=tmp_path / "godwit")
    assert not (tmp_path / "godwit").exists()
