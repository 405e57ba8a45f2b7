"""What the three kinds of variable and the timers have in common, so that they can be committed and moved alike.

Every table has a base (what is installed), a stage (what the chunk at hand changed) and an undo (what the base
held when the last batch was committed, for what has changed since). Decides that contract only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.state.changes import Changes
from godwit.state.deadlines import Expiry
from godwit.state.images import Form, Images
from godwit.state.keys import Key, KeyCodec
from godwit.state.shelf import P, Payload, Shelf
from godwit.state.spill import Spill

Ops: TypeAlias = npt.NDArray[np.int8]
S = TypeVar("S")
Image = TypeVar("Image")
Row: TypeAlias = tuple[Key, bytes | None, bytes | None]  # key, sub, value


class InstalledKeys(NamedTuple):
    """Keys that came into a table with a stage, and keys of which the stage left nothing there."""

    added: Sequence[Key] = ()
    removed: Sequence[Key] = ()


InstallStage: TypeAlias = Callable[[], InstalledKeys]  # moves a stage into its base and remembers what was there


class Table(Protocol):
    """A part of every key's state."""

    var: int

    @property
    def count(self) -> int:
        """The number of keys that have an entry in this table."""
        ...

    @property
    def staged(self) -> bool: ...

    def contains(self, key: Key) -> bool: ...

    def each_key(self) -> Iterator[Key]: ...

    def key_list(self) -> list[Key]:
        """All keys, as fast as it goes."""
        ...

    def clear_many(self, keys: Iterable[Key]) -> None:
        """Stage the removal of all entries of these keys."""
        ...

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        """Stage change rows as they are, in order."""
        ...

    def expire(self, now_ms: int) -> None:
        """Stage the removal of expired entries."""
        ...

    def prepare(self, changes: Changes) -> InstallStage:
        """Add the changes of the stage to `changes`. The base changes only when the returned function is called."""
        ...

    def rollback(self) -> None: ...

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        """Returns a function that restores the present stage of these keys."""
        ...

    def settle(self) -> None: ...

    @property
    def undo_bytes(self) -> int:
        """The memory that the undo takes, roughly."""
        ...

    def spill_undo(self, disk: Spill) -> None:
        """Write the undo to disk, where it stays until the next settled moment."""
        ...

    def rows(self, committed: bool) -> Iterator[Row]:
        """PUT rows that give the whole table: as it is now, or as it was at the last settled moment."""
        ...

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        """PUT rows that give these keys. Their entries are taken now; the rows are made when they are read."""
        ...

    def touched(self) -> Collection[Key]:
        """Keys that have changed since the last settled moment."""
        ...

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        """Set the entries of the last settled moment. Cleared keys had only these rows, and those of later calls."""
        ...

    def settle_keys(self, keys: Iterable[Key]) -> None:
        """The present entries of these keys count as those of the last settled moment."""
        ...


def saved(stage: dict[Key, S], keys: Sequence[Key], copy: Callable[[S], S]) -> Callable[[], None]:
    """Returns a function that restores a stage as it is now, for these keys."""
    before = {key: copy(stage[key]) for key in keys if key in stage}

    def restore() -> None:
        for key in keys:
            stage.pop(key, None)
        stage.update(before)

    return restore


class Shelved(Generic[P]):
    """A table whose base is on a shelf."""

    _stage: Mapping[Key, Any]
    _expiry: Expiry[Any] | None

    def __init__(self, var: int, form: Payload[P], key_codec: KeyCodec) -> None:
        self.var = var
        self._key_codec = key_codec
        self.shelf = Shelf(var, form, key_codec)

    def set_ttl(self, ttl_ms: int | None) -> None:
        """Entries that are written from now on live so long; a table without a time to live stays without."""
        if self._expiry is not None and ttl_ms is not None:
            self._expiry.ttl_ms = ttl_ms

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

    def key_list(self) -> list[Key]:
        return self.shelf.key_list()


class Imaged(Shelved[P], Generic[P, Image]):
    """A shelved table with an image of every key that has changed since the last settled moment."""

    def __init__(self, var: int, form: Payload[P], image: Form[Image], key_codec: KeyCodec) -> None:
        super().__init__(var, form, key_codec)
        self._image = image
        self._undo = Images(var, image, key_codec)

    def settle(self) -> None:
        self._undo = Images(self.var, self._image, self._key_codec)

    def settle_keys(self, keys: Iterable[Key]) -> None:
        self._undo.discard_many(keys)

    def touched(self) -> Collection[Key]:
        return self._undo

    @property
    def undo_bytes(self) -> int:
        return self._undo.size_bytes

    def spill_undo(self, disk: Spill) -> None:
        self._undo.spill(disk)
