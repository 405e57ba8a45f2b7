"""From a DataFrame and a processor to a DataFrame: checks a definition whole, on the driver, before anything runs.

What cannot be supported is refused here, never ignored later. The result is plain `mapInArrow` over the input with one more
column, the routing hash; everything else happens in the router and on hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, TypedDict, cast

import cloudpickle
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField, StructType

from godwit.errors import DefinitionError, GodwitError
from godwit.model.progress import BatchRef
from godwit.model.watermark import Policy
from godwit.runtime.processor.merging import Merge, check_event_time
from godwit.runtime.processor.native import NativeAdapter, Processor
from godwit.runtime.processor.spec import Operator, OperatorSpec, TimeMode
from godwit.runtime.router.lanes import EXTRA
from godwit.runtime.router.route import Numbering, Route, Task
from godwit.runtime.router.router import Router
from godwit.spark.pyspark_api.schemas import parse_ddl
from godwit.spark.pyspark_api.stateful import PandasAdapter, RowAdapter, describe
from godwit.state.keys import KeyCodec
from godwit.transport.wire import CHECK, HASH

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_TIME_MODES: dict[str, TimeMode] = {"none": "none", "processingtime": "processingTime", "eventtime": "eventTime"}
_DELAY = "spark.watermarkDelayMs"
_BINARY = "UTF8_BINARY"  # how Spark compares strings unless told otherwise
INITIAL_BATCH = -1
CONTENT, LANE, SEQUENCE = "__godwit_content", "__godwit_lane", "__godwit_sequence"
PARTITION = "__godwit_partition"
_NO_HASH = ("map<", "variant", "geometry", "geography")  # types that Spark SQL does not hash

# Nodes of a logical plan that give the same rows in the same order whenever a batch is computed again.
ORDER_KEEPING = frozenset(
    "ArrowEvalPython BatchEvalPython CollectMetrics DataSourceV2Relation DataSourceV2ScanRelation DeserializeToObject "
    "EventTimeWatermark Expand Filter Generate LocalRelation LogicalRDD LogicalRelation MapElements MapInArrow MapInPandas "
    "MapPartitions OneRowRelation Project PythonDataSource PythonMapInArrow Range Relation ResolvedHint SerializeFromObject "
    "StreamingDataSourceV2Relation StreamingDataSourceV2ScanRelation StreamingExecutionRelation StreamingRelation "
    "StreamingRelationV2 SubqueryAlias Union View".split()
)


class OperatorOptions(TypedDict, total=False):
    """What can be said about an operator beside PySpark's own arguments.

    nullKeys: "error" (the default) or "bucket": rows whose key is null share a state of their own.
    watermarkPolicy: "max" as Spark does (the fastest partition leads) or "min" (the slowest holds time back).
    timeout_s: how long one call of the processor may take before it counts as hanging (60).
    value_bytes_max: the largest single state value (64 MiB).
    dead_letters: whether rows and timers that the processor fails on are set aside, and the query goes on without them
    (False); `flock.dead_letters(name)` shows them.
    lane, sequence: columns that identify rows, for sources that may cut a batch into other partitions when it is read
    again, e.g. lane=["topic", "partition"], sequence="offset".
    """

    nullKeys: str
    watermarkPolicy: str
    timeout_s: float
    value_bytes_max: int
    dead_letters: bool
    lane: str | Sequence[str]
    sequence: str


DEFAULTS: OperatorOptions = {
    "nullKeys": "error",
    "watermarkPolicy": "max",
    "timeout_s": 60.0,
    "value_bytes_max": 64 << 20,
    "dead_letters": False,
}


@dataclass(frozen=True, slots=True)
class Definition:
    """What a user asked for."""

    frame: DataFrame
    keys: tuple[str, ...]
    processor: Any
    name: str
    flavour: Literal["row", "pandas", "native"]
    output: StructType | str | None
    output_mode: str
    time_mode: str
    given: OperatorOptions

    @property
    def options(self) -> OperatorOptions:
        return {**DEFAULTS, **self.given}


def build(definition: Definition) -> Operator:
    """Check it and make what hosts need of it."""
    name = checked_name(definition.name)
    try:
        return _build(definition)
    except GodwitError as error:
        raise error.at(operator=name) from error.__cause__


def checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} is not a name for an operator", todo="Use letters, digits, '_', '-' and '.', at most 100"
        )
    return name


def _build(definition: Definition) -> Operator:
    frame = definition.frame
    _check_frame(frame)
    _check_choices(definition)
    options = definition.options
    time_mode = _time_mode(definition)
    tz = session_zone(frame)
    schema = input_schema(frame)
    _check_columns(definition, schema)
    _check_time(definition, time_mode)
    key_schema = pa.schema([schema.field(key) for key in definition.keys])
    KeyCodec(key_schema, tz)
    event_time, delay_ms = _event_time(frame, time_mode)
    adapter = _adapter(definition, schema, key_schema, time_mode, tz)
    spec = OperatorSpec(
        name=definition.name,
        processor=type(definition.processor).__qualname__,
        flavour=definition.flavour,
        key_schema=key_schema,
        output_schema=adapter.output_schema,
        variables=adapter.variables,
        time_mode=time_mode,
        event_time=event_time,
        delay_ms=delay_ms,
        watermark_policy=cast(Policy, options["watermarkPolicy"]),
        lateness_ms=getattr(definition.processor, "allowed_lateness_ms", 0),
        null_keys=cast(Literal["error", "bucket"], options["nullKeys"]),
        tz=tz,
        timeout_s=options["timeout_s"],
        ephemeral=not frame.isStreaming,
        merge=_merge(definition, adapter, event_time),
        dead_letters=options["dead_letters"],
    )
    return Operator(spec, _pickled(adapter))


def _check_frame(frame: Any) -> None:
    if not isinstance(frame, DataFrame):
        raise DefinitionError(
            f"a DataFrame is expected, not {type(frame).__name__}",
            todo="Give the rows as they are, and name the keys beside",
        )


def _check_choices(definition: Definition) -> None:
    options = definition.options
    unknown = sorted(set(options) - set(OperatorOptions.__annotations__))
    if unknown:
        raise DefinitionError(
            f"unknown argument {unknown[0]!r}", todo=f"Use {', '.join(OperatorOptions.__annotations__)}"
        )
    for option, value, allowed in (
        ("outputMode", str(definition.output_mode).lower(), ("append", "update")),
        ("nullKeys", options["nullKeys"], ("error", "bucket")),
        ("watermarkPolicy", options["watermarkPolicy"], ("max", "min")),
        ("dead_letters", options["dead_letters"], (True, False)),
    ):
        if value not in allowed:
            raise DefinitionError(
                f"{option}={value!r} is not supported", todo=f"Use one of {', '.join(map(str, allowed))}"
            )
    _check_limits(definition)
    if ("lane" in options) != ("sequence" in options):
        raise DefinitionError("lane and sequence columns go together", todo="Name both, or neither")


def _check_limits(definition: Definition) -> None:
    timeout_s: Any = definition.options["timeout_s"]
    bytes_max: Any = definition.options["value_bytes_max"]
    if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise DefinitionError(f"timeout_s={timeout_s!r} is not a time", todo="Give seconds above 0")
    if not isinstance(bytes_max, int) or bytes_max < 1:
        raise DefinitionError(
            f"value_bytes_max={bytes_max!r} is not a size", todo="Give a whole number of bytes above 0"
        )
    if definition.flavour == "native" and "value_bytes_max" in definition.given:
        raise DefinitionError(
            "value_bytes_max is not supported for native processors",
            todo="Leave it out: their state has the size they declare",
        )


def _check_columns(definition: Definition, schema: pa.Schema) -> None:
    lane = definition.given.get("lane", ())
    named = [*definition.keys, *((lane,) if isinstance(lane, str) else lane)]
    named += [definition.given["sequence"]] if "sequence" in definition.given else []
    missing = [name for name in named if name not in schema.names]
    if missing or not definition.keys:
        raise DefinitionError(
            f"the input has no column {missing[0]!r}" if missing else "no key column was named",
            todo=f"Its columns are {', '.join(schema.names)}",
        )
    again = [key for key in definition.keys if definition.keys.count(key) > 1]
    if again:
        raise DefinitionError(f"key column {again[0]!r} is named twice", todo="Name each key column once")
    sequence = definition.given.get("sequence")
    if sequence is not None and not pa.types.is_integer(schema.field(sequence).type):
        raise DefinitionError(
            f"sequence column {sequence!r} is {schema.field(sequence).type}, not a whole number",
            todo="Name a column of whole numbers that ascend, such as Kafka's offset",
        )
    reserved = [name for name in schema.names if name.startswith("__godwit")]
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if reserved or twice:
        raise DefinitionError(f"column {(reserved or twice)[0]!r} is reserved or there twice", todo="Rename it before")
    kinds = [(key, definition.frame.schema[key].dataType) for key in definition.keys]
    collated = [key for key, kind in kinds if getattr(kind, "collation", _BINARY) != _BINARY]
    if collated:
        raise DefinitionError(
            f"key column {collated[0]!r} is collated, and keys are compared byte by byte",
            todo="Group by a column that is the same text for equal keys, such as lower(...)",
        )


def _check_time(definition: Definition, time_mode: TimeMode) -> None:
    """Windows work by the watermark: without one, or on a frame that ends, they would never be given out."""
    column = getattr(definition.processor, "time_column", None)
    if definition.flavour != "native" or (column is None and time_mode == "none"):
        return
    if not definition.frame.isStreaming:
        raise DefinitionError(
            "timers and windows of a native processor need a streaming DataFrame: nothing moves time on in a batch",
            todo="Use Spark's own window() on batch DataFrames",
        )
    if column is not None and column != _event_time(definition.frame, time_mode)[0]:
        raise DefinitionError(
            f"the windows go by column {column!r}, which is not the event time of the operator",
            todo=f"Call withWatermark({column!r}, delay) on the input and pass timeMode='eventTime'",
        )


def _time_mode(definition: Definition) -> TimeMode:
    mode = _TIME_MODES.get(str(definition.time_mode).lower())
    if mode is None:
        raise DefinitionError(
            f"timeMode={definition.time_mode!r} is not known", todo="Use none, processingTime or eventTime"
        )
    return mode


def input_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema in which Spark hands the rows to Python."""
    return _arrow_schema(frame.schema, session_zone(frame), "the input")


