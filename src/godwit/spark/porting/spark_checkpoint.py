"""A checkpointLocation of Spark: which query it belongs to, which batches are planned and committed, at which watermark.

Knows the form of Spark's logs, and nothing of operators and their state.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.errors import CheckpointMismatch
from godwit.spark.checkpoint.hadoop_folder import Folder
from godwit.spark.checkpoint.run_admission import active_query

VOID: Final = "-"  # in the offset log: Spark has not asked the source yet
OPERATOR: Final = "transformWithState"  # the beginning of the names that Spark gives to these operators
PANDAS_OPERATOR: Final = f"{OPERATOR}InPandas"
_WATERMARK: Final = "batchWatermarkMs"
_PROCESSING: Final = "batchTimestampMs"
_SEQUENCE: Final = "v1"  # a line per source; "v2" has names of sources


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """An entry of the offset log: metadata as JSON, then the end offset in each source."""

    metadata: str
    offsets: tuple[str, ...]

    @property
    def watermark_ms(self) -> int:
        return self._number(_WATERMARK)

    @property
    def processing_ms(self) -> int:
        return self._number(_PROCESSING)

    def _number(self, name: str) -> int:
        return int(json.loads(self.metadata).get(name, 0)) if self.metadata else 0

    def at(self, processing_ms: int, watermark_ms: int) -> PlannedBatch:
        """The same batch at another time."""
        times = {_PROCESSING: processing_ms, _WATERMARK: watermark_ms}
        return PlannedBatch(json.dumps({**json.loads(self.metadata), **times}), self.offsets)

    def text(self) -> str:
        return "\n".join([_SEQUENCE, self.metadata, *self.offsets])


class SparkCheckpoint:
    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        self._spark = spark
        self.folder = Folder(spark, path)
        if not self.folder.exists("metadata"):
            raise CheckpointMismatch(
                f"{self.folder.path} is not the checkpointLocation of a streaming query",
                todo="Give the directory that the query was started with as checkpointLocation",
            )
        self.query: str = json.loads(self.folder.read("metadata"))["id"]

    def check_stopped(self) -> None:
        """Raise if the query runs in this application. A query of another application cannot be seen from here."""
        active = active_query(self._spark, self.query)
        if active is not None and Folder(self._spark, active.resolvedCheckpointRoot()).same_as(self.folder):
            raise CheckpointMismatch(
                f"the query {self.query} still runs with the checkpointLocation {self.folder.path}",
                todo="Stop the query first (query.stop()), then take its state over",
            )

    def operators(self, batch: int) -> dict[int, tuple[str, dict[str, Any]]]:
        """The stateful operators of Spark as of a batch, by number: name and properties."""
        reader = self._spark.read.format("state-metadata").option("batchId", batch)
        rows = reader.load(self.folder.path).collect() if self.folder.names("state") else []
        return {row["operatorId"]: (row["operatorName"], json.loads(row["operatorProperties"] or "{}")) for row in rows}

    def check_operators(self, batch: int, query: str, carried: str | None = None) -> None:
        """Raise if the query has a stateful operator whose name does not begin with `carried`: its state would be lost."""
        names = [name for name, _ in self.operators(batch).values()]
        lost = [name for name in names if carried is None or not name.startswith(carried)]
        if lost:
            raise CheckpointMismatch(
                f"{query} has a stateful operator {lost[0]} of Spark, and its state would be lost",
                todo="Only state of transformWithState goes along: give the other operators a query of their own, or start a "
                "new query, with a new checkpointLocation",
            )

    def batches(self, log: str) -> list[int]:
        """The batches in the offset log ("offsets") or in the commit log ("commits"), ascending."""
        return self.folder.numbers(log)

    def committed(self) -> int:
        """The newest committed batch. Raises if there is none."""
        commits = self.batches("commits")
        if not commits:
            raise CheckpointMismatch(
                f"the query of {self.folder.path} has not committed any batch, so there is nothing to take over",
                todo="Start the query with Godwit and a new checkpointLocation",
            )
        return commits[-1]

    def planned(self, batch: int) -> PlannedBatch:
        version, metadata, *offsets = self.folder.read(f"offsets/{batch}").split("\n")
        if version.strip() != _SEQUENCE:
            raise CheckpointMismatch(
                f"the offset log in {self.folder.path} has the form {version.strip()}, and Godwit knows {_SEQUENCE}",
                todo="Turn Spark's source evolution off for the query (spark.sql.streaming.queryEvolution...), or start at "
                "offsets of the source, with on_gap='accept'",
            )
        return PlannedBatch(metadata.strip(), tuple(offsets))

    def commit(self, batch: int) -> tuple[str, dict[str, Any]]:
        """Version and metadata of an entry of the commit log."""
        version, _, metadata = self.folder.read(f"commits/{batch}").partition("\n")
        return version, json.loads(metadata or "{}")
