"""The native processor: user code called once for many keys, with state as numpy columns.

Decides how a native processor is bound to an input, opened on a host, and given rows and timers. It must not know of lanes,
batches, ledgers or files, nor of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.errors import DefinitionError, OutputMismatch, ProcessorFailed
from godwit.runtime.processor.merging import Merge, checked_merge
from godwit.runtime.processor.rows import Index, Outputs, Rows, Times, no_outputs
from godwit.runtime.processor.state_columns import Fields, Packer, flat_schema
from godwit.runtime.processor.states_of_keys import States
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key, KeyCodec
from godwit.state.variables import Variable

STATE: Final = "state"  # the variable that holds the fields of `Processor.state`
_AGREE: Final = "Make what the processor gives and its output_schema agree"
_NO_FIELDS: Final[Fields] = MappingProxyType({})


class Timers(Rows):
    """Timers that are due, as rows: `batch` is the key columns, `keys` has a key once whatever its timers."""

    def __init__(
        self, batch: pa.RecordBatch, keys: Sequence[Key], codes: npt.NDArray[np.int32], expiry_ms: Index
    ) -> None:
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

    def _states(self, keys: Sequence[Key]) -> States:
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