def session_zone(frame: DataFrame) -> str:
    return str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))


def _event_time(frame: DataFrame, time_mode: TimeMode) -> tuple[str | None, int]:
    """The watermark that `withWatermark` put on a column; Spark takes it off batch DataFrames, which need none."""
    if time_mode != "eventTime" or not frame.isStreaming:
        return None, 0
    marked = [field for field in frame.schema.fields if _DELAY in (field.metadata or {})]
    if len(marked) != 1:
        raise DefinitionError(
            "timeMode='eventTime' needs one column with a watermark in the input"
            if not marked
            else f"columns {', '.join(field.name for field in marked)} all have a watermark",
            todo="Call withWatermark(column, delay) on the input, and keep that column",
        )
    return marked[0].name, int(marked[0].metadata[_DELAY])


def _adapter(
    definition: Definition, schema: pa.Schema, key_schema: pa.Schema, time_mode: TimeMode, tz: str
) -> RowAdapter | PandasAdapter | NativeAdapter:
    if definition.flavour == "native":
        if not isinstance(definition.processor, Processor):
            raise DefinitionError(f"process() takes a godwit.Processor, not {type(definition.processor).__name__}")
        return NativeAdapter(definition.processor, schema, definition.keys, tz)
    if not isinstance(definition.processor, StatefulProcessor):
        raise DefinitionError(
            f"a pyspark StatefulProcessor is expected, not {definition.processor!r:.80}",
            todo="Give an instance of one; native processors go through flock.process",
        )
    _pickled(definition.processor)
    declared = describe(definition.processor, time_mode, tz)
    if declared.removed:
        raise DefinitionError(
            f"deleteIfExists({declared.removed[0]!r}) is not supported",
            todo="Leave the variable declared, or start with a fresh checkpoint",
        )
    flavour = RowAdapter if definition.flavour == "row" else PandasAdapter
    return flavour(
        definition.processor,
        declared.variables,
        key_schema,
        _output_schema(definition.output, tz),
        time_mode=time_mode,
        tz=tz,
        value_bytes_max=definition.options["value_bytes_max"],
    )


