"""The state of one variable, or the timers, in the columns that Spark's own state reader gives to `transformWithState`.

So a query on `spark.read.format("statestore")` works on a checkpoint of a flock with another format name. `partition_id` is
the group of the key: the part of the state that moves as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import ROWS_MAX
from godwit.state.changes import COLUMN_SUB, COLUMN_VALUE, COLUMN_VAR, TIMERS, timer_ms
from godwit.state.codec import compile_codec
from godwit.state.deadlines import STAMP_BYTES, expiry_ms
from godwit.state.keys import Key, KeyCodec
from godwit.state.layout import FormReader
from godwit.state.variables import Variable

KEY: Final = "key"
Entry = tuple[Any, ...]  # what the columns between key and partition_id show


@dataclass(frozen=True, slots=True)
class OneVariable:
    """variable: None for timers. flat: a row for each element of a list and each entry of a map, or one for each key."""

    spec: OperatorSpec
    variable: Variable | None
    flat: bool
    groups: int

    @staticmethod
    def named(spec: OperatorSpec, name: str | None, flat: bool, groups: int) -> OneVariable:
        """A name of None stands for the timers."""
        variables = {each.name: each for each in spec.variables}
        if name is not None and name not in variables:
            raise DefinitionError(
                f"the operator has no state variable {name!r}",
                todo=f"Its state variables are: {', '.join(variables) or 'none'}",
                operator=spec.name,
            )
        if spec.flavour == "native":
            raise DefinitionError(
                "the operator is a native processor, whose state is shown whole",
                todo="Leave out stateVarName and readRegisteredTimers",
                operator=spec.name,
            )
        return OneVariable(spec, None if name is None else variables[name], flat, groups)

    def schema(self) -> pa.Schema:
        fields = [pa.field(KEY, pa.struct(list(self.spec.key_schema))), *self._shown()]
        return pa.schema([*fields, pa.field("partition_id", pa.int32())])

    def _shown(self) -> list[pa.Field[Any]]:
        if self.variable is None:
            return [pa.field("expiration_timestamp_ms", pa.int64())]
        value = _value_type(self.variable)
        match self.variable.kind:
            case "value":
                return [pa.field("value", value)]
            case "list":
                return [pa.field("list_element", value) if self.flat else pa.field("list_value", pa.list_(value))]
            case "map":
                assert self.variable.key_schema is not None, "a map has a key schema"
                key = pa.struct(list(self.variable.key_schema))
                if self.flat:
                    return [pa.field("user_map_key", key), pa.field("user_map_value", value)]
                return [pa.field("map_value", pa.map_(key, value))]

    def rows(
        self, spec: OperatorSpec, changes: Iterable[pa.RecordBatch], host: str, epoch: int
    ) -> Iterator[pa.RecordBatch]:
        """As `rows_of_state`, for one variable: key columns, host, epoch, and what is shown."""
        by_key: dict[Key, list[Entry]] = {}
        forms = FormReader(spec.layout)
        for batch in changes:
            self._collect(by_key, forms.current(batch))
        rows = [(key, entry) for key, entries in by_key.items() for entry in self._gathered(entries)]
        for start in range(0, len(rows), ROWS_MAX):
            yield self._table(rows[start : start + ROWS_MAX], host, epoch)

    def _collect(self, by_key: dict[Key, list[Entry]], batch: pa.RecordBatch) -> None:
        number, entry = self._decoder()
        keys = KeyCodec(self.spec.key_schema, self.spec.tz).from_arrow(batch.columns[: len(self.spec.key_schema)])
        numbers, subs, values = (
            batch.column(batch.num_columns + at).to_pylist() for at in (COLUMN_VAR, COLUMN_SUB, COLUMN_VALUE)
        )
        for key, each, sub, value in zip(keys, numbers, subs, values, strict=True):
            if each == number:
                by_key.setdefault(key, []).append(entry(sub, value))

    def _decoder(self) -> tuple[int, Callable[[Any, Any], Entry]]:
        """The number of the variable in changes, and what makes an entry of a change."""
        variable = self.variable
        if variable is None:
            return TIMERS, lambda sub, _: (timer_ms(sub),)
        number = self.spec.layout.numbers[self.spec.variables.index(variable)]
        decode = compile_codec(variable.schema).decode
        value = (
            decode if variable.ttl_ms is None else (lambda stamped: (decode(stamped[STAMP_BYTES:]), expiry_ms(stamped)))
        )
        if variable.kind != "map":
            return number, lambda _, stored: (value(stored),)
        assert variable.key_schema is not None, "a map has a key schema"
        decode_key = compile_codec(variable.key_schema).decode
        return number, lambda sub, stored: (decode_key(sub), value(stored))

    def _gathered(self, entries: list[Entry]) -> list[Entry]:
        if self.flat or self.variable is None or self.variable.kind == "value":
            return entries
        return [(([entry[0] for entry in entries] if self.variable.kind == "list" else entries),)]

    def _table(self, rows: list[tuple[Key, Entry]], host: str, epoch: int) -> pa.RecordBatch:
        arrays: list[Any] = KeyCodec(self.spec.key_schema, self.spec.tz).shown_columns([key for key, _ in rows])
        arrays += [pa.array([host] * len(rows)), pa.array([epoch] * len(rows), pa.int64())]
        for at, field in enumerate(self._shown()):
            arrays.append(pa.array([entry[at] for _, entry in rows], field.type))
        names = [*self.spec.key_schema.names, "host", "epoch", *(field.name for field in self._shown())]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def as_spark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of key columns, host, epoch and what is shown: key, what is shown, partition_id."""
        keys = batch.columns[: len(self.spec.key_schema)]
        shown = batch.columns[len(keys) + 2 :]
        codec = KeyCodec(self.spec.key_schema, self.spec.tz)
        groups = [codec.route_hash(key) % self.groups for key in codec.from_arrow(keys)]
        key = pa.StructArray.from_arrays(keys, fields=list(self.spec.key_schema))
        return pa.RecordBatch.from_arrays([key, *shown, pa.array(groups, pa.int32())], schema=self.schema())


def _value_type(variable: Variable) -> pa.DataType:
    value = pa.struct(list(variable.schema))
    if variable.ttl_ms is None:
        return value
    return pa.struct([pa.field("value", value), pa.field("ttlExpirationMs", pa.int64())])
