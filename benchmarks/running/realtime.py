"""A query with Spark's real-time trigger under open-loop load: rows pass a few at a time, so latency is some ten milliseconds.

Decides how rows get in and out. In: Spark's memory source for this trigger has all rows before the query starts, and a filter
lets each row pass when it is due. So the task's own clock makes the load, more exactly than a thread that feeds rows could, and
a query that is started again reads the same rows. Out: Spark's memory sink, which has a row as soon as the row is written.

A batch lasts as long as the load. A query that is stopped has committed nothing, so it replays the batch, and rows leave again:
the first time counts. This module must not know what is moved or when.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from godwit.testing import open_loop
from godwit.testing.latency import Departures, Numbers
from godwit.workload import Workload
from godwit.workload.numbered_rows import keys_of

LEAD_S: Final = 2.0  # from the start of the query until the first row is due: Spark needs about that long
# The source walks a list from its head for every record, so records are few: rows of some 70 ms at the default rate.
RECORD_ROWS: Final = 50
BATCH_S_MIN: Final = 5.0  # Spark refuses less
BATCH_MORE_S: Final = 1.0
CAUGHT_UP_S: Final = 0.1
# The router and Spark hold a row back until a few more have come on its lane: the last ones leave only with the batch.
TAIL_S: Final = 0.5
ROWS_AT_ONCE: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Rows of so long go through Python together. One by one, two cores carry some 700 rows a second; and whatever the rate, the
# same number of calls makes the same latency.
TOGETHER_S: Final = 0.010


# -- in --------------------------------------------------------------------------------------------------------------


class Feed:
    """The rows of a workload, each of which passes when it is due."""

    def __init__(self, spark: SparkSession, workload: Workload) -> None:
        assert workload.rows is not None, "a load that ends"
        assert workload.rows_per_second, "a load that goes by the clock"
        jvm: Any = spark._jvm
        clock = getattr(jvm.org.apache.spark.sql.execution.datasources.v2, "LowLatencyClock$")
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        self._stream = sources.LowLatencyMemoryStream(
            0,
            spark._jsparkSession,
            workload.lanes,
            getattr(clock, "MODULE$").getClock(),
            jvm.org.apache.spark.sql.Encoders.STRING(),
        )
        self._as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._workload = workload
        self._records: list[int] = []
        self.start_s = 0.0
        self.frame = passing(DataFrame(self._stream.toDF(), spark), workload.rows_per_second)

    def fill(self) -> None:
        """Fix when row 0 is due, and hand all rows over."""
        start_ms = int((time.time() + LEAD_S) * 1_000)
        self.start_s = start_ms / 1_000
        for lane in range(self._workload.lanes):
            lines = list(records(self._workload, lane, start_ms))
            self._stream.addData(lane, self._as_scala(lines))
            self._records.append(len(lines))

    @property
    def end_s(self) -> float:
        """When the last row is due."""
        assert self._workload.rows is not None, "a load that ends"
        return self.start_s + (self._workload.rows - 1) / self._workload.rows_per_second

    @property
    def rows_at_once(self) -> int:
        return max(1, round(self._workload.rows_per_second / self._workload.lanes * TOGETHER_S))

    def read_by(self, offset: dict[str, int] | None) -> bool:
        """Whether a query that has committed this offset has read everything."""
        return offset == {str(lane): count for lane, count in enumerate(self._records)}


def records(workload: Workload, lane: int, start_ms: int) -> Iterator[str]:
    """The rows of a lane as text, some at a time: when row 0 is due in microseconds, then number:key of each row."""
    numbers = np.arange(workload.end, dtype=np.int64)
    keys = keys_of(workload, numbers)
    mine = np.flatnonzero((numbers if workload.lane_by == "row" else keys) % workload.lanes == lane)
    for at in range(0, len(mine), RECORD_ROWS):
        part = mine[at : at + RECORD_ROWS]
        rows = (f"{number}:{key}" for number, key in zip(part.tolist(), keys[part].tolist(), strict=True))
        yield " ".join((str(start_ms * 1_000), *rows))


def passing(lines: DataFrame, rows_per_second: int) -> DataFrame:
    """The rows (key, n, due) of such records, each held until it is due. Whatever is late passes at once."""
    words = sf.split("value", " ")
    rows = lines.select(words[0].cast("long").alias("start"), sf.explode(sf.slice(words, 2, RECORD_ROWS)).alias("row"))
    numbered = rows.select(
        sf.substring_index("row", ":", -1).cast("long").alias("key"),
        sf.substring_index("row", ":", 1).cast("long").alias("n"),
        "start",
    )
    due = numbered.withColumn("due_us", sf.expr(f"start + n * 1000000 div {rows_per_second}"))
    park = (sf.lit("java.util.concurrent.locks.LockSupport"), sf.lit("parkUntil"))
    due_rows = due.where(sf.reflect(*park, sf.expr("(due_us + 999) div 1000")).isNotNull())  # it gives the text "null"
    return due_rows.select("key", "n", sf.timestamp_micros("due_us").alias("due"))


# -- out -------------------------------------------------------------------------------------------------------------


class Received:
    """What has left the query so far, in the order in which it did; there as soon as it has left."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
        self.sink = jvm.org.apache.spark.sql.execution.streaming.sources.ContinuousMemorySink()
        self.schema: Any = None
        self._never = threading.Event()

    @property
    def count(self) -> int:
        return int(self.sink.allData().size())

    def wait(self, rows: int, timeout_s: float) -> bool:
        """Whether so many rows have come. The sink tells nobody, so it is looked at before and after."""
        return self.count >= rows or (self._never.wait(timeout_s) or self.count >= rows)

    def lag_s(self) -> float:
        """How late the newest row was."""
        newest = self.sink.allData().last()
        return float(newest.getLong(3)) / 1e3 - float(newest.getLong(2)) / 1e6

    def rows(self) -> pa.Table:
        session: Any = self._spark._jsparkSession
        received = session.createDataFrame(self._as_java(self.sink.allData()), self.schema)
        return first_sent(DataFrame(received, self._spark).toArrow())


