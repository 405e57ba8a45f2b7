"""What the three kinds of variable and the timers have in common, so that they can be committed and moved alike.

Every table has a base (what is merged), a stage (what the chunk at hand changed) and an undo (what the base
held when the last batch was committed, for what has changed since). Decides that contract only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.state.changes import Changes
from godwit.state.keys import Key, KeyCodec
from godwit.state.shelf import P, Payload, Shelf
from godwit.state.spill import Spill

Ops: TypeAlias = npt.NDArray[np.int8]
S = TypeVar("S")
Row: TypeAlias = tuple[Key, bytes | None, bytes | None]  # key, sub, value


class MergedKeys(NamedTuple):
    """Keys that a merge brought into a table, and keys of which it left nothing there."""

    added: Sequence[Key] = ()
    removed: Sequence[Key] = ()


MergeStage: TypeAlias = Callable[[], MergedKeys]  # moves a stage into its base and remembers what was there


class Table(Protocol):
    """A part of every key's state."""

    var: int

    @property
    def count(self) -> int:
        """How many keys have something here."""
        ...

    @property
    def staged(self) -> bool: ...

    def contains(self, key: Key) -> bool: ...

    def each_key(self) -> Iterator[Key]: ...

    def clear_many(self, keys: Iterable[Key]) -> None:
        """Stage that nothing is left of these keys."""
        ...

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        """Stage change rows as they are, in order."""
        ...

    def expire(self, now_ms: int) -> None:
        """Stage the removal of what has outlived its time."""
        ...

    def prepare(self, changes: Changes) -> MergeStage:
        """Note what the stage changes. The base stays as it is until the merge is called; until then the stage can go."""
        ...

    def rollback(self) -> None: ...

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        """What makes the stage of these keys again what it is now."""
        ...

    def settle(self) -> None: ...

    @property
    def undo_bytes(self) -> int:
        """What the undo takes in memory, roughly."""
        ...

    def spill_undo(self, disk: Spill) -> None:
        """Bring the undo to disk, where it is until the next settled moment."""
        ...

    def rows(self, committed: bool) -> Iterator[Row]:
        """What PUT rows would bring all of this back: of now, or of the last settled moment."""
        ...

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        """What PUT rows would bring these keys back. What they hold is taken now, the rows are made when they are asked for."""
        ...

    def touched(self) -> Collection[Key]:
        """Keys that have changed since the last settled moment."""
        ...

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        """What keys held at the last settled moment: the cleared ones nothing but these rows, and those of later calls."""
        ...

    def settle_keys(self, keys: Iterable[Key]) -> None:
        """What these keys hold now is what they held at the last settled moment."""
        ...


def saved(stage: dict[Key, S], keys: Sequence[Key], copy: Callable[[S], S]) -> Callable[[], None]:
    """What makes a stage again what it is now, for these keys."""
    before = {key: copy(stage[key]) for key in keys if key in stage}

    def restore() -> None:
        for key in keys:
            stage.pop(key, None)
        stage.update(before)

    return restore


class Shelved(Generic[P]):
    """A table whose base is on a shelf."""

    _stage: Mapping[Key, Any]

    def __init__(self, var: int, form: Payload[P], key_codec: KeyCodec) -> None:
        self.var = var
        self._key_codec = key_codec
        self.shelf = Shelf(var, form, key_codec)

    @property
    def count(self) -> int:
        return self.shelf.count

    @property
    def staged(self) -> bool:
        return bool(self._stage)

    def contains(self, key: Key) -> bool:
        return self.shelf.contains(key)

    def each_key(self) -> Iterator[Key]:
        return (key for key, _ in self.shelf.items())
