"""Committed state as a Spark DataFrame: one partition per host, decoded where it is read.

From the hosts of a flock that is open, or from the logs of a checkpoint, whoever has that open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.errors import DefinitionError
from godwit.runtime.processor.dead_letters import letters_schema, rows_of_letters
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import state_schema
from godwit.runtime.reading.log_reader import LogReader
from godwit.runtime.reading.state_reader import StateReader
from godwit.runtime.router.routing_table import read_routing
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.run_admission import Binding, committed_batch


def state_frame(
    spark: SparkSession,
    home: FlockDirectory,
    incarnation: str,
    token: str,
    spec: OperatorSpec,
    binding: Binding | None,
    controller: str,
    letters: bool = False,
) -> DataFrame:
    """The state of every key, or its dead letters, as of a committed batch: the newest, or while one runs the one before."""
    batch, parts = _committed(spark, binding), groups_by_host(home, spec.name)
    reader = StateReader(spec, str(home.path), parts, batch, incarnation, token, controller=controller)
    if letters:
        return _frame(spark, replace(reader, rows_of=rows_of_letters), letters_schema(spec))
    return _frame(spark, reader, state_schema(spec))


def read_state(spark: SparkSession, checkpoint: str | os.PathLike[str], operator: str) -> DataFrame:
    """Committed state of an operator from a checkpoint, as `Flock.state` shows it, without opening the checkpoint.

    A flock that has the checkpoint open goes on undisturbed: its logs are read, and nothing is written. Every key is shown as
    of a committed batch, the newest or, while one is being processed, the one before it.
    """
    home = FlockDirectory.found(checkpoint)
    spec, binding = known_operator(home, str(operator))
    batch, parts = _committed(spark, binding), groups_by_host(home, spec.name)
    return _frame(spark, LogReader(spec, str(home.path), parts, batch, "", ""), state_schema(spec))


def known_operator(home: FlockDirectory, operator: str) -> tuple[OperatorSpec, Binding | None]:
    known = home.operator(operator)
    if known is None:
        raise DefinitionError(
            "no operator of this name in this checkpoint",
            todo=f"There are: {', '.join(home.operators()) or 'none yet'}",
            operator=operator,
        )
    if known[0].ephemeral:
        raise DefinitionError(
            "the operator is over a batch DataFrame, whose state ends with its evaluation", operator=operator
        )
    return known


def _committed(spark: SparkSession, binding: Binding | None) -> int:
    return committed_batch(spark, binding.checkpoint) if binding else -1


def groups_by_host(home: FlockDirectory, operator: str) -> tuple[tuple[str, frozenset[int]], ...]:
    routing = read_routing(str(home.path), operator) or home.routing
    return tuple((host, frozenset(routing.groups_of(host))) for host in routing.hosts)


def _frame(spark: SparkSession, reader: StateReader, shown: pa.Schema) -> DataFrame:
    parts = reader.parts
    schema = from_arrow_schema(shown, prefer_timestamp_ntz=True)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = None if context is None else context.taskAttemptId()
        for positions in batches:
            for position in positions.column(0).to_numpy():
                yield from reader.read(int(position), attempt)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(body, schema)
