"""What a processor is called with and what it returns, for all flavours of processors.

A host groups a chunk by key once, vectorised, and hands the result to the operator's adapter. An adapter knows one flavour of
user code (PySpark rows, pandas, native) and the staged state; it must not know of lanes, batches, ledgers or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import ProcessorFailed
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key
from godwit.state.variables import Variable

Array: TypeAlias = npt.NDArray[Any]
Index = npt.NDArray[np.int64]
_END_OF_TIME = 2**62
FEW_ROWS = 64  # up to so many rows, setting up the vectorised way takes longer than a loop


def event_times(column: Any) -> Any:
    """The event times of a column. A window, as Spark's window() makes it, counts by its end."""
    return pc.struct_field(column, "end") if pa.types.is_struct(column.type) else column


def times_us(column: pa.Array[Any]) -> Index:
    """Event times in microseconds. A row without an event time is never late, as in Spark: its time is the end of time."""
    times = event_times(column)
    micros = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()).fill_null(_END_OF_TIME)
    in_us: Index = micros.to_numpy(zero_copy_only=False)
    return in_us


class Rows:
    """Rows of a chunk, grouped by key, in the order in which they came on their lane.

    `keys` has a tuple for each key. Of a large chunk, tuples are made when one of them is looked at; the length costs nothing.
    """

    def __init__(
        self, batch: pa.RecordBatch, row_index: Index, keys: Sequence[Key], codes: npt.NDArray[np.int32]
    ) -> None:
        self.batch = batch
        self.row_index = row_index
        self.keys = keys
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def order(self) -> Index:
        """Row positions sorted by key, arrival order kept within each key."""
        codes = self.codes.astype(np.uint16) if len(self.keys) <= 1 << 16 else self.codes  # numpy radix-sorts 16 bits
        return np.argsort(codes, kind="stable").astype(np.int64, copy=False)

    @cached_property
    def counts(self) -> Index:
        """How many rows each key has."""
        return np.bincount(self.codes, minlength=len(self.keys)).astype(np.int64)

    @cached_property
    def bounds(self) -> Index:
        """Key i's rows are `order[bounds[i]:bounds[i + 1]]`."""
        bounds = np.zeros(len(self.keys) + 1, np.int64)
        np.cumsum(self.counts, out=bounds[1:])
        return bounds

    @cached_property
    def first(self) -> Index:
        """Position of each key's first row."""
        return self.order[self.bounds[:-1]]

    @cached_property
    def last(self) -> Index:
        """Position of each key's last row."""
        return self.order[self.bounds[1:] - 1]

    @cached_property
    def rank(self) -> Index:
        """For each row, how many rows of the same key came before it in this chunk."""
        if len(self.keys) == len(self.codes):
            return np.zeros(len(self.codes), np.int64)
        if len(self.codes) <= FEW_ROWS:
            return self._rank_of_few()
        rank = np.empty(len(self.codes), np.int64)
        rank[self.order] = np.arange(len(self.codes)) - np.repeat(self.bounds[:-1], self.counts)
        return rank

    def _rank_of_few(self) -> Index:
        met = [0] * len(self.keys)
        rank = []
        for code in self.codes.tolist():
            rank.append(met[code])
            met[code] += 1
        return np.array(rank, np.int64)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output rows and, for each, the index of the input row after which it leaves (ascending or not: the host sorts)."""

    batch: pa.RecordBatch
    row_index: Index


@dataclass(frozen=True, slots=True)
class Times:
    """The times that a processor sees: fixed for a batch, so that a replay sees the same.

    Timers fire up to `watermark_ms`; what is at or before `late_ms`, the watermark of the batch before, is late.
    """

    processing_ms: int
    watermark_ms: int
    late_ms: int = 0


class Adapter(Protocol):
    """One flavour of user code bound to its state. Made on the driver, shipped to hosts, opened there once per instance."""

    variables: tuple[Variable, ...]
    output_schema: pa.Schema

    def open(self, state: KeyedState) -> None: ...

    def process(self, rows: Rows, times: Times) -> Outputs:
        """Apply the rows to the staged state. `current_key` is the key at hand, for error messages."""
        ...

    def expire(self, timers: Sequence[tuple[int, Key]], times: Times) -> Outputs:
        """Fire timers, sorted by time; an output's row_index is the position of its timer in `timers`."""
        ...

    def initialise(self, rows: Rows, times: Times) -> None:
        """Set up state from initial rows."""
        ...

    def close(self) -> None: ...

    @property
    def current_key(self) -> Key | None: ...

    @property
    def current_call(self) -> int:
        """Another number for every call of user code within `process`, `expire` or `initialise`: each may take its time."""
        ...


def no_outputs(schema: pa.Schema) -> Outputs:
    arrays = [pa.array([], field.type) for field in schema]
    return Outputs(pa.RecordBatch.from_arrays(arrays, schema=schema), np.empty(0, np.int64))


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
    """The values of an array, undefined where it is null, and a mask of values that are not null (None: all)."""
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
