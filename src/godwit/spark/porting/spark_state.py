"""State of a `transformWithState` operator of Spark, read with Spark's own state reader, as state of an operator of Godwit.

Decides which state fits the operator, with the rules by which a later definition fits the state of an earlier one, and encodes
it in Spark tasks. The rows go to the hosts as the rows of `initialState` do, and are stored without a call of the processor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as sql

from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.model.start import Start
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.spark.porting.spark_checkpoint import OPERATOR, SparkCheckpoint
from godwit.spark.pyspark_api.schemas import input_schema, variable_schema
from godwit.state.changes import TIMERS, position_sub, timer_sub
from godwit.state.codec import compile_codec
from godwit.state.deadlines import stamped_at
from godwit.state.layout import shown, variable_obstacles
from godwit.state.value_conversion import conversion
from godwit.state.variables import Variable, VariableKind
from godwit.transport.wire import STATE_COLUMNS

_KINDS: Final[dict[str, VariableKind]] = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_COLUMNS: Final[dict[VariableKind, str]] = {"value": "value", "list": "list_value", "map": "user_map_value"}
_CELL, _SUB = "__godwit_cell", "__godwit_sub"


@dataclass(frozen=True, slots=True)
class SparkState:
    """The state of one operator in a checkpointLocation of Spark. Nothing is read before an operator takes the state over."""

    spark: SparkSession
    checkpoint: str
    operator_id: int = 0

    def start(self) -> Start:
        """Where the state ends. Raises if the query runs, or if nothing of it is committed."""
        checkpoint = SparkCheckpoint(self.spark, self.checkpoint)
        checkpoint.check_stopped()
        batch = checkpoint.committed()
        _, committed = checkpoint.commit(batch)
        late_ms = checkpoint.planned(batch).watermark_ms
        return Start(checkpoint.query, batch, late_ms, max(late_ms, committed.get("nextBatchWatermarkMs", 0)))

    def rows(self, operator: Operator, start: Start) -> DataFrame:
        """All state as rows: key columns, the number of the variable, sub and value."""
        spec = operator.spec
        reader = _Reader(self, spec, start.batch)
        variables = reader.variables()
        _check_declared(variables, spec, operator.deleted)
        numbers = dict(zip((each.name for each in spec.variables), spec.layout.numbers, strict=True))
        declared = {each.name: each for each in spec.variables}
        frames = [
            reader.encoded(old, declared[old.name], numbers[old.name]) for old in variables if old.name in declared
        ]
        if spec.time_mode != "none":
            frames.append(reader.timers())
        if not frames:
            raise DefinitionError(
                "the operator has no state variable and no timer of the Spark checkpoint",
                todo="Declare the state variables of the old job in init",
                operator=spec.name,
            )
        return reduce(DataFrame.unionAll, frames)


def spark_state(spark: SparkSession, checkpoint: str | os.PathLike[str], operator_id: int = 0) -> SparkState:
    """The state of a stopped Spark query with `transformWithState`, for `initialState=` of an operator of a flock.

    checkpoint: the checkpointLocation of the query. operator_id: the number of the operator in the query, as
    `spark.read.format("state-metadata")` shows it. The operator gets values, lists, maps, TTL, timers and the watermark as of
    the newest committed batch, once; `godwit.continue_spark_query` makes the checkpointLocation with which the query goes on.
    """
    return SparkState(spark, os.fspath(checkpoint), operator_id)


class _Reader:
    def __init__(self, state: SparkState, spec: OperatorSpec, batch: int) -> None:
        self._state = state
        self._spec = spec
        self._batch = batch
        self._properties = self._described()

    def _described(self) -> dict[str, Any]:
        """What Spark has recorded about the operator."""
        state = self._state
        known = SparkCheckpoint(state.spark, state.checkpoint).operators(self._batch)
        name, properties = known.get(state.operator_id, ("", {}))
        if not name.startswith(OPERATOR):
            shown_names = ", ".join(f"{at}: {known[at][0]}" for at in sorted(known)) or "none"
            raise CheckpointMismatch(
                f"{state.checkpoint} has no {OPERATOR} operator {state.operator_id}; its stateful operators are {shown_names}",
                todo="Name the operator with operator_id=",
                operator=self._spec.name,
            )
        self._check_time(properties)
        return properties

    def _check_time(self, properties: dict[str, Any]) -> None:
        was, now = str(properties.get("timeMode", "")).lower().rpartition(".")[2], self._spec.time_mode.lower()
        names = {"notime": "none", "nontimemode": "none"}
        if was and names.get(was, was) != now:
            raise CheckpointMismatch(
                f"the operator has timeMode {properties['timeMode']} in the Spark checkpoint and {self._spec.time_mode} now",
                todo="Define the operator with the timeMode of the old job",
                operator=self._spec.name,
            )

    # -- what there is -----------------------------------------------------------------------------------------------

    def variables(self) -> list[Variable]:
        """The state variables of the checkpoint, as the state reader shows them."""
        described = self._properties["stateVariables"]
        described = json.loads(described) if isinstance(described, str) else described
        return [self._variable(each) for each in described if not each["stateName"].startswith("$")]

    def _variable(self, described: dict[str, Any]) -> Variable:
        name, kind = described["stateName"], _KINDS[described["stateVariableType"]]
        frame = self._read(name, kind)
        cell = frame.schema[_COLUMNS[kind]].dataType
        cell = cell.elementType if isinstance(cell, sql.ArrayType) else cell
        ttl = bool(described["ttlEnabled"])
        value = cast(sql.StructType, cell)["value"].dataType if ttl else cell
        keys = variable_schema(frame.schema["user_map_key"].dataType, name) if kind == "map" else None
        return Variable(name, kind, variable_schema(value, name), keys, 1 if ttl else None)

    def _read(self, name: str, kind: VariableKind) -> DataFrame:
        """Lists whole, so that elements stay in order; maps entry by entry."""
        return self._load(stateVarName=name, flattenCollectionTypes=str(kind == "map").lower())

    def _load(self, **options: str) -> DataFrame:
        state = self._state
        reader = state.spark.read.format("statestore").option("path", state.checkpoint)
        return reader.options(operatorId=state.operator_id, batchId=self._batch, **options).load()

    # -- as rows of state --------------------------------------------------------------------------------------------

    def encoded(self, old: Variable, new: Variable, number: int) -> DataFrame:
        frame = self._read(old.name, old.kind)
        sub = sf.col("user_map_key") if old.kind == "map" else sf.lit(None).cast("int")
        cells = self._keyed(frame, sub.alias(_SUB), sf.col(_COLUMNS[old.kind]).alias(_CELL))
        return self._stored(cells, number, _Encoder(_same_names(old, new), new).encode)

    def timers(self) -> DataFrame:
        frame = self._load(readRegisteredTimers="true")
        timers = self._keyed(
            frame, sf.lit(None).cast("int").alias(_SUB), sf.col("expiration_timestamp_ms").alias(_CELL)
        )
        return self._stored(timers, TIMERS, _timers)

    def _keyed(self, frame: DataFrame, *columns: Any) -> DataFrame:
        """The key columns under the names that they have in the operator, then these columns."""
        names = self._spec.key_schema.names
        stored = cast(sql.StructType, frame.schema["key"].dataType).names
        keys = [sf.col("key").getField(was).alias(now) for was, now in zip(stored, names, strict=False)]
        keyed = frame.select(*keys)
        was, now = input_schema(keyed), self._spec.key_schema
        if len(stored) != len(names) or was.types != now.types:
            old_keys = shown(input_schema(frame.select("key.*")))
            raise CheckpointMismatch(
                f"the state is by {old_keys} in the Spark checkpoint and by {shown(now)} in the operator",
                todo="Give the operator the key columns of the old job, in the same order and with the same types",
                operator=self._spec.name,
            )
        return frame.select(*keys, *columns)

    def _stored(self, frame: DataFrame, number: int, encode: Encode) -> DataFrame:
        keys = len(self._spec.key_schema)
        fields = frame.schema.fields[:keys]
        kinds = (sql.ShortType(), sql.BinaryType(), sql.BinaryType())
        fields += [sql.StructField(name, kind) for name, kind in zip(STATE_COLUMNS, kinds, strict=True)]

        def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield _stored_rows(batch, keys, number, encode)

        return frame.mapInArrow(body, sql.StructType(fields))


# The position of its key in the batch, sub and value of every row of state.
StoredRow = tuple[int, bytes | None, bytes | None]
Encode = Callable[[Sequence[Any], Sequence[Any]], Iterator[StoredRow]]


def _stored_rows(batch: pa.RecordBatch, keys: int, number: int, encode: Encode) -> pa.RecordBatch:
    subs, cells = (column.to_pylist(maps_as_pydicts="strict") for column in batch.columns[keys : keys + 2])
    rows = list(encode(subs, cells))
    at = pa.array([row[0] for row in rows], pa.int64())
    stored: list[pa.Array[Any]] = [
        pa.array(np.full(len(rows), number, np.int16)),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
    ]
    columns: list[pa.Array[Any]] = [*(column.take(at) for column in batch.columns[:keys]), *stored]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:keys], *STATE_COLUMNS])


def _timers(_: Sequence[Any], cells: Sequence[Any]) -> Iterator[StoredRow]:
    return ((at, timer_sub(expiry_ms), None) for at, expiry_ms in enumerate(cells))


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Encodes values of the variable `old` in the form of `new`."""

    old: Variable
    new: Variable

    def encode(self, subs: Sequence[Any], cells: Sequence[Any]) -> Iterator[StoredRow]:
        value = self._value_encoder()
        if self.old.kind == "value":
            return ((at, None, value(cell)) for at, cell in enumerate(cells))
        if self.old.kind == "list":
            return (
                (at, position_sub(place), value(element))
                for at, elements in enumerate(cells)
                for place, element in enumerate(elements)
            )
        key_schema = cast(pa.Schema, self.new.key_schema)
        encode_key, names = compile_codec(key_schema).encode, key_schema.names
        pairs = enumerate(zip(subs, cells, strict=True))
        return ((at, encode_key([sub[name] for name in names]), value(cell)) for at, (sub, cell) in pairs)

    def _value_encoder(self) -> Callable[[dict[str, Any]], bytes]:
        old, new = self.old.schema, self.new.schema
        encode, names = compile_codec(old).encode, old.names
        convert = None if old.equals(new) else conversion(old, new)

        def encoded(fields: dict[str, Any]) -> bytes:
            payload = encode([fields[name] for name in names])
            return payload if convert is None else convert(payload)

        if self.old.ttl_ms is None:
            return encoded
        return lambda cell: stamped_at(cell["ttlExpirationMs"], encoded(cell["value"]))


