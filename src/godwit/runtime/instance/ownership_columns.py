"""An instance's ownership for whole chunks: the same answers as `model.ownership`, a column at a time.

Made anew whenever the ownership changes, which is seldom; looking costs a division and a look-up per row.
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


class Shares:
    def __init__(self, ownership: Ownership) -> None:
        self.version = ownership.version
        self.whole = ownership.whole()
        self.between = ownership.busy()
        self._groups: Stands = np.frombuffer(bytes(ownership.groups.stands), np.int8)
        self._keys: Index = np.array(sorted(ownership.keys), np.int64)
        self._key_stands: Stands = np.array([ownership.keys[key].stand for key in self._keys.tolist()], np.int8)

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
    """Tells which hashes belong to units that the ownership knows as such: a key that is routed apart is not of its group."""
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
    found = [Unit("key", h) if h in ownership.keys else Unit("group", h % count) for h in set(hashes)]
    return Units.of(*found)


MINE = int(Stand.MINE)
AWAY = int(Stand.AWAY)
SENT_ON = (AWAY, int(Stand.LENT))
