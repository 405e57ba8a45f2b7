"""Between the values a PySpark user sees and the few plain types that are stored, one Arrow type at a time.

Decides which Python values a field of each type takes (numpy scalars too) and what comes back when it is
read; a value that does not fit is refused with the field, the type it expects and the type it got. It must
not know how stored values become bytes, nor whose state they are.

A field takes all that Spark's own Python client turns into a value of the field. Where Spark stores null instead of a value of
another type, the value is refused; only NaN, which is null in pandas, becomes null here too.
"""

from __future__ import annotations

import array
import datetime as dt
import decimal
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError, StateTypeError
from godwit.state.keys import Convert, naive_datetime, process_zone, signed_bytes

MakeStruct: TypeAlias = Callable[[Sequence[str]], Callable[[Sequence[Any]], Any]]
Conversion: TypeAlias = tuple[Convert, Convert | None]  # to stored, and back where that is not the same value

LOCAL: Final = "local"  # as a time zone: that of the process, as in PySpark
AWARE: Final = "aware"  # as a time zone: instants that are read are datetimes that know their zone, which is UTC
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_NAIVE: Final = _EPOCH.replace(tzinfo=None)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_LONG_DIGITS: Final = 18  # a decimal of up to this precision fits a 64-bit integer
_EXACT: Final = decimal.Context(prec=100)
_FLOAT32: Final = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """A field as the codec sees it: `store` never gets None but may give it, `load` is None where nothing is to be done."""

    name: str
    path: str
    type: pa.DataType
    nullable: bool
    store: Convert
    load: Convert | None

    def stored(self, value: Any) -> Any:
        stored = None if value is None else self.store(value)
        if stored is None and not self.nullable:
            raise refusal(self.path, self.type, value)
        return stored

    def loaded(self, stored: Any) -> Any:
        return stored if stored is None or self.load is None else self.load(stored)


class NestedRow(tuple[Any, ...]):
    """A struct inside a value: a tuple whose items also go by name."""

    __slots__ = ()
    __fields__: ClassVar[list[str]] = []

    def __getitem__(self, item: Any) -> Any:
        return super().__getitem__(self.__fields__.index(item) if isinstance(item, str) else item)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__fields__:
            raise AttributeError(name)
        return self[name]


