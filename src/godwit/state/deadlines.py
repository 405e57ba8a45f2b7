"""Deadlines in order of time: of timers, and of entries with a time to live.

Decides only the order of time. It does not know whether an item still exists: no item is taken out before its
deadline, so the caller checks each item that falls due.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_STAMP = struct.Struct("<q")
STAMP_BYTES: Final = _STAMP.size  # in front of a payload with a time to live: when it ends


class Deadlines(Generic[T]):
    """Items by time. Many items share a time (all of a batch, all of a window), so only distinct times are ordered."""

    __slots__ = ("_heap", "_items", "count")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._items: dict[int, list[T]] = {}
        self.count = 0

    def add(self, at_ms: int, item: T) -> None:
        items = self._items.get(at_ms)
        if items is None:
            self._items[at_ms] = [item]
            heappush(self._heap, at_ms)
        else:
            items.append(item)
        self.count += 1

    def reset(self, pairs: Iterable[tuple[int, T]]) -> None:
        """Forget everything and begin again with these."""
        self._items.clear()
        self.count = 0
        for at_ms, item in pairs:
            self._items.setdefault(at_ms, []).append(item)
            self.count += 1
        self._heap = list(self._items)
        heapify(self._heap)

    def earliest(self, holds: Callable[[int, T], bool]) -> int | None:
        """The first time for which some item still holds; what does not is dropped on the way."""
        while self._heap:
            at_ms = self._heap[0]
            items = self._items[at_ms]
            while items and not holds(at_ms, items[-1]):
                items.pop()
                self.count -= 1
            if items:
                return at_ms
            heappop(self._heap)
            del self._items[at_ms]
        return None

    def pop(self, until_ms: int) -> list[tuple[int, T]]:
        """All that is due, by time, taken out."""
        due: list[tuple[int, T]] = []
        while self._heap and self._heap[0] <= until_ms:
            at_ms = heappop(self._heap)
            due += [(at_ms, item) for item in self._items.pop(at_ms)]
        self.count -= len(due)
        return due

    def until(self, until_ms: int) -> Iterator[tuple[int, T]]:
        """All that is due, in no order, left in place."""
        pending = [0]
        while pending:
            i = pending.pop()
            # No child in a heap is earlier than its parent, so a branch that is too late ends here.
            if i < len(self._heap) and self._heap[i] <= until_ms:
                at_ms = self._heap[i]
                yield from ((at_ms, item) for item in self._items[at_ms])
                pending += (2 * i + 1, 2 * i + 2)


@dataclass(slots=True)
class Now:
    """The processing time of the batch at hand, shared by all variables of an instance."""

    ms: int = 0


class Expiry(Generic[T]):
    """Time to live: stamps payloads, says which have expired, and when to check which item.

    An item has one deadline, however often it is written. When the deadline comes, the item is checked and gets a new
    deadline if it was written since. So the deadlines grow with the entries, not with the writes.
    """

    __slots__ = ("_deadlines", "_looked_at", "_now", "_watched", "ttl_ms")

    def __init__(self, ttl_ms: int, now: Now) -> None:
        self.ttl_ms = ttl_ms
        self._now = now
        self._deadlines: Deadlines[T] = Deadlines()
        self._watched: set[T] = set()
        self._looked_at: list[tuple[int, T]] = []

    def stamp(self, payload: bytes) -> bytes:
        return stamped_at(self._now.ms + self.ttl_ms, payload)

    def live(self, stamped: bytes) -> bytes | None:
        """The payload without its stamp, None if its time is over."""
        return stamped[STAMP_BYTES:] if expiry_ms(stamped) > self._now.ms else None

    def watch(self, item: T, at_ms: int) -> None:
        if item not in self._watched:
            self._watched.add(item)
            self._deadlines.add(at_ms, item)

    def due(self, now_ms: int) -> list[T]:
        """Items whose time has come, each given once, unless `forget` undoes that."""
        due = self._deadlines.pop(now_ms)
        self._looked_at += due
        items = [item for _, item in due]
        self._watched.difference_update(items)
        return items

    def keep(self) -> None:
        """What was done about the due items is committed."""
        self._looked_at.clear()

    def forget(self) -> None:
        """What was done about the due items is rolled back: they are due again."""
        for at_ms, item in self._looked_at:
            self.watch(item, at_ms)
        self._looked_at.clear()


def stamped_at(expiry_ms: int, payload: bytes) -> bytes:
    """The form in which a payload is stored that ends at this time."""
    return _STAMP.pack(expiry_ms) + payload


def expiry_ms(stamped: bytes) -> int:
    at_ms: int = _STAMP.unpack_from(stamped)[0]
    return at_ms