# -- whether it fits ---------------------------------------------------------------------------------------------------


def _check_declared(variables: Sequence[Variable], spec: OperatorSpec, deleted: Sequence[str]) -> None:
    declared = {each.name: each for each in spec.variables}
    missing = [each.name for each in variables if each.name not in declared and each.name not in deleted]
    if missing:
        raise CheckpointMismatch(
            f"the Spark checkpoint has state variable {missing[0]!r}, which init does not declare",
            todo=f"Declare it as in the old job, or call deleteIfExists({missing[0]!r}) in init to leave its state behind",
            operator=spec.name,
        )
    pairs = [
        (_same_names(each, declared[each.name]), declared[each.name]) for each in variables if each.name in declared
    ]
    reasons = [f"state variable {new.name!r}: {why}" for old, new in pairs for why in variable_obstacles(old, new)]
    if reasons:
        raise CheckpointMismatch(
            f"the Spark checkpoint has state that this operator cannot take over: {'; '.join(reasons)}",
            todo="Declare these variables as in the old job: a field may be added, removed, moved, or become a wider number",
            operator=spec.name,
        )


def _same_names(old: Variable, new: Variable) -> Variable:
    """The variable of the checkpoint, with the schema of the declared one where only nullability differs."""
    schema = new.schema if _alike(old.schema, new.schema) else old.schema
    both = old.key_schema is not None and new.key_schema is not None and _alike(old.key_schema, new.key_schema)
    return replace(old, schema=schema, key_schema=new.key_schema if both else old.key_schema)


def _alike(one: pa.Schema, other: pa.Schema) -> bool:
    return [(field.name, field.type) for field in one] == [(field.name, field.type) for field in other]
