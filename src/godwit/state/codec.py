"""How the fields of a value become bytes and come back.

Decides the stored layout. Fields that are all of fixed width are packed: a bitmap of nulls (bit i of the
bitmap, counted from the lowest bit of its first byte, is set where field i is null), then the fields,
little-endian, in order. Such bytes can be viewed as a numpy array of `dtype`, many states at once. Anything
else is msgpack. Types and what they accept are `converters`' business; this module must not know keys,
variables or where the bytes go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np
import pyarrow as pa

from godwit.errors import StateTypeError
from godwit.state.converters import FieldCodec, MakeStruct, nested_row, refusal, slot

NULLS: Final = "_nulls"

Pack: TypeAlias = Callable[[Sequence[Any]], bytes]
Unpack: TypeAlias = Callable[[bytes], tuple[Any, ...]]

# struct and numpy spell each fixed-width type differently; times are stored as integers.
_FIXED: Final[Sequence[tuple[Callable[[Any], bool], str, str]]] = (
    (pa.types.is_boolean, "?", "?"),
    (pa.types.is_int8, "b", "i1"),
    (pa.types.is_int16, "h", "<i2"),
    (pa.types.is_int32, "i", "<i4"),
    (pa.types.is_int64, "q", "<i8"),
    (pa.types.is_float32, "f", "<f4"),
    (pa.types.is_float64, "d", "<f8"),
    (pa.types.is_date32, "i", "<i4"),
    (pa.types.is_timestamp, "q", "<i8"),
    (pa.types.is_duration, "q", "<i8"),
)


@dataclass(frozen=True, slots=True)
class Codec:
    """Turns a tuple of field values into bytes and back; `dtype` is None unless all are of fixed width.

    `pack` and `unpack` do the same with stored values: as `converters` leave them, and without any check.
    """

    schema: pa.Schema
    dtype: np.dtype[Any] | None
    encode: Pack
    decode: Unpack
    pack: Pack
    unpack: Unpack


def compile_codec(schema: pa.Schema, tz: str = "UTC", make_struct: MakeStruct = nested_row) -> Codec:
    """A codec for values with these fields.

    Naive datetimes are in time zone `tz`, which may be `converters.LOCAL`; `converters.AWARE` gives datetimes that know
    their zone. `make_struct` is given the names of a nested struct's fields and returns what builds one from its values,
    for a caller who wants them to be of its own row type.
    """
    slots = [slot(field, tz, make_struct) for field in schema]
    formats = [_fixed_format(t) for t in schema.types]
    fixed = [f for f in formats if f is not None]
    if len(fixed) == len(formats):
        return _packed(schema, slots, fixed)
    # Stored values are plain, so the packer never calls back into Python: threads may share it.
    pack: Pack = msgpack.Packer(use_bin_type=True).pack
    return Codec(schema, None, _packing(slots, pack), _unpacking(slots, _msgpack_unpack), pack, _msgpack_unpack)


def _fixed_format(t: pa.DataType) -> tuple[str, str] | None:
    return next(((to_struct, to_numpy) for matches, to_struct, to_numpy in _FIXED if matches(t)), None)


def _packed(schema: pa.Schema, slots: Sequence[FieldCodec], formats: Sequence[tuple[str, str]]) -> Codec:
    width = max(1, -(-len(slots) // 8))
    layout = struct.Struct(f"<{width}s{''.join(to_struct for to_struct, _ in formats)}")
    pack, unpack = _packed_pack(layout, width), _packed_unpack(layout, width)
    encode = _packed_encode(slots, layout, width, _packing(slots, pack))
    return Codec(schema, _dtype(schema, width, formats), encode, _unpacking(slots, unpack), pack, unpack)


def _dtype(schema: pa.Schema, width: int, formats: Sequence[tuple[str, str]]) -> np.dtype[Any] | None:
    names = [NULLS, *schema.names]
    if len(set(names)) < len(names):
        return None  # numpy wants every field to have a name of its own
    nulls = "u1" if width == 1 else ("u1", (width,))
    return np.dtype({"names": names, "formats": [nulls, *(to_numpy for _, to_numpy in formats)]})


def _packed_encode(slots: Sequence[FieldCodec], layout: struct.Struct, width: int, careful: Pack) -> Pack:
    pack = layout.pack
    no_nulls = bytes(width)
    plain = tuple(_plain_type(s.type) for s in slots)

    def encode(values: Sequence[Any]) -> bytes:
        try:
            if tuple(map(type, values)) == plain:
                return pack(no_nulls, *values)
        except (struct.error, OverflowError, TypeError):
            pass  # out of range, or no sequence: the careful way says what is wrong
        return careful(values)

    return encode


def _packed_pack(layout: struct.Struct, width: int) -> Pack:
    no_nulls = bytes(width)

    def pack(stored: Sequence[Any]) -> bytes:
        if None not in stored:
            return layout.pack(no_nulls, *stored)
        filled, nulls = list(stored), 0
        for i, value in enumerate(filled):
            if value is None:
                nulls |= 1 << i
                filled[i] = 0
        return layout.pack(nulls.to_bytes(width, "little"), *filled)

    return pack


def _packed_unpack(layout: struct.Struct, width: int) -> Unpack:
    no_nulls = bytes(width)

    def unpack(data: bytes) -> tuple[Any, ...]:
        stored = layout.unpack(data)
        if stored[0] == no_nulls:
            return stored[1:]
        nulls = int.from_bytes(stored[0], "little")
        return tuple([None if nulls >> i & 1 else v for i, v in enumerate(stored[1:])])

    return unpack


def _plain_type(t: pa.DataType) -> type | None:
    """The one Python type whose values need no conversion and no check but that of their range."""
    if pa.types.is_boolean(t):
        return bool
    if pa.types.is_integer(t):
        return int
    return float if pa.types.is_floating(t) else None


def _msgpack_unpack(data: bytes) -> tuple[Any, ...]:
    stored: tuple[Any, ...] = msgpack.unpackb(data, use_list=False, raw=False)
    return stored


def _packing(slots: Sequence[FieldCodec], pack: Pack) -> Pack:
    to_stored = _to_stored(slots)
    return lambda values: pack(to_stored(values))


def _unpacking(slots: Sequence[FieldCodec], unpack: Unpack) -> Unpack:
    from_stored = _from_stored(slots)
    return unpack if from_stored is None else lambda data: from_stored(unpack(data))


def _to_stored(slots: Sequence[FieldCodec]) -> Callable[[Sequence[Any]], list[Any]]:
    stores = [s.store for s in slots]
    required = [(i, s) for i, s in enumerate(slots) if not s.nullable]

    def to_stored(values: Sequence[Any]) -> list[Any]:
        if not isinstance(values, (tuple, list)) or len(values) != len(stores):
            raise _wrong_arity(slots, values)
        stored = [None if v is None else store(v) for store, v in zip(stores, values, strict=True)]
        for i, s in required:
            if stored[i] is None:
                raise refusal(s.path, s.type, values[i])
        return stored

    return to_stored


def _from_stored(slots: Sequence[FieldCodec]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """None if stored values are what a user sees."""
    loads = [s.load for s in slots]
    if not any(loads):
        return None

    def from_stored(stored: tuple[Any, ...]) -> tuple[Any, ...]:
        pairs = zip(loads, stored, strict=True)
        return tuple([v if load is None or v is None else load(v) for load, v in pairs])

    return from_stored


def _wrong_arity(slots: Sequence[FieldCodec], values: Any) -> StateTypeError:
    names = ", ".join(s.path for s in slots)
    got = f"{len(values)} values" if isinstance(values, (tuple, list)) else type(values).__name__
    return StateTypeError(
        f"a tuple of {len(slots)} values ({names}) is expected, not {got}",
        todo="Give one value for each field of the state variable's schema, in order",
        field=names,
        expected=f"{len(slots)} values",
        got=got,
    )
