"""Panes: the disjoint pieces that windows are made of, as columns over many keys, and their place in state.

Overlapping windows share panes, so a row is added once however many windows it falls in. Decides how panes of
many keys are filled, put together and kept; it must not know whether a pane is so many rows or so much time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.runtime.native import Columns, Packer, States, values_of
from godwit.runtime.rows import Index, Rows
from godwit.windows.aggregate import ROWS, Aggregate, Mask


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

    def fold(self, panes: Columns, start: Index, length: Index) -> Columns:
        """Windows, each of the `length[i]` panes from `start[i]` on, put together from left to right."""
        windows = {name: column[start] for name, column in panes.items()}
        for step in range(1, int(length.max(initial=0))):
            going = length > step
            if going.all():
                self._merge(windows, slice(None), panes, start + step)
            else:
                self._merge(windows, np.flatnonzero(going), panes, start[going] + step)
        return windows

    def results(self, windows: Columns) -> dict[str, pa.Array[Any]]:
        return {aggregate.alias: aggregate.result(windows) for aggregate in self.aggregates}

    def _merge(self, windows: Columns, into: Index | slice, panes: Columns, at: Index) -> None:
        for aggregate in self.aggregates:
            aggregate.merge(windows, into, panes, at)
        windows[ROWS][into] += panes[ROWS][at]


def _taken(array: pa.Array[Any], taken: Mask | None) -> tuple[Any, Mask | None]:
    values, valid = values_of(array)
    if taken is None:
        return values, valid
    return values[taken], None if valid is None else valid[taken]


class PaneMap:
    """Panes of many keys in a map variable, from a pane's number to what it holds."""

    def __init__(self, var: int, fields: pa.Schema, key_fields: pa.Schema) -> None:
        self._var = var
        self._packer = Packer(fields)
        self._subs = Packer(key_fields)
        self._sub = key_fields.names[0]

    def get(self, state: States, owners: Index, numbers: Index) -> Columns:
        """Panes of these (key position, number) pairs."""
        get, var, keys = state.keyed.map_get, self._var, state.keys
        subs = self._subs.pack({self._sub: numbers}, len(numbers))
        return self._packer.unpack(
            [get(var, keys[owner], sub) for owner, sub in zip(owners.tolist(), subs, strict=True)]
        )

    def put(self, state: States, owners: Index, numbers: Index, panes: Columns) -> None:
        put, var, keys = state.keyed.map_put, self._var, state.keys
        subs = self._subs.pack({self._sub: numbers}, len(numbers))
        payloads = self._packer.pack(panes, len(numbers))
        for owner, sub, payload in zip(owners.tolist(), subs, payloads, strict=True):
            put(var, keys[owner], sub, payload)

    def remove(self, state: States, owners: Index, numbers: Index) -> None:
        subs = self._subs.pack({self._sub: numbers}, len(numbers))
        for owner, sub in zip(owners.tolist(), subs, strict=True):
            state.keyed.map_remove(self._var, state.keys[owner], sub)

    def read(self, state: States) -> tuple[Index, Index, Columns]:
        """All panes of all keys at hand: key positions and numbers, in order of both, and what they hold."""
        items = [list(state.keyed.map_items(self._var, key)) for key in state.keys]
        owners = np.repeat(np.arange(len(items)), [len(pairs) for pairs in items])
        flat = list(chain.from_iterable(items))
        numbers = self._subs.unpack([sub for sub, _ in flat])[self._sub]
        order = np.lexsort((numbers, owners))
        panes = self._packer.unpack([payload for _, payload in flat])
        return owners[order], numbers[order], {name: column[order] for name, column in panes.items()}


class PaneList:
    """Finished panes of many keys in a list variable, oldest first."""

    def __init__(self, var: int, fields: pa.Schema) -> None:
        self._var = var
        self._packer = Packer(fields)

    def read(self, state: States, owners: Index) -> tuple[list[list[bytes]], Columns]:
        """The panes of these keys, as stored and, end to end, as columns."""
        get, var, keys = state.keyed.list_get, self._var, state.keys
        lists = [get(var, keys[owner]) for owner in owners.tolist()]
        return lists, self._packer.unpack(list(chain.from_iterable(lists)))

    def pack(self, panes: Columns) -> list[bytes]:
        return self._packer.pack(panes, len(panes[ROWS]))

    def append(self, state: States, owner: int, payloads: list[bytes]) -> None:
        state.keyed.list_append(self._var, state.keys[owner], payloads)

    def replace(self, state: States, owner: int, payloads: list[bytes]) -> None:
        state.keyed.list_put(self._var, state.keys[owner], payloads)
