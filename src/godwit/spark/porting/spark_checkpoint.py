"""A checkpointLocation of Spark: which query it belongs to, which batches are planned and committed, at which watermark.

Reads and writes the files through Hadoop, because a checkpointLocation need not be a directory of this machine. Knows the form
of Spark's logs, and nothing of operators and their state.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.errors import CheckpointMismatch

VOID: Final = "-"  # in the offset log: Spark has not asked the source yet
OPERATOR: Final = "transformWithState"  # the beginning of the names that Spark gives to these operators
_SEQUENCE: Final = "v1"  # a line per source; "v2" has names of sources


class Folder:
    """A directory in a file system of Hadoop."""

    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        self._spark = spark
        self.path = os.fspath(path)
        self._jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._conf = session.sessionState().newHadoopConf()
        self._files = self._at("").getFileSystem(self._conf)

    def _at(self, name: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path(self.path)
        return self._jvm.org.apache.hadoop.fs.Path(path, name) if name else path

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._at(name)))

    def names(self, name: str = "") -> list[str]:
        """The names of the files in a directory; empty if there is no such directory."""
        if not self.exists(name):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._at(name))]

    def read(self, name: str) -> str:
        stream = self._files.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def copy_to(self, name: str, target: Folder, target_name: str) -> None:
        """Copy a file or a directory."""
        util = self._jvm.org.apache.hadoop.fs.FileUtil
        util.copy(self._files, self._at(name), target._files, target._at(target_name), False, self._conf)

    def make(self, name: str) -> None:
        self._files.mkdirs(self._at(name))

    def rename(self, target: Folder) -> None:
        if not self._files.rename(self._at(""), target._at("")):
            raise CheckpointMismatch(
                f"{target.path} cannot be written", todo="Give a directory that does not exist yet"
            )

    def delete(self) -> None:
        self._files.delete(self._at(""), True)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """An entry of the offset log: metadata as JSON, then the end offset in each source."""

    metadata: str
    offsets: tuple[str, ...]

    @property
    def watermark_ms(self) -> int:
        return int(json.loads(self.metadata).get("batchWatermarkMs", 0)) if self.metadata else 0

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
        jvm: Any = self._spark._jvm
        session: Any = self._spark._jsparkSession
        active = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(self.query))
        root = None if active is None else str(active.resolvedCheckpointRoot()).removeprefix("file:")
        if root is not None and root == self.folder.path.removeprefix("file:"):
            raise CheckpointMismatch(
                f"the query {self.query} still runs with the checkpointLocation {self.folder.path}",
                todo="Stop the query first (query.stop()), then take its state over",
            )

    def operators(self, batch: int) -> dict[int, tuple[str, dict[str, Any]]]:
        """The stateful operators of Spark as of a batch, by number: name and properties."""
        reader = self._spark.read.format("state-metadata").option("batchId", batch)
        rows = reader.load(self.folder.path).collect() if self.folder.names("state") else []
        return {row["operatorId"]: (row["operatorName"], json.loads(row["operatorProperties"] or "{}")) for row in rows}

    def batches(self, log: str) -> list[int]:
        """The batches in the offset log ("offsets") or in the commit log ("commits"), ascending."""
        return sorted(int(name) for name in self.folder.names(log) if name.isdigit())

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
