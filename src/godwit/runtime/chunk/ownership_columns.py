"""An instance's ownership for whole chunks: the same answers as `model.ownership`, a column at a time.

The columns are made anew when the ownership has changed, which is seldom. A look-up costs a division and an index per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from godwit.model.ownership import Ownership, Stand
from godwit.model.units import Unit, Units
from godwit.runtime.processor.rows import Index

Mask = npt.NDArray[np.bool_]
Stands = npt.NDArray[np.int8]


class OwnershipColumns:
    """`whole`: the instance owns all units. `between`: some unit is between two owners."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership, self._version = ownership, ownership.version
        self.whole = ownership.whole()
        self.between = ownership.busy()
        self._groups: Stands = np.frombuffer(bytes(ownership.groups.stands), np.int8)
        self._keys: Index = np.array(sorted(ownership.keys), np.int64)
        self._key_stands: Stands = np.array([ownership.keys[key].stand for key in self._keys.tolist()], np.int8)

    def shows(self, ownership: Ownership) -> bool:
        """Whether the columns were made from this ownership, as it is now."""
        return ownership is self._ownership and ownership.version == self._version

    def stands(self, hashes: Index) -> Stands:
        """How the instance stands to the key of every row."""
        stands = self._groups[hashes % len(self._groups)]
        if len(self._keys):
            at = np.searchsorted(self._keys, hashes)
            at[at == len(self._keys)] = 0
            apart = self._keys[at] == hashes
            stands[apart] = self._key_stands[at[apart]]
        return stands


def selects(units: Units, ownership: Ownership) -> Callable[[Index], Mask]:
    """A test for columns of hashes: which belong to these units. A key that is routed apart does not belong to its group."""
    count = len(ownership.groups)
    groups: Mask = np.zeros(count, np.bool_)
    groups[list(units.groups)] = True
    keys: Index = np.array(sorted(units.keys), np.int64)
    apart: Index = np.array(sorted(ownership.keys.keys() - units.keys), np.int64)

    def select(hashes: Index) -> Mask:
        chosen: Mask = groups[hashes % count]
        if len(apart):
            chosen &= ~np.isin(hashes, apart)
        if len(keys):
            chosen |= np.isin(hashes, keys)
        return chosen

    return select


def units_of(hashes: Iterable[int], ownership: Ownership) -> Units:
    """The units that these keys belong to."""
    count = len(ownership.groups)
    return Units.of(*(Unit("key", h) if h in ownership.keys else Unit("group", h % count) for h in set(hashes)))


MINE = int(Stand.MINE)
AWAY = int(Stand.AWAY)
SENT_ON = (AWAY, int(Stand.LENT))
