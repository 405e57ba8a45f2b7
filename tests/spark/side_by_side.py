"""Runs one processor over the same micro-batches through Spark's own state API and through Godwit.

A batch is a Parquet file, read one per trigger, so both engines cut the input alike and a key's rows of a batch come
in one partition. What left is kept with the batch it left in, for comparing per batch or overall, key by key.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery
from pyspark.sql.types import StructType

import godwit

Table = Sequence[tuple[Any, ...]]
WAIT_S = 120.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SPARK_SETTINGS = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, "spark.sql.shuffle.partitions": "1"}


@dataclass
class Seen:
    """What a query put out, batch by batch."""

    rows: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, batch: DataFrame, batch_id: int) -> None:
        rows = [(batch_id, tuple(row)) for row in batch.collect()]
        with self.changed:
            self.rows += rows
            self.changed.notify_all()

    def wait(self, what: Callable[[list[tuple[Any, ...]]], bool]) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: what([row for _, row in self.rows]), WAIT_S):
                raise AssertionError(f"still waiting after {WAIT_S} s; there is {self.rows}")

    def by_key(self, width: int = 1) -> dict[str, list[str]]:
        """Per key the rows in order; as text, in which NaN equals NaN and 1 is not 1.0."""
        found: dict[str, list[str]] = {}
        for _, row in self.rows:
            found.setdefault(repr(row[:width]), []).append(repr(row[width:]))
        return found

    def by_batch(self, width: int = 1) -> dict[int, dict[str, list[str]]]:
        batches = {batch for batch, _ in self.rows}
        return {batch: Seen([row for row in self.rows if row[0] == batch]).by_key(width) for batch in batches}


class Feed:
    """A directory whose files are the batches of a stream: a batch is so many files, among which its rows are dealt."""

    def __init__(self, directory: Path, schema: pa.Schema, files: int = 1) -> None:
        self._directory = directory
        self._schema = schema
        self._files = files
        self._count = 0
        directory.mkdir(parents=True)

    def add(self, rows: Table) -> None:
        for part in range(self._files):
            self._write(rows[part :: self._files])

    def _write(self, rows: Table) -> None:
        arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(self._schema.types)]
        hidden = self._directory / f".{self._count:04}.parquet"
        pq.write_table(pa.table(arrays, schema=self._schema), hidden)
        os.utime(hidden, (1_000_000 + self._count,) * 2)  # the file source goes by modification time
        hidden.rename(self._directory / f"{self._count:04}.parquet")
        self._count += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self._spark_schema(spark)).option("maxFilesPerTrigger", self._files)
        return reader.parquet(str(self._directory))

    def batch(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(self._spark_schema(spark)).parquet(str(self._directory)).coalesce(1)

    def _spark_schema(self, spark: SparkSession) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._schema, prefer_timestamp_ntz=True)


@dataclass(frozen=True)
class Case:
    """A definition that both engines understand."""

    processor: StatefulProcessor
    output: str
    keys: tuple[Any, ...] = ("id",)
    pandas: bool = False
    mode: str = "append"
    time: str = "none"
    initial: Any = None  # rows, or the state of another query
    watermark: tuple[str, str] | None = None
    event_time: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def _method(self) -> str:
        return "transformWithStateInPandas" if self.pandas else "transformWithState"

    def _marked(self, frame: DataFrame) -> DataFrame:
        return frame.withWatermark(*self.watermark) if self.watermark else frame

    def _grouped(self) -> Any:
        return self.initial.groupBy(*self.keys) if isinstance(self.initial, DataFrame) else self.initial

    def on_spark(self, frame: DataFrame) -> DataFrame:
        call = getattr(self._marked(frame).groupBy(*self.keys), self._method)
        made: DataFrame = call(self.processor, self.output, self.mode, self.time, self._grouped(), self.event_time)
        return made

    def on_flock(self, flock: godwit.Flock, frame: DataFrame, name: str) -> DataFrame:
        call = getattr(flock, self._method)
        made: DataFrame = call(
            self._marked(frame),
            list(self.keys),
            self.processor,
            self.output,
            self.mode,
            self.time,
            self._grouped(),
            self.event_time,
            name=name,
            **self.options,
        )
        return made


class SideBySide:
    """Both engines on one Spark session, with directories and names of their own for every run."""

    def __init__(self, spark: SparkSession, flock: godwit.Flock, root: Path) -> None:
        self.spark = spark
        self.flock = flock
        self._root = root
        self._numbers = itertools.count()

    def feed(self, schema: pa.Schema, batches: Sequence[Table] = (), files: int = 1) -> Feed:
        feed = Feed(self._root / f"feed-{next(self._numbers)}", schema, files)
        for rows in batches:
            feed.add(rows)
        return feed

    def name(self) -> str:
        return f"operator-{next(self._numbers)}"

    @contextmanager
    def running(self, frame: DataFrame, mode: str = "append", **trigger: Any) -> Iterator[tuple[StreamingQuery, Seen]]:
        seen = Seen()
        writer = frame.writeStream.foreachBatch(seen.take).outputMode(mode)
        if trigger:
            writer = writer.trigger(**trigger)
        query = writer.option("checkpointLocation", str(self._root / f"checkpoint-{next(self._numbers)}")).start()
        try:
            yield query, seen
        finally:
            query.stop()

    def run(self, frame: DataFrame, mode: str = "append") -> Seen:
        """All batches there are, and those without data that they lead to."""
        with self.running(frame, mode) as (query, seen):
            query.processAllAvailable()
        return seen

    def both(self, case: Case, schema: pa.Schema, batches: Sequence[Table]) -> tuple[Seen, Seen]:
        """The same batches through Spark and through Godwit; the output schemas must be the same too."""
        with self.spark_settings():
            theirs = case.on_spark(self.feed(schema, batches).stream(self.spark))
            expected = self.run(theirs, case.mode)
        ours = case.on_flock(self.flock, self.feed(schema, batches).stream(self.spark), self.name())
        assert _types(ours) == _types(theirs)
        return expected, self.run(ours, case.mode)

    @contextmanager
    def spark_settings(self) -> Iterator[None]:
        before = {name: self.spark.conf.get(name, None) for name in SPARK_SETTINGS}
        for name, value in SPARK_SETTINGS.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                self.spark.conf.unset(name) if old is None else self.spark.conf.set(name, old)


def _types(frame: DataFrame) -> list[tuple[str, str]]:
    return [(column.name, column.dataType.simpleString()) for column in frame.schema]
