"""What user code sees of Arrow data: the Python rows and pandas frames that a PySpark processor is called with.

Converts a whole chunk at once, and gives the very objects that Spark's own transformWithState gives. Must not know keys, state
or queries. What user code gives back is converted in `user_outputs`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.pandas.types import _create_converter_to_pandas, from_arrow_type

Column: TypeAlias = Any  # an Arrow array; the stubs ask for an element type, which is not known here
Values: TypeAlias = npt.NDArray[Any]

_DAY_MICROS: Final = 86_400_000_000
_MICROS_MIN: Final = -62_135_596_800_000_000  # Python's datetime reaches from year 1 to year 9999
_MICROS_MAX: Final = 253_402_300_799_999_999


def in_zone(batch: pa.RecordBatch, tz: str) -> pa.RecordBatch:
    """The same instants, shown in the session's time zone."""
    columns = [_zoned(column, tz) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _zoned(column: Column, tz: str) -> Column:
    if pa.types.is_timestamp(column.type) and column.type.tz not in (None, tz):
        return column.cast(pa.timestamp(column.type.unit, tz))
    return column


def python_values(column: Column) -> list[Any]:
    """The values as `as_py` gives them, many times faster for dates, timestamps and decimals."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "us" and _in_python_range(column, pa.int64(), 1):
        return _datetimes(column)
    if pa.types.is_date32(kind) and _in_python_range(column, pa.int32(), _DAY_MICROS):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    if pa.types.is_decimal(kind):
        return list(column.to_numpy(zero_copy_only=False))
    return list(column.to_pylist())


def _in_python_range(column: Column, stored: pa.DataType, unit_micros: int) -> bool:
    ends: Any = pc.min_max(column.view(stored)).as_py()
    if ends["min"] is None:
        return True
    return bool(ends["min"] * unit_micros >= _MICROS_MIN and ends["max"] * unit_micros <= _MICROS_MAX)


def _datetimes(column: Column) -> list[Any]:
    naive: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    valid = next((i for i, value in enumerate(naive) if value is not None), None)
    if column.type.tz is None or valid is None:
        return naive
    zone = column[valid].as_py().tzinfo
    return [None if v is None else zone.fromutc(v.replace(tzinfo=zone)) for v in naive]


@lru_cache(maxsize=256)
def row_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    """A function that makes Rows without Python code per Row; their fields are read without a search by name."""
    members: dict[str, Any] = {"__fields__": list(names), "__module__": Row.__module__}
    make: Any = namedtuple  # its field descriptors are the fastest way to an item of a tuple
    slots = make("Slots", [f"slot{i}" for i in range(len(names))])
    for position, name in reversed(list(enumerate(names))):
        if not name.startswith("__") and not hasattr(Row, name):
            members[name] = vars(slots)[f"slot{position}"]
    return partial(tuple.__new__, type("Row", (Row,), members))


def row_of_struct(kind: Any, zone: tzinfo | None) -> Callable[[Any], Any]:
    """A function that makes a Row, with Rows in it, of the values or the dict of a struct, with naive datetimes in `zone`."""
    make = row_maker(tuple(field.name for field in kind))
    parts = [_row_part(field.type, zone) for field in kind]

    def row(value: Any) -> Any:
        values = list(value.values()) if isinstance(value, dict) else value
        return make([part(v) for part, v in zip(parts, values, strict=True)])

    return row


def _row_part(kind: Any, zone: tzinfo | None) -> Callable[[Any], Any]:
    if pa.types.is_struct(kind):
        row = row_of_struct(kind, zone)
        return lambda value: None if value is None else row(value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        part = _row_part(kind.value_type, zone)
        return lambda value: None if value is None else [part(v) for v in value]
    if pa.types.is_timestamp(kind):
        return lambda value: value if value is None or value.tzinfo is None else _naive(value, zone)
    return lambda value: value


def _naive(moment: datetime, zone: tzinfo | None) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def python_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Rows as Spark's transformWithState makes them: a struct is a dict, a map is a list of pairs."""
    make = row_maker(tuple(batch.schema.names))
    return map(make, zip(*map(python_values, batch.columns), strict=True))


def pandas_moments(value: Any) -> Any:
    """The same value, with the datetimes in its structs and arrays as pandas has them: what the clock on the wall showed."""
    if isinstance(value, dict):
        return {name: pandas_moments(part) for name, part in value.items()}
    if isinstance(value, list):
        return [pandas_moments(part) for part in value]
    return pd.Timestamp(value.replace(tzinfo=None)) if isinstance(value, datetime) else value


class Frames:
    """One pandas DataFrame per key, cut from a chunk that is sorted by key and converted once.

    int_or_na: whole numbers keep their type, and a null among them is pandas.NA.
    """

    def __init__(self, batch: pa.RecordBatch, bounds: Sequence[int], tz: str, int_or_na: bool = False) -> None:
        columns = [_pandas_column(column, tz, int_or_na) for column in batch.columns]
        self._names = pd.Index(_frame_names(batch.schema.names), dtype=object)
        self._bounds = bounds
        self._indexes: dict[int, pd.RangeIndex] = {}
        self._whole = self._frame([tight for tight, _ in columns], pd.RangeIndex(batch.num_rows))
        # A null turns whole numbers into floats and booleans into objects, but only in frames of keys with a null:
        # the frame of a key must not depend on the other keys of its chunk.
        self._loose = {i: loose for i, (_, loose) in enumerate(columns) if loose is not None}
        self._tight = [tight for tight, _ in columns]
        starts = np.asarray(bounds[:-1], np.int64)
        self._nulls = {i: _null_keys(batch.column(i), starts) for i in self._loose}

    def _frame(self, columns: Sequence[Values], index: pd.RangeIndex) -> pd.DataFrame:
        frame = pd.DataFrame(dict(enumerate(columns)), index=index)
        frame.columns = self._names
        return frame

    def of_key(self, key: int, rows_max: int) -> Iterator[pd.DataFrame]:
        """The rows of a key, in frames of at most so many rows."""
        start, stop = self._bounds[key], self._bounds[key + 1]
        if stop - start <= rows_max:
            return iter((self._cut(key, start, stop),))
        return (self._cut(key, at, min(at + rows_max, stop)) for at in range(start, stop, rows_max))

    def __getitem__(self, key: int) -> pd.DataFrame:
        return self._cut(key, self._bounds[key], self._bounds[key + 1])

    def _cut(self, key: int, start: int, stop: int) -> pd.DataFrame:
        index = self._indexes.get(stop - start)
        if index is None:
            index = self._indexes[stop - start] = pd.RangeIndex(stop - start)
        if self._loose:
            loose = [i for i, nulls in self._nulls.items() if nulls[key]]
            if loose:
                columns = [self._loose[i] if i in loose else tight for i, tight in enumerate(self._tight)]
                return self._frame([column[start:stop] for column in columns], index)
        return _cut(self._whole, start, stop, index)


def _frame_names(names: Sequence[str]) -> list[str]:
    """Spark makes the frame of a key of named tuples: a name that is no identifier is replaced by the place of its column."""
    make: Any = namedtuple
    return list(make("Names", names, rename=True)._fields)


def _null_keys(column: Column, starts: npt.NDArray[np.int64]) -> Values:
    """For each key, whether it has a null in the column."""
    return np.logical_or.reduceat(column.is_null().to_numpy(zero_copy_only=False), starts)


def _cut(frame: pd.DataFrame, start: int, stop: int, index: pd.RangeIndex) -> pd.DataFrame:
    """`frame.iloc[start:stop]` with the given index, at a third of the cost, because there is one call per key."""
    whole: Any = frame
    blocks = whole._mgr.get_slice(slice(start, stop), axis=1)
    blocks.axes = [blocks.axes[0], index]
    cut: pd.DataFrame = whole._from_mgr(blocks, blocks.axes)
    return cut


def _pandas_column(column: Column, tz: str, int_or_na: bool) -> tuple[Values, Values | None]:
    """The column for keys without nulls and, if its type differs, the column for keys with nulls.

    Spark rebuilds the frame of every key from Python values, so whole numbers are int64 and fractions float64, as here.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        filled = column.fill_null(0).to_numpy(zero_copy_only=False)
        tight = filled if int_or_na else filled.astype(np.int64, copy=False)
        return tight, _with_nulls(column, filled, int_or_na) if column.null_count else None
    if pa.types.is_boolean(kind):
        tight = column.fill_null(False).to_numpy(zero_copy_only=False)
        return tight, column.to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_floating(kind):
        return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), None
    if pa.types.is_timestamp(kind):
        return _wall_clock(column), None
    if pa.types.is_date32(kind):
        return column.to_numpy(zero_copy_only=False).astype(object), None
    if pa.types.is_nested(kind):
        return _nested_objects(column, tz), None
    return column.to_numpy(zero_copy_only=False), None


def _with_nulls(column: Column, filled: Values, int_or_na: bool) -> Values:
    """Whole numbers, some of them null."""
    null: Values = column.is_null().to_numpy(zero_copy_only=False)
    made: Values = np.empty(len(column), object if int_or_na else np.float64)
    made[:] = list(filled) if int_or_na else filled
    made[null] = pd.NA if int_or_na else np.nan
    return made


def _wall_clock(column: Column) -> Values:
    local: Any = column if column.type.tz is None else pc.local_timestamp(column)
    if not len(local) or _in_pandas_range(local):
        local = local.cast(pa.timestamp("ns"))
    values: Values = local.to_numpy(zero_copy_only=False)
    return values


def _in_pandas_range(column: Column) -> bool:
    """Nanoseconds reach from 1677 to 2262; pandas keeps other years in microseconds."""
    ends: Any = pc.min_max(column.cast(pa.timestamp("us")).view(pa.int64())).as_py()
    return ends["min"] is None or (ends["min"] > -(2**63) // 1000 and ends["max"] < 2**63 // 1000)


def _nested_objects(column: Column, tz: str) -> Values:
    convert = _create_converter_to_pandas(
        data_type=from_arrow_type(column.type),
        nullable=True,
        timezone=tz,
        struct_in_pandas="dict",
        error_on_duplicated_field_names=True,
        integer_object_nulls=True,
    )
    series = column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True, integer_object_nulls=True)
    return convert(series).to_numpy()
