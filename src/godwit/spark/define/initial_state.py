"""The rows behind `initialState`: checked against the operator, and divided among hosts.

A stream takes them up once, through routers, before its first batch; an operator over a batch DataFrame ships them with its
definition, because every evaluation starts from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData

from godwit.errors import DefinitionError
from godwit.model.routing import Routing
from godwit.spark.define.operators import input_schema
from godwit.transport.wire import HASH


def initial_rows(initial: DataFrame | GroupedData, key_schema: pa.Schema) -> DataFrame:
    """The rows, which PySpark users give as a grouped DataFrame."""
    frame = initial._df if isinstance(initial, GroupedData) else initial
    if frame.isStreaming:
        raise DefinitionError("initialState must be a batch DataFrame")
    missing = [key for key in key_schema.names if key not in frame.columns]
    if missing:
        raise DefinitionError(f"initialState has no key column {missing[0]!r}", todo="Name key columns as in the input")
    if isinstance(initial, GroupedData) and _grouped_by(initial) != key_schema.names:
        raise DefinitionError(
            f"initialState is grouped by {', '.join(_grouped_by(initial))}, the input by {', '.join(key_schema.names)}",
            todo="Group both by the same columns, in the same order",
        )
    schema = input_schema(frame)
    other = [key for key in key_schema if schema.field(key.name).type != key.type]
    if other:
        raise DefinitionError(
            f"key column {other[0].name!r} of initialState is {schema.field(other[0].name).type}, not {other[0].type}",
            todo="Cast it to the type it has in the input",
        )
    return frame


def _grouped_by(grouped: GroupedData) -> list[str]:
    """The columns of a groupBy, which PySpark itself does not show; an attribute reads `name#17L` or `'name`."""
    found: Any = grouped._jgd
    expressions = found.groupingExprs()
    shown = [str(expressions.apply(i).toString()) for i in range(expressions.size())]
    return [name.lstrip("'").replace("`", "").partition("#")[0] for name in shown]


def by_owner(frame: DataFrame, routing: Routing) -> dict[str, bytes]:
    """Hashed rows, collected and divided among hosts: an Arrow stream for each that gets any."""
    table = frame.toArrow()
    owner = np.array(routing.owners)[table.column(HASH).to_numpy() % len(routing.owners)]
    found = {}
    for position in np.unique(owner).tolist():
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table.take(np.flatnonzero(owner == position)))
        found[routing.hosts[position]] = stream.getvalue().to_pybytes()
    return found
