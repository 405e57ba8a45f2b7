"""What user code sees of Arrow data, and what becomes of the rows and frames it gives back.

Decides, for a whole chunk at once, which Python objects a PySpark processor is called with (the very ones
Spark's own transformWithState gives) and how its output becomes a record batch of the declared schema.
It must not know of keys, state or queries: an output that does not fit is reported with the number of the
call that gave it, and the caller says for which key that was.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.pandas.types import _create_converter_to_pandas, from_arrow_type

from godwit.errors import OutputMismatch

Column: TypeAlias = Any  # an Arrow array: the stubs ask for its element type, which here is any
Field: TypeAlias = "pa.Field[Any]"
Values: TypeAlias = npt.NDArray[Any]
Convert: TypeAlias = Callable[[Any], Any]

_SHOWN_CHARS: Final = 80
_FRACTIONS: Final = (float, np.floating)
_MISFITS: Final = (pa.ArrowException, ArithmeticError, AttributeError, TypeError, ValueError)
_DAY_MICROS: Final = 86_400_000_000
_MICROS_MIN: Final = -62_135_596_800_000_000  # years 1 to 9999: what Python's datetime can say
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
    """What `as_py` gives for each value, many times faster for dates, timestamps and decimals."""
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
    """Makes Rows without running Python code for each, whose fields are found without a search by name."""
    members: dict[str, Any] = {"__fields__": list(names), "__module__": Row.__module__}
    make: Any = namedtuple  # only for what it makes of a field: the fastest way to an item of a tuple
    slots = make("Slots", [f"slot{i}" for i in range(len(names))])
    for position, name in reversed(list(enumerate(names))):
        if not name.startswith("__") and not hasattr(Row, name):
            members[name] = vars(slots)[f"slot{position}"]
    return partial(tuple.__new__, type("Row", (Row,), members))


def python_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Rows as Spark's transformWithState makes them: structs are dicts, maps are lists of pairs."""
    make = row_maker(tuple(batch.schema.names))
    return map(make, zip(*map(python_values, batch.columns), strict=True))


class Frames:
    """One pandas DataFrame per key, cut from a chunk that is sorted by key and was converted once."""

    def __init__(self, batch: pa.RecordBatch, bounds: Sequence[int], tz: str) -> None:
        columns = [_pandas_column(column, tz) for column in batch.columns]
        self._names = pd.Index(batch.schema.names, dtype=object)
        self._bounds = bounds
        self._indexes: dict[int, pd.RangeIndex] = {}
        self._whole = self._frame([tight for tight, _ in columns], pd.RangeIndex(batch.num_rows))
        # Nulls make whole numbers floats and booleans objects, but only in the frames of keys that have them:
        # what a key sees must not depend on which other keys came in its chunk.
        self._loose = {i: loose for i, (_, loose) in enumerate(columns) if loose is not None}
        self._tight = [tight for tight, _ in columns]
        starts = np.asarray(bounds[:-1], np.int64)
        self._nulls = {i: _null_keys(batch.column(i), starts) for i in self._loose}

    def _frame(self, columns: Sequence[Values], index: pd.RangeIndex) -> pd.DataFrame:
        frame = pd.DataFrame(dict(enumerate(columns)), index=index)
        frame.columns = self._names
        return frame

    def __getitem__(self, key: int) -> pd.DataFrame:
        start, stop = self._bounds[key], self._bounds[key + 1]
        index = self._indexes.get(stop - start)
        if index is None:
            index = self._indexes[stop - start] = pd.RangeIndex(stop - start)
        if self._loose:
            loose = [i for i, nulls in self._nulls.items() if nulls[key]]
            if loose:
                columns = [self._loose[i] if i in loose else tight for i, tight in enumerate(self._tight)]
                return self._frame([column[start:stop] for column in columns], index)
        return _cut(self._whole, start, stop, index)


def _null_keys(column: Column, starts: npt.NDArray[np.int64]) -> Values:
    """Whether a key has a null in the column."""
    return np.logical_or.reduceat(column.is_null().to_numpy(zero_copy_only=False), starts)


def _cut(frame: pd.DataFrame, start: int, stop: int, index: pd.RangeIndex) -> pd.DataFrame:
    """`frame.iloc[start:stop]` with an index of its own, at a third of the cost: there is one per key."""
    whole: Any = frame
    blocks = whole._mgr.get_slice(slice(start, stop), axis=1)
    blocks.axes = [blocks.axes[0], index]
    cut: pd.DataFrame = whole._from_mgr(blocks, blocks.axes)
    return cut