def _merge(definition: Definition, adapter: Any, event_time: str | None) -> Merge:
    if definition.flavour != "native":
        if isinstance(getattr(definition.processor, "merge", None), Mapping):
            raise DefinitionError(
                "a StatefulProcessor cannot declare a merge: Spark gives it every row, and so does Godwit",
                todo="Write it as a godwit.Processor, or call the attribute something else",
            )
        return ()
    merge: Merge = adapter.merge
    check_event_time(merge, event_time, definition.processor.allowed_lateness_ms)
    if merge and "lane" in definition.given:
        raise DefinitionError(
            "rows cannot be merged where lane and sequence columns tell them apart: when the batch is read again it may be cut "
            "otherwise, and the same rows would not come together",
            todo="Declare no merge, or leave lane and sequence out if the source cuts a batch into the same partitions again",
        )
    return merge


def _output_schema(output: StructType | str | None, tz: str) -> pa.Schema:
    struct = parse_ddl(output) if isinstance(output, str) else output
    if not isinstance(struct, StructType):
        raise DefinitionError(
            f"outputStructType must be a StructType or a DDL string, not {output!r:.80}",
            todo="Name the columns that the processor yields and their types, such as 'car string, mean double'",
        )
    schema = _arrow_schema(struct, tz, "outputStructType")
    for field, back in zip(struct, from_arrow_schema(schema, prefer_timestamp_ntz=True), strict=True):
        if field.dataType.simpleString() != back.dataType.simpleString():
            kind = field.dataType.simpleString()
            raise DefinitionError(f"outputStructType has a column {field.name!r} of type {kind}, which Arrow has not")
    return schema


