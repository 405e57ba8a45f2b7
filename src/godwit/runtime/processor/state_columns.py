"""Typed state of many keys as numpy columns: payloads become columns in one gather and go back in one scatter.

Decides how fields of a native processor are stored and which payloads have changed. Knows neither keys nor user code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from godwit.runtime.processor.rows import Array
from godwit.state.codec import compile_codec
from godwit.state.columns import Payloads

LISTS: Final = b"godwit.lists"
Columns: TypeAlias = dict[str, Array]
Fields: TypeAlias = Mapping[str, pa.DataType] | pa.Schema


def zeros(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What fields hold before anything is written: zero, or None if they are objects."""
    return np.full(shape, None) if dtype.hasobject else np.zeros(shape, dtype)


def flat_schema(fields: Fields) -> pa.Schema:
    """The fields as they are stored: a field of n elements becomes n fields, `x_0`, `x_1` and so on.

    The metadata of the schema tells readers of the state which fields these are.
    """
    schema = fields if isinstance(fields, pa.Schema) else pa.schema(dict(fields))
    flat = []
    for field in schema:
        count = _element_count(field.type)
        kind = field.type if count is None else field.type.value_type
        flat += [pa.field(name, kind) for name in _flat_names(field.name, count)]
    lists = {field.name: _element_count(field.type) for field in schema if _element_count(field.type)}
    described: Any = dict(schema.metadata or {})
    if lists:
        described[LISTS] = json.dumps(lists).encode()
    return pa.schema(flat, metadata=described or None)


class Packer:
    """Payloads of the same fields to columns and back. A missing one reads as zeros, None where width varies.

    A field of a fixed number of elements is a column of two dimensions.
    """

    def __init__(self, fields: Fields) -> None:
        schema = fields if isinstance(fields, pa.Schema) else pa.schema(dict(fields))
        self._codec = compile_codec(flat_schema(schema))
        self._counts = {field.name: _element_count(field.type) for field in schema}
        fixed = self._codec.dtype is not None
        self.dtypes = {field.name: _numpy_type(field.type, fixed) for field in schema}
        self._dtype = None if self._codec.dtype is None else self._gathered(self._codec.dtype)
        self.zero = self.pack(self.zeros(1), 1)[0]

    @property
    def fixed(self) -> bool:
        """Whether all payloads have the same width."""
        return self._dtype is not None

    def zeros(self, count: int) -> Columns:
        return {name: zeros(self._shape(name, count), dtype) for name, dtype in self.dtypes.items()}

    def unpack(self, payloads: Sequence[bytes | None]) -> Columns:
        if self._dtype is None:
            return self._unpack_each(payloads)
        return self._fields(np.frombuffer(self._joined(payloads), self._dtype))

    def unpack_rows(self, payloads: Payloads) -> Columns:
        """As `unpack`, where all payloads have the same width."""
        assert self._dtype is not None, "only where all payloads have the same width"
        return self._fields(payloads.view(self._dtype).reshape(len(payloads)))

    def pack_rows(self, columns: Columns, count: int) -> Payloads:
        """As `pack`, where all payloads have the same width."""
        rows: Payloads = self._records(columns, count).view(np.uint8).reshape(count, len(self.zero))
        return rows

    def _fields(self, records: Array) -> Columns:
        return {name: records[name].astype(dtype) for name, dtype in self.dtypes.items()}

    def pack(self, columns: Columns, count: int) -> list[bytes]:
        if self._dtype is None:
            parts = [columns[name].reshape(count, n or 1).T.tolist() for name, n in self._counts.items()]
            return [self._codec.encode(values) for values in zip(*chain.from_iterable(parts), strict=True)]
        return cast(list[bytes], self._records(columns, count).view(f"V{self._dtype.itemsize}").tolist())

    def _joined(self, payloads: Sequence[bytes | None]) -> bytes:
        try:
            return b"".join(cast(Sequence[bytes], payloads))  # the common case, all present, is one call
        except TypeError:
            return b"".join([self.zero if payload is None else payload for payload in payloads])

    def _records(self, columns: Columns, count: int) -> Array:
        records = np.zeros(count, self._dtype)
        for name in self.dtypes:
            records[name] = columns[name]
        return records

    def _unpack_each(self, payloads: Sequence[bytes | None]) -> Columns:
        columns = self.zeros(len(payloads))
        present = [i for i, payload in enumerate(payloads) if payload is not None]
        values = iter(zip(*[self._codec.decode(p) for p in payloads if p is not None], strict=True))
        for name, dtype in self.dtypes.items() if present else ():
            column = columns[name].reshape(len(payloads), self._counts[name] or 1)  # shares its memory
            for element in range(column.shape[1]):
                column[present, element] = np.fromiter(next(values), dtype, len(present))
        return columns

    def _shape(self, name: str, count: int) -> tuple[int, ...]:
        elements = self._counts[name]
        return (count,) if elements is None else (count, elements)

    def _gathered(self, flat: np.dtype[Any]) -> np.dtype[Any]:
        """The codec's records, with the elements of a field as one subarray."""
        places = cast(Mapping[str, Any], flat.fields)
        stored = [places[_flat_names(name, count)[0]] for name, count in self._counts.items()]
        shapes = [self._shape(name, 0)[1:] for name in self._counts]
        return np.dtype(
            {
                "names": list(self._counts),
                "formats": [(kind, shape) for (kind, *_), shape in zip(stored, shapes, strict=True)],
                "offsets": [offset for _, offset, *_ in stored],
                "itemsize": flat.itemsize,
            }
        )


def _element_count(kind: pa.DataType) -> int | None:
    return kind.list_size if pa.types.is_fixed_size_list(kind) else None


def _flat_names(name: str, count: int | None) -> list[str]:
    return [name] if count is None else [f"{name}_{i}" for i in range(count)]


def _numpy_type(kind: pa.DataType, fixed: bool) -> np.dtype[Any]:
    if pa.types.is_fixed_size_list(kind):
        return _numpy_type(kind.value_type, fixed)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if fixed and pa.types.is_date32(kind):
        return np.dtype(np.int32)
    return np.dtype(np.int64) if fixed else np.dtype(object)
