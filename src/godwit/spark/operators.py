"""From a DataFrame and a processor to a DataFrame: checks a definition whole, on the driver, before anything runs.

What cannot be supported is refused here, never ignored later. The result is plain `mapInArrow` over the input with one more
column, the routing hash; everything else happens in the router and on hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import cloudpickle
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from godwit.errors import DefinitionError
from godwit.model.progress import BatchRef
from godwit.model.watermark import Policy
from godwit.runtime.native import NativeAdapter, Processor
from godwit.runtime.router import Route, Router, Task
from godwit.runtime.spec import Operator, OperatorSpec, TimeMode
from godwit.spark.stateful import PandasAdapter, RowAdapter, describe
from godwit.state.keys import KeyCodec
from godwit.transport.wire import HASH

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_TIME_MODES: dict[str, TimeMode] = {"none": "none", "processingtime": "processingTime", "eventtime": "eventTime"}
_DELAY = "spark.watermarkDelayMs"
INITIAL_BATCH = -1


@dataclass(frozen=True, slots=True)
class Definition:
    """What a user asked for."""

    frame: DataFrame
    keys: tuple[str, ...]
    processor: Any
    name: str
    flavour: Literal["row", "pandas", "native"]
    output: StructType | str | None
    outputMode: str
    timeMode: str
    nullKeys: str
    watermarkPolicy: str
    timeout_s: float
    value_bytes_max: int


def build(definition: Definition) -> Operator:
    """Check it and make what hosts need of it."""
    name = checked_name(definition.name)
    try:
        return _build(definition)
    except DefinitionError as error:
        raise error.at(operator=name) from error.__cause__


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} is not a name for an operator", todo="Use letters, digits, '_', '-' and '.', at most 100"
        )
    return name


def _build(definition: Definition) -> Operator:
    frame = definition.frame
    _check_choices(definition)
    time_mode = _time_mode(definition)
    tz = session_zone(frame)
    schema = input_schema(frame)
    missing = [key for key in definition.keys if key not in schema.names]
    if missing or not definition.keys:
        raise DefinitionError(
            f"the input has no column {missing[0]!r} to use as a key" if missing else "no key column was named",
            todo=f"Its columns are {', '.join(schema.names)}",
        )
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
        watermark_policy=cast(Policy, definition.watermarkPolicy),
        lateness_ms=getattr(definition.processor, "allowed_lateness_ms", 0),
        null_keys=cast(Literal["error", "bucket"], definition.nullKeys),
        tz=tz,
        timeout_s=definition.timeout_s,
        ephemeral=not frame.isStreaming,
    )
    return Operator(spec, _pickled(adapter))


def _check_choices(definition: Definition) -> None:
    for option, value, allowed in (
        ("outputMode", definition.outputMode.lower(), ("append", "update")),
        ("nullKeys", definition.nullKeys, ("error", "bucket")),
        ("watermarkPolicy", definition.watermarkPolicy, ("max", "min")),
    ):
        if value not in allowed:
            raise DefinitionError(f"{option}={value!r} is not supported", todo=f"Use one of {', '.join(allowed)}")
    if definition.timeout_s <= 0:
        raise DefinitionError(f"timeout_s={definition.timeout_s} is not a time", todo="Give seconds above 0")


def _time_mode(definition: Definition) -> TimeMode:
    mode = _TIME_MODES.get(str(definition.timeMode).lower())
    if mode is None:
        raise DefinitionError(
            f"timeMode={definition.timeMode!r} is not known", todo="Use none, processingTime or eventTime"
        )
    return mode


def input_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema in which Spark hands the rows to Python."""
    return to_arrow_schema(frame.schema, timezone=session_zone(frame))


def session_zone(frame: DataFrame) -> str:
    return str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))


def _event_time(frame: DataFrame, time_mode: TimeMode) -> tuple[str | None, int]:
    """The watermark that `withWatermark` put on a column."""
    if time_mode != "eventTime":
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
            f"a pyspark StatefulProcessor is expected, not {type(definition.processor).__name__}",
            todo="Native processors go through flock.process",
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
        to_arrow_schema(_output_type(definition.output), timezone=tz),
        time_mode=time_mode,
        tz=tz,
        value_bytes_max=definition.value_bytes_max,
    )


def _output_type(output: StructType | str | None) -> StructType:
    try:
        parsed = StructType.fromDDL(output) if isinstance(output, str) else output
    except Exception as error:
        raise DefinitionError(f"outputStructType {output!r} is not a schema: {error}") from error
    if not isinstance(parsed, StructType):
        raise DefinitionError(f"outputStructType must be a StructType or a DDL string, not {output!r}")
    return parsed


def _pickled(thing: Any) -> bytes:
    try:
        return cast(bytes, cloudpickle.dumps(thing))
    except Exception as error:
        raise DefinitionError(
            f"the processor cannot be sent to hosts: {type(error).__name__}: {error}",
            todo="Open connections, files and locks in init(), not in the constructor",
        ) from error


# -- the frame -------------------------------------------------------------------------------------------------------


def hashed(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The input with the routing hash as its last column. Zeros of both signs are one key, as in Spark's own grouping."""
    columns = [_normalised(frame, key) for key in keys]
    return frame.withColumn(HASH, F.xxhash64(*columns))


def _normalised(frame: DataFrame, key: str) -> Any:
    kind: DataType = frame.schema[key].dataType
    column = F.col(f"`{key}`")
    return column + F.lit(0.0).cast(kind) if isinstance(kind, (FloatType, DoubleType)) else column


def with_ticks(frame: DataFrame, ticks: DataFrame) -> DataFrame:
    """The hashed input beside a source of empty rows, which have no hash."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.unionByName(ticks.select(*columns))


def routed(frame: DataFrame, route: Route, incarnation: str) -> DataFrame:
    """The operator itself: a router in every task."""
    schema = to_arrow_schema(StructType(frame.schema.fields[:-1]), timezone=session_zone(frame))
    output = from_arrow_schema(route.output_schema, prefer_timestamp_ntz=True)
    return frame.mapInArrow(_router_body(route, schema, incarnation), output)


def _router_body(
    route: Route, schema: pa.Schema, incarnation: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return Router(route, current_task(incarnation)).run(batches, schema)

    return body


def current_task(incarnation: str) -> Task:
    """Lane and batch of the Spark task that runs here; a task of a batch query has its stage as its scope."""
    context = TaskContext.get()
    if context is None:
        raise DefinitionError("a router runs only inside a Spark task")
    lane = str(context.partitionId())
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    if batch is None or query is None:
        scope = f"{incarnation}-{context.stageId()}"
        return Task(BatchRef(scope, scope, 0), lane, scope)
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    return Task(BatchRef(query, run, int(batch)), lane)


def initial_rows(initial: DataFrame | GroupedData, keys: tuple[str, ...]) -> DataFrame:
    """The rows behind `initialState`, which PySpark users give as a grouped DataFrame."""
    frame = initial._df if isinstance(initial, GroupedData) else initial
    if frame.isStreaming:
        raise DefinitionError("initialState must be a batch DataFrame")
    missing = [key for key in keys if key not in frame.columns]
    if missing:
        raise DefinitionError(f"initialState has no key column {missing[0]!r}", todo="Name key columns as in the input")
    return frame
