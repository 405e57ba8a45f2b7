"""Where the entries of one variable are: in memory, or on disk when memory is short.

Decides which entries leave memory. Entries live in two generations: what is read or written is hot, and
when the hot ones fill half of the limit, the ones not touched since the last such moment (cold) go to disk.
With no limit all stay hot and a read is one dictionary lookup. It must not know what an entry means, nor
anything of stages, undo or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from godwit.state.keys import Key, KeyCodec
from godwit.state.spill import Spill

P = TypeVar("P")

ENTRY_BYTES: Final = 200  # a key's tuple, its values, a dictionary slot and the payload's object header, roughly
_WRITE_ROWS: Final = 10_000  # per LMDB transaction


@dataclass(frozen=True, slots=True)
class Payload(Generic[P]):
    """What a shelf needs to know of its payloads: their size and their form on disk."""

    size: Callable[[P], int]
    pack: Callable[[P], bytes]
    unpack: Callable[[bytes], P]


class Shelf(Generic[P]):
    """Payloads by key. A key is written or removed only after it was read, which is what makes it hot.

    Only `age` writes to disk, so that nothing else can fail half-way: what was removed stays there until then (`_gone`).
    """

    __slots__ = (
        "_cold",
        "_disk",
        "_form",
        "_gone",
        "_hot",
        "_hot_bytes",
        "_key_codec",
        "_payload_bytes",
        "_var",
        "count",
        "replaced_bytes",
    )

    def __init__(self, var: int, form: Payload[P], key_codec: KeyCodec) -> None:
        self._var = var
        self._form = form
        self._key_codec = key_codec
        self._hot: dict[Key, P] = {}
        self._cold: dict[Key, P] = {}
        self._gone: set[Key] = set()  # removed, and perhaps still on disk
        self._disk: Spill | None = None  # set once an entry of this variable is there
        self._payload_bytes = 0
        self._hot_bytes = 0
        self.count = 0
        self.replaced_bytes = 0  # of all payloads that were ever overwritten or removed

    @property
    def bytes_estimate(self) -> int:
        return self._payload_bytes + self.count * ENTRY_BYTES

    @property
    def hot_bytes_estimate(self) -> int:
        return self._hot_bytes + (len(self._hot) + len(self._gone)) * ENTRY_BYTES

    def get(self, key: Key) -> P | None:
        payload = self._hot.get(key)
        if payload is None and (self._cold or self._disk):
            return self._promote(key)
        return payload

    def get_many(self, keys: Sequence[Key]) -> list[P | None]:
        payloads: list[P | None] = list(map(self._hot.get, keys))
        if self._cold or self._disk:
            for i, payload in enumerate(payloads):
                if payload is None:
                    payloads[i] = self._promote(keys[i])
        return payloads

    def put_many(self, entries: dict[Key, P], olds: Sequence[P | None]) -> int:
        """Write entries whose old payloads were just read; returns how many are new. Takes over the dictionary."""
        replaced_bytes = self._sizes(filter(None, olds))
        self.replaced_bytes += replaced_bytes
        grown = self._sizes(entries.values()) - replaced_bytes
        before = len(self._hot)
        if self._hot:
            self._hot.update(entries)
        else:
            self._hot = entries
        if self._gone:
            self._gone.difference_update(entries)
        self.grew(grown)
        added = len(self._hot) - before  # whatever existed was hot
        self.count += added
        return added

    def remove_many(self, keys: Sequence[Key], olds: Sequence[P]) -> None:
        """Remove entries that exist and whose payloads were just read."""
        for key in keys:
            del self._hot[key]
            self._cold.pop(key, None)
        replaced_bytes = self._sizes(olds)
        self.replaced_bytes += replaced_bytes
        self.grew(-replaced_bytes)
        self.count -= len(keys)
        if self._disk:
            self._gone.update(keys)

    def grew(self, size_bytes: int) -> None:
        """A hot payload was changed in place."""
        self._payload_bytes += size_bytes
        self._hot_bytes += size_bytes

    def contains(self, key: Key) -> bool:
        if key in self._hot or key in self._cold:
            return True
        on_disk = self._disk is not None and key not in self._gone
        return on_disk and self._disk is not None and self._disk.contains(self._var, self._key_codec.pack(key))

    def items(self) -> Iterator[tuple[Key, P]]:
        """All entries; they do not become hot. The shelf must not change meanwhile."""
        yield from self._hot.items()
        yield from ((key, payload) for key, payload in self._cold.items() if key not in self._hot)
        if self._disk:
            for packed, data in self._disk.scan(self._var):
                key = self._key_codec.unpack(packed)
                if key not in self._hot and key not in self._cold and key not in self._gone:  # memory is newer
                    yield key, self._form.unpack(data)

    def key_list(self) -> list[Key]:
        """All keys: a copy of a dictionary's keys, if all entries are hot."""
        return [key for key, _ in self.items()] if self._cold or self._disk else list(self._hot)

    def age(self, disk: Spill) -> None:
        """Cold entries go to disk, hot ones become cold. Whatever fails, all entries are still there."""
        if self._disk and self._gone:
            disk.delete_many(self._var, map(self._key_codec.pack, self._gone))
            self._gone = set()
        entries = ((self._key_codec.pack(key), self._form.pack(payload)) for key, payload in self._cold.items())
        while block := list(islice(entries, _WRITE_ROWS)):
            disk.put_many(self._var, block)
            self._disk = disk
        self._cold, self._hot, self._hot_bytes = self._hot, {}, 0

    def close(self) -> None:
        """The shelf is not used any more: give the space of its entries back."""
        disk, self._disk = self._disk, None
        self._hot, self._cold = {}, {}
        while disk and (page := list(islice(disk.scan(self._var), _WRITE_ROWS))):
            disk.delete_many(self._var, [packed for packed, _ in page])

    def _promote(self, key: Key) -> P | None:
        payload = self._cold.get(key)
        if payload is None and self._disk and key not in self._gone:
            data = self._disk.get(self._var, self._key_codec.pack(key))
            payload = None if data is None else self._form.unpack(data)
        if payload is not None:
            # An interrupt may strike between any two lines here: then the entry is in both, and the hot one counts.
            self._hot[key] = payload
            self._hot_bytes += self._form.size(payload)
            self._cold.pop(key, None)
        return payload

    def _sizes(self, payloads: Any) -> int:
        return sum(map(self._form.size, payloads))
