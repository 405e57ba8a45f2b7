"""`godwit-workload`: a Spark source that makes rows from their numbers, so that any batch replays exactly.

Decides how much of a workload is due at a trigger (open loop: the clock decides, not the reader) and what
an offset holds: the next row's number, row 0's due time, and the options that fix the rows. The start time
is thus part of the checkpoint, and a restart with other options is refused instead of replaying other rows.
Partition i of every batch is lane i. It must not know how rows are made (`godwit.workload.numbered_rows`) or what
reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.workload import Workload
from godwit.workload.numbered_rows import due_count, lane_batches, schema_of

__all__ = ["FORMAT", "WorkloadSource", "register"]

FORMAT: Final = "godwit-workload"


def register(spark: SparkSession) -> None:
    """Make `format("godwit-workload")` known to the session. Doing so again changes nothing."""
    spark.dataSource.register(WorkloadSource)


class WorkloadSource(DataSource):
    """The data source; its options are those of `Workload`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(self._workload()))

    def reader(self, schema: StructType) -> WorkloadReader:
        self._check(schema)
        return WorkloadReader(self._workload())

    def streamReader(self, schema: StructType) -> WorkloadStreamReader:
        self._check(schema)
        return WorkloadStreamReader(self._workload())

    def _workload(self) -> Workload:
        return Workload.from_options(self.options)

    def _check(self, schema: StructType) -> None:
        """A schema given by the user may repeat the source's own, not change it."""
        own = self.schema()
        if schema.simpleString() != own.simpleString():
            raise DefinitionError(
                f"the rows are {own.simpleString()}, the query wants {schema.simpleString()}",
                todo="Leave out schema(), and select or cast after load()",
            )


@dataclass(frozen=True)
class LaneSlice(InputPartition):
    """The rows of [first, stop) that come on one lane."""

    lane: int
    first: int
    stop: int
    start_ms: int


def _slices(workload: Workload, first: int, stop: int, start_ms: int) -> list[LaneSlice]:
    """One slice per lane, also where a lane has no row: a lane's partition number never changes."""
    return [LaneSlice(lane, first, stop, start_ms) for lane in range(workload.lanes)]


def _read(workload: Workload, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, LaneSlice), f"a partition of another source: {partition!r}"
    return lane_batches(workload, partition.lane, partition.first, partition.stop, partition.start_ms)


class WorkloadReader(DataSourceReader):
    """All rows at once: ground truth for a stream with the same options. A start not given is 0 (1970)."""

    def __init__(self, workload: Workload) -> None:
        if workload.rows is None:
            raise _endless("a batch read")
        self.workload = workload

    def partitions(self) -> list[LaneSlice]:
        return _slices(self.workload, 0, self.workload.end, self.workload.start or 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.workload, partition)


def _now_us() -> int:
    return time.time_ns() // 1_000


class WorkloadStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows that are due, batch by batch. An offset is {row, start, options}: row is the next to read."""

    def __init__(self, workload: Workload, now_us: Callable[[], int] = _now_us) -> None:
        self.workload = workload
        self._now_us = now_us
        self._until_us: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        start = self.workload.start
        return self._offset(0, self._now_us() // 1_000 if start is None else start)

    def getDefaultReadLimit(self) -> ReadLimit:
        cap = self.workload.rows_per_batch
        return ReadAllAvailable() if cap is None else ReadMaxRows(cap)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._check(start)
        if isinstance(limit, ReadAllAvailable) and self._unbounded():
            raise _endless("reading all that is available with rows_per_second=0")
        now_us = self._now_us() if self._until_us is None else self._until_us
        stop = due_count(self.workload, start["start"], now_us)
        if isinstance(limit, ReadMaxRows):
            stop = min(stop, start["row"] + limit.max_rows)
        return self._offset(stop, start["start"]) if stop > start["row"] else start

    def prepareForTriggerAvailableNow(self) -> None:
        if self._unbounded():
            raise _endless("the trigger availableNow with rows_per_second=0")
        self._until_us = self._now_us()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LaneSlice]:
        self._check(end)
        if start["row"] >= end["row"]:
            return []
        # Row 0's due time is taken from the end: Spark does not keep the initial offset but asks again to
        # plan or replay batch 0, when `start` is of a later clock.
        return _slices(self.workload, start["row"], end["row"], end["start"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.workload, partition)

    def _unbounded(self) -> bool:
        return self.workload.rows_per_second == 0 and self.workload.rows is None

    def _offset(self, row: int, start_ms: int) -> dict[str, Any]:
        return {"row": row, "start": start_ms, "options": self.workload.identity()}

    def _check(self, offset: dict[str, Any]) -> None:
        """Refuse an offset that was written for other rows."""
        ours: dict[str, Any] = dict(self.workload.identity())
        theirs: dict[str, Any] = dict(offset["options"])
        if self.workload.start is not None:
            ours["start"], theirs["start"] = self.workload.start, offset["start"]
        for option, value in ours.items():
            if theirs.get(option) != value:
                raise CheckpointMismatch(
                    f"the checkpoint was written with {option}={theirs.get(option)}, the query has {value}",
                    todo="Use the options that the query was started with, or a new checkpoint location",
                    option=option,
                )


def _endless(what: str) -> DefinitionError:
    return DefinitionError(f"{what} needs an end", todo="Set rows, the number of rows wanted", option="rows")
