"""State of a `transformWithState` operator of Spark, read with Spark's own state reader, as state of an operator of Godwit.

Decides which state fits the operator, with the rules by which a later definition fits the state of an earlier one. The rows go
to the hosts as the rows of `initialState` do, and are stored without a call of the processor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as sql

from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.model.start import Start
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.spark.porting.spark_checkpoint import OPERATOR, PANDAS_OPERATOR, SparkCheckpoint
from godwit.spark.porting.spark_keys import SparkKeys
from godwit.spark.porting.stored_rows import Encoder, KeyedCells, encode_timers
from godwit.spark.pyspark_api.schemas import variable_schema
from godwit.state.changes import TIMERS
from godwit.state.layout import variable_obstacles
from godwit.state.variables import Variable, VariableKind

_KINDS: Final[dict[str, VariableKind]] = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_COLUMNS: Final[dict[VariableKind, str]] = {"value": "value", "list": "list_value", "map": "user_map_value"}
_CELL, _SUB = "__godwit_cell", "__godwit_sub"


@dataclass(frozen=True, slots=True)
class SparkState:
    """The state of one operator in a checkpointLocation of Spark. Nothing is read before an operator takes the state over."""

    spark: SparkSession = field(repr=False)
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
        parts = [reader.cells(old, declared[old.name], numbers[old.name]) for old in variables if old.name in declared]
        if spec.time_mode != "none":
            parts.append(reader.timers())
        if not parts:
            raise DefinitionError(
                "the operator has no state variable and no timer of the Spark checkpoint",
                todo="Declare the state variables of the old job in init",
                operator=spec.name,
            )
        reader.keys.check(reduce(DataFrame.unionAll, [part.keys for part in parts]))
        return reduce(DataFrame.unionAll, [part.rows(reader.keys.convert) for part in parts])


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
        name, self._properties = self._described()
        self.keys = SparkKeys(spec, pandas=name.startswith(PANDAS_OPERATOR))

    def _described(self) -> tuple[str, dict[str, Any]]:
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
        return name, properties

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

    def cells(self, old: Variable, new: Variable, number: int) -> KeyedCells:
        frame = self._read(old.name, old.kind)
        sub = sf.col("user_map_key").alias(_SUB) if old.kind == "map" else _no_sub()
        named = self.keys.named(frame, sub, sf.col(_COLUMNS[old.kind]).alias(_CELL))
        return KeyedCells(named, number, Encoder(_same_names(old, new), new).encode)

    def timers(self) -> KeyedCells:
        frame = self._load(readRegisteredTimers="true")
        named = self.keys.named(frame, _no_sub(), sf.col("expiration_timestamp_ms").alias(_CELL))
        return KeyedCells(named, TIMERS, encode_timers)


def _no_sub() -> Column:
    return sf.lit(None).cast("int").alias(_SUB)


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
