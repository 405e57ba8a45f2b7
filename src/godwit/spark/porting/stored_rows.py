"""State that Spark's state reader has read, as rows of state of a flock: encoded in Spark tasks, in the form of the operator.

Knows Arrow columns of keys and values, and nothing of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as sql

from godwit.state.changes import position_sub, timer_sub
from godwit.state.codec import compile_codec
from godwit.state.deadlines import stamped_at
from godwit.state.value_conversion import conversion
from godwit.state.variables import Variable
from godwit.transport.wire import STATE_COLUMNS

# The position of its key in the batch, sub and value of every row of state.
StoredRow = tuple[int, bytes | None, bytes | None]
Encode = Callable[[Sequence[Any], Sequence[Any]], Iterator[StoredRow]]
ConvertKey: TypeAlias = "Callable[[pa.Array[Any]], pa.Array[Any]]"


@dataclass(frozen=True, slots=True)
class KeyedCells:
    """What Spark has of one variable, or of timers: key columns, then sub and cell. number: of the variable in the flock."""

    frame: DataFrame
    number: int
    encode: Encode

    @property
    def keys(self) -> DataFrame:
        return self.frame.select(self.frame.columns[:-2])

    def rows(self, convert_key: ConvertKey) -> DataFrame:
        """Rows of state: key columns, the number of the variable, sub and value."""
        number, encode = self.number, self.encode
        kinds = (sql.ShortType(), sql.BinaryType(), sql.BinaryType())
        stored = [sql.StructField(name, kind) for name, kind in zip(STATE_COLUMNS, kinds, strict=True)]

        def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield _stored_rows(batch, number, encode, convert_key)

        return self.frame.mapInArrow(body, sql.StructType([*self.frame.schema.fields[:-2], *stored]))


def _stored_rows(batch: pa.RecordBatch, number: int, encode: Encode, convert_key: ConvertKey) -> pa.RecordBatch:
    *keys, subs, cells = batch.columns
    rows = list(encode(plain(subs), plain(cells)))
    at = pa.array([row[0] for row in rows], pa.int64())
    stored: list[pa.Array[Any]] = [
        pa.array(np.full(len(rows), number, np.int16)),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
    ]
    columns: list[pa.Array[Any]] = [*(convert_key(column).take(at) for column in keys), *stored]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:-2], *STATE_COLUMNS])


def plain(column: pa.Array[Any]) -> list[Any]:
    """The values of a column as the codecs of state take them."""
    convert = _plain(column.type)
    return [convert(value) for value in column.to_pylist()]


def _plain(kind: Any) -> Callable[[Any], Any]:
    """From a value as Arrow gives it to Python. Structs and arrays become tuples, which may be keys of the dict of a map."""
    if pa.types.is_struct(kind):
        parts = [(field.name, _plain(field.type)) for field in kind]
        return lambda value: None if value is None else tuple([part(value[name]) for name, part in parts])
    if pa.types.is_map(kind):
        key, item = _plain(kind.key_type), _plain(kind.item_type)
        return lambda value: None if value is None else {key(k): item(v) for k, v in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _plain(kind.value_type)
        return lambda value: None if value is None else tuple(map(element, value))
    return lambda value: value


def encode_timers(_: Sequence[Any], cells: Sequence[Any]) -> Iterator[StoredRow]:
    return ((at, timer_sub(expiry_ms), None) for at, expiry_ms in enumerate(cells))


@dataclass(frozen=True, slots=True)
class Encoder:
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
        encode_key = compile_codec(cast(pa.Schema, self.new.key_schema)).encode
        pairs = enumerate(zip(subs, cells, strict=True))
        return ((at, encode_key(sub), value(cell)) for at, (sub, cell) in pairs)

    def _value_encoder(self) -> Callable[[tuple[Any, ...]], bytes]:
        old, new = self.old.schema, self.new.schema
        encode = compile_codec(old).encode
        convert = None if old.equals(new) else conversion(old, new)

        def encoded(fields: tuple[Any, ...]) -> bytes:
            payload = encode(fields)
            return payload if convert is None else convert(payload)

        if self.old.ttl_ms is None:
            return encoded

        def stamped(cell: tuple[Any, ...]) -> bytes:
            fields, end_ms = cell
            return stamped_at(end_ms, encoded(fields))

        return stamped
