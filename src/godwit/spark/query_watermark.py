"""Spark's watermark of a batch, at the input of an operator: asked of the running query, in the driver.

A query has one watermark, from the rows behind every `withWatermark`, also from rows that a filter, a join or an aggregation
drops or holds back before the operator. What reaches an operator is that watermark, but for a few operators of Spark on the way
(a join of two streams) that hand on an earlier one. So this follows the plan from `withWatermark` to the operator, as Spark
does for its own stateful operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.errors import StaleRun
from godwit.runtime.messages import GetWatermark, SparkWatermark
from godwit.spark.checkpoint.run_admission import RunAdmission, active_query

# Operators of Spark whose output may have another watermark than their input, by the beginning of their class names.
_OF_THEIR_OWN: Final = ("StreamingSymmetricHashJoinExec", "FlatMapGroups", "TransformWithState")
_SINGLE: Final = "spark.sql.streaming.statefulOperator.allowMultiple"


@dataclass(frozen=True, slots=True)
class WatermarkPath:
    """The way of the watermark to a node of a plan: the least of its inputs, or what the node itself makes of it.

    Without inputs: `withWatermark` itself, where the watermark of the query begins.
    """

    inputs: tuple[WatermarkPath, ...] = ()
    node: Any = None

    def at(self, watermark_ms: int) -> int:
        """The watermark behind this node; 0 if there is none. Before the first rows it is 0 everywhere."""
        return watermark_ms and (self._handed_on(watermark_ms) or 0)

    def _handed_on(self, watermark_ms: int) -> int | None:
        """An operator by processing time hands no watermark on. Such an input does not count beside others."""
        if not self.inputs:
            return watermark_ms
        least = min((ms for path in self.inputs if (ms := path._handed_on(watermark_ms)) is not None), default=None)
        if self.node is None or least is None:
            return least
        handed_on = self.node.produceOutputWatermark(least)
        return int(handed_on.get()) if handed_on.isDefined() else None


@dataclass(frozen=True, slots=True)
class _Way:
    """How the watermark comes to an operator in a run of its query. `single`: rows are late up to the watermark itself."""

    run: str
    path: WatermarkPath
    single: bool


class QueryWatermarks:
    def __init__(self, spark: SparkSession, admission: RunAdmission) -> None:
        self._spark = spark
        self._admission = admission
        self._ways: dict[str, _Way] = {}  # by operator, in its last run

    def of_batch(self, request: GetWatermark) -> SparkWatermark:
        planned = self._planned(request)
        way = self._way(request.operator, request.run, planned)
        eviction_ms = way.path.at(planned.offsetSeqMetadata().batchWatermarkMs())
        before = planned.prevOffsetSeqMetadata()
        late_ms = way.path.at(before.get().batchWatermarkMs()) if before.isDefined() else 0
        return SparkWatermark(eviction_ms, eviction_ms if way.single else late_ms)

    def _planned(self, request: GetWatermark) -> Any:
        """The batch as Spark has planned it. A task of another batch or run is one that Spark has given up."""
        execution = active_query(self._spark, request.query)
        planned = None if execution is None else execution.lastExecution()
        is_run = execution is not None and execution.runId().toString() == request.run
        if planned is None or not is_run or planned.currentBatchId() != request.batch:
            raise StaleRun(
                f"batch {request.batch} in run {request.run} of query {request.query} is over",
                operator=request.operator,
                batch=request.batch,
            )
        return planned

    def moved(self, operator: str) -> bool:
        """Whether the next batch would have a later watermark than the last one of this run. Spark asks itself the same."""
        binding = self._admission.bindings.get(operator)
        execution = None if binding is None else active_query(self._spark, binding.query)
        last = None if execution is None else execution.lastExecution()
        if execution is None or last is None:
            return False
        path = self._way(operator, str(execution.runId().toString()), last).path
        return path.at(execution.watermarkTracker().currentWatermark()) > path.at(
            last.offsetSeqMetadata().batchWatermarkMs()
        )

    def _way(self, operator: str, run: str, planned: Any) -> _Way:
        known = self._ways.get(operator)
        if known is None or known.run != run:
            single = planned.offsetSeqMetadata().conf().get(_SINGLE)
            path = path_to(operator, planned.executedPlan())
            known = self._ways[operator] = _Way(run, path, single.isDefined() and single.get() == "false")
        return known


def path_to(operator: str, plan: Any) -> WatermarkPath:
    """`plan`: as Spark runs it. Where the operator is not found in it, the watermark of the query counts."""
    node = next((node for node in _nodes(plan) if _is_router_of(node, operator)), None)
    path = None if node is None else _path(node)
    return path or WatermarkPath()


def _path(node: Any) -> WatermarkPath | None:
    kind = str(node.getClass().getSimpleName())
    if kind == "EventTimeWatermarkExec":
        return WatermarkPath()
    inputs = tuple(path for child in _children(node) if (path := _path(child)) is not None)
    if not inputs:
        return None
    if kind.startswith(_OF_THEIR_OWN):
        return WatermarkPath(inputs, node)
    return WatermarkPath(inputs) if any(path.inputs for path in inputs) else WatermarkPath()


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> Sequence[Any]:
    """Also those of plans that Spark has put into a node."""
    kind = str(node.getClass().getSimpleName())
    if kind == "AdaptiveSparkPlanExec":
        return [node.executedPlan()]
    if kind.endswith("QueryStageExec"):
        return [node.plan()]
    if kind == "InMemoryTableScanExec":
        return [node.relation().cachedPlan()]
    children = node.children()
    return [children.apply(at) for at in range(children.size())]


def _is_router_of(node: Any, operator: str) -> bool:
    return bool(node.nodeName() == "MapInArrow" and node.func().name() == f"godwit:{operator}")
