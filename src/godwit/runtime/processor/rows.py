"""What a processor is called with and what it gives back, whatever its flavour.

A host groups a chunk by key once, vectorised, and hands the result to the operator's adapter. An adapter knows one flavour of
user code (PySpark rows, pandas, native) and the staged state; it must not know of lanes, batches, ledgers or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.state.keys import Key
from godwit.state.tables import KeyedState
from godwit.state.variables import Variable

Index = npt.NDArray[np.int64]


class Rows:
    """Rows of a chunk, grouped by key, in the order in which they came on their lane."""

    def __init__(self, batch: pa.RecordBatch, row_index: Index, keys: list[Key], codes: npt.NDArray[np.int32]) -> None:
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
        rank = np.empty(len(self.codes), np.int64)
        rank[self.order] = np.arange(len(self.codes)) - np.repeat(self.bounds[:-1], self.counts)
        return rank


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output rows and, for each, the index of the input row after which it leaves (ascending or not: the host sorts)."""

    batch: pa.RecordBatch
    row_index: Index


@dataclass(frozen=True, slots=True)
class Times:
    """What the processor is told about time: fixed for a batch, so that a replay sees the same.

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
        """Apply the rows to the staged state. `current_key` tells an observer which key is being worked on."""
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
