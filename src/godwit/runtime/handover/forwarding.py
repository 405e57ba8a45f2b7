"""Follows an instance while its keys move: forwards rows or changes of keys that were copied, and notices new keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
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
from godwit.runtime.processor.rows import Times
from godwit.state.changes import Changes
from godwit.state.keys import Key

SLICE_KEYS = 256  # in one slice

Select = Callable[[Any], Any]


class Forwarder:
    """Forwards rows or changes of copied keys to the target; called with the instance's lock, right after each change."""

    def __init__(
        self, shared: SharedInstance, queue: SendQueue, step: int, select: Select, forward: str, check: bool
    ) -> None:
        self.pending: list[tuple[int, int, Key]] = []
        self.keys: set[Key] = set()
        self.rows = 0
        self._instance = shared.instance
        self._queue = queue
        self._check = check
        self._step = step
        self._select = select
        self._forward = forward
        self._frontier: int | None = -(1 << 63)  # keys with smaller hashes are copied; None: all keys are

    def begin(self, keys: Mapping[Key, int]) -> None:
        """Copy these keys, with their routing hashes."""
        self.pending = [(route_hash, at, key) for at, (key, route_hash) in enumerate(keys.items())]
        heapify(self.pending)
        self.keys = set(keys)

    def add_key(self, key: Key, route_hash: int) -> None:
        """A new key. If the copy has passed its hash, the target gets the key by forwarding alone."""
        if not self._select(np.array([route_hash]))[0]:
            return
        self.keys.add(key)
        if self._frontier is not None and route_hash >= self._frontier:
            heappush(self.pending, (route_hash, len(self.pending) + (1 << 40), key))

    def next_slice(self) -> list[Key]:
        """The keys that are copied next. Keys with the same hash go together; the frontier moves behind them."""
        keys: list[Key] = []
        while self.pending and len(keys) < SLICE_KEYS:
            route_hash = self.pending[0][0]
            while self.pending and self.pending[0][0] == route_hash:
                keys.append(heappop(self.pending)[2])
            self._frontier = route_hash + 1
        if not self.pending and not keys:
            self._frontier = None
        return keys

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
