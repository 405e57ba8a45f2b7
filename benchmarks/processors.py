"""Key-count in all the ways that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import godwit

COUNTS = "key long, count long"


class PandasCount(StatefulProcessor):
    """A running count per key, one output per row; given unchanged to Spark and to Godwit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        found = self._count.get()
        n = found[0] if found else 0
        for frame in rows:
            counts = range(n + 1, n + 1 + len(frame))
            n += len(frame)
            yield pd.DataFrame({"key": frame["key"].to_numpy(), "count": counts})
        self._count.update((n,))

    def close(self) -> None:
        pass


class NativeCount(godwit.Processor):
    state: ClassVar = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)


class Blob(godwit.Processor):
    """Keeps the last payload of each key: state of a given size."""

    state: ClassVar = {"payload": pa.binary()}
    output_schema = pa.schema([("key", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> None:
        payloads = rows.batch.column("payload").to_pylist()
        state["payload"] = [payloads[at] for at in rows.last]
