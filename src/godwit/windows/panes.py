"""Panes: the disjoint pieces that windows are made of, as columns over many keys.

Overlapping windows share panes, so a row is added once however many windows it falls in. Decides how panes of
many keys are filled and put together; it must not know whether a pane is a number of rows or a span of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.runtime.processor.rows import Index, Rows, values_of
from godwit.runtime.processor.state_columns import Columns
from godwit.windows.aggregate import ROWS, Aggregate, Into, Mask


class Panes:
    """The aggregates of a window over columns of panes."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)
        parts = {a.name(part): kind for a in self.aggregates for part, kind in a.parts.items()}
        self.fields: dict[str, pa.DataType] = {ROWS: pa.int64(), **parts}

    def add(self, panes: Columns, into: Index, rows: Rows, taken: Mask | None = None) -> None:
        """Add each row of the chunk (only those `taken`) to pane `into[i]`."""
        inputs: dict[str | None, tuple[Any, Mask | None]] = {None: (np.empty(0), None)}
        for aggregate in self.aggregates:
            if aggregate.column is not None and aggregate.column not in inputs:
                inputs[aggregate.column] = _taken(rows.batch.column(aggregate.column), taken)
            values, valid = inputs[aggregate.column]
            aggregate.add(panes, into, values, valid)
        np.add.at(panes[ROWS], into, 1)

    def fold(self, panes: Columns, first: Index, others: Iterable[tuple[Into, Index]]) -> Columns:
        """Windows that begin with the panes `first`, and step by step get those `others` that follow."""
        windows = {name: column[first] for name, column in panes.items()}
        for into, at in others:
            for aggregate in self.aggregates:
                aggregate.merge(windows, into, panes, at)
            windows[ROWS][into] += panes[ROWS][at]
        return windows

    def results(self, windows: Columns) -> dict[str, pa.Array[Any]]:
        return {aggregate.alias: aggregate.result(windows) for aggregate in self.aggregates}


def _taken(array: pa.Array[Any], taken: Mask | None) -> tuple[Any, Mask | None]:
    values, valid = values_of(array)
    if taken is None:
        return values, valid
    return values[taken], None if valid is None else valid[taken]
