"""Where the panes of event-time windows are in typed state.

The newest panes of a key are slots in its value, which are read and written as columns for all keys at once: an entry of a map
per row would cost far more. A pane's slot is its number modulo the number of slots. If two panes have the same slot, the newer
one gets it, and the older one goes to a map, where it stays until it is dropped. A slot with no rows is free. Decides only
the place of a pane; it must not know windows or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from godwit.runtime.processor.rows import Index
from godwit.runtime.processor.state_columns import Columns, Packer, zeros
from godwit.runtime.processor.states_of_keys import States
from godwit.state.variables import Variable
from godwit.windows.aggregate import ROWS, Mask

START: Final = "start_us"  # of the panes in the slots
OLDER: Final = "older"  # how many panes are in the map, and the name of that


class PaneStore:
    """Panes by key and start, for panes of one length and one set of columns."""

    def __init__(self, fields: Mapping[str, pa.DataType], pane_us: int, slots: int, var: int) -> None:
        self._pane_us, self._slots, self._var = pane_us, slots, var
        self._names = list(fields)
        self._packer = Packer(fields)
        self._subs = Packer({START: pa.int64()})

    @staticmethod
    def value_fields(fields: Mapping[str, pa.DataType], slots: int) -> dict[str, pa.DataType]:
        kinds = {START: pa.int64(), **fields}
        return {OLDER: pa.int64()} | {name: pa.list_(kind, slots) for name, kind in kinds.items()}

    @staticmethod
    def variable(fields: Mapping[str, pa.DataType]) -> Variable:
        return Variable(OLDER, "map", pa.schema(dict(fields)), pa.schema({START: pa.int64()}))

    def load(self, state: States, owners: Index, starts: Index) -> Columns:
        """Panes of these (key position, start) pairs; those that do not exist are empty."""
        slot = self._slot(starts)
        in_slot = self._is_in_slot(state, owners, starts)
        panes = {name: state[name][owners, slot] for name in self._names}
        for column in panes.values():
            column[~in_slot] = zeros(1, column.dtype)[0]
        in_map = np.flatnonzero(~in_slot & (state[OLDER][owners] > 0))
        if len(in_map):
            for name, column in self._map_get(state, owners[in_map], starts[in_map]).items():
                panes[name][in_map] = column
        return panes

    def save(self, state: States, owners: Index, starts: Index, panes: Columns) -> None:
        """Store panes for `load`; a (key position, start) pair may not come twice."""
        slot = self._slot(starts)
        starts_before = np.where(state[ROWS] > 0, state[START], np.iinfo(np.int64).min)
        newest = starts_before.copy()
        np.maximum.at(newest, (owners, slot), starts)
        to_slot = starts == newest[owners, slot]
        who, where = np.nonzero((state[ROWS] > 0) & (newest > starts_before))
        self._map_put(state, who, starts_before[who, where], {name: state[name][who, where] for name in self._names})
        # After those that lose their slot: one of these may be the same pane, with more rows.
        older = {name: panes[name][~to_slot] for name in self._names}
        self._map_put(state, owners[~to_slot], starts[~to_slot], older)
        owners, slot = owners[to_slot], slot[to_slot]
        state[START][owners, slot] = starts[to_slot]
        for name in self._names:
            state[name][owners, slot] = panes[name][to_slot]

    def read(self, state: States) -> tuple[Index, Index, Columns]:
        """All panes of all keys at hand: key positions and starts, in order of both, and their columns."""
        owners, slot = np.nonzero(state[ROWS] > 0)
        starts = state[START][owners, slot]
        panes = {name: state[name][owners, slot] for name in self._names}
        if state[OLDER].any():
            more_owners, more_starts, more = self._map_read(state)
            owners, starts = np.concatenate([owners, more_owners]), np.concatenate([starts, more_starts])
            panes = {name: np.concatenate([column, more[name]]) for name, column in panes.items()}
        order = np.lexsort((starts, owners))
        return owners[order], starts[order], {name: column[order] for name, column in panes.items()}

    def forget(self, state: States, owners: Index, starts: Index) -> None:
        in_slot = self._is_in_slot(state, owners, starts)
        for name in (START, *self._names):
            column = state[name]
            column[owners[in_slot], self._slot(starts[in_slot])] = zeros(1, column.dtype)[0]
        owners, starts = owners[~in_slot], starts[~in_slot]
        for owner, sub in zip(owners.tolist(), self._packed(starts), strict=True):
            state.keyed.map_remove(self._var, state.keys[owner], sub)
        np.subtract.at(state[OLDER], owners, 1)

    def _slot(self, starts: Index) -> Index:
        slot: Index = starts // self._pane_us % self._slots
        return slot

    def _is_in_slot(self, state: States, owners: Index, starts: Index) -> Mask:
        slot = self._slot(starts)
        in_slot: Mask = (state[ROWS][owners, slot] > 0) & (state[START][owners, slot] == starts)
        return in_slot

    def _packed(self, starts: Index) -> list[bytes]:
        return self._subs.pack({START: starts}, len(starts))

    def _map_get(self, state: States, owners: Index, starts: Index) -> Columns:
        get, keys = state.keyed.map_get, state.keys
        pairs = zip(owners.tolist(), self._packed(starts), strict=True)
        return self._packer.unpack([get(self._var, keys[owner], sub) for owner, sub in pairs])

    def _map_put(self, state: States, owners: Index, starts: Index, panes: Columns) -> None:
        payloads = self._packer.pack(panes, len(starts))
        for owner, sub, payload in zip(owners.tolist(), self._packed(starts), payloads, strict=True):
            key = state.keys[owner]
            state[OLDER][owner] += state.keyed.map_get(self._var, key, sub) is None
            state.keyed.map_put(self._var, key, sub, payload)

    def _map_read(self, state: States) -> tuple[Index, Index, Columns]:
        owners = np.flatnonzero(state[OLDER])
        items = [list(state.keyed.map_items(self._var, state.keys[owner])) for owner in owners.tolist()]
        flat = list(chain.from_iterable(items))
        starts = self._subs.unpack([sub for sub, _ in flat])[START]
        panes = self._packer.unpack([payload for _, payload in flat])
        return np.repeat(owners, [len(pairs) for pairs in items]), starts, panes