def first_sent(rows: pa.Table) -> pa.Table:
    """Without the rows that an earlier run of the query had given, all values alike.

    What one run gives twice stays, and so does what a later one gives otherwise: those are mistakes, and are to be counted.
    """
    identity = np.stack([open_loop.column(rows, name) for name in ("due", "key", "count")], axis=1)
    runs = open_loop.column(rows, "run")
    _, same = np.unique(identity, axis=0, return_inverse=True)
    earliest = np.full(same.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, same.reshape(-1), runs)
    return rows.filter(pa.array(runs == earliest[same.reshape(-1)]))


# -- the query -------------------------------------------------------------------------------------------------------


class RealTime(open_loop.Running):
    """A query with the real-time trigger that can be started again on its checkpoint, with the sink it had."""

    def __init__(self, spark: SparkSession, frame: DataFrame, feed: Feed, checkpoint: str) -> None:
        self.arrivals: Any = Received(spark)
        self._spark = spark
        self._feed = feed
        self._runs = 0
        self._frame = frame.select(
            "key", "count", sf.unix_micros("due").alias("due"), open_loop.left_column().alias("left")
        )
        self._checkpoint = checkpoint
        feed.fill()
        self.query = self.start()

    def start(self) -> StreamingQuery:
        batch_s = max(BATCH_S_MIN, self._feed.end_s + BATCH_MORE_S - time.time())
        numbered = self._frame.withColumn("run", sf.lit(self._runs))
        self._runs += 1
        before = self._spark.conf.get(ROWS_AT_ONCE)
        # The query takes a copy of the session's settings when it is made; what else the session does stays quick.
        self._spark.conf.set(ROWS_AT_ONCE, str(self._feed.rows_at_once))
        try:
            self.query = self._started(numbered, round(batch_s * 1_000))
        finally:
            self._spark.conf.set(ROWS_AT_ONCE, str(before))
        return self.query

    def _started(self, frame: DataFrame, batch_ms: int) -> StreamingQuery:
        """As `writeStream.start()` does, whose formats have no sink that keeps rows before their batch is committed."""
        jvm: Any = self._spark._jvm
        session: Any = self._spark._jsparkSession
        manager = session.streams()
        self.arrivals.schema = frame._jdf.schema()
        # Godwit refuses asynchronous progress tracking, which this trigger would turn on.
        options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({"asyncProgressTrackingEnabled": "false"})
        streaming = jvm.org.apache.spark.sql.streaming
        return StreamingQuery(
            manager.startQuery(
                jvm.scala.Option.empty(),
                _default(manager, 2),
                jvm.scala.Option.apply(self._checkpoint),
                frame._jdf,
                options,
                self.arrivals.sink,
                streaming.OutputMode.Update(),
                False,  # no passing checkpoint
                True,  # goes on from the one there is
                streaming.Trigger.RealTime(f"{batch_ms} milliseconds"),
                *(_default(manager, at) for at in (11, 12, 13)),
            )
        )

    def started_s(self) -> float:
        return self._feed.start_s

    def wait_settled(self, until_s: float, look: Callable[[int], None]) -> None:
        """Until rows leave about when they are due, or until this time."""
        while time.time() < until_s and self.arrivals.lag_s() > CAUGHT_UP_S:
            self._look(look)
            self.arrivals.wait(self.arrivals.count + 1, open_loop.LOOK_EVERY_S)

    def departures(self, rows: pa.Table) -> Departures:
        due: Numbers = open_loop.column(rows, "due")
        return open_loop.departures(rows.filter(pa.array(due <= (self._feed.end_s - TAIL_S) * 1e6)))

    def finish(self) -> None:
        """Everything is out and committed, and the query stopped. Spark's own wait ends only with an empty batch."""
        while not any(self._feed.read_by(each["sources"][0]["endOffset"]) for each in self._progress()):
            self._look(lambda _: None)
            self.arrivals.wait(1 << 62, open_loop.LOOK_EVERY_S)
        self.query.stop()

    def _progress(self) -> list[dict[str, Any]]:
        return [json.loads(each.json) for each in self.query.recentProgress]


def _default(manager: Any, at: int) -> Any:
    """What Scala puts for a parameter that is left out."""
    return getattr(manager, f"startQuery$default${at}")()
