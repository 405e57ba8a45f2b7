"""The processors of key-count in the ways that are compared, and one that only holds state of a given size."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import godwit

COUNTS = "key long, count long"


class PandasCount(StatefulProcessor):
    """A running count per key, one output per row; given unchanged to Spark and to Godwit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        stored = self._count.get()
        n = stored[0] if stored else 0
        for frame in rows:
            counts = range(n + 1, n + 1 + len(frame))
            n += len(frame)
            yield pd.DataFrame({"key": frame["key"].to_numpy(), "count": counts})
        self._count.update((n,))

    def close(self) -> None:
        pass


class NativeCount(godwit.Processor):
    state = MappingProxyType({"n": pa.int64()})
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)


class Blob(godwit.Processor):
    """Keeps the last payload of each key: state of a given size."""

    state = MappingProxyType({"payload": pa.binary()})
    output_schema = pa.schema([("key", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> None:
        payloads = rows.batch.column("payload").to_pylist()
        state["payload"] = [payloads[at] for at in rows.last]


def blob_rows(spark: SparkSession, keys: int, value_bytes: int, batch_rows: int) -> DataFrame:
    """One row for each key, with a value of this size; made in the JVM."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_rows).option("numPartitions", 2)
    digest = sf.sha2(sf.col("value").cast("string"), 512)
    payload = sf.substring(sf.repeat(digest, -(-value_bytes // 128)), 1, value_bytes)
    numbered = source.load().where(sf.col("value") < keys)
    return numbered.select(sf.col("value").alias("key"), payload.cast("binary").alias("payload"))
