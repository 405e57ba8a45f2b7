"""A query under open-loop load: the clock creates rows, whatever the query does, and the driver stores every row that leaves.

The latency of a row ends when the row leaves the router: the JVM stamps it as it takes it from the task's Python worker. The
work of the sink and Spark's commit come later and are the same with and without a migration. Rows are stored in the order of
batches; a batch that comes again replaces its first version. What the figures mean is decided in `latency`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from godwit.spark import workload_source as workload
from godwit.testing.latency import Departures, Numbers

LOOK_EVERY_S = 0.1
SETTLED = 0.9


def left_column() -> Column:
    """The time at which each row is taken from the operator, in milliseconds; Spark's own now() is one time per batch."""
    return sf.reflect(sf.lit("java.lang.System"), sf.lit("currentTimeMillis")).cast("long")


class Arrivals:
    """A sink that stores batches, and wakes threads that wait for rows."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[pa.Table, float]] = {}
        self._count = 0
        self._changed = threading.Condition()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.toArrow()
        with self._changed:
            self._batches[batch] = (rows, time.time())
            self._count = sum(rows.num_rows for rows, _ in self._batches.values())
            self._changed.notify_all()

    @property
    def count(self) -> int:
        with self._changed:
            return self._count

    def wait(self, rows: int, timeout_s: float) -> bool:
        """Whether so many rows have come."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= rows, timeout_s)

    def batches(self) -> list[tuple[int, float]]:
        """Rows and arrival time of each batch, in order."""
        with self._changed:
            return [(self._batches[batch][0].num_rows, self._batches[batch][1]) for batch in sorted(self._batches)]

    def lags_s(self) -> list[float]:
        """How old the oldest row of each batch was when it came, in order."""
        with self._changed:
            batches = [self._batches[batch] for batch in sorted(self._batches)]
        return [at - float(column(rows, "due").min()) / 1e6 for rows, at in batches if rows.num_rows]

    def rows(self) -> pa.Table:
        with self._changed:
            return pa.concat_tables([self._batches[batch][0] for batch in sorted(self._batches)])


def departures(rows: pa.Table) -> Departures:
    return Departures.of(column(rows, "left") / 1e3, column(rows, "due") / 1e6)


def column(rows: pa.Table, name: str) -> Numbers:
    values: Numbers = rows.column(name).cast(pa.int64()).to_numpy()
    return values.astype(np.int64, copy=False)


def settled(lags_s: Sequence[float]) -> bool:
    """Whether batches no longer get younger: the query has caught up, or never will."""
    return len(lags_s) >= 4 and sum(lags_s[-2:]) >= SETTLED * sum(lags_s[-4:-2])


def source(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    """The rows of a workload (`godwit.workload`), each created when it is due."""
    workload.register(spark)
    return spark.readStream.format(workload.FORMAT).options(**options).load()


def replay(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    """The same rows as a batch, to check what a query made of them."""
    workload.register(spark)
    return spark.read.format(workload.FORMAT).options(**options).load()


class Running:
    """A query that can be started again on its checkpoint, with the sink it had."""

    def __init__(self, frame: DataFrame, checkpoint: str, trigger_ms: int = 0) -> None:
        self.arrivals = Arrivals()
        self._frame = frame.withColumn("left", left_column())
        self._checkpoint = checkpoint
        self._trigger_ms = trigger_ms
        self.query = self.start()

    def start(self) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self.arrivals).option("checkpointLocation", self._checkpoint)
        self.query = writer.trigger(processingTime=f"{self._trigger_ms} milliseconds").start()
        return self.query

    def started_s(self) -> float:
        """When the first row was due; known as soon as one has come."""
        return float(column(self.arrivals.rows(), "due").min()) / 1e6

    def departures(self, rows: pa.Table) -> Departures:
        """When rows left: those of all rows that say something about the query."""
        return departures(rows)

    def wait_until(self, at_s: float, look: Callable[[int], None]) -> None:
        """Until the clock shows this time; a query that fails is raised at once."""
        while (left_s := at_s - time.time()) > 0:
            self._look(look)
            self.arrivals.wait(1 << 62, min(left_s, LOOK_EVERY_S))

    def wait_rows(self, rows: int, look: Callable[[int], None]) -> None:
        while not self.arrivals.wait(rows, LOOK_EVERY_S):
            self._look(look)
        look(self.arrivals.count)

    def wait_settled(self, until_s: float, look: Callable[[int], None]) -> None:
        """Until what had gathered before the query was up is worked off, or until this time."""
        while time.time() < until_s and not settled(self.arrivals.lags_s()):
            self._look(look)
            self.arrivals.wait(self.arrivals.count + 1, LOOK_EVERY_S)

    def _look(self, look: Callable[[int], None]) -> None:
        look(self.arrivals.count)
        failure = self.query.exception()
        if failure is not None:
            raise failure

    def finish(self) -> None:
        """Everything is out and committed, and the query stopped."""
        self.query.processAllAvailable()
        self.query.stop()
