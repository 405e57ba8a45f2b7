"""From a definition and a processor to an operator: its specification, and the code that hosts run.

Everything that needs the processor or the schema of the input is checked here, on the driver, before anything runs. What is not
supported is refused here, never ignored later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import cloudpickle
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError, GodwitError
from godwit.model.watermark import Policy
from godwit.runtime.processor.merging import Merge, check_event_time
from godwit.runtime.processor.native import NativeAdapter, Processor
from godwit.runtime.processor.spec import Operator, OperatorSpec, TimeMode
from godwit.spark.define.operator_definition import (
    Definition,
    check_choices,
    check_columns,
    check_frame,
    checked_name,
)
from godwit.spark.define.watermarks import DELAY, check_output_watermark, check_watermarks, has_watermark
from godwit.spark.pyspark_api.call_settings import CallSettings, SparkSettings
from godwit.spark.pyspark_api.schemas import arrow_schema, input_schema, parse_ddl, session_zone
from godwit.spark.pyspark_api.stateful import PandasAdapter, RowAdapter, describe
from godwit.state.keys import KeyCodec
from godwit.state.nested_keys import is_nested

_TIME_MODES: dict[str, TimeMode] = {"none": "none", "processingtime": "processingTime", "eventtime": "eventTime"}


def build(definition: Definition) -> Operator:
    """The operator of a definition that passes all checks."""
    name = checked_name(definition.name)
    try:
        return _build(definition)
    except GodwitError as error:
        raise error.at(operator=name) from error.__cause__


def _build(definition: Definition) -> Operator:
    frame = definition.frame
    check_frame(frame)
    check_choices(definition)
    options = definition.options
    time_mode = _time_mode(definition)
    tz = session_zone(frame)
    schema = input_schema(frame)
    check_columns(definition, schema)
    _check_time(definition, time_mode)
    key_schema = pa.schema([schema.field(key) for key in definition.keys])
    KeyCodec(key_schema, tz)
    event_time, delay_ms = _event_time(definition, time_mode)
    adapter, deleted = _adapter(definition, schema, key_schema, time_mode, tz)
    check_output_watermark(definition, adapter.output_schema)
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
        watermark_policy=_watermark_policy(definition, time_mode),
        lateness_ms=getattr(definition.processor, "allowed_lateness_ms", 0),
        null_keys=options["null_keys"],
        tz=tz,
        timeout_s=options["timeout_s"],
        ephemeral=not frame.isStreaming,
        merge=_merge(definition, adapter, event_time),
        dead_letters=options["dead_letters"],
    )
    return Operator(spec, _pickled(adapter), deleted=deleted)


def _check_time(definition: Definition, time_mode: TimeMode) -> None:
    """Windows are emitted by the watermark: without a watermark, or in a batch DataFrame, no window would be emitted."""
    column = getattr(definition.processor, "time_column", None)
    if definition.flavour != "native" or (column is None and time_mode == "none"):
        return
    if not definition.frame.isStreaming:
        raise DefinitionError(
            "timers and windows of a native processor need a streaming DataFrame: in a batch DataFrame time does not advance",
            todo="Use Spark's own window() on batch DataFrames",
        )
    if column is not None and column != _event_time(definition, time_mode)[0]:
        raise DefinitionError(
            f"the window uses the time column {column!r}, which is not the event time of the operator",
            todo=f"Call withWatermark({column!r}, delay) on the input and pass timeMode='eventTime'",
        )


def _time_mode(definition: Definition) -> TimeMode:
    mode = _TIME_MODES.get(str(definition.time_mode).lower())
    if mode is None:
        raise DefinitionError(
            f"timeMode={definition.time_mode!r} is not known", todo="Use none, processingTime or eventTime"
        )
    return mode


def _event_time(definition: Definition, time_mode: TimeMode) -> tuple[str | None, int]:
    """The column and delay of `withWatermark`. A batch DataFrame has none, because Spark removes watermarks from it."""
    frame = definition.frame
    if time_mode != "eventTime" or not frame.isStreaming:
        return None, 0
    marked = [field for field in frame.schema.fields if DELAY in (field.metadata or {})]
    check_watermarks(frame, marked, follows_query=_follows_query(definition))
    return (marked[0].name, int(marked[0].metadata[DELAY])) if marked else (None, 0)


def _watermark_policy(definition: Definition, time_mode: TimeMode) -> Policy:
    """An operator has the watermark of its query, unless it is to follow the slowest partition, or rows in real time.

    Without event time, too: PySpark shows the watermark to processors that go by processing time, and where a column of the
    output carries the watermark on, no output may be older.
    """
    policy: Policy = definition.options["watermark_policy"]
    if not definition.frame.isStreaming or not _follows_query(definition):
        return policy
    shown = time_mode == "processingTime" and definition.flavour != "native"
    needed = (shown or definition.event_time_column) and has_watermark(definition.frame)
    return "query" if needed or time_mode == "eventTime" else policy


def _follows_query(definition: Definition) -> bool:
    return definition.options["watermark_policy"] == "max" and not definition.real_time


def _adapter(
    definition: Definition, schema: pa.Schema, key_schema: pa.Schema, time_mode: TimeMode, tz: str
) -> tuple[RowAdapter | PandasAdapter | NativeAdapter, tuple[str, ...]]:
    """The adapter, and the names of older variables that the processor deletes."""
    if definition.flavour == "native":
        if not isinstance(definition.processor, Processor):
            raise DefinitionError(
                f"process() takes a godwit.Processor, not {type(definition.processor).__name__}",
                todo="Pass an instance of a subclass; a StatefulProcessor goes through flock.transformWithState",
            )
        _check_atomic(key_schema)
        return NativeAdapter(definition.processor, schema, definition.keys, tz), ()
    if not isinstance(definition.processor, StatefulProcessor):
        raise DefinitionError(
            f"a pyspark StatefulProcessor is expected, not {definition.processor!r:.80}",
            todo="Pass an instance of a subclass; a godwit.Processor goes through flock.process",
        )
    _pickled(definition.processor)
    declared = describe(definition.processor, time_mode)
    flavour = RowAdapter if definition.flavour == "row" else PandasAdapter
    adapter = flavour(
        definition.processor,
        declared.variables,
        key_schema,
        _output_schema(definition.output, tz),
        CallSettings(
            time_mode=time_mode,
            tz=tz,
            value_bytes_max=definition.options["value_bytes_max"],
            spark=SparkSettings.of(definition.frame.sparkSession),
            event_time_column=definition.event_time_column,
            added_keys=definition.added_keys,
        ),
    )
    return adapter, declared.removed


def _check_atomic(key_schema: pa.Schema) -> None:
    nested = [field for field in key_schema if is_nested(field.type)]
    if nested:
        raise DefinitionError(
            f"key column {nested[0].name!r} is {nested[0].type}, and the keys of a native processor are of atomic types",
            todo="Name the fields of the struct as keys, such as 'id.country', or an expression",
        )


def _merge(definition: Definition, adapter: Any, event_time: str | None) -> Merge:
    if definition.flavour != "native":
        if isinstance(getattr(definition.processor, "merge", None), Mapping):
            raise DefinitionError(
                "a StatefulProcessor cannot declare a merge: it is called with every row, as in Spark",
                todo="Write a godwit.Processor, or give the attribute `merge` another name",
            )
        return ()
    merge: Merge = adapter.merge
    check_event_time(merge, event_time, definition.processor.allowed_lateness_ms)
    if merge and "lane" in definition.given:
        raise DefinitionError(
            "a processor that declares a merge cannot have lane= and sequence= columns: when Spark reads the batch again, the "
            "source may divide it into other partitions, and other rows would be merged",
            todo="Declare no merge; or leave lane= and sequence= out, if a batch of the source always has the same partitions",
        )
    return merge


def _output_schema(output: StructType | str | None, tz: str) -> pa.Schema:
    struct = parse_ddl(output) if isinstance(output, str) else output
    if not isinstance(struct, StructType):
        raise DefinitionError(
            f"outputStructType must be a StructType or a DDL string, not {output!r:.80}",
            todo="Give the names and types of the columns that the processor yields, such as 'car string, mean double'",
        )
    schema = arrow_schema(struct, tz, "outputStructType")
    for field, back in zip(struct, from_arrow_schema(schema, prefer_timestamp_ntz=True), strict=True):
        if field.dataType.simpleString() != back.dataType.simpleString():
            kind = field.dataType.simpleString()
            raise DefinitionError(
                f"outputStructType has a column {field.name!r} of type {kind}, which does not exist in Arrow",
                todo="Declare another type for this column",
            )
    return schema


def _pickled(thing: Any) -> bytes:
    try:
        return cast(bytes, cloudpickle.dumps(thing))
    except Exception as error:
        raise DefinitionError(
            f"the processor cannot be pickled, so it cannot be sent to hosts: {type(error).__name__}: {error}",
            todo="Open connections, files and locks in init(), not in the constructor",
        ) from error
