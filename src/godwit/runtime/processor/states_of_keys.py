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
from godwit.runtime.processor.state_of_call import packed
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key
from godwit.state.variables import Variable


class States:
    """State of the keys at hand: a column per field, aligned with `keys`; changed in place or assigned."""

    def __init__(self, keys: Sequence[Key], keyed: KeyedState, packer: Packer | None) -> None:
        self.keys = keys
        self.keyed = keyed
        self._state = None if packer is None else packed(packer, keyed, keys)
        self._columns: Columns | None = None
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
        return np.zeros(len(self.keys), np.bool_) if self._state is None else self._state.new

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
        if self._columns is not None and self._state is not None:
            self._state.write(self._columns, keep_new, self._gone)
        for position in np.flatnonzero(self._gone).tolist():
            _clear(self.keyed, variables, self.keys[position])

    def _load(self) -> Columns:
        if self._columns is None:
            self._columns = {} if self._state is None else self._state.read()
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
