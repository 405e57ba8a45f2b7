"""A query with Spark's real-time trigger between two Kafka topics, under open-loop load.

Decides how the query reads the rows of the first topic and writes its results into the second (`topics` has both). A query that
is started again reads the first topic from where its checkpoint says, so results of an uncommitted batch come again: the first
time counts. This module must not know what is moved or when.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType, TimestampType

from benchmarks.running.session import broker
from benchmarks.running.topics import Results, Topics
from godwit.testing import open_loop
from godwit.testing.kafka_load import SEPARATOR
from godwit.testing.latency import Departures, Numbers
from godwit.workload import Workload
from godwit.workload.numbered_rows import schema_of

BATCH_S_MIN: Final = 5.0  # Spark refuses less
BATCH_MORE_S: Final = 2.0
CAUGHT_UP_S: Final = 0.1
READ_S_MAX: Final = 30.0  # what is in the topic is read within milliseconds
RUN: Final = "run"


# -- in --------------------------------------------------------------------------------------------------------------


class Feed(Topics):
    """The rows of a workload, in a topic of their own, and the DataFrame that reads them."""

    def __init__(self, spark: SparkSession, workload: Workload, silence_s: float = 0.0) -> None:
        super().__init__(workload, silence_s)
        self._rows = workload.rows
        self.frame = rows_of(spark, self.source, workload)

    def read_by(self, offset: Mapping[str, Mapping[str, int]] | None) -> bool:
        """Whether a query that has committed this offset has read everything."""
        return offset is not None and sum(offset.get(self.source, {}).values()) == self._rows


def rows_of(spark: SparkSession, topic: str, workload: Workload) -> DataFrame:
    """The columns of the workload, and those by which a row of Kafka is known."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker().bootstrap)
    records = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    fields = from_arrow_schema(schema_of(workload)).fields
    texts = sf.split(sf.col("value").cast("string"), SEPARATOR)
    columns = [_typed(texts[at], field).alias(field.name) for at, field in enumerate(fields)]
    return records.select(*columns, "partition", "offset")


def _typed(text: Any, field: StructField) -> Any:
    if isinstance(field.dataType, TimestampType):
        return sf.timestamp_micros(text.cast("long"))
    return text.cast(field.dataType)


# -- out -------------------------------------------------------------------------------------------------------------


def as_records(frame: DataFrame) -> DataFrame:
    """One record for each row: its columns as text. The first column is the key, so rows of a key stay in one partition.

    A reader gets the records of a partition in their order, and nothing is known of the order between partitions.
    """
    micros = [
        sf.unix_micros(field.name) if isinstance(field.dataType, TimestampType) else sf.col(field.name)
        for field in frame.schema.fields
    ]
    texts = [each.cast("string") for each in micros]
    return frame.select(
        texts[0].cast("binary").alias("key"), sf.concat_ws(SEPARATOR, *texts).cast("binary").alias("value")
    )