def _arrow_schema(struct: StructType, tz: str, what: str) -> pa.Schema:
    try:
        return to_arrow_schema(struct, timezone=tz)
    except PySparkException as error:
        raise DefinitionError(f"{what} has a column of a type that Python workers cannot have: {error}") from error


def _pickled(thing: Any) -> bytes:
    try:
        return cast(bytes, cloudpickle.dumps(thing))
    except Exception as error:
        raise DefinitionError(
            f"the processor cannot be sent to hosts: {type(error).__name__}: {error}",
            todo="Open connections, files and locks in init(), not in the constructor",
        ) from error


# -- the frame -------------------------------------------------------------------------------------------------------


def numbering(definition: Definition) -> Numbering:
    """What tells the rows of a batch apart when Spark reads it again."""
    if "lane" in definition.given:
        return "columns"
    plan: Any = definition.frame._jdf.queryExecution().analyzed()
    return "content" if _shuffles(plan) else "position"


def _shuffles(node: Any) -> bool:
    """Whether rows may arrive in another order when the input is computed again. What is not known to keep it, may not."""
    if node.nodeName() not in ORDER_KEEPING:
        return True
    children = node.children()
    return any(_shuffles(children.apply(at)) for at in range(children.size()))


def with_identity(definition: Definition, numbered_by: Numbering) -> DataFrame:
    """The input with what the router needs behind it: the check, the columns of the numbering, then the routing hash."""
    frame = definition.frame
    if numbered_by != "content":
        frame = frame.withColumn(CHECK, _check(frame.schema.fields))
    match numbered_by:
        case "content":
            content = sf.xxhash64(*(_comparable(field) for field in frame.schema.fields))
            frame = frame.withColumn(CHECK, sf.shiftright(content, 32).cast("int")).withColumn(CONTENT, content)
        case "columns":
            lane = definition.given["lane"]
            names = [lane] if isinstance(lane, str) else list(lane)
            frame = frame.withColumn(LANE, sf.xxhash64(*(sf.col(f"`{name}`") for name in names)))
            frame = frame.withColumn(SEQUENCE, sf.col(f"`{definition.given['sequence']}`").cast("long"))
        case "position":
            pass
    return hashed(frame, definition.keys)


