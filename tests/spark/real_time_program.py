"""A whole application with the real-time trigger, in a process of its own: its session needs other settings than the tests'.

Run as `python -m tests.spark.real_time_program FOLDER SCENARIO`. It ends with an error if something was not as it should be.
Rows come from a topic and leave into a topic while the batch, which lasts for minutes, still runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import godwit
from godwit.errors import DefinitionError
from godwit.spark.realtime.rows_as_they_come import ARROW_ROWS, WITH_JAVA
from godwit.testing.kafka import KafkaBroker, connector_jars
from godwit.windows import EventTumbling
from tests.spark.flocks import pid_of, wait_until
from tests.spark.kafka_stage import OPERATOR, Counted, KafkaStage

DAY_MS = 86_400_000
BATCH = "10 minutes"  # longer than any scenario: what leaves does not wait for the end of a batch


def session(java: bool) -> SparkSession:
    builder = SparkSession.builder.master("local[6]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.extraClassPath", ":".join(map(str, connector_jars())))
    builder = godwit.tune(builder, real_time=True).config("spark.sql.session.timeZone", "UTC")
    return builder.config(WITH_JAVA, java).getOrCreate()


class Stage(KafkaStage):
    def start(self, frame: DataFrame) -> Any:
        return self.query(frame, realTime=BATCH)

    def expect(self, query: Any, what: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the records that have left are so."""

        def so() -> bool:
            error = query.exception()
            if error is not None:
                raise AssertionError(str(error)[:2_000])
            return what(self.received())

        wait_until(so, 60)


class Ringing(StatefulProcessor):
    """A row sets a timer 300 ms ahead by the clock; `count` is -1 where a timer fires."""

    OUTPUT = "key bigint, count bigint, partition int, offset bigint"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.n.get() or (0,))[0]
        for row in rows:
            n += 1
            yield Row(key=key[0], count=n, partition=row.partition, offset=row.offset)
        self.n.update((n,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 300)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], count=-1, partition=0, offset=0)

    def close(self) -> None:
        pass


def exact(stage: Stage) -> None:
    """Every row leaves at once, the last one too; keys move, and a host is killed, in the same batch."""
    with godwit.Flock(stage.spark, hosts=2, checkpoint=stage.root / "flock") as flock:
        query = stage.start(flock.process(stage.rows(), "key", Counted(), name=OPERATOR))
        stage.send(1)
        stage.wait(query, 1)
        feeding = threading.Thread(target=lambda: [stage.send(40) for _ in range(25)])
        feeding.start()
        for turn in range(4):
            flock.move(
                OPERATOR, groups=range(turn % 2 * 512, turn % 2 * 512 + 400), to=f"host-{(turn + turn // 2 + 1) % 2}"
            )
        os.kill(pid_of(flock, "host-0"), signal.SIGKILL)
        feeding.join()
        stage.wait(query, 1_001)
        assert query.lastProgress is None, "the first batch still runs"
        query.stop()
        assert stage.check() == 0
        stage.send(100)  # the batch was not committed: a new run reads it again, and its outputs are the same
        query = stage.start(flock.process(stage.rows(), "key", Counted(), name=OPERATOR))
        stage.wait(query, 1_101)
        query.stop()
    assert stage.check() >= 1_001


def timers(stage: Stage) -> None:
    """A StatefulProcessor's timers by the clock fire while no rows come."""
    with godwit.Flock(stage.spark, hosts=2, checkpoint=stage.root / "flock") as flock:
        frame = flock.transformWithState(
            stage.rows(), "key", Ringing(), Ringing.OUTPUT, "update", "processingTime", name=OPERATOR
        )
        query = stage.start(frame)
        stage.send(40)
        stage.expect(query, lambda rows: sum(row["count"] == -1 for row in rows) == 40)
        flock.move(OPERATOR, groups=range(512), to="host-1")
        stage.send(40)
        stage.expect(query, lambda rows: sum(row["count"] == -1 for row in rows) == 80)
        query.stop()
    left = [row for row in stage.received() if row["count"] != -1]
    assert sorted((row["key"], row["count"]) for row in left) == sorted((key, n) for key in range(40) for n in (1, 2))


def without_java(stage: Stage) -> None:
    """Spark SQL does what the Java class does otherwise."""
    stage.spark.conf.set(ARROW_ROWS, 100)
    with godwit.Flock(stage.spark, hosts=2, checkpoint=stage.root / "refused") as flock:
        with pytest.raises(DefinitionError, match="rows wait in Arrow batches of 100 rows"):
            flock.process(stage.rows(), "key", Counted(), name=OPERATOR)
    stage.spark.conf.set(ARROW_ROWS, 1)
    exact(stage)


def windows(stage: Stage) -> None:
    """Windows close when the watermark has passed their end, in the batch that brings it there."""
    rows = stage.rows("topic", "partition", "offset", "timestamp", "int(1) AS one")
    with godwit.Flock(stage.spark, hosts=2, checkpoint=stage.root / "flock") as flock:
        counted = EventTumbling("1 second", "timestamp", {"count": ("sum", "one")})
        frame = flock.process(
            rows.withWatermark("timestamp", "0 seconds"), "key", counted, timeMode="eventTime", name=OPERATOR
        )
        query = stage.start(frame.select("key", "count", sf.lit(0).alias("partition"), sf.lit(0).alias("offset")))
        stage.send(80, at_ms=DAY_MS + 100)
        stage.send(40, at_ms=DAY_MS + 5_100)
        stage.expect(query, lambda left: sum(row["count"] for row in left) == 80)
        query.stop()
    assert {row["count"] for row in stage.received()} == {2}


SCENARIOS = {"exact": exact, "without-java": without_java, "timers": timers, "windows": windows}


def main(folder: str, scenario: str) -> None:
    root = Path(folder)
    with KafkaBroker(root / "kafka") as broker:
        SCENARIOS[scenario](Stage(session(scenario != "without-java"), broker, root, scenario))
    sys.stdout.write(f"{scenario}: as it should be\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
