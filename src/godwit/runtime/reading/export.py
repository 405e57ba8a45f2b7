"""State as a table for people: a row per key, a column per state variable, decoded from changes.

A value becomes a struct, a list an array of structs, a map a map of structs; timers are a column of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.changes import COLUMN_OP, COLUMN_SUB, COLUMN_VALUE, COLUMN_VAR, TIMERS, timer_ms
from godwit.state.codec import compile_codec
from godwit.state.deadlines import STAMP_BYTES
from godwit.state.keys import Key, KeyCodec
from godwit.state.layout import FormReader
from godwit.state.variables import Variable

ROWS_MAX = 10_000


def state_schema(spec: OperatorSpec) -> pa.Schema:
    """Key columns, host, epoch, a column per variable, timers; one with the name of another column gets a suffix."""
    host, epoch, timers, *names = spec.names_beside_key([each.name for each in spec.variables], "_state")
    fields = [*spec.key_schema, pa.field(host, pa.string()), pa.field(epoch, pa.int64())]
    fields += [pa.field(name, _variable_type(each)) for name, each in zip(names, spec.variables, strict=True)]
    return pa.schema([*fields, pa.field(timers, pa.list_(pa.int64()))])


def _variable_type(variable: Variable) -> pa.DataType:
    value = pa.struct(list(variable.schema))
    match variable.kind:
        case "value":
            return value
        case "list":
            return pa.list_(value)
        case "map":
            assert variable.key_schema is not None, "a map has a key schema"
            return pa.map_(pa.struct(list(variable.key_schema)), value)


def rows_of_state(
    spec: OperatorSpec, changes: Iterable[pa.RecordBatch], host: str, epoch: int
) -> Iterator[pa.RecordBatch]:
    """Batches of the state schema, from all changes of an instance in any order."""
    by_key: dict[Key, list[Any]] = {}
    forms = FormReader(spec.layout)
    for batch in changes:
        _collect(spec, by_key, forms.current(batch))
    keys = list(by_key)
    for start in range(0, len(keys), ROWS_MAX):
        yield _table(spec, by_key, keys[start : start + ROWS_MAX], host, epoch)


def _collect(spec: OperatorSpec, by_key: dict[Key, list[Any]], batch: pa.RecordBatch) -> None:
    key_codec = KeyCodec(spec.key_schema, spec.tz)
    count = len(spec.key_schema)
    keys = key_codec.from_arrow(batch.columns[:count])
    columns = [
        batch.column(batch.num_columns + at).to_pylist() for at in (COLUMN_VAR, COLUMN_OP, COLUMN_SUB, COLUMN_VALUE)
    ]
    places = {number: place for place, number in enumerate(spec.layout.numbers)}
    decoders = [_decoder(variable) for variable in spec.variables]
    for key, number, _, sub, value in zip(keys, *columns, strict=True):
        if number != TIMERS and number not in places:
            continue  # a dead letter, or a variable that is not declared now
        row = by_key.setdefault(key, [None] * (len(spec.variables) + 1))
        place = -1 if number == TIMERS else places[number]
        decoded = timer_ms(sub) if number == TIMERS else decoders[place](sub, value)
        if number != TIMERS and spec.variables[place].kind == "value":
            row[place] = decoded
        elif row[place] is None:
            row[place] = [decoded]
        else:
            row[place].append(decoded)


def _decoder(variable: Variable) -> Callable[[bytes | None, bytes], Any]:
    skip = STAMP_BYTES if variable.ttl_ms is not None else 0
    decode = compile_codec(variable.schema).decode
    if variable.kind != "map":
        return lambda _, value: decode(value[skip:])
    assert variable.key_schema is not None, "a map has a key schema"
    decode_key = compile_codec(variable.key_schema).decode
    return lambda sub, value: (decode_key(sub or b""), decode(value[skip:]))


def _table(spec: OperatorSpec, by_key: dict[Key, list[Any]], keys: list[Key], host: str, epoch: int) -> pa.RecordBatch:
    schema = state_schema(spec)
    arrays: list[Any] = KeyCodec(spec.key_schema, spec.tz).shown_columns(keys)
    arrays += [pa.array([host] * len(keys)), pa.array([epoch] * len(keys), pa.int64())]
    rows = [by_key[key] for key in keys]
    for at, field in enumerate(list(schema)[len(arrays) :]):
        arrays.append(pa.array([row[at] for row in rows], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