def _pandas_column(column: Column, tz: str) -> tuple[Values, Values | None]:
    """The column for keys without nulls in it and, where that has another type, for keys with nulls.

    Spark rebuilds every key's frame from Python values, which makes all whole numbers int64 and all fractions
    float64; so does this.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        tight = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return tight, column.to_numpy(zero_copy_only=False).astype(np.float64) if column.null_count else None
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


class _Sink:
    """Collects what the calls of a chunk give back; `ends` has the number of output rows after each call."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.ends: list[int] = []
        self._total = 0
        self.blamed: int | None = None
        self._fields: list[Field] = list(schema)
        self._nested = [(i, _nested_value(f.type)) for i, f in enumerate(schema) if pa.types.is_nested(f.type)]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many output rows each call gave."""
        ends = np.asarray([0, *self.ends], np.int64)
        return ends[1:] - ends[:-1]

    def _misfit(self, row: int, given: str, field: Field | None, message: str = "") -> OutputMismatch:
        self.blamed = int(np.searchsorted(np.asarray(self.ends, np.int64), row, side="right"))
        declared = str(self.schema.names) if field is None else _declared(field)
        name = None if field is None else field.name
        return OutputMismatch(
            message or f"output column {name!r} is {declared}, not {given}",
            column=name,
            declared=declared,
            given=given,
            todo="Make the processor's output and outputStructType agree",
        )

    def _iterable(self, result: Any) -> Iterable[Any]:
        if not hasattr(result, "__iter__"):
            message = f"a processor's handlers return an iterator, not {_shown(result)}"
            raise self._misfit(self._total, type(result).__name__, None, message)
        return cast(Iterable[Any], result)

    def _batch(self, columns: Sequence[Column]) -> pa.RecordBatch:
        for field, column in zip(self._fields, columns, strict=True):
            if column.null_count and not field.nullable:
                row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
                raise self._misfit(row, "None", field)
        return pa.RecordBatch.from_arrays(list(columns), schema=self.schema)


class RowSink(_Sink):
    """Rows by field name, as Spark takes them; plain tuples by position."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._names = list(schema.names)
        self._values: list[Any] = []  # row after row: so many row objects would keep the garbage collector busy
        self._orders: dict[tuple[str, ...], Convert] = {}

    def consume(self, result: Any) -> None:
        """Take all of one call's output; user code runs while it is iterated."""
        names, width, extend, nested = self._names, len(self._names), self._values.extend, self._nested
        for row in self._iterable(result):
            try:
                plain = row.__fields__ == names and len(row) == width
            except AttributeError:
                plain = isinstance(row, tuple) and len(row) == width
            extend(row if plain and not nested else self._arranged(row, plain))
            self._total += 1
        self.ends.append(self._total)

    def _arranged(self, row: Any, plain: bool) -> list[Any]:
        values = list(row if plain else self._by_name(row))
        for position, convert in self._nested:
            try:
                # Now and not later: the processor may go on changing a list that it has yielded.
                values[position] = convert(values[position])
            except _MISFITS as error:
                given = _shown(values[position])
                raise self._misfit(self._total, given, self._fields[position]) from error
        return values

    def _by_name(self, row: Any) -> list[Any]:
        fields = getattr(row, "__fields__", None)
        if not isinstance(row, tuple) or fields is None or len(row) != len(fields):
            message = f"a processor yields Rows of the columns {self._names}, not {_shown(row)}"
            raise self._misfit(self._total, _shown(row), None, message)
        order = self._orders.get(tuple(fields))
        if order is None:
            order = self._orders[tuple(fields)] = self._order(list(fields))
        values: list[Any] = order(tuple(row))
        return values

    def _order(self, fields: list[str]) -> Convert:
        missing = [name for name in self._names if name not in fields]
        if missing and set(fields) - set(self._names):
            message = f"output column {missing[0]!r} is not among the fields of the row"
            raise self._misfit(self._total, f"fields {fields}", self.schema.field(missing[0]), message)
        # As in Spark, a column that a row does not name is null, and a field that is not declared is dropped.
        positions = [fields.index(name) if name in fields else None for name in self._names]
        return lambda values: [None if at is None else values[at] for at in positions]

    def finish(self) -> pa.RecordBatch:
        values, width = self._values, len(self._fields)
        return self._batch([self._column(f, values[i::width]) for i, f in enumerate(self._fields)])

    def _column(self, field: Field, values: Sequence[Any]) -> Column:
        try:
            if pa.types.is_integer(field.type) and any(issubclass(t, _FRACTIONS) for t in set(map(type, values))):
                values = [_whole(value) for value in values]
            return pa.array(values, field.type)
        except _MISFITS as error:
            row, value = next(((i, v) for i, v in enumerate(values) if not _fits(v, field.type)), (0, values[0]))
            raise self._misfit(row, _shown(value), field) from error