class Received(Results):
    """What has left the query so far, in the order in which it came."""

    def __init__(self, topic: str, lanes: int, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        super().__init__(topic, lanes)

    def lag_s(self) -> float:
        """How late the newest row was."""
        with self._changed:
            if not self._came:
                return float("inf")
            value, at_s = self._came[-1]
        due = value.split(SEPARATOR.encode())[self._schema.get_field_index("due")]
        return at_s - int(due) / 1e6

    def rows(self) -> pa.Table:
        came = self.came()
        values: Any = pa.array([value.decode() for value, _ in came], pa.string())
        parts: Any = pc.split_pattern(values, SEPARATOR)
        columns = [_parsed(pc.list_element(parts, at), field.type) for at, field in enumerate(self._schema)]
        left = pa.array([round(at_s * 1_000) for _, at_s in came], pa.int64())
        return first_sent(pa.table([*columns, left], [*self._schema.names, "left"]))


def _parsed(texts: Any, kind: pa.DataType) -> Any:
    return texts.cast(pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else texts.cast(kind)


def first_sent(rows: pa.Table) -> pa.Table:
    """Without the rows that an earlier run of the query had given, all values alike.

    What one run gives twice stays, and so does what a later one gives otherwise: those are mistakes, and are to be counted.
    """
    identity = [name for name in rows.column_names if name not in (RUN, "left")]
    keys = rows.select(identity).append_column("at", pa.array(np.arange(len(rows))))
    runs = open_loop.column(rows, RUN)
    same = _same(keys, identity)
    earliest = np.full(same.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, same, runs)
    return rows.filter(pa.array(runs == earliest[same]))


def _same(rows: pa.Table, names: list[str]) -> Numbers:
    """A number for each row; rows with the same values have the same number."""
    codes = np.zeros(len(rows), np.int64)
    for name in names:
        values: Any = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
        own = values.indices.to_numpy().astype(np.int64)
        _, codes = np.unique(codes * (own.max(initial=0) + 1) + own, return_inverse=True)
        codes = codes.reshape(-1).astype(np.int64)
    return codes


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# -- the query -------------------------------------------------------------------------------------------------------


class RealTime(open_loop.Running):
    """A query with the real-time trigger that can be started again on its checkpoint, with the topics it had."""

    def __init__(self, frame: DataFrame, feed: Feed, lanes: int, checkpoint: str, batch_s: float | None = None) -> None:
        self.arrivals: Any = Received(feed.target, lanes, frame.withColumn(RUN, sf.lit(0)).schema)
        self._feed = feed
        self._runs = 0
        self._frame = frame
        self._checkpoint = checkpoint
        self._batch_s = batch_s
        feed.fill()
        self.query = self.start()

    def start(self) -> StreamingQuery:
        records = as_records(self._frame.withColumn(RUN, sf.lit(self._runs)))
        self._runs += 1
        batch_s = self._batch_s or max(BATCH_S_MIN, self._feed.end_s + BATCH_MORE_S - time.time())
        writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", broker().bootstrap)
        writer = writer.option("topic", self._feed.target).option("checkpointLocation", self._checkpoint)
        # Godwit refuses asynchronous progress tracking, which this trigger would turn on.
        writer = writer.option("asyncProgressTrackingEnabled", "false").option("kafka.linger.ms", "0")
        trigger: dict[str, Any] = {"realTime": f"{round(batch_s * 1_000)} milliseconds"}
        self.query = writer.outputMode("update").trigger(**trigger).start()
        return self.query

    def started_s(self) -> float:
        return self._feed.start_s

    def wait_settled(self, until_s: float, look: Callable[[int], None]) -> None:
        """Until rows leave about when they are due, or until this time."""
        while time.time() < until_s and self.arrivals.lag_s() > CAUGHT_UP_S:
            self._look(look)
            self.arrivals.wait(self.arrivals.count + 1, open_loop.LOOK_EVERY_S)

    def departures(self, rows: pa.Table) -> Departures:
        return open_loop.departures(rows)

    def finish(self) -> None:
        """Everything is out and committed, and the query stopped. Spark's own wait ends only with an empty batch."""
        try:
            while not any(self._feed.read_by(end) for end in self._ends()):
                self._look(lambda _: None)
                self.arrivals.wait(1 << 62, open_loop.LOOK_EVERY_S)
        finally:
            self.stop()

    def stop(self) -> None:
        """Whatever is committed: the batch that goes on may last for minutes."""
        try:
            self.query.stop()
            # Results that came again count among those that have come, so their number alone does not say that all have.
            self.arrivals.wait(self._feed.result_count(), READ_S_MAX)
        finally:
            self.arrivals.close()
            self._feed.close()

    def batch_ends_s(self) -> list[float]:
        """When each batch that is committed has ended."""
        batches = [json.loads(each.json) for each in self.query.recentProgress]
        return [_instant(each["timestamp"]) + each["batchDuration"] / 1_000 for each in batches]

    def _ends(self) -> list[dict[str, dict[str, int]]]:
        """Where each batch that is committed has ended."""
        batches = [json.loads(each.json)["sources"][0]["endOffset"] for each in self.query.recentProgress]
        return [json.loads(end) if isinstance(end, str) else end for end in batches if end]
