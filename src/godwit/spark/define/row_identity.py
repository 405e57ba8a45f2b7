"""By which columns a row is recognised when Spark reads its batch again: those that the user names, or those of Kafka.

A row of Kafka has an identity of its own: topic, partition and offset. An operator uses it by itself if the input still has
these columns, and if every row of the input is one row of Kafka: a row that was exploded or joined comes several times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from godwit.spark.define.operator_definition import Definition

KAFKA: Final = "kafka"
ROW_BY_ROW: Final = frozenset(("Project", "Filter", "SubqueryAlias", "EventTimeWatermark"))


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """`lane`: columns that name the ordered input of a row. `sequence`: a column that ascends within it."""

    lane: tuple[str, ...]
    sequence: str


def row_identity(definition: Definition) -> RowIdentity | None:
    """The columns that the user has named, or Kafka's; None if there are none."""
    given = definition.given
    if "lane" in given:
        lane = given["lane"]
        return RowIdentity((lane,) if isinstance(lane, str) else tuple(lane), given["sequence"])
    return _of_kafka(definition.frame) if definition.frame.isStreaming else None


def _of_kafka(frame: DataFrame) -> RowIdentity | None:
    jframe: Any = frame._jdf
    plan = jframe.queryExecution().analyzed()
    source = _only_source(plan)
    if source is None or source.sourceName() != KAFKA:
        return None
    names = _names(plan.output(), {attribute.exprId().id(): name for name, attribute in _attributes(source).items()})
    if not {"partition", "offset"} <= names.keys():
        return None
    if "topic" in names:
        return RowIdentity((names["topic"], names["partition"]), names["offset"])
    return RowIdentity((names["partition"],), names["offset"]) if _reads_one_topic(source) else None


def _only_source(node: Any) -> Any:
    """The source of a plan that gives each row of it at most once; None for other plans."""
    while node.nodeName() in ROW_BY_ROW:
        node = node.child()
    return node if node.nodeName() == "StreamingRelationV2" else None


def _attributes(source: Any) -> dict[str, Any]:
    output = source.output()
    return {output.apply(at).name(): output.apply(at) for at in range(output.size())}


def _names(output: Any, wanted: dict[int, str]) -> dict[str, str]:
    """Which columns of the output are these columns of the source, under which names."""
    columns = [output.apply(at) for at in range(output.size())]
    return {wanted[each.exprId().id()]: each.name() for each in columns if each.exprId().id() in wanted}


def _reads_one_topic(source: Any) -> bool:
    options = source.extraOptions()
    subscribed, assigned = options.get("subscribe"), options.get("assign")
    if subscribed is not None:
        return "," not in subscribed
    return assigned is not None and len(json.loads(assigned)) == 1