class FrameSink(_Sink):
    """DataFrames, columns by name as Spark takes them (by position where no column has a name)."""

    def __init__(self, schema: pa.Schema, tz: str) -> None:
        super().__init__(schema)
        self._tz = tz
        self._parts: list[list[Any]] = [[] for _ in schema]
        self._positions: dict[tuple[Any, ...], list[int]] = {}

    def consume(self, result: Any) -> None:
        """Take all of one call's output; user code runs while it is iterated."""
        for frame in self._iterable(result):
            if not isinstance(frame, pd.DataFrame):
                message = f"a processor yields DataFrames, not {_shown(frame)}"
                raise self._misfit(self._total, type(frame).__name__, None, message)
            if len(frame):
                self._take(frame)
        self.ends.append(self._total)

    def _take(self, frame: Any) -> None:
        labels = tuple(frame.columns)
        positions = self._positions.get(labels)
        if positions is None:
            positions = self._positions[labels] = self._placed(labels)
        for part, position in zip(self._parts, positions, strict=True):
            # A copy, because the processor may go on changing a frame that it has yielded.
            part.append(_owned(frame._get_column_array(position)))
        for position, convert in self._nested:
            self._parts[position][-1] = self._nested_part(self._fields[position], self._parts[position][-1], convert)
        self._total += len(frame)

    def _nested_part(self, field: Field, given: Any, convert: Convert) -> Values:
        made = np.empty(len(given), object)
        for row, value in enumerate(given):
            try:
                made[row] = convert(value)
            except _MISFITS as error:
                raise self._misfit(self._total + row, _shown(value), field) from error
        return made

    def _placed(self, labels: tuple[Any, ...]) -> list[int]:
        named = any(isinstance(label, str) for label in labels)
        wanted: Sequence[Any] = self.schema.names if named else range(len(self._fields))
        there: Sequence[Any] = labels if named else range(len(labels))
        for name, field in zip(wanted, self._fields, strict=True):
            if name not in there:
                message = f"output column {field.name!r} is missing from the frame"
                raise self._misfit(self._total, f"columns {list(labels)}", field, message)
        return [there.index(name) for name in wanted]

    def finish(self) -> pa.RecordBatch:
        return self._batch([self._column(f, p) for f, p in zip(self._fields, self._parts, strict=True)])

    def _column(self, field: Field, parts: list[Any]) -> Column:
        made: list[Column] = []
        start = 0
        for dtype, run in groupby(parts, key=lambda part: part.dtype):
            pieces = list(run)
            plain = isinstance(dtype, np.dtype)
            values: Any = np.concatenate(pieces) if plain else pd.concat([pd.Series(piece) for piece in pieces])
            try:
                made.append(_arrow_column(values, field.type, self._tz))
            except _MISFITS as error:
                mixed = dtype.kind == "O"  # else all values are alike, and the first is as wrong as any
                row = next((i for i, v in enumerate(values) if mixed and not _fits(v, field.type)), 0)
                given = f"a pandas column of {dtype} with {_shown(values[row] if plain else values.iloc[row])}"
                raise self._misfit(start + row, given, field) from error
            start += len(values)
        return pa.concat_arrays(made) if made else pa.array([], field.type)


def _owned(values: Any) -> Any:
    if isinstance(values.dtype, np.dtype):
        return np.array(values)
    if isinstance(values.dtype, pd.CategoricalDtype):
        return np.asarray(values)
    return values.copy()


def _arrow_column(values: Any, kind: pa.DataType, tz: str) -> Column:
    if pa.types.is_timestamp(kind) and values.dtype.kind == "M":
        moments: Any = pa.Array.from_pandas(values)
        if moments.type.tz is None and kind.tz is not None:
            moments = pc.assume_timezone(moments, tz, ambiguous="latest", nonexistent="latest")
        return moments.cast(kind, safe=False)  # what is lost is below a microsecond
    try:
        return pa.Array.from_pandas(values, type=kind)
    except pa.ArrowInvalid:  # and not ArrowTypeError: Spark's rule for what is worth a cast
        return pa.Array.from_pandas(values).cast(kind)


def _nested_value(kind: Any) -> Convert:
    """Rows, tuples, dicts, lists and arrays inside a value to what Arrow reads, copied."""
    if pa.types.is_struct(kind):
        fields = {field.name: _nested_value(field.type) for field in kind}
        return lambda v: None if _missing(v) else _struct(v, fields)
    if pa.types.is_map(kind):
        pair = _nested_value(kind.key_type), _nested_value(kind.item_type)
        return lambda v: None if _missing(v) else _pairs(v, *pair)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _nested_value(kind.value_type)
        return lambda v: None if _missing(v) else [element(e) for e in v]
    return lambda v: v


def _missing(value: Any) -> bool:
    """None, or the NaN that pandas puts in its place."""
    return value is None or (isinstance(value, float) and value != value)


def _struct(value: Any, fields: dict[str, Convert]) -> dict[str, Any]:
    if isinstance(value, (tuple, list)):
        value = dict(zip(getattr(value, "__fields__", fields), value, strict=True))
    return {name: convert(value.get(name)) for name, convert in fields.items()}


def _pairs(value: Any, key: Convert, item: Convert) -> list[tuple[Any, Any]]:
    return [(key(k), item(i)) for k, i in (value.items() if isinstance(value, dict) else value)]


def _whole(value: Any) -> Any:
    """Arrow would cut a fraction off without a word."""
    if not isinstance(value, _FRACTIONS):
        return value
    if not value.is_integer():
        raise ValueError("a fraction")
    return int(value)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([_whole(value) if pa.types.is_integer(kind) else value], kind)
    except _MISFITS:
        return False
    return True


def _declared(field: Field) -> str:
    return f"{field.type}" if field.nullable else f"{field.type} not null"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '...'}"
