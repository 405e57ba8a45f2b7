"""The native processor: user code called once for many keys, with state as numpy columns.

Decides how typed state becomes columns and goes back (one gather, one scatter per call), and how a native
processor is bound to an input, opened on a host, given rows and timers. It must not know of lanes, batches,
ledgers or files, nor of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.errors import DefinitionError, OutputMismatch, ProcessorFailed, StateTypeError
from godwit.runtime.processor.merging import Merge, checked_merge
from godwit.runtime.processor.rows import Index, Outputs, Rows, Times, no_outputs
from godwit.state.codec import compile_codec
from godwit.state.keys import Key, KeyCodec
from godwit.state.tables import KeyedState
from godwit.state.variables import Variable

Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array]
Fields: TypeAlias = Mapping[str, pa.DataType] | pa.Schema

STATE: Final = "state"  # the variable that holds the fields of `Processor.state`
_AGREE: Final = "Make what the processor gives and its output_schema agree"
_NO_FIELDS: Final[Fields] = MappingProxyType({})


def column(batch: pa.RecordBatch, name: str, fill: Any = None) -> Array:
    """A column as numpy: timestamps as microseconds, dates as days. Nulls need a `fill`, or are refused."""
    if name not in batch.schema.names:
        raise ProcessorFailed(f"the input has no column {name!r}", todo=f"It has {', '.join(batch.schema.names)}")
    values, valid = values_of(batch.column(name))
    if valid is not None:
        if fill is None:
            raise ProcessorFailed(f"column {name!r} holds nulls", todo="Give `fill`, or filter them out before")
        values = np.where(valid, values, fill)
    return values


def values_of(array: pa.Array[Any]) -> tuple[Array, npt.NDArray[np.bool_] | None]:
    """The values of an array, anything where it is null, and which are not null (None: all)."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False), None
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(kind):
        array = array.fill_null(False)
    elif pa.types.is_primitive(array.type):
        array = array.fill_null(0)
    return array.to_numpy(zero_copy_only=False), valid


def running_sum(rows: Rows, values: Array, start: Array) -> Array:
    """For each row, its key's `start` plus the key's values up to and with this row.

    Adds strictly left to right, so that floating-point totals do not depend on how rows were cut into chunks.
    Keys go together by the power of two above their number of rows: few numpy calls whatever the skew, and
    at most half of the work is padding.
    """
    ordered = np.asarray(values)[rows.order]
    totals = np.empty(len(rows), np.result_type(ordered, start))
    width_class = np.frexp(rows.counts - 0.5)[1]
    for each in np.unique(width_class):
        members = np.flatnonzero(width_class == each)
        steps = np.arange(rows.counts[members].max())
        used = steps < rows.counts[members, None]
        at = (rows.bounds[members, None] + steps)[used]
        grid = np.zeros((len(members), len(steps) + 1), totals.dtype)
        grid[:, 0] = start[members]
        grid[:, 1:][used] = ordered[at]
        totals[at] = np.add.accumulate(grid, axis=1)[:, 1:][used]
    result = np.empty_like(totals)
    result[rows.order] = totals
    return result


