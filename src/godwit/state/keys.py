"""How a key looks in Python, in Arrow, as bytes and as a routing hash.

Decides the stored form of a key: a tuple of plain Python values in which equal keys are equal tuples
(timestamps are microseconds, dates are days, every NaN is one object, minus zero is zero). It must not know
which operator a key belongs to nor where it is routed; it only promises that `route_hash` is what Spark
SQL's `xxhash64` gives for the same columns, so that rows can be routed by either side.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast, overload
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from godwit.errors import DefinitionError
from godwit.state.nested_keys import AtomicForms, NestedKeys, is_array, is_nested

Key: TypeAlias = tuple[Any, ...]
Convert: TypeAlias = Callable[[Any], Any]
Positions: TypeAlias = npt.NDArray[np.int64]

# A tuple compares its items by identity first, so one shared NaN makes NaN keys equal, as they are in Spark.
NAN: Final = float("nan")

_HASH_SEED: Final = 42  # what Spark SQL's xxhash64() starts from
_UNSCALED_LONG_DIGITS: Final = 18  # Spark keeps decimals of up to this precision in a long
_DECIMAL_EXT: Final = 1
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_NAIVE: Final = _EPOCH.replace(tzinfo=None)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_WIDE: Final = decimal.Context(prec=100)  # the default context would round what decimal128 holds exactly


class KeyCodec:
    """Reads, writes and hashes the keys of one operator. Columns that are structs or arrays are stored as bytes."""

    def __init__(self, schema: pa.Schema, tz: str = "UTC") -> None:
        if not len(schema):
            raise DefinitionError("a key needs at least one column", todo="Name the columns to group by")
        self.schema = schema
        self.tz = tz
        self.stored_schema: pa.Schema = pa.schema([pa.field(f.name, _stored_type(f)) for f in schema])
        self._types: list[Any] = list(self.stored_schema.types)
        self._nested = {i: NestedKeys(t, tz, _atomic_forms) for i, t in enumerate(schema.types) if is_nested(t)}
        self._publics = [
            self._nested[i].shown if i in self._nested else _public(t, tz) for i, t in enumerate(schema.types)
        ]
        self._hash_bytes = [_hash_bytes(t) for t in schema.types]
        self._packs = [_decimal_to_ext(t.scale) if pa.types.is_decimal(t) else None for t in self._types]
        self._unpacks = [_unpacked(t) for t in self._types]
        # Only plain values reach the packer, so it never calls back into Python: threads may share it.
        self._pack = msgpack.Packer(use_bin_type=True).pack

    def from_arrow(self, columns: Sequence[pa.Array[Any]]) -> list[Key]:
        """Keys of a batch, from its key columns in their original or stored types."""
        return list(zip(*map(_read, self.stored_columns(columns)), strict=True))

    def stored_columns(self, columns: Sequence[pa.Array[Any]]) -> list[pa.Array[Any]]:
        """The same columns in stored types. A float may still have more than one form there, see `distinct_in_arrow`."""
        return [_stored(c, t) for c, t in zip(self.plain_columns(columns), self._types, strict=True)]

    @property
    def distinct_in_arrow(self) -> bool:
        """Whether stored columns that differ are different keys. Floats may differ and be one key: 0.0 and -0.0."""
        return not any(map(_is_float, self._types))

    def plain_columns(self, columns: Sequence[pa.Array[Any]]) -> list[pa.Array[Any]]:
        """The same columns, structs and arrays in their stored form: Arrow finds equal values in them."""
        if not self._nested:
            return list(columns)
        return [
            self._nested[i].stored(column) if i in self._nested and is_nested(column.type) else column
            for i, column in enumerate(columns)
        ]

    def to_arrow(self, keys: Sequence[Key]) -> list[pa.Array[Any]]:
        """Key columns, in stored types."""
        if isinstance(keys, KeyColumns) and self.distinct_in_arrow:
            return list(keys.columns)
        return [pa.array(list(map(itemgetter(i), keys)), t) for i, t in enumerate(self._types)]

    def shown_columns(self, keys: Sequence[Key]) -> list[pa.Array[Any]]:
        """Key columns, in their original types."""
        stored, types = self.to_arrow(keys), self.schema.types
        nested = self._nested
        return [
            pa.array([None if v is None else nested[i].shown(v) for v in column.to_pylist()], kind)
            if i in nested
            else column.cast(kind)
            for i, (column, kind) in enumerate(zip(stored, types, strict=True))
        ]

    def pack(self, key: Key) -> bytes:
        """Compact bytes, the same for equal keys."""
        return cast(bytes, self._pack(_converted(key, self._packs)))

    def unpack(self, data: bytes) -> Key:
        return _converted(msgpack.unpackb(data, use_list=False, raw=False), self._unpacks)

    def public(self, key: Key) -> Key:
        """The key as a PySpark user sees it: dates and naive datetimes instead of stored numbers."""
        return _converted(key, self._publics)

    def route_hash(self, key: Key) -> int:
        """Spark SQL's `xxhash64` of the key columns, as a signed 64-bit number."""
        seed = _HASH_SEED
        for at, (value, to_bytes) in enumerate(zip(key, self._hash_bytes, strict=True)):
            if value is not None and at in self._nested:
                seed = self._nested[at].fold(value, seed)
            elif value is not None:
                seed = xxhash.xxh64_intdigest(to_bytes(value), seed)
        return seed - (1 << 64) if seed >> 63 else seed


