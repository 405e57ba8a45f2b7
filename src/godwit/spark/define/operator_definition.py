"""What a user writes to define an operator, and the checks that need nothing but those words and the columns of the input.

A wrong argument is refused here, on the driver, before anything runs. `build_operator` makes an operator of a definition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError
from godwit.spark.realtime.started_session import check_started_session
from godwit.spark.realtime.tuning import REAL_TIME

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_BINARY = "UTF8_BINARY"  # the collation of a Spark string column unless the user names another


class OperatorOptions(TypedDict, total=False):
    """The options of an operator beside PySpark's own arguments.

    null_keys: "bucket": a null in a key column is a value like any other, as in Spark (the default for PySpark processors); or
    "error" (the default for native processors).
    watermark_policy: the watermark is that of the query ("max", as in Spark), or follows the slowest partition ("min").
    timeout_s: a call of the processor that takes longer counts as hanging (60).
    value_bytes_max: the size limit of a single state value (64 MiB).
    dead_letters: whether rows and timers on which the processor fails are set aside, and the query goes on without them
    (False); `flock.dead_letters(name)` shows them.
    partitions: the input is partitioned by key into so many partitions, as Spark does for its own operator; by default
    `spark.sql.shuffle.partitions` where it is set, otherwise the task slots that the hosts leave free. The number is fixed
    with the checkpoint. "input": no exchange, rows come in the partitions of the input (the default of `process`).
    real_time: rows go to the hosts as they come, for a query with the real-time trigger; no exchange. By default False, unless
    the session was set up with `godwit.tune(builder, real_time=True)`, which this trigger needs.
    lane, sequence: columns that identify a row, for sources that may divide a batch into other partitions when Spark reads
    the batch again, e.g. lane=["topic", "partition"], sequence="offset".
    """

    null_keys: Literal["error", "bucket"]
    watermark_policy: Literal["max", "min"]
    timeout_s: float
    value_bytes_max: int
    dead_letters: bool
    partitions: int | Literal["input"]
    real_time: bool
    lane: str | Sequence[str]
    sequence: str


DEFAULTS: OperatorOptions = {
    "null_keys": "bucket",
    "watermark_policy": "max",
    "timeout_s": 60.0,
    "value_bytes_max": 64 << 20,
    "dead_letters": False,
}


@dataclass(frozen=True, slots=True)
class Definition:
    """One call of `transformWithState`, `transformWithStateInPandas` or `process`. `given`: the options of the call.

    `event_time_column`: the output column that carries the watermark on. `added_keys`: key columns that are expressions; the
    frame has them, and the processor does not see them in its rows.
    """

    frame: DataFrame
    keys: tuple[str, ...]
    processor: Any
    name: str
    flavour: Literal["row", "pandas", "native"]
    output: StructType | str | None
    output_mode: str
    time_mode: str
    given: OperatorOptions
    event_time_column: str = ""
    added_keys: tuple[str, ...] = ()

    @property
    def real_time(self) -> bool:
        """Whether rows go to the hosts as they come. A batch DataFrame has all its rows at once."""
        if not self.frame.isStreaming:
            return False
        tuned = str(self.frame.sparkSession.conf.get(REAL_TIME, "false")).lower() == "true"
        return self.given.get("real_time", tuned and "partitions" not in self.given)

    @property
    def by_key(self) -> bool:
        """Whether Spark partitions the input by key before the operator, as it does for its own operator."""
        by_default = "input" if self.flavour == "native" or self.real_time else None
        return self.given.get("partitions", by_default) != "input"

    @property
    def options(self) -> OperatorOptions:
        options: OperatorOptions = {**DEFAULTS, **self.given}
        if self.flavour == "native" and "null_keys" not in self.given:
            options["null_keys"] = "error"
        return options


def _check_partitions(definition: Definition) -> None:
    partitions: Any = definition.given.get("partitions", "input")
    if partitions != "input" and (not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1):
        raise DefinitionError(
            f"partitions={partitions!r} is not allowed",
            todo='Give a number from 1 up, or "input" to take rows in the partitions of the input',
        )
    if definition.given.get("real_time") and partitions != "input":
        raise DefinitionError(
            f"partitions={partitions!r} collects all rows of a batch, and real_time=True does not let rows wait",
            todo="Leave one of the two out",
        )
    if definition.options["watermark_policy"] == "min" and definition.by_key:
        raise DefinitionError(
            "watermark_policy='min' follows the slowest partition of the input, and the input is partitioned anew by key",
            todo='Pass partitions="input" too, or leave watermark_policy out',
        )


def checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} is not a name for an operator",
            todo="Use letters, digits, '_', '-' and '.', at most 100 of them, the first a letter or a digit",
        )
    return name


def check_frame(frame: Any) -> None:
    if not isinstance(frame, DataFrame):
        raise DefinitionError(
            f"a DataFrame is expected, not {type(frame).__name__}",
            todo="Pass the DataFrame itself, not a grouped one, and name the key columns in keys=",
        )


def check_choices(definition: Definition) -> None:
    options = definition.options
    unknown = sorted(set(options) - set(OperatorOptions.__annotations__))
    if unknown:
        raise DefinitionError(
            f"unknown argument {unknown[0]!r}", todo=f"The options are: {', '.join(OperatorOptions.__annotations__)}"
        )
    for option, value, allowed in (
        ("outputMode", str(definition.output_mode).lower(), ("append", "update")),
        ("null_keys", options["null_keys"], ("error", "bucket")),
        ("watermark_policy", options["watermark_policy"], ("max", "min")),
        ("dead_letters", options["dead_letters"], (True, False)),
        ("real_time", options.get("real_time", False), (True, False)),
    ):
        if value not in allowed:
            raise DefinitionError(
                f"{option}={value!r} is not supported", todo=f"Use one of {', '.join(map(str, allowed))}"
            )
    _check_limits(definition)
    _check_partitions(definition)
    if definition.real_time:
        check_started_session(definition.frame.sparkSession)
    if ("lane" in options) != ("sequence" in options):
        raise DefinitionError("only one of lane= and sequence= was given", todo="Give both, or neither")


def _check_limits(definition: Definition) -> None:
    timeout_s: Any = definition.options["timeout_s"]
    bytes_max: Any = definition.options["value_bytes_max"]
    if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise DefinitionError(f"timeout_s={timeout_s!r} is not a duration", todo="Give seconds above 0")
    if not isinstance(bytes_max, int) or bytes_max < 1:
        raise DefinitionError(
            f"value_bytes_max={bytes_max!r} is not a size", todo="Give a whole number of bytes above 0"
        )
    if definition.flavour == "native" and "value_bytes_max" in definition.given:
        raise DefinitionError(
            "value_bytes_max is not supported for native processors",
            todo="Leave it out: a native processor declares the size of its state itself",
        )


def check_columns(definition: Definition, schema: pa.Schema) -> None:
    lane = definition.given.get("lane", ())
    named = [*definition.keys, *((lane,) if isinstance(lane, str) else lane)]
    named += [definition.given["sequence"]] if "sequence" in definition.given else []
    missing = [name for name in named if name not in schema.names]
    if missing or not definition.keys:
        raise DefinitionError(
            f"the input has no column {missing[0]!r}" if missing else "keys= names no column",
            todo=f"The columns of the input are {', '.join(schema.names)}",
        )
    again = [key for key in definition.keys if definition.keys.count(key) > 1]
    if again:
        raise DefinitionError(f"key column {again[0]!r} is named twice", todo="Name each key column once")
    sequence = definition.given.get("sequence")
    if sequence is not None and not pa.types.is_integer(schema.field(sequence).type):
        raise DefinitionError(
            f"sequence column {sequence!r} is {schema.field(sequence).type}, not a whole number",
            todo="Name a column of ascending whole numbers, such as Kafka's offset",
        )
    reserved = [name for name in schema.names if name.startswith("__godwit")]
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if reserved or twice:
        raise DefinitionError(
            f"the name of column {(reserved or twice)[0]!r} is {'reserved for Godwit' if reserved else 'in the input twice'}",
            todo="Rename the column before the operator",
        )
    kinds = [(key, definition.frame.schema[key].dataType) for key in definition.keys]
    collated = [key for key, kind in kinds if getattr(kind, "collation", _BINARY) != _BINARY]
    if collated:
        raise DefinitionError(
            f"key column {collated[0]!r} has a collation, and Godwit compares keys byte by byte",
            todo="Use a key column that has the same text for equal keys, such as lower(...)",
        )
