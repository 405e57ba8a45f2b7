"""State of an operator of a flock, in a form that Spark's `transformWithState` takes as `initialState`.

Decides whether the state can go to Spark with the processor that is given, and as of which batch it goes. How it gets into
Spark's own store is the business of `restoring`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pyspark.sql import GroupedData, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, StructField, StructType

from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.runtime.processor.spec import OperatorSpec, same_form
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.run_admission import Binding
from godwit.spark.checkpoint.state_view import committed_rows, known_operator
from godwit.spark.porting.packed_state import COLUMN, PackedState, key_and_state
from godwit.spark.porting.pandas_instants import has_instant
from godwit.spark.porting.restoring import Restoring
from godwit.spark.porting.spark_checkpoint import SparkCheckpoint
from godwit.spark.porting.state_end import StateEnd
from godwit.spark.pyspark_api.stateful import describe
from godwit.state.layout import shown
from godwit.state.variables import Variable


@dataclass(frozen=True, slots=True)
class StateForSpark:
    """What the first batch of a query of plain Spark needs to store the state of an operator.

    initialState: for `transformWithState` or `transformWithStateInPandas`. processor: the user's processor, with a
    `handleInitialState` that stores the rows of `initialState`, and which takes no other rows.
    """

    initialState: GroupedData = field(repr=False)  # noqa: N815  # as Spark names it
    processor: StatefulProcessor = field(repr=False)


def state_for_spark(
    spark: SparkSession, checkpoint: str | os.PathLike[str], operator: str, processor: StatefulProcessor
) -> StateForSpark:
    """The state of an operator of a flock, for a query of plain Spark that goes on with it.

    checkpoint: of the flock, which may be open or closed. processor: the one that the operator was defined with. The query must
    be stopped. Values, lists, maps and timers go along, as of its newest committed batch, but not what has lapsed by then; the
    time to live of the rest begins anew with that batch. `godwit.continue_in_spark` makes the checkpointLocation with which
    Spark goes on.
    """
    directory = FlockDirectory.existing(checkpoint)
    spec, binding = known_operator(directory, str(operator))
    _check_declared(spec, processor)
    query = _stopped(spark, spec, binding)
    batch = query.committed()
    now_ms = query.planned(batch).processing_ms
    end = StateEnd(spec.name, query.folder.path, batch)
    keys = from_arrow_schema(spec.key_schema, prefer_timestamp_ntz=True)
    schema = StructType([*keys, StructField(COLUMN, BinaryType(), metadata=end.metadata)])
    packed = PackedState(now_ms).rows
    rows = committed_rows(spark, directory, spec, batch, packed, schema, key_and_state, at_commit=True)
    by_instants = spec.flavour == "pandas" and any(map(has_instant, spec.key_schema.types))
    restoring = Restoring(processor, spec.variables, spec.time_mode, now_ms, by_instants)
    return StateForSpark(rows.groupBy(*keys.names), restoring)


def _check_declared(spec: OperatorSpec, processor: StatefulProcessor) -> None:
    if spec.flavour == "native":
        raise DefinitionError(
            "the operator is not a StatefulProcessor of PySpark, so Spark has nothing that goes on with its state",
            todo="Read the state with spark.read.format('godwit'), and shape it for a StatefulProcessor of yours",
            operator=spec.name,
        )
    declared = {each.name: each for each in describe(processor, spec.time_mode).variables}
    for each in spec.variables:
        now = declared.get(each.name)
        if now is None or not same_form(now, each):
            declares = "does not declare" if now is None else f"declares as {_described(now)}"
            raise CheckpointMismatch(
                f"the flock has {_described(each)}, which init of the processor {declares}",
                todo="Give the processor that the operator was defined with",
                operator=spec.name,
            )


def _described(variable: Variable) -> str:
    keys = "" if variable.key_schema is None else f" by {shown(variable.key_schema)}"
    ttl = "" if variable.ttl_ms is None else " with a time to live"
    return f"{variable.kind} state {variable.name!r} {shown(variable.schema)}{keys}{ttl}"


def _stopped(spark: SparkSession, spec: OperatorSpec, binding: Binding | None) -> SparkCheckpoint:
    """The checkpointLocation of the operator's query."""
    if binding is None:
        raise CheckpointMismatch(
            "no query has processed a batch with this operator, so there is nothing to go on with",
            todo="Start the query in Spark with a new checkpointLocation",
            operator=spec.name,
        )
    if binding.temporary:
        raise CheckpointMismatch(
            "the query of this operator had no checkpointLocation, so Spark has forgotten which rows it had read",
            todo="Read the state with spark.read.format('godwit'), and choose where the new query begins to read",
            operator=spec.name,
        )
    query = SparkCheckpoint(spark, binding.checkpoint)
    query.check_stopped()
    return query
