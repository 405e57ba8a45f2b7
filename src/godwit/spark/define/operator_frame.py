"""The DataFrame of an operator: the input, the columns by which rows are routed and recognised, and a router in every task.

The result is plain `mapInArrow` over the input. Everything else happens in the router and on the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField, StructType

from godwit.errors import DefinitionError
from godwit.model.progress import BatchRef
from godwit.runtime.router.lanes import EXTRA, EXTRA_BY_KEY
from godwit.runtime.router.route import Numbering, Route, Task
from godwit.runtime.router.router import FIRE_EVERY_S, Router
from godwit.spark.define.arguments import slots_of
from godwit.spark.define.operator_definition import Definition
from godwit.spark.define.progress_metrics import observed
from godwit.spark.define.row_identity import RowIdentity
from godwit.spark.pyspark_api.schemas import session_zone
from godwit.spark.realtime.reading_ahead import ReadingAhead
from godwit.spark.realtime.rows_as_they_come import as_they_come
from godwit.spark.task_errors import plain_errors
from godwit.transport.wire import CHECK, HASH

CONTENT, LANE, SEQUENCE = "__godwit_content", "__godwit_lane", "__godwit_sequence"
PARTITION, CAME_FROM, BATCH_MS = "__godwit_partition", "__godwit_came_from", "__godwit_batch_ms"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_NO_HASH = ("map<", "variant", "geometry", "geography")  # types that Spark SQL does not hash

# Nodes of a logical plan that give the same rows in the same order when Spark computes a batch again.
ORDER_KEEPING = frozenset(
    "ArrowEvalPython BatchEvalPython CollectMetrics DataSourceV2Relation DataSourceV2ScanRelation DeserializeToObject "
    "EventTimeWatermark Expand Filter Generate LocalRelation LogicalRDD LogicalRelation MapElements MapInArrow MapInPandas "
    "MapPartitions OneRowRelation Project PythonDataSource PythonMapInArrow Range Relation ResolvedHint SerializeFromObject "
    "StreamingDataSourceV2Relation StreamingDataSourceV2ScanRelation StreamingExecutionRelation StreamingRelation "
    "StreamingRelationV2 SubqueryAlias Union View".split()
)


def numbering(definition: Definition, identity: RowIdentity | None) -> Numbering:
    """By what a row of a batch is recognised when Spark reads the batch again."""
    if identity is not None:
        return "columns"
    if definition.real_time:  # rows are not collected and sorted: a batch that is read again is reverted first
        return "position"
    plan: Any = definition.frame._jdf.queryExecution().analyzed()
    return "content" if _shuffles(plan) else "position"


def _shuffles(node: Any) -> bool:
    """Whether rows may come in another order when Spark computes the input again. An unknown node counts as one that may.

    The exchange of an operator before this one does not count: the router of that operator puts its rows in order again.
    """
    if node.nodeName() not in ORDER_KEEPING and not _is_exchange_of_operator(node):
        return True
    children = node.children()
    return any(_shuffles(children.apply(at)) for at in range(children.size()))


def _is_exchange_of_operator(node: Any) -> bool:
    """Whether `exchanged` has made this node. No column of a user has the name of its column."""
    return node.nodeName() == "RepartitionByExpression" and PARTITION in node.partitionExpressions().mkString()


def with_identity(definition: Definition, numbered_by: Numbering, identity: RowIdentity | None) -> DataFrame:
    """The input and, behind its columns, those of the router: the check, the numbering, then the routing hash."""
    frame = definition.frame
    if numbered_by != "content":
        frame = frame.withColumn(CHECK, _check(frame.schema.fields))
    match numbered_by:
        case "content":
            whole = content(frame.schema.fields)
            frame = frame.withColumn(CHECK, sf.shiftright(whole, 32).cast("int")).withColumn(CONTENT, whole)
        case "columns":
            assert identity is not None, "rows are numbered by columns that identify them"
            frame = frame.withColumn(LANE, sf.xxhash64(*(sf.col(f"`{name}`") for name in identity.lane)))
            frame = frame.withColumn(SEQUENCE, sf.col(f"`{identity.sequence}`").cast("long"))
        case "position" if definition.by_key:
            frame = frame.withColumn(CAME_FROM, sf.spark_partition_id())
        case "position":
            pass
    return hashed(frame, definition.keys)


def _check(fields: Sequence[StructField]) -> Any:
    """32 bits of hash over a row, by which a replayed row with other values is noticed. Columns of some types have no hash."""
    kinds = [(field.name, field.dataType.simpleString()) for field in fields]
    hashable = [sf.col(f"`{name}`") for name, kind in kinds if not any(word in kind for word in _NO_HASH)]
    return sf.hash(*hashable) if hashable else sf.lit(0)


def content(fields: Sequence[StructField]) -> Any:
    """A hash over all columns of a row, by which rows that have no order of their own are put in order."""
    return sf.xxhash64(*map(_comparable, fields))


def _comparable(field: StructField) -> Any:
    """The column itself, or for a map, which Spark SQL does not hash, its JSON."""
    column = sf.col(f"`{field.name}`")
    return sf.to_json(sf.struct(column)) if "map<" in field.dataType.simpleString() else column


def hashed(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The input with the routing hash as its last column. 0.0 and -0.0 are one key, as in Spark's own grouping."""
    columns = [_normalised(frame, key) for key in keys]
    return frame.withColumn(HASH, sf.xxhash64(*columns))


def _normalised(frame: DataFrame, key: str) -> Any:
    kind: DataType = frame.schema[key].dataType
    column = sf.col(f"`{key}`")
    return column + sf.lit(0.0).cast(kind) if isinstance(kind, (FloatType, DoubleType)) else column


