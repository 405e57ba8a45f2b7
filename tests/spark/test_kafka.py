"""Kafka in, Kafka out, on a real broker: exact for a reader who skips repeats, whatever ends on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from godwit.spark.define.operator_definition import Definition
from godwit.spark.define.row_identity import RowIdentity, row_identity
from godwit.testing.kafka import KafkaBroker
from tests.spark.flocks import pid_of, state_of
from tests.spark.kafka_stage import OPERATOR, Counted, KafkaStage, brokers, flock, with_connector


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    yield from brokers(tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def stage(spark: SparkSession, broker: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest) -> KafkaStage:
    with_connector(spark)
    return KafkaStage(spark, broker, tmp_path, f"t{abs(hash(request.node.name)) % 10**9}")


# -- who a row is ----------------------------------------------------------------------------------------------------


def identity(frame: DataFrame, **given: Any) -> RowIdentity | None:
    return row_identity(Definition(frame, ("key",), None, "op", "row", None, "append", "none", given))  # type: ignore[arg-type]


def test_rows_of_kafka_are_known_by_partition_and_offset_where_the_input_has_them(stage: KafkaStage) -> None:
    whole = stage.rows("topic", "partition", "offset", "timestamp")
    by_topic = RowIdentity(("topic", "partition"), "offset")
    assert identity(whole) == by_topic
    assert identity(whole.where("key > 3").withWatermark("timestamp", "1 second").select("*", sf.lit(1))) == by_topic
    assert identity(stage.rows("partition", "offset")) == RowIdentity(("partition",), "offset"), "there is one topic"
    assert identity(whole, lane="partition", sequence="key") == RowIdentity(("partition",), "key"), "the user's word"


def test_rows_that_are_not_rows_of_kafka_are_not_taken_for_such(stage: KafkaStage) -> None:
    whole = stage.rows()
    two_topics = stage.rows("partition", "offset", subscribe=f"{stage.source},{stage.target}")
    exploded = whole.select("*", sf.explode(sf.array(sf.lit(1), sf.lit(2))).alias("part"))
    changed = whole.withColumn("offset", sf.col("offset") % 2)
    for frame in (two_topics, exploded, changed, whole.union(whole), stage.rows("offset"), whole.dropDuplicates()):
        assert identity(frame) is None


# -- exact -----------------------------------------------------------------------------------------------------------


def test_a_query_may_begin_on_an_empty_topic(stage: KafkaStage) -> None:
    """Spark's first batch has no rows then, and the operator hears of the second one first."""
    with flock(stage.spark, stage.root, hosts=1) as birds:
        query = stage.query(birds.process(stage.rows(), "key", Counted(), name=OPERATOR))
        query.processAllAvailable()
        stage.send(40)
        stage.wait(query, 40)
        query.stop()
    stage.check()


def test_every_row_once_and_in_order_while_keys_move_and_a_host_and_the_query_end(stage: KafkaStage) -> None:
    with flock(stage.spark, stage.root) as birds:
        frame = birds.process(stage.rows(), "key", Counted(), name=OPERATOR)
        query = stage.query(frame)
        stage.send(400)
        stage.wait(query, 200)
        assert birds.move(OPERATOR, groups=range(200), to="host-1").wait(60)
        stage.send(400)
        os.kill(pid_of(birds, "host-0"), signal.SIGKILL)
        stage.send(400)
        stage.wait(query, 1_000)
        query.stop()
        # Several tasks share a partition of Kafka from here on, so only an exchange by key keeps the rows of a key in order.
        again = birds.process(stage.rows(minPartitions="5"), "key", Counted(), name=OPERATOR, partitions=3)
        stage.send(400)
        query = stage.query(again)
        stage.wait(query, 1_600)
        query.stop()
    stage.check()


def test_a_task_that_fails_behind_the_operator_writes_rows_again_and_says_the_same(stage: KafkaStage) -> None:
    """Spark's Kafka sink is at least once: what a failed task has written stays in the topic."""
    marker = stage.root / "failed"

    def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                raise RuntimeError("a task that fails when its rows are written")

    with flock(stage.spark, stage.root) as birds:
        frame = birds.process(stage.rows(), "key", Counted(), name=OPERATOR)
        stage.send(300)
        with pytest.raises(StreamingQueryException, match="a task that fails"):
            stage.query(frame.mapInArrow(fails_once, frame.schema)).processAllAvailable()
        query = stage.query(frame.mapInArrow(fails_once, frame.schema))
        query.processAllAvailable()
        query.stop()
    stage.check()


# -- the broker ------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_killed_and_comes_back(stage: KafkaStage, broker: KafkaBroker) -> None:
    with flock(stage.spark, stage.root) as birds:
        query = stage.query(birds.process(stage.rows(), "key", Counted(), name=OPERATOR))
        stage.send(300)
        stage.wait(query, 100)
        broker.kill()
        broker.start()
        stage.send(300)
        stage.wait(query, 600)
        query.stop()
    stage.check()


def test_partitions_that_are_added_are_read(stage: KafkaStage, broker: KafkaBroker) -> None:
    with flock(stage.spark, stage.root) as birds:
        frame = birds.process(stage.rows(**{"kafka.metadata.max.age.ms": "500"}), "key", Counted(), name=OPERATOR)
        query = stage.query(frame)
        stage.send(200)
        stage.wait(query, 200)
        broker.add_partitions(stage.source, 4)
        before, stage.partitions = stage.sent.copy(), 4
        stage.send(200)
        stage.wait(query, 400)
        query.stop()
    assert sum((stage.sent - before).values()) == 200
    stage.check()


def test_a_topic_that_is_deleted_is_an_error_and_state_stays(stage: KafkaStage, broker: KafkaBroker) -> None:
    with flock(stage.spark, stage.root) as birds:
        query = stage.query(birds.process(stage.rows(), "key", Counted(), name=OPERATOR))
        stage.send(200)
        stage.wait(query, 200)
        broker.delete(stage.source)
        with pytest.raises(StreamingQueryException, match=r"data loss|UnknownTopicOrPartition|were gone|may have been"):
            query.awaitTermination(120)
        assert state_of(birds) == dict(stage.sent)
