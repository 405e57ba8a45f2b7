"""asyncProgressTrackingEnabled on a real Kafka broker: batches that Spark's log does not name come again, cut otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.testing.kafka import KafkaBroker
from tests.spark.flocks import pid_of, state_of, wait_until
from tests.spark.kafka_stage import OPERATOR, Counted, KafkaStage, brokers, flock, with_connector

NEVER = "3600000"  # ms between two entries of Spark's log: after its first batch a run writes none


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    yield from brokers(tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def stage(spark: SparkSession, broker: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest) -> KafkaStage:
    with_connector(spark)
    return KafkaStage(spark, broker, tmp_path, f"t{abs(hash(request.node.name)) % 10**9}")


def asynchronous(stage: KafkaStage, interval_ms: str) -> None:
    """Later queries of the stage track their progress asynchronously."""
    stage.options = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": interval_ms,
    }


def log(stage: KafkaStage, name: str) -> list[int]:
    """The batches that one of Spark's logs names."""
    return sorted(int(file.name) for file in (stage.root / "spark" / name).iterdir() if file.name.isdigit())


def ledger_bytes(birds: godwit.Flock) -> int:
    return sum(part.ledger_bytes for part in birds.status().operators[OPERATOR].instances.values())


def test_batches_that_sparks_log_does_not_name_come_again_in_other_cuts_while_keys_and_hosts_have_moved(
    stage: KafkaStage,
) -> None:
    asynchronous(stage, NEVER)
    with flock(stage.spark, stage.root) as birds:
        frame = birds.process(stage.rows(maxOffsetsPerTrigger="60"), "key", Counted(), name=OPERATOR)
        stage.send(400)
        query = stage.query(frame)
        stage.wait(query, 400)
        query.stop()
        assert log(stage, "commits") == [0], "all batches but the first have left no trace in Spark's log"

        assert birds.move(OPERATOR, groups=range(300), to="host-1").wait(60)
        os.kill(pid_of(birds, "host-0") or 0, signal.SIGKILL)
        again = birds.process(stage.rows(maxOffsetsPerTrigger="110"), "key", Counted(), name=OPERATOR)
        stage.send(200)
        query = stage.query(again)
        stage.wait(query, 500)
        assert birds.move(OPERATOR, groups=range(200), to="host-0").wait(60)
        stage.send(200)
        query.stop()  # wherever it is

        asynchronous(stage, "0")
        query = stage.query(birds.process(stage.rows(), "key", Counted(), name=OPERATOR))
        stage.wait(query, 800)
        wait_until(lambda: state_of(birds) == dict(stage.sent), 60, "the state is that of all rows")
        query.stop()
    assert stage.check() >= 400, "what Spark's log did not name has left again, as it had left before"


def test_rows_leave_the_ledger_when_sparks_log_names_their_batch_and_the_option_can_be_taken_back(
    stage: KafkaStage,
) -> None:
    with flock(stage.spark, stage.root) as birds:
        frame = birds.process(stage.rows(maxOffsetsPerTrigger="40"), "key", Counted(), name=OPERATOR)
        stage.send(200)
        asynchronous(stage, NEVER)
        query = stage.query(frame)
        stage.wait(query, 200)
        assert ledger_bytes(birds) > 0
        query.stop()

        asynchronous(stage, "0")  # as Spark's guide says: a few batches in this way, before the option is taken back
        query = stage.query(frame)
        stage.send(200)
        stage.wait(query, 400)
        wait_until(lambda: ledger_bytes(birds) == 0, 60, "every batch is in Spark's log, so no row is kept")
        query.stop()

        stage.options = {}
        query = stage.query(frame)
        stage.send(100)
        stage.wait(query, 500)
        query.processAllAvailable()
        query.stop()
        assert state_of(birds) == dict(stage.sent)
    stage.check()