def partitioned(frame: DataFrame, partitions: int) -> DataFrame:
    """The input with the number of each row's lane as its last column: its partition, or one that follows from its key.

    The number of the task would not do: after a union or a coalesce, a task may have another number than its partition, or
    several partitions.
    """
    lane = sf.pmod(sf.col(HASH), sf.lit(partitions)).cast("int") if partitions else sf.spark_partition_id()
    return frame.withColumn(PARTITION, lane)


def timed(frame: DataFrame) -> DataFrame:
    """The input with the time of the batch as its last column.

    It stands before the exchange: if a batch has no rows, Spark would leave out the tasks that add a column behind it.
    """
    return frame.withColumn(BATCH_MS, _batch_ms())


def _batch_ms() -> Any:
    """In a query, Spark puts the time of the batch in the place of current_timestamp."""
    return sf.unix_millis(sf.current_timestamp())


def with_ticks(frame: DataFrame, ticks: DataFrame, partitions: int) -> DataFrame:
    """The ticks, then the input: where timers fire between two batches, their outputs come before the outputs of rows.

    If lanes are made by key, every lane gets a tick, because any of them may have timers that are due.
    """
    values = {BATCH_MS: _batch_ms()} | ({PARTITION: sf.col("tick")} if partitions else {})
    columns = [
        values.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name) for field in frame.schema.fields
    ]
    return ticks.select(*columns).unionByName(frame)


def ticking(frame: DataFrame, partitions: int) -> DataFrame:
    """The input, with a tick for every lane behind each of its partitions: where Spark runs no batches without data."""
    nullable = StructType([StructField(field.name, field.dataType) for field in frame.schema.fields])
    names = frame.columns

    def with_lanes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = None
        for batch in batches:
            schema = pa.schema([field.with_nullable(True) for field in batch.schema])
            last = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            yield last
        if last is not None:
            ticks: list[Any] = [pa.nulls(partitions, field.type) for field in last.schema]
            ticks[names.index(PARTITION)] = pa.array(range(partitions), pa.int32())
            if BATCH_MS in names:
                ticks[-1] = pa.repeat(last.column(last.num_columns - 1)[0], partitions)
            yield pa.RecordBatch.from_arrays(ticks, schema=last.schema)

    return frame.mapInArrow(with_lanes, nullable)


def batches_without_data(spark: SparkSession) -> bool:
    """Whether Spark may run a batch for timers alone."""
    return str(spark.conf.get(NO_DATA_BATCHES, "true")).lower() == "true"


def exchanged(frame: DataFrame, partitions: int) -> DataFrame:
    """The input, partitioned by lane. The rows that come from one partition stay in order."""
    return frame.repartitionById(partitions, sf.col(PARTITION)) if partitions else frame


def default_partitions(spark: SparkSession, hosts: int) -> int:
    """Into how many partitions the input is partitioned by key, unless the user or the checkpoint says otherwise."""
    session: Any = spark._jsparkSession
    if session.sessionState().conf().contains(SHUFFLE_PARTITIONS):
        return int(spark.conf.get(SHUFFLE_PARTITIONS) or 0)
    return max(1, slots_of(spark) - hosts)


def routed(frame: DataFrame, route: Route, incarnation: str) -> DataFrame:
    """The output of the operator: every task runs a router."""
    extra = (EXTRA_BY_KEY if route.partitions else EXTRA)[route.numbering]
    user = len(frame.columns) - 2 - extra - int(route.checked) - int(route.timed)
    schema = to_arrow_schema(StructType(frame.schema.fields[:user]), timezone=session_zone(frame))
    output = from_arrow_schema(route.output_schema, prefer_timestamp_ntz=True)
    if route.real_time:
        frame = as_they_come(frame, round(FIRE_EVERY_S * 1_000) if route.timers else 0)
    return observed(frame.mapInArrow(_router_body(route, schema, incarnation), output), route)


def _router_body(
    route: Route, schema: pa.Schema, incarnation: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled: Iterator[pa.RecordBatch] = (batch for batch in batches if len(batch))
        if route.real_time:
            filled = iter(ReadingAhead(filled))
        first = next(filled, None)
        task = current_task(incarnation)
        if not route.real_time:  # the first row may be a tick then, and a batch that is replayed is reverted first
            task = on_lane(task, first, route.timed)
        given = filled if first is None else chain([first], filled)
        last = -2 if route.timed else -1
        with plain_errors(route.controller, route.token):
            yield from Router(route, task).run((batch.select(batch.schema.names[:last]) for batch in given), schema)

    body.__name__ = f"godwit:{route.operator}"  # Spark shows the name in plans: in its UI, and in explain()
    return body


def on_lane(task: Task, first: pa.RecordBatch | None, timed: bool = False) -> Task:
    """The task on the lane of its first row. A partition without rows has no number, and its lane carries no rows."""
    if first is None:
        return replace(task, lane=f"empty-{task.lane}", carries=False)
    partition, *time = (column[0].as_py() for column in first.columns[-2 if timed else -1 :])
    return replace(task, lane="ticks" if partition is None else str(partition), batch_ms=time[0] if time else None)


def current_task(incarnation: str) -> Task:
    """The batch and lane of the Spark task that runs this code. In a batch query the scope is the stage."""
    context = TaskContext.get()
    if context is None:
        raise DefinitionError(
            "a router runs only inside a Spark task", todo="Start a query on the DataFrame of the operator"
        )
    lane = str(context.partitionId())
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    if batch is None or query is None:
        scope = f"{incarnation}-{context.stageId()}"
        return Task(BatchRef(scope, scope, 0), lane, scope, attempt=context.taskAttemptId())
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    return Task(BatchRef(query, run, int(batch)), lane, attempt=context.taskAttemptId())
