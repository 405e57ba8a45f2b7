"""Instants in the keys of Spark's pandas operator: which instant is meant by the one that is stored.

PySpark shows such a key as what the clock on the wall shows in the session's time zone, and stores what it has shown as if it
were a time in the zone of the process. Here that is undone, in a process whose zone is that of the old job. It cannot be undone
where a clock is changed: in the hour that comes twice two instants are shown alike, and Spark has one state for both; and the
hour that is left out is another one in the zone of the process.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from godwit.state.keys import naive_datetime, process_zone

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO: Final = dt.timedelta(microseconds=1)
_SHIFTS_MICROS: Final = [
    minutes * 60_000_000 for minutes in (-120, -60, -30, 0, 30, 60, 120)
]  # when clocks are changed


@dataclass(frozen=True, slots=True)
class PandasInstants:
    """zone: the time zone of the session."""

    zone: str

    def stored(self, micros: int) -> set[int]:
        """What PySpark may store for an instant: one of two where the clock of the process is changed."""
        shown = naive_datetime(micros, ZoneInfo(self.zone))
        return {(shown.replace(fold=fold).astimezone(dt.UTC) - _EPOCH) // _MICRO for fold in (0, 1)}

    def meant(self, stored: int) -> list[int]:
        """The instants for which PySpark may store this one, the first of them first."""
        shown = naive_datetime(stored, process_zone()).replace(tzinfo=ZoneInfo(self.zone))
        near = {(shown.replace(fold=fold) - _EPOCH) // _MICRO + shift for fold in (0, 1) for shift in _SHIFTS_MICROS}
        return [micros for micros in sorted(near) if stored in self.stored(micros)]

    def undone(self, column: pa.Array[Any]) -> pa.Array[Any]:
        """A key column with the instants that are meant."""
        kind: Any = column.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return pa.array([None if v is None else self.meant(v)[0] for v in _micros(column)], pa.int64()).cast(kind)
        if pa.types.is_struct(kind):
            parts = [self.undone(part) for part in _parts(column)]
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
        return column

    def doubtful(self, column: pa.Array[Any]) -> Iterator[int]:
        """The positions of keys with an instant that may be another one, or that is none in this zone."""
        kind: Any = column.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            stored = enumerate(_micros(column))
            yield from (at for at, micros in stored if micros is not None and len(self.meant(micros)) != 1)
        elif pa.types.is_struct(kind):
            for part in _parts(column):
                yield from self.doubtful(part)


def has_instant(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(has_instant(field.type) for field in kind)
    return pa.types.is_timestamp(kind) and kind.tz is not None


def shown(value: Any) -> Any:
    """A value of a key as the processor has seen it."""
    if isinstance(value, dict):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return str(naive_datetime((value - _EPOCH) // _MICRO, process_zone()))
    return value


def _micros(column: Any) -> list[int | None]:
    micros: list[int | None] = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()
    return micros


def _parts(column: Any) -> list[pa.Array[Any]]:
    """The fields of a struct; null where the struct is."""
    return list(column.flatten())
