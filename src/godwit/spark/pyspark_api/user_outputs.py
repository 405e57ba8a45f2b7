"""What becomes of the rows and frames that user code gives back: a record batch of the declared schema.

An output that does not fit the schema is reported with the number of the call that gave it (`failed_call`); the caller knows
the key of that call. Must not know keys, state or queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import OutputMismatch
from godwit.runtime.processor.rows import event_times
from godwit.spark.pyspark_api.call_settings import SparkSettings
from godwit.spark.pyspark_api.user_inputs import Column, Values

Field: TypeAlias = "pa.Field[Any]"
Convert: TypeAlias = Callable[[Any], Any]

_SHOWN_CHARS: Final = 80
_DEFAULTS: Final = SparkSettings()
_FRACTIONS: Final = (float, np.floating)
_MISFITS: Final = (pa.ArrowException, ArithmeticError, AttributeError, TypeError, ValueError)


class _Sink:
    """Collects the outputs of all calls of a chunk. `ends` has the number of output rows after each call.

    tz: the zone of naive datetimes inside structs, arrays and maps; None: UTC.
    """

    def __init__(self, schema: pa.Schema, tz: str | None = None) -> None:
        self.schema = schema
        self.ends: list[int] = []
        self._total = 0
        self.failed_call: int | None = None
        self._fields: list[Field] = list(schema)
        self._nested = [(i, _nested_value(f.type, tz)) for i, f in enumerate(schema) if pa.types.is_nested(f.type)]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of output rows of each call."""
        ends = np.asarray([0, *self.ends], np.int64)
        return ends[1:] - ends[:-1]

    def _misfit(self, row: int, given: str, field: Field | None, message: str = "") -> OutputMismatch:
        """The error for an output row that does not fit; `given` describes the value of user code."""
        self.failed_call = int(np.searchsorted(np.asarray(self.ends, np.int64), row, side="right"))
        declared = str(self.schema.names) if field is None else _declared(field)
        name = None if field is None else field.name
        return OutputMismatch(
            message or f"output column {name!r} is declared as {declared}, and the processor gave {given}",
            column=name,
            declared=declared,
            given=given,
            todo="Make the processor's output and outputStructType agree",
        )

    def check_not_late(self, batch: pa.RecordBatch, column: str, late_ms: int) -> None:
        """Refuse an output that is older than the watermark: a later operator would drop it. Spark refuses it too."""
        times = batch.column(self.schema.get_field_index(column))
        micros: Any = event_times(times).cast(pa.timestamp("us")).cast(pa.int64())
        late: Any = pc.less_equal(micros, pa.scalar(late_ms * 1000)).fill_null(False).to_numpy(zero_copy_only=False)
        if late.any():
            row = int(late.argmax())
            given, field = str(times[row]), self.schema.field(column)
            message = f"the event time of an output row ({column}={given}) is older than the watermark ({late_ms} ms)"
            raise self._misfit(row, given, field, message)

    def _iterable(self, result: Any) -> Iterable[Any]:
        if not hasattr(result, "__iter__"):
            message = f"a processor's handler must return an iterator, and this one returned {_shown(result)}"
            raise self._misfit(self._total, type(result).__name__, None, message)
        return cast(Iterable[Any], result)

    def _batch(self, columns: Sequence[Column]) -> pa.RecordBatch:
        for field, column in zip(self._fields, columns, strict=True):
            if column.null_count and not field.nullable:
                row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
                raise self._misfit(row, "None", field)
        return pa.RecordBatch.from_arrays(list(columns), schema=self.schema)


