"""The packed state of the keys of one call: read from keyed state as columns, and what has changed written back.

Decides which keys are written. Where all payloads have one width, no Python object is made for any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from godwit.runtime.processor.state_columns import Columns, Packer
from godwit.state.columns import Mask, Payloads
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key, keys_at

STATE_PLACE = 0  # of the variable with the fields, among the declared ones


class PackedState(Protocol):
    new: Mask  # which keys had no state; known when it was read

    def read(self) -> Columns: ...

    def write(self, columns: Columns, keep_new: bool, gone: Mask) -> None:
        """No key that is `gone` is written. `keep_new`: a new key is written even if its state is zero, with all others."""
        ...


def packed(packer: Packer, keyed: KeyedState, keys: Sequence[Key]) -> PackedState:
    return FixedWidth(packer, keyed, keys) if packer.fixed else AnyWidth(packer, keyed, keys)


class FixedWidth:
    """Payloads as the rows of an array."""

    def __init__(self, packer: Packer, keyed: KeyedState, keys: Sequence[Key]) -> None:
        self._packer, self._keyed, self._keys = packer, keyed, keys
        self._before: Payloads = np.empty((0, 0), np.uint8)
        self.new: Mask = np.empty(0, np.bool_)

    def read(self) -> Columns:
        self._before, there = self._keyed.value_read(STATE_PLACE, self._keys, self._packer.zero)
        self.new = ~there
        return self._packer.unpack_rows(self._before)

    def write(self, columns: Columns, keep_new: bool, gone: Mask) -> None:
        payloads = self._packer.pack_rows(columns, len(self._keys))
        everything = keep_new and bool(self.new.any())
        written = ~gone if everything else (payloads != self._before).any(axis=1) & ~gone
        positions = written.nonzero()[0]
        payloads = payloads if len(positions) == len(payloads) else payloads[positions]
        self._keyed.value_write(STATE_PLACE, self._keys, positions, payloads)


class AnyWidth:
    """Payloads as bytes."""

    def __init__(self, packer: Packer, keyed: KeyedState, keys: Sequence[Key]) -> None:
        self._packer, self._keyed, self._keys = packer, keyed, keys
        self._before: list[bytes | None] = []
        self.new: Mask = np.empty(0, np.bool_)

    def read(self) -> Columns:
        self._before = self._keyed.value_get_many(STATE_PLACE, self._keys)
        self.new = np.fromiter((payload is None for payload in self._before), np.bool_, len(self._keys))
        return self._packer.unpack(self._before)

    def write(self, columns: Columns, keep_new: bool, gone: Mask) -> None:
        payloads, zero = self._packer.pack(columns, len(self._keys)), self._packer.zero
        everything = keep_new and bool(self.new.any())
        pairs = zip(payloads, self._before, strict=True)
        changed = (everything or new != (zero if old is None else old) for new, old in pairs)
        positions = (np.fromiter(changed, np.bool_, len(payloads)) & ~gone).nonzero()[0]
        chosen = payloads if len(positions) == len(payloads) else [payloads[at] for at in positions.tolist()]
        self._keyed.value_put_many(STATE_PLACE, keys_at(self._keys, positions), chosen)
