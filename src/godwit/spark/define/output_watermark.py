"""`eventTimeColumnName`: the output column by which operators behind this one use the watermark of the input.

Spark marks the column with the delay of the watermark; a later operator then knows its event time column, and its watermark is
that of the query. Here the column gets the same mark. That no output is older than the watermark is checked on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from godwit.errors import DefinitionError
from godwit.spark.define.operator_definition import Definition

DELAY: Final = "spark.watermarkDelayMs"  # Spark's mark on a column with a watermark
FROM_OPERATOR: Final = "godwit.watermarkOf"  # names the operator whose input has the watermark


def check_output_watermark(definition: Definition, schema: pa.Schema) -> None:
    """`schema`: of the output."""
    column = definition.event_time_column
    if not column:
        return
    if column not in schema.names:
        raise DefinitionError(
            f"eventTimeColumnName={column!r} is not a column of the output",
            todo=f"The columns of outputStructType are {', '.join(schema.names)}",
        )
    kind: Any = schema.field(column).type
    ends = kind.field("end").type if pa.types.is_struct(kind) and kind.get_field_index("end") >= 0 else kind
    if not pa.types.is_timestamp(ends):
        raise DefinitionError(
            f"eventTimeColumnName={column!r} is {kind}, and an event time must be a timestamp or a window",
            todo="Name a column of type timestamp",
        )
    if _delay_ms(definition.frame) is None:
        raise DefinitionError(
            f"eventTimeColumnName={column!r} needs a watermark on the input, and the input has none",
            todo="Call withWatermark(column, delay) on the input",
        )


def with_output_watermark(definition: Definition, output: DataFrame) -> DataFrame:
    column = definition.event_time_column
    if not column:
        return output
    mark = {DELAY: _delay_ms(definition.frame), FROM_OPERATOR: definition.name}
    return output.withMetadata(column, mark)


def _delay_ms(frame: Any) -> int | None:
    """As in Spark, the first watermark of the input, whether or not the input still has its column."""
    delay = next(_delays(frame._jdf.queryExecution().analyzed()), None)
    logical = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.plans.logical
    return None if delay is None else int(logical.EventTimeWatermark.getDelayMs(delay))


def united_watermarks(frame: Any) -> int:
    """How many watermarks meet in a union of the input, at least 1. In Spark the slowest of them counts."""
    return max(_united(frame._jdf.queryExecution().analyzed()), 1)


def _united(node: Any) -> int:
    if node.nodeName() == "EventTimeWatermark":
        return 1
    children = node.children()
    counts = [_united(children.apply(at)) for at in range(children.size())]
    return sum(counts) if node.nodeName() == "Union" else max(counts, default=0)


def _delays(node: Any) -> Iterator[Any]:
    if node.nodeName() == "EventTimeWatermark":
        yield node.delay()
    children = node.children()
    for at in range(children.size()):
        yield from _delays(children.apply(at))
