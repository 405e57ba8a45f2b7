"""What a user reads when a query fails: Godwit's own line first, then the frames of the processor, and nothing of workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark.cloudpickle
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

import godwit
from godwit.errors import MoveConflict, ProcessorFailed, UnknownKey
from tests.spark.flocks import OPERATOR, KeyCount, RowCount, drain
from tests.spark.stage import frozen, staged

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])


class Fails(RowCount):
    """Key 3 is one too many."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == 3:
            raise ValueError("no such car")
        yield from super().handleInputRows(key, rows, timerValues)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        raise ValueError("no such start")


WORDS = ("operator=count", "key=(3,)", "batch=0", "Correct the processor")


def test_a_failed_query_begins_with_godwits_line(spark: SparkSession, tmp_path: Path) -> None:
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
        assert flock.last_error() is None
        frame = flock.groupBy(KeyCount(100).stream(spark), "key").transformWithState(
            Fails(), RowCount.output, "append", "none", name=OPERATOR
        )
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "spark")).start()
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination()
        for text in (str(raised.value), str(query.exception())):
            first = text[text.index("[GODWIT") :].splitlines()[0]
            assert first.startswith(
                "[GODWIT-PROCESSOR-FAILED] handleInputRows raised ValueError: no such car (operator="
            )
            assert all(word in first for word in WORDS), first
            assert text.index("[GODWIT") < 600, text[:1000]
            assert 'raise ValueError("no such car")' in text, "the line of the processor"
            assert "worker.py" not in text
            assert "router.py" not in text
        error = flock.last_error()
        assert isinstance(error, ProcessorFailed)
        assert str(error).startswith(
            "[GODWIT-PROCESSOR-FAILED] handleInputRows raised ValueError: no such car (operator="
        )
        assert {name: error.fields[name] for name in ("operator", "batch")} == {"operator": OPERATOR, "batch": 0}


def test_initial_state_that_fails_raises_godwits_error_itself(spark: SparkSession, tmp_path: Path) -> None:
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
        given = spark.createDataFrame([(3, 1)], "key bigint, n bigint").groupBy("key")
        grouped = flock.groupBy(KeyCount(100).stream(spark), "key")
        with pytest.raises(ProcessorFailed, match="no such start"):
            grouped.transformWithState(Fails(), RowCount.output, initialState=given, name=OPERATOR)


def test_a_key_that_no_host_has_seen_and_a_conflict_say_what_they_are(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=500, silent_s=None) as stage:
        with pytest.raises(UnknownKey, match="no host has state of key 7, so there is nothing to move"):
            stage.flock.move(OPERATOR, keys=[7], to="host-1")
        stage.start()
        drain(stage.query)
        stage.flock.move(OPERATOR, keys=[7], to=other_host(stage.flock, 7))
        unknown = (
            r"\[GODWIT-UNKNOWN-KEY\] no host has state of key 7777, so .* \(operator=count, key=7777\)\. Give keys"
        )
        with pytest.raises(UnknownKey, match=unknown):
            stage.flock.move(OPERATOR, keys=[7, 7777], to="host-1")
        with frozen(stage.flock, "host-1"):
            first = stage.flock.move(OPERATOR, groups=[1, 2], to="host-1", wait=False)
            said = (
                rf"\[GODWIT-MOVE-CONFLICT\] {first.id} \(move\) is under way: it moves some of the same keys of 'count'"
            )
            with pytest.raises(MoveConflict, match=said):
                stage.flock.move(OPERATOR, groups=[2], to="host-1", on_conflict="refuse")
        first.wait()


def other_host(flock: godwit.Flock, key: int) -> str:
    (host,) = [row["host"] for row in flock.state(OPERATOR).collect() if row["key"] == key]
    return "host-1" if host == "host-0" else "host-0"
