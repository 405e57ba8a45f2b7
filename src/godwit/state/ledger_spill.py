"""The entries of one ledger, lane by lane: in memory while they are few, the oldest in scratch files beyond that.

Decides which entries leave memory and how they are read again. An entry is read again only if rows are replayed or handed over,
so the file is seldom read while a batch goes on: the range of an entry's rows stays in memory and is enough to distinguish new
rows from applied ones. A file has no name, so its space comes back however the process ends, or when none of its entries is
needed any more. It is never synced: the changelog is what survives. This module must not know what an entry means.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from godwit.errors import StateTooLarge

if TYPE_CHECKING:
    from godwit.state.ledger import Entry

ENTRY_BYTES: Final = 2_000  # of the objects that an entry is made of, beside what its columns hold
RANGE_BYTES: Final = 600  # of what stays in memory of an entry in the file
SCRATCH_BYTES: Final = 64 << 20  # of a file; beyond that a new one is begun
_ALIGNED: Final = 64  # as Arrow likes its buffers


class Scratch:
    """A file that is written at its end and read in place, and never gets shorter: views of it stay good."""

    def __init__(self) -> None:
        try:
            with tempfile.TemporaryFile(prefix="godwit-ledger-") as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise _no_room(error) from error
        self.close = weakref.finalize(self, os.close, self._file)  # views have mappings of their own, and stay good
        self.size_bytes = 0

    def append(self, body: bytes) -> int:
        """Where it was written. If that fails, what was there before stays as it is."""
        begin = -(-self.size_bytes // _ALIGNED) * _ALIGNED
        left, at = memoryview(body), begin
        try:
            while left:
                written = os.pwrite(self._file, left, at)
                left, at = left[written:], at + written
        except OSError as error:
            raise _no_room(error) from error
        self.size_bytes = at
        return begin

    def view(self, begin: int, size: int) -> memoryview:
        """Mapped, so that only those columns of an entry are read that are used."""
        page = begin - begin % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._file, begin - page + size, access=mmap.ACCESS_READ, offset=page)
        return memoryview(mapped)[begin - page :]


def _no_room(error: OSError) -> StateTooLarge:
    return StateTooLarge(
        f"what the batch in progress has applied does not fit in memory, and could not be written to disk: {error}",
        todo="Free space there, let TMPDIR name another directory, raise memory_max_bytes, or make batches smaller",
        directory=tempfile.gettempdir(),
    )


@dataclass(frozen=True, slots=True)
class Spilled:
    """An entry in the file, and what is known of it without reading it."""

    first: int
    last: int
    row_count: int
    timers: bool
    info: Mapping[str, Any]
    scratch: Scratch
    begin: int
    length: int
    batch: int
    outdated: bool

    @property
    def size_bytes(self) -> int:
        return RANGE_BYTES


StoredEntry: TypeAlias = "Entry | Spilled"


class Store:
    """Where the entries of a ledger are; `read` makes one of its bytes."""

    def __init__(self, read: Callable[[Mapping[str, Any], memoryview], Entry]) -> None:
        self._read = read
        self._scratch: Scratch | None = None  # the newest file
        self._files: weakref.WeakSet[Scratch] = weakref.WeakSet()  # those with entries that are needed, and the newest
        self.memory_bytes = 0

    @property
    def disk_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files)

    def entry(self, stored: StoredEntry) -> Entry:
        if not isinstance(stored, Spilled):
            return stored
        entry = self._read(stored.info, stored.scratch.view(stored.begin, stored.length))
        entry.batch, entry.outdated = stored.batch, stored.outdated
        return entry

    def spilled(self, entry: Entry) -> Spilled:
        """Write it to the newest file. A file is closed when no entry in it is needed any more."""
        info, body = entry.part("", -1, "")
        if self._scratch is None or self._scratch.size_bytes >= SCRATCH_BYTES:
            self._scratch = Scratch()
            self._files.add(self._scratch)
        file = self._scratch
        begin = file.append(body)
        known = entry.first, entry.last, entry.row_count, entry.timers
        return Spilled(*known, info, file, begin, len(body), entry.batch, entry.outdated)

    def clear(self) -> None:
        self.memory_bytes = 0
        for file in list(self._files):
            file.close()
        self._scratch = None
        self._files.clear()


class Lane:
    """The entries of one lane, in the order in which they were recorded, the older ones in the file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored: list[StoredEntry] = []
        self._spilled_count = 0  # of the first entries: these are known to be in the file
        self.last = -1  # the greatest row that was ever recorded

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[Entry]:
        return map(self._store.entry, self._stored)

    def between(self, first: int, last: int) -> Iterator[Entry]:
        """Those that may have rows of this range."""
        return (self._store.entry(each) for each in self._stored if each.first <= last and first <= each.last)

    def with_timers(self) -> Iterator[Entry]:
        """Those that have outputs of timers."""
        return (self._store.entry(each) for each in self._stored if each.timers)

    @property
    def row_count(self) -> int:
        return sum(each.row_count for each in self._stored)

    def append(self, entry: Entry, join: Callable[[Entry, Entry], Entry | None]) -> None:
        """As the last one; `join` may make one of the last two."""
        self.last = max(self.last, entry.last)
        while self._stored and not isinstance(before := self._stored[-1], Spilled):
            both = join(before, entry)
            if both is None:
                break
            del self._stored[-1]
            self._store.memory_bytes -= before.size_bytes
            entry = both
        self._stored.append(entry)
        self._store.memory_bytes += entry.size_bytes

    def stored(self) -> list[StoredEntry]:
        """The entries as they are now, without reading any: none of them changes, other entries take their place."""
        return list(self._stored)

    def change(self, at: int, changed: Callable[[Entry], Entry | None]) -> None:
        """Replace the entry in this place by another one, or drop it."""
        each = self._stored[at]
        entry = self._store.entry(each)
        new = changed(entry)
        if new is entry:
            return
        stored = self._stored_like(each, new)
        self._stored[at : at + 1] = [] if stored is None else [stored]
        self._spilled_count = min(self._spilled_count, at)
        self._store.memory_bytes -= each.size_bytes
        self._store.memory_bytes += 0 if stored is None else stored.size_bytes

    def change_all(self, changed: Callable[[Entry], Entry | None]) -> None:
        for at in reversed(range(len(self._stored))):
            self.change(at, changed)

    def _stored_like(self, before: StoredEntry, new: Entry | None) -> StoredEntry | None:
        """The new form of an entry that was in the file goes to the file, too, if there is room."""
        if new is not None and isinstance(before, Spilled):
            with suppress(StateTooLarge):
                return self._store.spilled(new)
        return new

    def drop_through(self, row: int) -> None:
        """Drop the rows up to this one. Entries that lie on one side of it are not read."""
        before, self._stored, self._spilled_count = self._stored, [], 0
        for each in before:
            stored: StoredEntry | None = each
            if each.first <= row:
                stored = self._stored_like(each, self._store.entry(each).after(row)) if each.last > row else None
            if stored is not each:
                self._store.memory_bytes -= each.size_bytes - (0 if stored is None else stored.size_bytes)
            if stored is not None:
                self._stored.append(stored)

    @property
    def oldest_batch(self) -> int | None:
        """The earliest batch in which an entry was recorded that is still here."""
        return min((each.batch for each in self._stored), default=None)

    def spill(self, until_bytes: int) -> None:
        """Move the oldest entries to the file, until the ledger takes at most this many bytes of memory."""
        while self._spilled_count < len(self._stored) and self._store.memory_bytes > until_bytes:
            entry = self._stored[self._spilled_count]
            if not isinstance(entry, Spilled):
                spilled = self._store.spilled(entry)
                self._stored[self._spilled_count] = spilled
                self._store.memory_bytes += spilled.size_bytes - entry.size_bytes
            self._spilled_count += 1
