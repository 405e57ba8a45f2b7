"""Committed state as a Spark DataFrame: one partition per host, decoded in the tasks.

The rows come from the hosts of an open flock, or from the logs of a checkpoint, which another flock may have open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError
from godwit.runtime.processor.dead_letters import letters_schema, rows_of_letters
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.group_reader import RowsOf
from godwit.runtime.reading.log_reader import LogReader, SelectRows, every
from godwit.runtime.reading.state_reader import StateReader
from godwit.runtime.router.routing_table import read_routing
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.run_admission import Binding, committed_batch
from godwit.spark.checkpoint.shown_state import shown_rows, shown_schema
from godwit.spark.task_errors import plain_errors


@dataclass(frozen=True, slots=True)
class StateView:
    """The committed state of an operator of an open flock.

    It is the state after the newest committed batch or, while a batch is in progress, after the one before.
    """

    spark: SparkSession
    directory: FlockDirectory
    spec: OperatorSpec
    binding: Binding | None
    incarnation: str
    token: str = field(repr=False)
    controller: str

    def state(self) -> DataFrame:
        return _frame(self.spark, replace(self._reader(), rows_of=shown_rows), _as_spark(shown_schema(self.spec)))

    def dead_letters(self) -> DataFrame:
        reader = replace(self._reader(), rows_of=rows_of_letters)
        return _frame(self.spark, reader, _as_spark(letters_schema(self.spec)))

    def _reader(self) -> StateReader:
        batch, parts = committed_batch(self.spark, self.binding), groups_by_host(self.directory, self.spec.name)
        path = str(self.directory.path)
        return StateReader(self.spec, path, parts, batch, self.incarnation, self.token, controller=self.controller)


def read_state(spark: SparkSession, checkpoint: str | os.PathLike[str], operator: str) -> DataFrame:
    """Committed state of an operator from a checkpoint, as `Flock.state` shows it, without opening the checkpoint.

    A flock that has the checkpoint open is not disturbed: its logs are read, and nothing is written. Every key has its state of
    a committed batch: the newest one or, while a batch is in progress, the one before.
    """
    directory = FlockDirectory.existing(checkpoint)
    spec, binding = known_operator(directory, str(operator))
    batch = committed_batch(spark, binding)
    return committed_rows(spark, directory, spec, batch, shown_rows, _as_spark(shown_schema(spec)))


def committed_rows(
    spark: SparkSession,
    directory: FlockDirectory,
    spec: OperatorSpec,
    batch: int,
    rows_of: RowsOf,
    schema: StructType,
    shape: SelectRows = every,
    at_commit: bool = False,
) -> DataFrame:
    """What `rows_of` makes of the state of an operator, from the logs of a checkpoint.

    batch: the newest that is committed. shape: makes batches of this schema of what `rows_of` gives. at_commit: an error if the
    state has rows of later batches.
    """
    parts = groups_by_host(directory, spec.name)
    reader = LogReader(spec, str(directory.path), parts, batch, rows_of=rows_of, at_commit=at_commit)
    return _frame(spark, reader, schema, shape)


def known_operator(directory: FlockDirectory, operator: str) -> tuple[OperatorSpec, Binding | None]:
    known = directory.operator(operator)
    if known is None:
        raise DefinitionError(
            "this checkpoint has no operator of this name",
            todo=f"The operators are: {', '.join(directory.operators()) or 'none yet'}",
            operator=operator,
        )
    if known[0].ephemeral:
        raise DefinitionError(
            "the operator is over a batch DataFrame, and its state ends with the evaluation",
            todo="Read the output of the DataFrame instead",
            operator=operator,
        )
    return known


def groups_by_host(directory: FlockDirectory, operator: str) -> tuple[tuple[str, frozenset[int]], ...]:
    routing = read_routing(str(directory.path), operator) or directory.routing
    return tuple((host, frozenset(routing.groups_of(host))) for host in routing.hosts)


def _as_spark(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _frame(
    spark: SparkSession, reader: StateReader | LogReader, schema: StructType, shape: SelectRows = every
) -> DataFrame:
    parts = reader.parts

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = None if context is None else context.taskAttemptId()
        with plain_errors():
            for positions in batches:
                for position in positions.column(0).to_numpy():
                    yield from map(shape, reader.read(int(position), attempt))

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(body, schema)
