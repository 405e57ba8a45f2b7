"""Key columns that are structs or arrays: their bytes, their Python form, and their part of the routing hash.

Decides the stored form of such a value: msgpack bytes that are the same for equal values. It must not know which operator a key
belongs to. Atomic values inside a nested one have the stored forms of `keys`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import msgpack
import pyarrow as pa
import xxhash

Convert: TypeAlias = Callable[[Any], Any]
Fold: TypeAlias = Callable[[Any, int], int]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_NAIVE: Final = _EPOCH.replace(tzinfo=None)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_MICRO: Final = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AtomicForms:
    """Of an atomic type: a stored value as msgpack takes it, and back; and the bytes that are hashed."""

    pack: Convert
    unpack: Convert
    hash_bytes: Convert


@dataclass(frozen=True, slots=True)
class NestedForms:
    """Of a type: from a value as Arrow's `to_pylist` gives it to plain values, and back; and its part of a hash."""

    plain: Convert
    shown: Convert
    fold: Fold


def is_nested(kind: Any) -> bool:
    return pa.types.is_struct(kind) or is_array(kind)


def is_array(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


class NestedKeys:
    """The values of one key column that is a struct or an array. `atomic`: the forms of the atomic types in it."""

    def __init__(self, kind: pa.DataType, tz: str, atomic: Callable[[Any], AtomicForms]) -> None:
        self._forms = _forms(kind, tz, atomic)
        self._pack = msgpack.Packer(use_bin_type=True).pack

    def stored(self, column: pa.Array[Any]) -> pa.Array[Any]:
        values = [None if value is None else self._pack(self._forms.plain(value)) for value in column.to_pylist()]
        return pa.array(values, pa.binary())

    def shown(self, stored: bytes) -> Any:
        """The value as Arrow gives it to Python: a struct is a dict, an array a list."""
        return self._forms.shown(msgpack.unpackb(stored, use_list=False, raw=False))

    def fold(self, stored: bytes, seed: int) -> int:
        """As Spark's xxhash64: the hash of each part is the seed of the next."""
        return self._forms.fold(msgpack.unpackb(stored, use_list=False, raw=False), seed)


def _forms(kind: Any, tz: str, atomic: Callable[[Any], AtomicForms]) -> NestedForms:
    if pa.types.is_struct(kind):
        return _struct_forms([(field.name, _forms(field.type, tz, atomic)) for field in kind])
    if is_array(kind):
        return _array_forms(_forms(kind.value_type, tz, atomic))
    return _atomic_forms(kind, tz, atomic(kind))


def _struct_forms(fields: list[tuple[str, NestedForms]]) -> NestedForms:
    def fold(values: Any, seed: int) -> int:
        for value, (_, forms) in zip(values, fields, strict=True):
            seed = seed if value is None else forms.fold(value, seed)
        return seed

    return NestedForms(
        plain=lambda value: [_some(forms.plain, value[name]) for name, forms in fields],
        shown=lambda plain: {name: _some(forms.shown, v) for (name, forms), v in zip(fields, plain, strict=True)},
        fold=fold,
    )


def _array_forms(element: NestedForms) -> NestedForms:
    def fold(values: Any, seed: int) -> int:
        for value in values:
            seed = seed if value is None else element.fold(value, seed)
        return seed

    return NestedForms(
        plain=lambda value: [_some(element.plain, v) for v in value],
        shown=lambda plain: [_some(element.shown, v) for v in plain],
        fold=fold,
    )


def _atomic_forms(kind: Any, tz: str, forms: AtomicForms) -> NestedForms:
    store, show = _python_forms(kind, tz)
    return NestedForms(
        plain=lambda value: forms.pack(store(value)),
        shown=lambda plain: show(forms.unpack(plain)),
        fold=lambda plain, seed: xxhash.xxh64_intdigest(forms.hash_bytes(forms.unpack(plain)), seed),
    )


def _python_forms(kind: Any, tz: str) -> tuple[Convert, Convert]:
    """From Arrow's Python value to the stored one, and back."""
    if pa.types.is_date32(kind):
        return lambda day: day.toordinal() - _EPOCH_DAY, lambda days: dt.date.fromordinal(days + _EPOCH_DAY)
    if pa.types.is_timestamp(kind):
        epoch, zone = (_EPOCH_NAIVE, None) if kind.tz is None else (_EPOCH, ZoneInfo(tz))
        return (
            lambda moment: (moment - epoch) // _MICRO,
            lambda micros: epoch + micros * _MICRO if zone is None else (epoch + micros * _MICRO).astimezone(zone),
        )
    return _same, _same


def _same(value: Any) -> Any:
    return value


def _some(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)