def nested_row(names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """A maker of rows with these names."""
    return type("NestedRow", (NestedRow,), {"__slots__": (), "__fields__": list(names)})


def refusal(path: str, expected: pa.DataType, value: Any) -> StateTypeError:
    got = type(value).__name__
    return StateTypeError(
        f"field {path!r} takes {expected}, not {'null' if value is None else f'{got} {value!r:.80}'}",
        todo="Give a value of the declared type, or change the schema of the state variable",
        field=path,
        expected=str(expected),
        got=got,
    )


@dataclass(frozen=True, slots=True)
class _Site:
    """Where in a schema a conversion is compiled for, so that it can say so."""

    type: Any
    path: str
    tz: str
    make_struct: MakeStruct

    def refused(self, value: Any) -> StateTypeError:
        return refusal(self.path, self.type, value)

    def null(self, value: Any) -> Any:
        """For a value of another type: null for NaN, which is how pandas shows a null, else an error."""
        if isinstance(value, float) and value != value:
            return None
        raise self.refused(value)

    def inner(self, field: pa.Field[Any]) -> FieldCodec:
        return slot(field, self.tz, self.make_struct, f"{self.path}.")


def slot(field: pa.Field[Any], tz: str, make_struct: MakeStruct, parent: str = "") -> FieldCodec:
    """Compile one field, and the fields inside it."""
    path = f"{parent}{field.name}"
    store, load = _conversion(_Site(field.type, path, tz, make_struct))
    return FieldCodec(field.name, path, field.type, field.nullable, store, load)


def _conversion(site: _Site) -> Conversion:
    for matches, compiled in _BY_TYPE:
        if matches(site.type):
            return compiled(site)
    raise DefinitionError(
        f"field {site.path!r} of type {site.type} cannot be kept in state",
        todo="Use a type that PySpark has an Arrow form for",
    )


def _boolean(site: _Site) -> Conversion:
    def store(value: Any) -> Any:
        return bool(value) if isinstance(value, (bool, np.bool_)) else site.null(value)

    return store, None


def _integer(site: _Site) -> Conversion:
    limit = 1 << (site.type.bit_width - 1)

    def store(value: Any) -> Any:
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            number = int(value)
            if -limit <= number < limit:
                return number
        return site.null(value)

    return store, None


def _double(site: _Site) -> Conversion:
    def store(value: Any) -> float:
        if isinstance(value, (float, int, np.floating, np.integer)) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:  # an int beyond every double
                raise site.refused(value) from None
        raise site.refused(value)

    return store, None


def _float(site: _Site) -> Conversion:
    to_double, _ = _double(site)

    def store(value: Any) -> float:
        try:
            rounded: float = _FLOAT32.unpack(_FLOAT32.pack(to_double(value)))[0]
        except OverflowError:
            raise site.refused(value) from None
        return rounded

    return store, None


def _string(site: _Site) -> Conversion:
    def store(value: Any) -> str:
        text = value if isinstance(value, str) else _java_text(value)
        if text is None or not (text.isascii() or _is_text(text)):
            raise site.refused(value)
        return text

    return store, None


def _is_text(value: str) -> bool:
    """Whether UTF-8 has a form for the string: half of a surrogate pair is no character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _java_text(value: Any) -> str | None:
    """The text that Spark makes of a number or a boolean; None for other types, of which Java's text says nothing."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer, decimal.Decimal)):
        return str(value)
    return _java_double(float(value)) if isinstance(value, (float, np.floating)) else None


def _java_double(value: float) -> str:
    """Java writes 1e10 as 1.0E10, and numbers from 0.001 to 10 million without an exponent."""
    if value != value or abs(value) == math.inf:
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        digits = format(decimal.Decimal(repr(value)), "f")
        return digits if "." in digits else f"{digits}.0"
    sign, numbers, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    rest = "".join(map(str, numbers[1:])) or "0"
    return f"{'-' if sign else ''}{numbers[0]}.{rest}E{int(exponent) + len(numbers) - 1}"


def _binary(site: _Site) -> Conversion:
    def store(value: Any) -> Any:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        return value.encode() if isinstance(value, str) and _is_text(value) else site.null(value)

    return store, None


def _date(site: _Site) -> Conversion:
    def store(value: Any) -> Any:
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[D]").item()
        if isinstance(value, dt.date) and value == value:  # pandas' NaT is a date that does not equal itself
            return value.toordinal() - _EPOCH_DAY
        return site.null(value)

    return store, lambda days: dt.date.fromordinal(days + _EPOCH_DAY)


def _timestamp(site: _Site) -> Conversion:
    zoned = site.type.tz is not None
    zone = _zone(site.tz) if zoned else dt.UTC

    def store(value: Any) -> Any:
        if type(value) is dt.datetime and value.tzinfo is None and zone is dt.UTC:
            return _micros(value - _EPOCH_NAIVE)
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        if not isinstance(value, dt.datetime) or value != value or (value.tzinfo and not zoned):
            return site.null(value)
        if value.tzinfo is None:
            value = value.astimezone() if zone is None else value.replace(tzinfo=zone)
        return _micros(value - _EPOCH)

    if zoned and site.tz == AWARE:
        return store, lambda micros: _EPOCH + dt.timedelta(microseconds=micros)
    return store, lambda micros: naive_datetime(micros, zone)


def _zone(tz: str) -> dt.tzinfo | None:
    if tz == LOCAL:
        return process_zone()
    return dt.UTC if tz in ("UTC", AWARE) else ZoneInfo(tz)


def _micros(span: dt.timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _duration(site: _Site) -> Conversion:
    def store(value: Any) -> Any:
        if isinstance(value, np.timedelta64):
            value = value.astype("timedelta64[us]").item()
        if isinstance(value, dt.timedelta) and value == value:
            return _micros(value)
        return site.null(value)

    return store, lambda micros: dt.timedelta(microseconds=micros)


def _decimal(site: _Site) -> Conversion:
    scale, limit, long = site.type.scale, 10**site.type.precision, site.type.precision <= _LONG_DIGITS

    def store(value: Any) -> Any:
        exact = decimal.Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(exact, decimal.Decimal) or not exact.is_finite() or exact.adjusted() > 2 * _LONG_DIGITS + 2:
            return site.null(value)
        # Spark rounds half up to the declared scale, and takes no value that then has too many digits.
        unscaled = int(exact.scaleb(scale, _EXACT).to_integral_value(decimal.ROUND_HALF_UP, _EXACT))
        if not -limit < unscaled < limit:
            raise site.refused(value)
        return unscaled if long else signed_bytes(unscaled)

    def load(stored: Any) -> decimal.Decimal:
        unscaled = stored if long else int.from_bytes(stored, "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-scale, _EXACT)

    return store, load


def _null(site: _Site) -> Conversion:
    def store(value: Any) -> None:
        raise site.refused(value)

    return store, None


def _array(site: _Site) -> Conversion:
    element = site.inner(site.type.value_field)

    def store(value: Any) -> Any:
        if not isinstance(value, (list, tuple, np.ndarray, array.array)):
            return site.null(value)
        return [element.stored(v) for v in value]

    return store, list if element.load is None else lambda stored: [element.loaded(v) for v in stored]


def _map(site: _Site) -> Conversion:
    key, item = site.inner(site.type.key_field), site.inner(site.type.item_field)

    def store(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return site.null(value)
        return [key.stored(k) for k in value], [item.stored(v) for v in value.values()]

    def load(stored: Any) -> dict[Any, Any]:
        keys, items = stored
        return {key.loaded(k): item.loaded(v) for k, v in zip(keys, items, strict=True)}

    return store, load


def _by_name(value: Any, names: Sequence[str]) -> tuple[Any, ...] | None:
    """The fields of a dict, or of an object with attributes, as Spark takes them: a field that is not there is null.

    A dict or object that has none of the fields is not meant for this struct.
    """
    fields = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    if fields is None or (fields and not any(name in fields for name in names)):
        return None
    return tuple([fields.get(name) for name in names])


def _struct(site: _Site) -> Conversion:
    slots = [site.inner(site.type.field(i)) for i in range(site.type.num_fields)]
    names = [s.name for s in slots]
    make = site.make_struct(names)

    def store(value: Any) -> Any:
        row = value if isinstance(value, (tuple, list)) else _by_name(value, names)
        if row is None or len(row) != len(slots):
            return site.null(value)
        return [s.stored(v) for s, v in zip(slots, row, strict=True)]

    return store, lambda stored: make([s.loaded(v) for s, v in zip(slots, stored, strict=True)])


_BY_TYPE: Final[Sequence[tuple[Callable[[Any], bool], Callable[[_Site], Conversion]]]] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_signed_integer, _integer),
    (pa.types.is_float32, _float),
    (pa.types.is_float64, _double),
    (pa.types.is_string, _string),
    (pa.types.is_large_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_date32, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_duration, _duration),
    (pa.types.is_decimal128, _decimal),
    (pa.types.is_null, _null),
    (pa.types.is_list, _array),
    (pa.types.is_large_list, _array),
    (pa.types.is_fixed_size_list, _array),
    (pa.types.is_map, _map),
    (pa.types.is_struct, _struct),
)