class KeyColumns(Sequence[Key]):
    """Keys of many rows as columns, in the types of `KeyCodec.stored_columns`; tuples are made only for those who ask for them.

    A native processor seldom looks at a key, and a key as a tuple costs more than everything else that is done for a row of it.
    """

    __slots__ = ("_codec", "_tuples", "columns")

    def __init__(self, codec: KeyCodec, columns: Sequence[pa.Array[Any]]) -> None:
        self._codec = codec
        self._tuples: list[Key] | None = None
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Key]:
        return iter(self.tuples())

    @overload
    def __getitem__(self, at: int) -> Key: ...

    @overload
    def __getitem__(self, at: slice) -> list[Key]: ...

    def __getitem__(self, at: int | slice) -> Key | list[Key]:
        return self.tuples()[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tuples() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(self.tuples())

    def tuples(self) -> list[Key]:
        if self._tuples is None:
            self._tuples = self._codec.from_arrow(self.columns)
        return self._tuples

    def take(self, positions: Positions) -> KeyColumns:
        return KeyColumns(self._codec, [column.take(positions) for column in self.columns])


def keys_at(keys: Sequence[Key], positions: Positions) -> Sequence[Key]:
    """The keys at these positions, which are ascending and distinct."""
    if len(positions) == len(keys):
        return keys
    return keys.take(positions) if isinstance(keys, KeyColumns) else [keys[at] for at in positions.tolist()]


def _converted(key: Key, converts: Sequence[Convert | None]) -> Key:
    if not any(converts):
        return key
    return tuple([v if c is None or v is None else c(v) for v, c in zip(key, converts, strict=True)])


def _stored_type(field: pa.Field[Any]) -> pa.DataType:
    t: Any = field.type
    if pa.types.is_timestamp(t):
        return pa.int64()
    if pa.types.is_date32(t):
        return pa.int32()
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return pa.string()
    if pa.types.is_binary(t) or pa.types.is_large_binary(t):
        return pa.binary()
    if pa.types.is_boolean(t) or pa.types.is_signed_integer(t) or pa.types.is_decimal128(t) or _is_float(t):
        return cast(pa.DataType, t)
    if is_nested(t):
        for part in (t.value_field,) if is_array(t) else tuple(t):
            _stored_type(pa.field(f"{field.name}.{part.name}", part.type))
        return pa.binary()
    raise DefinitionError(
        f"column {field.name!r} of type {t} cannot be part of a key",
        todo="Group by boolean, integer, float, decimal, string, binary, date or timestamp columns, or structs or arrays",
    )


def _is_float(t: pa.DataType) -> bool:
    return pa.types.is_float32(t) or pa.types.is_float64(t)


def _stored(column: pa.Array[Any], stored: pa.DataType) -> pa.Array[Any]:
    if column.type == stored:
        return column
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(stored)
    return column.cast(stored)


def _read(column: pa.Array[Any]) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if not _is_float(column.type):
        return values
    if column.null_count:
        return [None if v is None else _canonical_float(v) for v in values]
    array = column.to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(np.isnan(array) | (array == 0.0)).tolist():
        values[i] = _canonical_float(values[i])
    return values


def _canonical_float(value: float) -> float:
    return value + 0.0 if value == value else NAN  # -0.0 + 0.0 is 0.0


def _atomic_forms(original: Any) -> AtomicForms:
    """The forms of an atomic type inside a struct or an array."""
    if pa.types.is_decimal(original):
        scale = original.scale
        return AtomicForms(_decimal_to_ext(scale), _ext_to_decimal(scale), _hash_bytes(original))
    if _is_float(original):
        return AtomicForms(_canonical_float, _canonical_float, _hash_bytes(original))
    return AtomicForms(_same, _same, _hash_bytes(original))


def _same(value: Any) -> Any:
    return value


def _unpacked(stored: Any) -> Convert | None:
    if _is_float(stored):
        return _canonical_float
    if pa.types.is_decimal(stored):
        return _ext_to_decimal(stored.scale)
    return None


def _public(original: Any, tz: str) -> Convert | None:
    if pa.types.is_date32(original):
        return lambda days: dt.date.fromordinal(days + _EPOCH_DAY)
    if pa.types.is_timestamp(original):
        zone = dt.UTC if original.tz is None or tz == "UTC" else ZoneInfo(tz)
        return lambda micros: naive_datetime(micros, zone)
    return None


def naive_datetime(micros: int, zone: dt.tzinfo | None) -> dt.datetime:
    """What a clock on a wall in `zone` showed, microseconds after the epoch. None: in the zone of this process."""
    if zone is dt.UTC:
        return _EPOCH_NAIVE + dt.timedelta(microseconds=micros)
    return (_EPOCH + dt.timedelta(microseconds=micros)).astimezone(zone).replace(tzinfo=None)


def process_zone() -> dt.tzinfo | None:
    """The time zone of this process: UTC, or None for another."""
    return dt.UTC if time.tzname == ("UTC", "UTC") else None


def _unscaled(value: decimal.Decimal, scale: int) -> int:
    return int(value.scaleb(scale, _WIDE))


def signed_bytes(value: int) -> bytes:
    """The shortest big-endian two's complement form."""
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _decimal_to_ext(scale: int) -> Convert:
    return lambda value: msgpack.ExtType(_DECIMAL_EXT, signed_bytes(_unscaled(value, scale)))


def _ext_to_decimal(scale: int) -> Convert:
    return lambda ext: decimal.Decimal(int.from_bytes(ext.data, "big", signed=True)).scaleb(-scale, _WIDE)


def _hash_bytes(original: Any) -> Convert:
    if pa.types.is_string(original) or pa.types.is_large_string(original):
        return str.encode
    if pa.types.is_binary(original) or pa.types.is_large_binary(original):
        return bytes
    if pa.types.is_decimal(original):
        return _hash_decimal(original.precision, original.scale)
    if pa.types.is_float32(original):
        return struct.Struct("<f").pack
    if pa.types.is_float64(original):
        return struct.Struct("<d").pack
    if pa.types.is_int64(original) or pa.types.is_timestamp(original):
        return struct.Struct("<q").pack
    return struct.Struct("<i").pack  # boolean, byte, short, int and date: Spark widens them all to an int


def _hash_decimal(precision: int, scale: int) -> Convert:
    if precision <= _UNSCALED_LONG_DIGITS:
        pack = struct.Struct("<q").pack
        return lambda value: pack(_unscaled(value, scale))
    return lambda value: signed_bytes(_unscaled(value, scale))
