"""Which watermarks an input may have, and `eventTimeColumnName`: the output column that carries the watermark on.

Spark marks the column with the delay of the watermark; a later operator then knows its event time column, and its watermark is
that of the query. Here the column gets the same mark. That no output is older than the watermark is checked on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from godwit.errors import DefinitionError
from godwit.spark.define.operator_definition import Definition

DELAY: Final = "spark.watermarkDelayMs"  # Spark's mark on a column with a watermark
ALLOW_MULTIPLE: Final = "spark.sql.streaming.statefulOperator.allowMultiple"
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


def has_watermark(frame: Any) -> bool:
    return _depth(frame._jdf.queryExecution().analyzed()) > 0


def _delay_ms(frame: Any) -> int | None:
    """As in Spark, the first watermark of the input, whether or not the input still has its column."""
    delay = next(_delays(frame._jdf.queryExecution().analyzed()), None)
    logical = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.plans.logical
    return None if delay is None else int(logical.EventTimeWatermark.getDelayMs(delay))


def check_watermarks(frame: Any, marked: list[StructField], follows_query: bool) -> None:
    """Refuse watermarks of the input that its operator cannot have. `marked`: the columns that are event times.

    As in Spark, no row is late where the column is gone (`window.end` of a window is such a case), and timers fire all the
    same. An operator that does not follow the watermark of the query computes one, from the rows that reach it.
    """
    depth = _depth(frame._jdf.queryExecution().analyzed())
    if depth == 0 or len(marked) > 1 or not (marked or follows_query):
        raise DefinitionError(
            "timeMode='eventTime' needs a column with a watermark, and the input has none"
            if not marked
            else f"columns {', '.join(field.name for field in marked)} all have a watermark, and there must be one",
            todo="Call withWatermark(column, delay) on the input once, and do not drop that column",
        )
    if depth > 1 and _one_watermark_on_a_way(frame):
        raise DefinitionError(
            "withWatermark is called on a DataFrame that has a watermark already, and Spark stops such a query when its "
            "watermark moves",
            todo="Call withWatermark once, at the source. Pass eventTimeColumnName to the operators between, so that the "
            "watermark goes on behind them",
        )
    if follows_query:
        return
    column = marked[0]
    if FROM_OPERATOR in column.metadata:
        raise DefinitionError(
            f"column {column.name!r} carries the watermark of operator {column.metadata[FROM_OPERATOR]!r}, and in real time, "
            "or with watermark_policy='min', an operator needs a watermark of its own",
            todo="Let one operator do both, or leave real_time and watermark_policy out",
        )
    if (count := _united(frame._jdf.queryExecution().analyzed())) > 1:
        raise DefinitionError(
            f"the input is a union of {count} streams with watermarks, and in real time, or with watermark_policy='min', an "
            "operator has one watermark: rows of a stream that is behind the others would be late",
            todo=f"Call withWatermark({column.name!r}, delay) once, on the union",
        )


def _one_watermark_on_a_way(frame: Any) -> bool:
    return str(frame.sparkSession.conf.get(ALLOW_MULTIPLE, "true")).lower() == "true"


def _depth(node: Any) -> int:
    """How many watermarks one row may pass."""
    children = node.children()
    deepest = max((_depth(children.apply(at)) for at in range(children.size())), default=0)
    return deepest + int(node.nodeName() == "EventTimeWatermark")


def _united(node: Any) -> int:
    """How many watermarks meet in a union of the input."""
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
