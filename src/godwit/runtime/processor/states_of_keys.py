"""The state of the keys at hand, as a native processor sees it: a column per field, timers by position.

Decides what a processor may read and write, and what goes back into the keyed state when its call ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from godwit.errors import ProcessorFailed, StateTypeError
from godwit.runtime.processor.rows import Array, Index
from godwit.runtime.processor.state_columns import Columns, Packer
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key
from godwit.state.variables import Variable


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