class RowSink(_Sink):
    """Takes Rows by field name, as Spark does, and plain tuples by position."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._names = list(schema.names)
        self._values: list[Any] = []  # one flat list: a row object each would keep the garbage collector busy
        self._orders: dict[tuple[str, ...], Convert] = {}

    def consume(self, result: Any) -> None:
        """Take the whole output of one call. User code runs while the output is iterated."""
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
                # Copied now, because the processor may change a list after it has yielded it.
                values[position] = convert(values[position])
            except _MISFITS as error:
                given = _shown(values[position])
                raise self._misfit(self._total, given, self._fields[position]) from error
        return values

    def _by_name(self, row: Any) -> list[Any]:
        fields = getattr(row, "__fields__", None)
        if not isinstance(row, tuple) or fields is None or len(row) != len(fields):
            message = f"a processor must yield Rows with the columns {self._names}, and this one yielded {_shown(row)}"
            raise self._misfit(self._total, _shown(row), None, message)
        order = self._orders.get(tuple(fields))
        if order is None:
            order = self._orders[tuple(fields)] = self._order(list(fields))
        values: list[Any] = order(tuple(row))
        return values

    def _order(self, fields: list[str]) -> Convert:
        missing = [name for name in self._names if name not in fields]
        if missing and set(fields) - set(self._names):
            message = f"the Row that the processor yielded has no field for output column {missing[0]!r}"
            raise self._misfit(self._total, f"fields {fields}", self.schema.field(missing[0]), message)
        # As in Spark, a column without a field in the row is null, and a field without a column is dropped.
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
    """Takes DataFrames by column name, as Spark does, and by position where no column has a name."""

    def __init__(self, schema: pa.Schema, tz: str, spark: SparkSettings = _DEFAULTS) -> None:
        super().__init__(schema, tz)
        self._tz = tz
        self._spark = spark
        self._parts: list[list[Any]] = [[] for _ in schema]
        self._positions: dict[tuple[Any, ...], list[int]] = {}

    def consume(self, result: Any) -> None:
        """Take the whole output of one call. User code runs while the output is iterated."""
        for frame in self._iterable(result):
            if not isinstance(frame, pd.DataFrame):
                message = f"a processor must yield pandas DataFrames, and this one yielded {_shown(frame)}"
                raise self._misfit(self._total, type(frame).__name__, None, message)
            if len(frame):
                self._take(frame)
        self.ends.append(self._total)

    def _take(self, frame: Any) -> None:
        labels = tuple(frame.columns)
        positions = self._positions.get(labels)
        if positions is None:
            positions = self._positions[labels] = self._column_positions(labels)
        for part, position in zip(self._parts, positions, strict=True):
            # Copied, because the processor may change a frame after it has yielded it.
            part.append(_copied(frame._get_column_array(position)))
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

    def _column_positions(self, labels: tuple[Any, ...]) -> list[int]:
        named = self._spark.by_name and any(isinstance(label, str) for label in labels)
        wanted: Sequence[Any] = self.schema.names if named else range(len(self._fields))
        there: Sequence[Any] = labels if named else range(len(labels))
        for name, field in zip(wanted, self._fields, strict=True):
            if name not in there:
                message = f"the DataFrame that the processor yielded has no column {field.name!r}"
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
            if self._spark.int_to_decimal and pa.types.is_decimal(field.type):
                values, plain = np.array([_as_decimal(value) for value in values], object), True
            try:
                made.append(_arrow_column(values, field.type, self._tz, self._spark.safe))
            except _MISFITS as error:
                mixed = dtype.kind == "O"  # else all values have one type, and the first one shows the error
                row = next((i for i, v in enumerate(values) if mixed and not _fits(v, field.type)), 0)
                given = f"a pandas column of {dtype} with {_shown(values[row] if plain else values.iloc[row])}"
                message = (
                    f"output column {field.name!r} is declared as {_declared(field)}, and the processor gave {given}"
                )
                raise self._misfit(start + row, given, field, f"{message}. Failed to convert the value") from error
            start += len(values)
        return pa.concat_arrays(made) if made else pa.array([], field.type)


def _as_decimal(value: Any) -> Any:
    return Decimal(int(value)) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else value


def _copied(values: Any) -> Any:
    if isinstance(values.dtype, np.dtype):
        return np.array(values)
    if isinstance(values.dtype, pd.CategoricalDtype):
        return np.asarray(values)
    return values.copy()


def _arrow_column(values: Any, kind: pa.DataType, tz: str, safe: bool) -> Column:
    if pa.types.is_timestamp(kind) and values.dtype.kind == "M":
        moments: Any = pa.Array.from_pandas(values)
        if moments.type.tz is None and kind.tz is not None:
            moments = pc.assume_timezone(moments, tz, ambiguous="latest", nonexistent="latest")
        return moments.cast(kind, safe=False)  # only parts of a microsecond are lost
    # In a binary column, NaN and NaT would be eight bytes.
    mask: Any = pd.isnull(values) if pa.types.is_binary(kind) and isinstance(values.dtype, np.dtype) else None
    try:
        return pa.Array.from_pandas(values, type=kind, mask=mask, safe=safe)
    except pa.ArrowInvalid:  # not for ArrowTypeError: Spark casts in the same cases
        return pa.Array.from_pandas(values, mask=mask).cast(kind, safe=safe)


def _nested_value(kind: Any, tz: str | None) -> Convert:
    """A function that copies nested Rows, tuples, dicts, lists and arrays into the form that Arrow reads."""
    if pa.types.is_struct(kind):
        fields = {field.name: _nested_value(field.type, tz) for field in kind}
        return lambda v: None if _missing(v) else _struct(v, fields)
    if pa.types.is_map(kind):
        pair = _nested_value(kind.key_type, tz), _nested_value(kind.item_type, tz)
        return lambda v: None if _missing(v) else _pairs(v, *pair)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _nested_value(kind.value_type, tz)
        return lambda v: None if _missing(v) else [element(e) for e in v]
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else tz
        return lambda v: None if v is None else _moment(v, zone)
    return lambda v: v


def _moment(value: Any, tz: str | None) -> Any:
    """A datetime that Arrow takes inside a nested value: not one of numpy, and aware if naive ones are of the zone `tz`."""
    if tz is None:
        return pd.Timestamp(value) if isinstance(value, np.datetime64) else value
    moment = value if isinstance(value, pd.Timestamp) else pd.Timestamp(value)
    return moment if moment.tzinfo else moment.tz_localize(tz, ambiguous=False, nonexistent="shift_forward")


def _missing(value: Any) -> bool:
    """None, or the NaN that pandas uses for None."""
    return value is None or (isinstance(value, float) and value != value)


def _struct(value: Any, fields: dict[str, Convert]) -> dict[str, Any]:
    if isinstance(value, (tuple, list)):
        value = dict(zip(getattr(value, "__fields__", fields), value, strict=True))
    return {name: convert(value.get(name)) for name, convert in fields.items()}


def _pairs(value: Any, key: Convert, item: Convert) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        value = value.items()
    elif hasattr(value, "__fields__"):  # Spark makes a dict of a Row
        value = zip(value.__fields__, value, strict=True)
    return [(key(k), item(i)) for k, i in value]


def _whole(value: Any) -> Any:
    """A whole number as int, because Arrow would silently cut off a fraction."""
    if not isinstance(value, _FRACTIONS):
        return value
    if not value.is_integer():
        raise ValueError("the number has a fraction")
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
    text = " ".join(repr(value).split())  # a DataFrame has many lines, and the error begins with a single one
    return f"{type(value).__name__} {text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '...'}"
