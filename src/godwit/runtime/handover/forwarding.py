"""Follows an instance while its keys move: forwards rows or changes of keys that were copied, and notices new keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.model.progress import BatchRef
from godwit.runtime import messages
from godwit.runtime.chunk import chunk_bytes
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.handover.connection import Queued, SendQueue
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.processor.rows import Index, Times
from godwit.state.changes import Changes
from godwit.state.keys import Key

SLICE_KEYS = 256  # in one slice, if rows wait for all of them

Select = Callable[[Any], Any]


@dataclass(slots=True)
class KeysInOrder:
    """Keys by routing hash, of which the first have been taken."""

    keys: list[Key]
    hashes: list[int]
    taken: int = 0

    @classmethod
    def of(cls, keys: list[Key], hashes: Index) -> KeysInOrder:
        order = np.argsort(hashes, kind="stable")
        return cls([keys[at] for at in order.tolist()], hashes[order].tolist())

    def next_hash(self) -> int | None:
        return self.hashes[self.taken] if self.taken < len(self.hashes) else None

    def take(self) -> Key:
        self.taken += 1
        return self.keys[self.taken - 1]


class Forwarder:
    """Forwards rows or changes of copied keys to the target; called with the instance's lock, right after each change."""

    def __init__(
        self, shared: SharedInstance, queue: SendQueue, step: int, select: Select, forward: str, check: bool
    ) -> None:
        self.keys: set[Key] = set()
        self.rows = 0
        self._instance = shared.instance
        self._queue = queue
        self._check = check
        self._step = step
        self._select = select
        self._forward = forward
        self._frontier: int | None = -(1 << 63)  # keys with smaller hashes are copied; None: all keys are
        self._known = KeysInOrder([], [])
        self._new: list[tuple[int, int, Key]] = []  # keys that came later: a heap by routing hash
        self._new_count = 0

    def begin(self, known: KeysInOrder, keys: set[Key]) -> None:
        """Copy these keys, beside those that were added already. Nothing has been copied so far. Takes over the set."""
        keys |= self.keys
        self._known, self.keys = known, keys

    @property
    def complete(self) -> bool:
        """Whether all keys are copied."""
        return self._frontier is None

    def add_key(self, key: Key, route_hash: int) -> None:
        """A new key. If the copy has passed its hash, the target gets the key by forwarding alone."""
        if not self._select(np.array([route_hash]))[0]:
            return
        self.keys.add(key)
        if self._frontier is not None and route_hash >= self._frontier:
            self._new_count += 1
            heappush(self._new, (route_hash, self._new_count, key))

    def next_slice(self, count: int = SLICE_KEYS) -> list[Key]:
        """The keys that are copied next. Keys with the same hash go together; the frontier moves behind them."""
        keys: dict[Key, None] = {}  # a key may be in both lists
        while len(keys) < count and (route_hash := self._next_hash()) is not None:
            while self._known.next_hash() == route_hash:
                keys[self._known.take()] = None
            while self._new and self._new[0][0] == route_hash:
                keys[heappop(self._new)[2]] = None
            self._frontier = route_hash + 1
        if not keys:
            self._frontier = None
        return list(keys)

    def _next_hash(self) -> int | None:
        known, new = self._known.next_hash(), self._new[0][0] if self._new else None
        return known if new is None else new if known is None else min(known, new)

    def _copied(self, hashes: Any) -> Any:
        chosen = self._select(hashes)
        return chosen if self._frontier is None else chosen & (hashes < self._frontier)

    def applied(self, request: BatchRef, lane: str, chunk: Chunk, times: Times, keys: Any, work: Work) -> None:
        copied = self._copied(chunk.hashes)
        if not copied.any():
            return
        instance = self._instance
        if self._forward == "changes":
            self._changes(request.batch, work.changes)
            return
        part = chunk.filter(copied)
        self.rows += len(part)
        fingerprint = self._fingerprint(part, work) if self._check else None
        message = messages.StepRows(self._step, lane, instance.progress, chunk_bytes.times_tuple(times), fingerprint)
        self._queue.put(Queued(message, (chunk_bytes.chunk_body(c) for c in (part,)), len(part)))

    def _fingerprint(self, part: Chunk, work: Work) -> str:
        instance = self._instance
        changes = chunk_bytes.select_changes(
            work.changes.to_batch(instance.key_codec), instance.key_codec, self._copied
        )
        rows = set(part.rows.tolist())
        outputs = [
            batch.filter(pa.array([row in rows for row in batch.column(0).to_pylist()])) for batch in work.outputs
        ]
        return chunk_bytes.fingerprint(changes, outputs)

    def changed(self, batch: int, changes: Changes) -> None:
        self._changes(batch, changes)

    def _changes(self, batch: int, changes: Changes) -> None:
        if not len(changes):
            return
        self._put(changes.to_batch(self._instance.key_codec), settled=False)

    def reverted(self, keys: Sequence[Key], changes: Sequence[pa.RecordBatch]) -> None:
        for batch in changes:
            self._put(batch, settled=True)

    def _put(self, changes: pa.RecordBatch, settled: bool) -> None:
        part = chunk_bytes.select_changes(changes, self._instance.key_codec, self._copied)
        if len(part):
            self.rows += len(part)
            message = messages.StepChanges(self._step, self._instance.progress, settled)
            self._queue.put(Queued(message, (b.serialize() for b in (part,)), len(part)))


class KeyWatcher:
    """Notes new keys of the units that move, and how many of their rows were applied here; with the instance's lock."""

    def __init__(self, shared: SharedInstance, select: Select, note: Callable[[list[Key], list[int]], None]) -> None:
        self.rows = 0
        self._codec = shared.instance.key_codec
        self._select = select
        self._note = note

    def applied(
        self, request: BatchRef, lane: str, chunk: Chunk, times: Times, keys: Sequence[Key], work: Work
    ) -> None:
        chosen = self._select(chunk.hashes)
        if chosen.any():
            self.rows += int(chosen.sum())
            moving = set(chunk.hashes[chosen].tolist())
            touched = [(key, h) for key in keys if (h := self._codec.route_hash(key)) in moving]
            self._note([key for key, _ in touched], [h for _, h in touched])

    def changed(self, batch: int, changes: Changes) -> None:
        """Initial rows bring new keys."""
        self._note_all(list(dict.fromkeys(key for block in changes.blocks for key in block.keys)))

    def reverted(self, keys: Sequence[Key], changes: Sequence[pa.RecordBatch]) -> None:
        """Keys that the batch had removed may be back."""
        self._note_all(keys)

    def _note_all(self, keys: Sequence[Key]) -> None:
        hashes = np.array([self._codec.route_hash(key) for key in keys], np.int64)
        chosen = np.flatnonzero(self._select(hashes)).tolist()
        self._note([keys[i] for i in chosen], hashes[chosen].tolist())