def zeros(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What fields hold before anything is written: zero, or None if they are objects."""
    return np.full(shape, None) if dtype.hasobject else np.zeros(shape, dtype)


def flat_schema(fields: Fields) -> pa.Schema:
    """The fields as they are stored: one of so many elements becomes as many fields, `x_0`, `x_1` and so on."""
    flat = []
    for field in fields if isinstance(fields, pa.Schema) else pa.schema(dict(fields)):
        count = _element_count(field.type)
        kind = field.type if count is None else field.type.value_type
        flat += [pa.field(name, kind) for name in _flat_names(field.name, count)]
    return pa.schema(flat)


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
        self._zero = self.pack(self.zeros(1), 1)[0]

    def zeros(self, count: int) -> Columns:
        return {name: zeros(self._shape(name, count), dtype) for name, dtype in self.dtypes.items()}

    def unpack(self, payloads: Sequence[bytes | None]) -> Columns:
        if self._dtype is None:
            return self._unpack_each(payloads)
        records = np.frombuffer(self._joined(payloads), self._dtype)
        return {name: records[name].astype(dtype) for name, dtype in self.dtypes.items()}

    def pack(self, columns: Columns, count: int) -> list[bytes]:
        if self._dtype is None:
            parts = [columns[name].reshape(count, n or 1).T.tolist() for name, n in self._counts.items()]
            return [self._codec.encode(values) for values in zip(*chain.from_iterable(parts), strict=True)]
        return _payloads(self._records(columns, count))

    def pack_changed(self, columns: Columns, before: Sequence[bytes | None]) -> tuple[list[int], list[bytes]]:
        """The positions where the columns are not what was unpacked from `before`, and the payloads there."""
        if self._dtype is None:
            packed = self.pack(columns, len(before))
            changed = [i for i, old in enumerate(before) if packed[i] != (self._zero if old is None else old)]
            return changed, [packed[i] for i in changed]
        records = self._records(columns, len(before))
        old = np.frombuffer(self._joined(before), np.uint8).reshape(len(before), self._dtype.itemsize)
        where = np.flatnonzero((records.view(np.uint8).reshape(old.shape) != old).any(axis=1))
        return where.tolist(), _payloads(records if len(where) == len(records) else records[where])

    def _joined(self, payloads: Sequence[bytes | None]) -> bytes:
        try:
            return b"".join(cast(Sequence[bytes], payloads))  # the common case, all present, is one call
        except TypeError:
            return b"".join([self._zero if payload is None else payload for payload in payloads])

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


def _payloads(records: Array) -> list[bytes]:
    return cast(list[bytes], records.view(f"V{records.dtype.itemsize}").tolist())


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


class States:
    """State of the keys at hand: a column per field, aligned with `keys`; changed in place or assigned."""

    def __init__(self, keys: list[Key], keyed: KeyedState, packer: Packer | None) -> None:
        self.keys = keys
        self.keyed = keyed
        self._packer = packer
        self._loaded: list[bytes | None] | None = None
        self._columns: Columns = {}
        self._gone = np.zeros(len(keys), np.bool_)

    def __getitem__(self, field: str) -> Array:
        columns = self._load()
        if field not in columns:
            raise ProcessorFailed(f"no state field {field!r} is declared", todo=f"Declared: {', '.join(columns)}")
        return columns[field]

    def __setitem__(self, field: str, values: npt.ArrayLike) -> None:
        target, given = self[field], np.asarray(values)
        if given is target:
            return
        if given.shape not in ((), target.shape):
            raise StateTypeError(
                f"{len(self.keys)} keys, but values of shape {given.shape}",
                todo="Give one value for each key",
                field=field,
            )
        fits = np.can_cast(given.dtype, target.dtype, "same_kind")
        if not fits or (target.dtype.kind in "iu" and (given.astype(target.dtype) != given).any()):
            raise StateTypeError(
                "the values do not fit",
                todo="Declare a type in `state` that holds them, or convert them",
                field=field,
                expected=str(target.dtype),
                given=str(given.dtype),
            )
        target[...] = given

    @property
    def is_new(self) -> npt.NDArray[np.bool_]:
        """Which keys had no state before this call."""
        self._load()
        return np.fromiter((payload is None for payload in self._loaded or ()), np.bool_, len(self.keys))

    def remove(self, where: npt.ArrayLike | slice = slice(None)) -> None:
        """Forget all state of these keys (a mask, positions or a slice); their timers stay."""
        self._gone[self._positions(where)] = True

    def set_timer(self, where: npt.ArrayLike | slice, expiry_ms: npt.ArrayLike) -> None:
        """A timer for each of these keys, all at one time or each at its own; one in the past fires next."""
        for key, expiry in self._each(where, expiry_ms):
            self.keyed.timer_put(key, expiry)

    def delete_timer(self, where: npt.ArrayLike | slice, expiry_ms: npt.ArrayLike) -> None:
        for key, expiry in self._each(where, expiry_ms):
            self.keyed.timer_remove(key, expiry)

    def timers(self, position: int) -> list[int]:
        """When the timers of this key fire, in order."""
        return self.keyed.timer_list(self.keys[position])

    def flush(self, variables: Sequence[Variable], keep_new: bool) -> None:
        """Write what changed. `keep_new`: a key met for the first time is kept even if its state is zero."""
        if self._loaded is not None and self._packer is not None:
            if keep_new and None in self._loaded:
                where, payloads = list(range(len(self.keys))), self._packer.pack(self._columns, len(self.keys))
            else:
                where, payloads = self._packer.pack_changed(self._columns, self._loaded)
            if self._gone.any():
                stay = [i for i, position in enumerate(where) if not self._gone[position]]
                where, payloads = [where[i] for i in stay], [payloads[i] for i in stay]
            keys = self.keys if len(where) == len(self.keys) else [self.keys[i] for i in where]
            self.keyed.value_put_many(0, keys, payloads)
        for position in np.flatnonzero(self._gone).tolist():
            _clear(self.keyed, variables, self.keys[position])

    def _load(self) -> Columns:
        if self._loaded is None and self._packer is not None:
            self._loaded = self.keyed.value_get_many(0, self.keys)
            self._columns = self._packer.unpack(self._loaded)
        return self._columns

    def _positions(self, where: npt.ArrayLike | slice) -> Index:
        every = np.arange(len(self.keys))
        return every[where] if isinstance(where, slice) else every[np.asarray(where)]

    def _each(self, where: npt.ArrayLike | slice, expiry_ms: npt.ArrayLike) -> list[tuple[Key, int]]:
        positions = self._positions(where)
        expiries = np.broadcast_to(np.asarray(expiry_ms, np.int64), positions.shape)
        keys = self.keys
        return [(keys[p], expiry) for p, expiry in zip(positions.tolist(), expiries.tolist(), strict=True)]


def _clear(keyed: KeyedState, variables: Sequence[Variable], key: Key) -> None:
    clear = {"value": keyed.value_clear, "list": keyed.list_clear, "map": keyed.map_clear}
    for var, variable in enumerate(variables):
        clear[variable.kind](var, key)


class Timers(Rows):
    """Timers that are due, as rows: `batch` is the key columns, `keys` has a key once whatever its timers."""

    def __init__(self, batch: pa.RecordBatch, keys: list[Key], codes: npt.NDArray[np.int32], expiry_ms: Index) -> None:
        super().__init__(batch, np.arange(len(codes)), keys, codes)
        self.expiry_ms = expiry_ms


class Processor:
    """Base of native processors. Declare `state` and `output_schema` (or infer it in `bind`); write `process`."""

    state: Fields = _NO_FIELDS
    """Fields of a key's state by name. Fixed-width types are fastest, `pa.list_(type, n)` gives a column of n elements
    per key; others come as object columns."""
    output_schema: pa.Schema | None = None
    more_variables: tuple[Variable, ...] = ()
    """List and map variables beside `state`, reached through `States.keyed`, numbered after it."""
    time_column: str | None = None
    """The event-time column this processor works by, if any."""
    allowed_lateness_ms: int = 0
    """How far behind the watermark a row may be and still reach `process`."""
    keeps_new: bool = True
    """Whether a key has state from its first row on, even while that is all zero."""
    merge: Mapping[str, str] = MappingProxyType({})
    """How the values of two rows of a key become one: for every input column that is no key, one of sum, min, max, first and
    last. Declared, many rows of a hot key may come as one. It promises that this leaves the same state."""
    late_rows: int = 0
    """Rows that this processor itself left out as too late, since it was opened on this host."""

    def bind(self, input_schema: pa.Schema, key_names: Sequence[str]) -> pa.Schema:
        """Check the definition against the input, on the driver; the output schema. Override to infer it."""
        if self.output_schema is None:
            raise DefinitionError(f"{type(self).__name__} has no output_schema", todo="Set it to a pyarrow schema")
        return self.output_schema

    def open(self) -> None:
        """Called once on a host before anything else."""

    def process(self, rows: Rows, state: States, times: Times) -> Outputs | None:
        raise NotImplementedError

    def on_timer(self, timers: Timers, state: States, times: Times) -> Outputs | None:
        raise ProcessorFailed(f"{type(self).__name__} sets timers but has no on_timer")

    def initialise(self, rows: Rows, state: States, times: Times) -> None:
        raise DefinitionError(f"{type(self).__name__} takes no initial state", todo="Define initialise()")

    def close(self) -> None:
        """Called once when the instance ends."""

    def emit(self, rows: Rows, /, **columns: Any) -> Outputs:
        """One output row for each row or timer. Output columns not given are taken from the input by name."""
        return self.emit_at(rows, None, **columns)

    def emit_at(self, rows: Rows, positions: Index | None, /, **columns: Any) -> Outputs:
        """One output row for each of these positions in `rows`, to leave after that row."""
        schema = cast(pa.Schema, self.output_schema)
        unknown = columns.keys() - set(schema.names)
        if unknown:
            raise OutputMismatch(f"columns {sorted(unknown)} are not in the output schema", todo=_AGREE)
        count = len(rows) if positions is None else len(positions)
        arrays = []
        for field in schema:
            if field.name in columns:
                arrays.append(_output(field, columns[field.name], count))
            elif field.name in rows.batch.schema.names:
                copied = rows.batch.column(field.name)
                arrays.append(_output(field, copied if positions is None else copied.take(positions), count))
            else:
                raise OutputMismatch(f"output column {field.name!r} is neither given nor in the input", todo=_AGREE)
        row_index = rows.row_index if positions is None else rows.row_index[positions]
        return Outputs(pa.RecordBatch.from_arrays(arrays, schema=schema), row_index)


def _output(field: pa.Field[Any], values: Any, count: int) -> pa.Array[Any]:
    try:
        array = values if isinstance(values, pa.Array) else pa.array(values)
        array = array if array.type == field.type else array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OutputMismatch(f"output column {field.name!r} must be {field.type}: {error}", todo=_AGREE) from error
    if len(array) != count:
        raise OutputMismatch(f"output column {field.name!r} has {len(array)} values for {count} rows", todo=_AGREE)
    return array


class NativeAdapter:
    """A native processor bound to an input schema and, once opened, to an instance's state."""

    current_key: Key | None = None  # many keys at once: there is no current one
    current_call: int = 0  # and all in one call

    def __init__(
        self, processor: Processor, input_schema: pa.Schema, key_names: Sequence[str], tz: str = "UTC"
    ) -> None:
        missing = [name for name in key_names if name not in input_schema.names]
        if missing:
            raise DefinitionError(f"the input has no key column {missing[0]!r}", todo=f"It has {input_schema.names}")
        self.processor = processor
        self.output_schema = processor.output_schema = processor.bind(input_schema, key_names)
        self.merge: Merge = checked_merge(processor.merge, input_schema, key_names)
        value = (Variable(STATE, "value", flat_schema(processor.state)),) if len(processor.state) else ()
        self.variables: tuple[Variable, ...] = (*value, *processor.more_variables)
        self._key_schema = pa.schema([input_schema.field(name) for name in key_names])
        self._keyed: KeyedState | None = None
        self._packer: Packer | None = None

    @property
    def late_rows(self) -> int:
        return self.processor.late_rows

    def open(self, state: KeyedState) -> None:
        self._keyed = state
        self._packer = Packer(self.processor.state) if len(self.processor.state) else None
        self.processor.late_rows = 0
        self.processor.open()

    def process(self, rows: Rows, times: Times) -> Outputs:
        states = self._states(rows.keys)
        outputs = self.processor.process(rows, states, times)
        states.flush(self.variables, self.processor.keeps_new)
        return self._checked(outputs)

    def expire(self, timers: Sequence[tuple[int, Key]], times: Times) -> Outputs:
        position: dict[Key, int] = {}
        codes = np.fromiter((position.setdefault(key, len(position)) for _, key in timers), np.int32, len(timers))
        states = self._states(list(position))
        for expiry, key in timers:
            states.keyed.timer_remove(key, expiry)
        due = Timers(
            self._key_columns(states.keys).take(codes),
            states.keys,
            codes,
            np.fromiter((expiry for expiry, _ in timers), np.int64, len(timers)),
        )
        outputs = self.processor.on_timer(due, states, times)
        states.flush(self.variables, keep_new=False)
        return self._checked(outputs)

    def initialise(self, rows: Rows, times: Times) -> None:
        states = self._states(rows.keys)
        self.processor.initialise(rows, states, times)
        states.flush(self.variables, self.processor.keeps_new)

    def close(self) -> None:
        self.processor.close()

    def _states(self, keys: list[Key]) -> States:
        assert self._keyed is not None, "open() comes first"
        return States(keys, self._keyed, self._packer)

    def _key_columns(self, keys: Sequence[Key]) -> pa.RecordBatch:
        stored = KeyCodec(self._key_schema).to_arrow(keys)
        arrays = [_output(field, array, len(keys)) for field, array in zip(self._key_schema, stored, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._key_schema)

    def _checked(self, outputs: object) -> Outputs:
        if outputs is None:
            return no_outputs(self.output_schema)
        if not isinstance(outputs, Outputs) or outputs.batch.schema != self.output_schema:
            raise OutputMismatch(
                "process() must return what emit() gives, or None", todo=_AGREE, expected=self.output_schema
            )
        return outputs
