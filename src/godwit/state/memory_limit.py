"""How much memory the state of one instance takes: what goes to disk when the limit is reached.

Two things go, each to a file of its own: payloads of keys that were not used lately, and undos, which are the state of the last
committed batch where it has changed since. Knows tables and shelves by their sizes only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from godwit.errors import DefinitionError
from godwit.state.shelf import Shelf
from godwit.state.spill import Spill
from godwit.state.table import Table

UNDO_SHARE: Final = 8  # undos may take one part in this many of the limit


class MemoryLimit:
    """`max_bytes`: None for no limit."""

    def __init__(self, spill_dir: Path | None, max_bytes: int | None) -> None:
        if max_bytes is not None and spill_dir is None:
            raise DefinitionError("a memory limit needs a directory to spill to", todo="Name a spill directory")
        self.max_bytes = max_bytes
        self.beside_bytes: Callable[[], int] = lambda: 0  # what else takes of that memory
        self.undo_disk_bytes = 0  # of undos on disk, as they were counted in memory
        self._directory = spill_dir
        self._spill: Spill | None = None
        self._undo_spill: Spill | None = None

    def free(self, tables: Mapping[int, Table], shelves: Sequence[Shelf[Any]]) -> None:
        """Bring to disk what is too much."""
        if self.max_bytes is None or self._directory is None:
            return
        if UNDO_SHARE * undo_bytes(tables) > self.max_bytes:
            self._free_undo(tables, self._directory)
        # Hot payloads may take half of the limit, less the rest, because payloads that were hot before take the other half.
        room = self.max_bytes // 2 - undo_bytes(tables) - self.beside_bytes()
        if sum(shelf.hot_bytes_estimate for shelf in shelves) > room:
            # First the undos: they share payloads with the shelves, and would keep these in memory.
            self._free_undo(tables, self._directory)
            self._spill = self._spill or Spill(self._directory)
            for shelf in shelves:
                shelf.age(self._spill)

    def _free_undo(self, tables: Mapping[int, Table], directory: Path) -> None:
        self._undo_spill = self._undo_spill or Spill(directory)
        before_bytes = undo_bytes(tables)
        for table in tables.values():
            table.spill_undo(self._undo_spill)
        self.undo_disk_bytes += before_bytes - undo_bytes(tables)

    def drop_undo(self) -> None:
        """The batch is committed: nobody asks for the undos on disk any more."""
        if self._undo_spill is not None:
            self._undo_spill.close()
            self._undo_spill, self.undo_disk_bytes = None, 0

    def close(self) -> None:
        for spill in (self._spill, self._undo_spill):
            if spill is not None:
                spill.close()
        self._spill = self._undo_spill = None


def undo_bytes(tables: Mapping[int, Table]) -> int:
    return sum(table.undo_bytes for table in tables.values())
