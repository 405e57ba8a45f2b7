"""The rows of `initialState`: checked against the operator, and divided among the hosts.

An operator over a stream gets them once, through routers, before its first batch. An operator over a batch DataFrame gets them
with its definition, because every evaluation starts from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as sf

from godwit.errors import DefinitionError
from godwit.model.routing import Routing
from godwit.spark.define.operator_frame import CONTENT, content
from godwit.spark.pyspark_api.schemas import input_schema
from godwit.transport.wire import HASH

INITIAL_BATCH = -1  # the number of the batch that takes up the initial rows, before all batches of the stream


def initial_rows(initial: DataFrame | GroupedData, key_schema: pa.Schema) -> DataFrame:
    """The rows of `initialState`, which PySpark users pass as a grouped DataFrame."""
    frame = initial._df if isinstance(initial, GroupedData) else initial
    if frame.isStreaming:
        raise DefinitionError(
            "initialState is a streaming DataFrame, and must be a batch DataFrame", todo="Read it with spark.read"
        )
    missing = [key for key in key_schema.names if key not in frame.columns]
    if missing:
        raise DefinitionError(
            f"initialState has no key column {missing[0]!r}", todo="Give it the same key columns as the input"
        )
    if isinstance(initial, GroupedData) and _grouped_by(initial) != key_schema.names:
        raise DefinitionError(
            f"initialState is grouped by {', '.join(_grouped_by(initial))}, the operator by {', '.join(key_schema.names)}",
            todo="Group both by the same columns, in the same order",
        )
    schema = input_schema(frame)
    mistyped = [key for key in key_schema if schema.field(key.name).type != key.type]
    if mistyped:
        raise DefinitionError(
            f"key column {mistyped[0].name!r} of initialState is {schema.field(mistyped[0].name).type}, not {mistyped[0].type}",
            todo="Cast the column to the type that it has in the input",
        )
    return frame


def _grouped_by(grouped: GroupedData) -> list[str]:
    """The columns of a groupBy, read from the JVM. An attribute there reads `name#17L` or `'name`."""
    jvm_grouped: Any = grouped._jgd
    expressions = jvm_grouped.groupingExprs()
    shown = [str(expressions.apply(i).toString()) for i in range(expressions.size())]
    return [name.lstrip("'").replace("`", "").partition("#")[0] for name in shown]


def by_key(frame: DataFrame) -> DataFrame:
    """Hashed rows, those of a key together, in an order that is the same when Spark computes a partition again."""
    hashed = frame.withColumn(CONTENT, content(frame.schema.fields))
    return hashed.repartition(sf.col(HASH)).sortWithinPartitions(HASH, CONTENT).drop(CONTENT)


def by_owner(frame: DataFrame, routing: Routing) -> dict[str, bytes]:
    """Hashed rows, collected and divided among the hosts: an Arrow stream for each host that gets rows."""
    table = frame.toArrow()
    owner = np.array(routing.owners)[table.column(HASH).to_numpy() % len(routing.owners)]
    streams = {}
    for position in np.unique(owner).tolist():
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table.take(np.flatnonzero(owner == position)))
        streams[routing.hosts[position]] = stream.getvalue().to_pybytes()
    return streams
