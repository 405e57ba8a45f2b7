"""From values of one schema to values of a later one: which changes are allowed, and how a stored value is converted.

Decides the rules, which are those of Avro as far as no value changes its meaning: fields are matched by name; a new field is
null; a field that is gone is dropped; a number may become a wider one. Works on stored values (see `converters`), so that an
instant is never read as a wall clock. Must not know variables, keys or where values are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from godwit.state.codec import compile_codec
from godwit.state.keys import signed_bytes

ConvertStored: TypeAlias = Callable[[Any], Any]

_FLOAT32: Final = struct.Struct("<f")
_LONG_DIGITS: Final = 18  # as in `converters`: a decimal of up to this precision is stored as an integer


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why values cannot be converted: a field, its type in the older and in the later schema ("" if it is not there)."""

    field: str
    old: str
    new: str
    reason: str

    def __str__(self) -> str:
        return f"field {self.field!r} is {self.old or 'absent'} in the checkpoint and {self.new} now: {self.reason}"


@dataclass(slots=True)
class _Comparison:
    obstacles: list[Obstacle] = field(default_factory=list)

    def refuse(self, path: str, old: Any, new: Any, reason: str) -> ConvertStored:
        self.obstacles.append(Obstacle(path, str(old), str(new), reason))
        return _same


def obstacles(old: pa.Schema, new: pa.Schema) -> list[Obstacle]:
    """What stands in the way of reading values of the old schema with the new one."""
    comparison = _Comparison()
    _fields(list(old), list(new), "", comparison)
    return comparison.obstacles


def conversion(old: pa.Schema, new: pa.Schema) -> Callable[[bytes], bytes]:
    """A function from bytes of the old schema to bytes of the new one; only for schemas without obstacles."""
    comparison = _Comparison()
    convert = _fields(list(old), list(new), "", comparison)
    assert not comparison.obstacles, "values that cannot be converted were refused when the operator was defined"
    unpack, pack = compile_codec(old).unpack, compile_codec(new).pack
    return lambda payload: pack(convert(unpack(payload)))


def _same(stored: Any) -> Any:
    return stored


def _fields(
    old: Sequence[pa.Field[Any]], new: Sequence[pa.Field[Any]], path: str, comparison: _Comparison
) -> Callable[[Sequence[Any]], list[Any]]:
    """Converts the values of fields: those of a schema, or of a struct."""
    places = {each.name: at for at, each in enumerate(old)}
    for names in ([each.name for each in old], [each.name for each in new]):
        twice = [name for name in names if names.count(name) > 1]
        if twice and not _equal(old, new):
            comparison.refuse(
                path + twice[0], "a field", "a field", "two fields have this name, so they cannot be matched"
            )
            return list
    steps: list[tuple[int | None, ConvertStored]] = []
    for each in new:
        at = places.get(each.name)
        if at is None:
            steps.append((None, _same))
            if not each.nullable:
                comparison.refuse(
                    path + each.name, "", f"{each.type} not null", "state that exists has no value for it"
                )
        else:
            steps.append((at, _field(old[at], each, path, comparison)))
    return lambda stored: [None if at is None else _converted(convert, stored[at]) for at, convert in steps]


def _equal(old: Sequence[pa.Field[Any]], new: Sequence[pa.Field[Any]]) -> bool:
    return len(old) == len(new) and all(a.equals(b) for a, b in zip(old, new, strict=True))


def _converted(convert: ConvertStored, stored: Any) -> Any:
    return None if stored is None else convert(stored)


def _field(old: pa.Field[Any], new: pa.Field[Any], path: str, comparison: _Comparison) -> ConvertStored:
    path += new.name
    if old.nullable and not new.nullable:
        return comparison.refuse(path, old.type, f"{new.type} not null", "it may be null in state that exists")
    return _type(old.type, new.type, path, comparison)


def _type(old: Any, new: Any, path: str, comparison: _Comparison) -> ConvertStored:
    if old.equals(new):
        return _same
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        pairs = [[each.field(i) for i in range(each.num_fields)] for each in (old, new)]
        return _fields(pairs[0], pairs[1], f"{path}.", comparison)
    if _is_list(old) and _is_list(new):
        element = _field(old.value_field, new.value_field.with_name("element"), f"{path}.", comparison)
        return lambda stored: [_converted(element, each) for each in stored]
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _map(old, new, path, comparison)
    convert = _widened(old, new)
    return comparison.refuse(path, old, new, _reason(old, new)) if convert is None else convert


def _map(old: Any, new: Any, path: str, comparison: _Comparison) -> ConvertStored:
    if not old.key_type.equals(new.key_type):
        return comparison.refuse(f"{path}.key", old.key_type, new.key_type, "the keys of a map cannot change")
    item = _field(old.item_field, new.item_field.with_name("value"), f"{path}.", comparison)
    return lambda stored: (stored[0], [_converted(item, each) for each in stored[1]])


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _widened(old: Any, new: Any) -> ConvertStored | None:
    """How a value becomes one of a wider type; None if it does not."""
    if pa.types.is_null(old):
        return _same  # there are only nulls
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return _decimal(old, new) if old.scale == new.scale and old.precision <= new.precision else None
    for kinds, converts in _WIDENINGS.items():
        if kinds[0](old) and kinds[1](new):
            return converts if not pa.types.is_signed_integer(new) or old.bit_width <= new.bit_width else None
    return None


def _decimal(old: Any, new: Any) -> ConvertStored:
    return signed_bytes if old.precision <= _LONG_DIGITS < new.precision else _same


def _to_float32(number: float) -> float:
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    return rounded


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_bytes(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


# Avro also reads bytes as text and a date as a number: the first may fail, the second changes what a value means.
_WIDENINGS: Final[Mapping[tuple[Callable[[Any], bool], Callable[[Any], bool]], ConvertStored]] = {
    (pa.types.is_signed_integer, pa.types.is_signed_integer): _same,
    (pa.types.is_signed_integer, pa.types.is_float32): _to_float32,
    (pa.types.is_signed_integer, pa.types.is_float64): float,
    (pa.types.is_float32, pa.types.is_float64): _same,
    (_is_text, _is_text): _same,
    (_is_bytes, _is_bytes): _same,
    (_is_text, _is_bytes): str.encode,
}


def _reason(old: Any, new: Any) -> str:
    return "values may not fit" if _widened(new, old) is not None else "the one cannot be read as the other"
