"""A key-count query on a flock, to be reconfigured while it runs, and the same query left alone, whose answer it must give."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import godwit
from benchmarks.workloads.tally import ballast
from tests.spark.flocks import (
    OPERATOR,
    Count,
    HeavyCount,
    Kept,
    KeyCount,
    assert_exact,
    by_key,
    drain,
    pid_of,
    reach,
    start,
    state_of,
    wait_until,
)


@dataclass(frozen=True)
class Answer:
    """What a run comes to: each key's output in order, and the state it leaves."""

    outputs: dict[int, list[tuple[int, int]]]
    state: dict[int, int]


class Stage:
    """`ballast_bytes` of state beside each key's count make it slow to move, where a bandwidth cap is given."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        work: KeyCount | int = 9_000,
        hosts: int = 2,
        ballast_bytes: int = 0,
        **options: Any,
    ) -> None:
        self.spark, self.root, self.options = spark, root, options
        self.work = KeyCount(work, keys=120, per_batch=250) if isinstance(work, int) else work
        self.ballast_bytes = ballast_bytes
        self.sink = Kept()
        self.open(hosts)

    def open(self, hosts: int) -> None:
        self.flock = godwit.Flock(self.spark, hosts=hosts, checkpoint=self.root / "flock", **self.options)

    def define(self) -> None:
        processor = HeavyCount(self.ballast_bytes) if self.ballast_bytes else Count()
        self.frame = self.flock.process(self.work.stream(self.spark), "key", processor, name=OPERATOR)

    def start(self) -> StreamingQuery:
        self.query = start(self.frame, self.sink, self.root / "spark")
        return self.query

    def runs(self) -> None:
        """Until a batch has gone through that began after this call."""
        reach(self.query, self.sink, len(self.sink.by_batch) + 2)

    def comes_to(self, rows: int) -> None:
        """Until so many rows have left the query."""
        wait_until(lambda: self.query.exception() or self.sink.row_count >= rows, 200, f"{rows} rows")

    def check(self) -> None:
        drain(self.query)
        assert_exact(self.sink.rows(), self.work.truth())
        assert state_of(self.flock) == self.work.truth()
        if self.ballast_bytes:
            kept = {row["key"]: row["ballast"]["bytes"] for row in self.flock.state(OPERATOR).collect()}
            assert kept == {key: ballast(key, self.ballast_bytes) for key in kept}

    def answer(self) -> Answer:
        drain(self.query)
        return Answer(by_key(self.sink.rows()), state_of(self.flock))

    def owners(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.flock.routing(OPERATOR):
            found[row["host"]] = found.get(row["host"], 0) + row["group_count"]
        return found


@contextmanager
def staged(spark: SparkSession, root: Path, **given: Any) -> Iterator[Stage]:
    stage = Stage(spark, root, **given)
    try:
        stage.define()
        yield stage
    finally:
        stage.flock.close()


def left_alone(spark: SparkSession, root: Path, work: KeyCount) -> Answer:
    """The same rows with nothing moved, on one host, as fast as it goes: the time at which rows come changes no answer."""
    with staged(spark, root, work=replace(work, per_second=0, per_batch=work.rows // 3), hosts=1) as stage:
        stage.start()
        return stage.answer()


@contextmanager
def frozen(flock: godwit.Flock, host: str) -> Iterator[None]:
    """Nothing that needs this host goes on."""
    pid = wait_until(lambda: pid_of(flock, host))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