def _check(fields: Sequence[StructField]) -> Any:
    """32 bits of a row's content, by which a row that comes again with other values is noticed. Some types have no hash."""
    kinds = [(field.name, field.dataType.simpleString()) for field in fields]
    hashable = [sf.col(f"`{name}`") for name, kind in kinds if not any(word in kind for word in _NO_HASH)]
    return sf.hash(*hashable) if hashable else sf.lit(0)


def _comparable(field: StructField) -> Any:
    """Maps have no hash in Spark SQL: their JSON stands for them."""
    column = sf.col(f"`{field.name}`")
    return sf.to_json(sf.struct(column)) if "map<" in field.dataType.simpleString() else column


def hashed(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The input with the routing hash as its last column. Zeros of both signs are one key, as in Spark's own grouping."""
    columns = [_normalised(frame, key) for key in keys]
    return frame.withColumn(HASH, sf.xxhash64(*columns))


def _normalised(frame: DataFrame, key: str) -> Any:
    kind: DataType = frame.schema[key].dataType
    column = sf.col(f"`{key}`")
    return column + sf.lit(0.0).cast(kind) if isinstance(kind, (FloatType, DoubleType)) else column


def partitioned(frame: DataFrame) -> DataFrame:
    """The number of each row's partition behind all other columns.

    A union or a coalesce behind the operator gives partitions to tasks of other numbers, or several to one; lanes must not
    follow them.
    """
    return frame.withColumn(PARTITION, sf.spark_partition_id())


def with_ticks(frame: DataFrame, ticks: DataFrame) -> DataFrame:
    """The input behind a source of empty rows. In front, so that what timers put out leaves before the rows of the batch."""
    columns = [sf.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return ticks.select(*columns).unionByName(frame)


def routed(frame: DataFrame, route: Route, incarnation: str) -> DataFrame:
    """The operator itself: a router in every task."""
    user = len(frame.columns) - 2 - EXTRA[route.numbering] - int(route.checked)
    schema = to_arrow_schema(StructType(frame.schema.fields[:user]), timezone=session_zone(frame))
    output = from_arrow_schema(route.output_schema, prefer_timestamp_ntz=True)
    return frame.mapInArrow(_router_body(route, schema, incarnation), output)


def _router_body(
    route: Route, schema: pa.Schema, incarnation: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if len(batch))
        first = next(filled, None)
        task = on_lane(current_task(incarnation), first)
        given = filled if first is None else chain([first], filled)
        return Router(route, task).run((batch.select(batch.schema.names[:-1]) for batch in given), schema)

    return body


def on_lane(task: Task, first: pa.RecordBatch | None) -> Task:
    """The task with the lane that its first row tells. A partition without rows has no number: it carries nothing."""
    if first is None:
        return replace(task, lane=f"empty-{task.lane}", carries=False)
    partition = first.column(first.num_columns - 1)[0].as_py()
    return replace(task, lane="ticks" if partition is None else str(partition))


def current_task(incarnation: str) -> Task:
    """Which batch the Spark task that runs here works on; a task of a batch query has its stage as its scope."""
    context = TaskContext.get()
    if context is None:
        raise DefinitionError("a router runs only inside a Spark task")
    lane = str(context.partitionId())
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    if batch is None or query is None:
        scope = f"{incarnation}-{context.stageId()}"
        return Task(BatchRef(scope, scope, 0), lane, scope, attempt=context.taskAttemptId())
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    return Task(BatchRef(query, run, int(batch)), lane, attempt=context.taskAttemptId())
