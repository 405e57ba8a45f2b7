"""A query with rows that its processor cannot take goes on without them, and gives what it would give had they never come."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyspark.cloudpickle
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

import godwit
from godwit.workload.numbered_rows import Workload, keys_of
from tests.spark.flocks import Kept, KeyCount, RowCount, assert_exact, drain, kill_host, reach, start, state_of

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

NAME = "picky"
WORK = KeyCount(rows=6_000, keys=40, per_batch=500, lanes=2)


def bad(n: int) -> bool:
    return n % 97 == 13


class PickyRows(RowCount):
    """Counts, and throws at some rows after it has begun with their key."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        def checked() -> Iterator[Row]:
            for row in rows:
                if bad(row.n):
                    self.n.update((10**6,))
                    raise ValueError(f"cannot take {row.n}")
                yield row

        yield from super().handleInputRows(key, checked(), timerValues)


class DeadlyRow(RowCount):
    """Ends its process at one row."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        def checked() -> Iterator[Row]:
            for row in rows:
                if row.n == 1_313:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row

        yield from super().handleInputRows(key, checked(), timerValues)


def _keys() -> list[int]:
    return keys_of(Workload.from_options(WORK.options()), np.arange(WORK.rows, dtype=np.int64)).tolist()


def test_query_goes_on_without_rows_that_fail_while_hosts_are_lost_and_keys_move(
    spark: SparkSession, tmp_path: Path
) -> None:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        frame = flock.transformWithState(
            WORK.stream(spark), "key", PickyRows(), PickyRows.output, name=NAME, dead_letters=True
        )
        sink = Kept()
        query = start(frame, sink, tmp_path / "spark")
        reach(query, sink, 2)
        kill_host(flock, "host-0")
        reach(query, sink, 4)
        assert flock.move(NAME, groups=list(range(0, 1024, 3)), to="host-1", protocol="live").wait(60)
        drain(query)
        keys = _keys()
        good = Counter(key for n, key in enumerate(keys) if not bad(n))
        assert_exact(sink.rows(), dict(good))
        assert state_of(flock, NAME) == dict(good)
        letters = flock.dead_letters(NAME).collect()
        assert sorted((row["key"], json.loads(row["data"])["n"]) for row in letters) == sorted(
            (key, n) for n, key in enumerate(keys) if bad(n)
        )
        assert {row["code"] for row in letters} == {"GODWIT-PROCESSOR-FAILED"}
        assert all("cannot take" in row["error"] and row["failed_at"] is not None for row in letters)
        assert flock.status()["operators"][NAME]["dead_letters"] == len(letters)
        query.stop()
        assert flock.clear_dead_letters(NAME) == len(letters)
        assert flock.dead_letters(NAME).count() == 0
        assert state_of(flock, NAME) == dict(good)


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["storage", "parallel"])
def test_row_that_kills_its_host_is_set_aside(spark: SparkSession, tmp_path: Path, recovery: Any) -> None:
    with godwit.Flock(spark, hosts=3, checkpoint=tmp_path / "godwit", recovery=recovery) as flock:
        frame = flock.transformWithState(
            WORK.stream(spark), "key", DeadlyRow(), DeadlyRow.output, name=NAME, dead_letters=True
        )
        sink = Kept()
        query = start(frame, sink, tmp_path / "spark")
        drain(query)
        good = Counter(key for n, key in enumerate(_keys()) if n != 1_313)
        assert_exact(sink.rows(), dict(good))
        (letter,) = flock.dead_letters(NAME).collect()
        assert (json.loads(letter["data"])["n"], letter["code"]) == (1_313, "GODWIT-ROW-KILLS-HOST")
        assert len([line for line in flock.history() if line["event"] == "lost"]) == 2


@pytest.mark.long
def test_row_that_kills_its_host_fails_the_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        frame = flock.transformWithState(WORK.stream(spark), "key", DeadlyRow(), DeadlyRow.output, name=NAME)
        query = start(frame, Kept(), tmp_path / "spark")
        with pytest.raises(StreamingQueryException) as failed:
            drain(query)
        said = str(failed.value)
        assert "GODWIT-ROW-KILLS-HOST" in said
        assert f"operator={NAME}" in said
        assert "row=" in said


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2, 3])
def test_row_that_kills_its_host_and_then_its_heir_fails_the_query_by_name(
    spark: SparkSession, tmp_path: Path, hosts: int
) -> None:
    with godwit.Flock(spark, hosts=hosts, checkpoint=tmp_path / "godwit", recovery="parallel") as flock:
        frame = flock.transformWithState(WORK.stream(spark), "key", DeadlyRow(), DeadlyRow.output, name=NAME)
        query = start(frame, Kept(), tmp_path / "spark")
        with pytest.raises(StreamingQueryException) as failed:
            drain(query, 90)
        assert "GODWIT-ROW-KILLS-HOST" in str(failed.value)
        lost = [line for line in flock.history() if line["event"] == "lost"]
        assert len(lost) == 2
        assert lost[0]["recovery"] == "taken over", lost
