"""Decides which rows of a chunk are applied here, which are refused (redirected to their owner), and which wait.

Rows of keys that this instance owns are applied at once. Rows of keys that another host owns are refused, with a hint. Rows of
keys between two owners wait until the hand-over is decided; rows never decide it. A key that was refused on a stream stays
refused on this stream until the router has caught up (`model.refusals`). The gate ensures I1 (one owner) and I3 (order) at the
host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from godwit import ports
from godwit.errors import StaleGeneration
from godwit.migration.events import Waiting
from godwit.model.ownership import ROWS_WAIT, Ownership, Stand
from godwit.model.refusals import Refusals
from godwit.model.units import Unit
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.chunk.ownership_columns import MINE, SENT_ON, Mask, units_of
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OwnerHint, RefusedRows
from godwit.runtime.processor.rows import Index

Apply = Callable[[Chunk], Work]
EXPECTED = int(Stand.EXPECTED)
WAITING_STANDS = tuple(map(int, ROWS_WAIT))


@dataclass(slots=True)
class Passed:
    """The results of a chunk: the work of applied rows, and the refusal of the others."""

    works: list[Work] = field(default_factory=list)
    refused: RefusedRows | None = None


class Gate:
    """One stream's way into an instance."""

    def __init__(self, shared: SharedInstance, stopping: Callable[[], bool]) -> None:
        self._shared = shared
        self._stopping = stopping
        self._refusals = Refusals()
        self._answers = 0
        self._epochs = _epochs_of(shared.instance.ownership)  # of all groups, when the router heard of them last

    def let_in(self, chunk: Chunk, seen: int, again: bool, apply: Apply) -> Passed:
        """Apply, refuse or delay the rows. Called with the instance's lock, which is released while rows wait."""
        self._answers += 1
        self._refusals.dealt_with(seen)
        passed = Passed()
        instance = self._shared.instance
        columns = instance.memory.columns
        if instance.ownership is None or columns is None or (columns.whole and not self._refusals):
            passed.works.append(apply(chunk))
            return passed
        refused: list[Chunk] = []
        began_s, waiting = None, 0
        while True:
            stands = instance.stands(chunk.hashes)
            if self._refusals and not again:
                stands[self._still_refused(chunk)] = int(Stand.AWAY)
            mine: Mask = stands == MINE
            sent_on: Mask = np.isin(stands, SENT_ON)
            if mine.any() or not len(chunk):
                passed.works.append(apply(chunk.filter(mine)))
            if sent_on.any():
                refused.append(chunk.filter(sent_on))
            undecided = ~(mine | sent_on)
            if not undecided.any():
                break
            chunk, stands = chunk.filter(undecided), stands[undecided]
            if began_s is None:
                began_s, waiting = ports.now_s(), len(chunk)
            self._want(chunk.hashes[stands == EXPECTED], instance.ownership)
            self._wait(chunk)
        if began_s is not None:
            self._shared.stalled((ports.now_s() - began_s) * 1000, waiting)
        if refused:
            passed.refused = self._refuse(refused, instance.ownership)
        return passed

    def _still_refused(self, chunk: Chunk) -> Mask:
        return np.fromiter((h in self._refusals for h in chunk.hashes.tolist()), np.bool_, len(chunk))

    def _want(self, hashes: Index, ownership: Ownership) -> None:
        if len(hashes):
            units = units_of(np.unique(hashes).tolist(), ownership)
            for want in self._shared.want_listeners:
                want(units)

    def _wait(self, chunk: Chunk) -> None:
        """Wait until the owners of all rows are decided. A chunk is answered as a whole, so a part of it would not help.

        The hand-over gives way to chunks, but not to this one, which waits for it.
        """
        instance = self._shared.instance
        self._shared.chunks.leave()
        try:
            self._shared.changed.wait_for(
                lambda: self._stopping() or not np.isin(instance.stands(chunk.hashes), WAITING_STANDS).any()
            )
        finally:
            self._shared.chunks.enter()
        if self._stopping():
            raise StaleGeneration("the host is stopping while rows wait for a hand-over")

    def _refuse(self, chunks: Iterable[Chunk], ownership: Ownership) -> RefusedRows:
        rows = np.concatenate([chunk.rows for chunk in chunks])
        hashes = np.concatenate([chunk.hashes for chunk in chunks])
        self._refusals.add(self._answers, hashes.tolist())
        self._report_backlog(hashes, ownership)
        groups: dict[int, OwnerHint] = {}
        keys: list[OwnerHint] = []
        for route_hash in set(hashes.tolist()):
            share = ownership.of(route_hash)
            if route_hash in ownership.keys:
                keys.append(OwnerHint(route_hash, share.peer, share.epoch))
            else:
                group = route_hash % len(ownership.groups)
                groups[group] = OwnerHint(group, share.peer, share.epoch)
        for group in self._changed_groups(ownership):
            share = ownership.groups[group]
            if share.stand is Stand.AWAY:
                groups.setdefault(group, OwnerHint(group, share.peer, share.epoch))
        return RefusedRows(np.sort(rows).tolist(), tuple(groups.values()), tuple(keys))

    def _changed_groups(self, ownership: Ownership) -> list[int]:
        """Groups that have changed their owner since the router heard of them: the router need not find out one by one."""
        before, self._epochs = self._epochs, _epochs_of(ownership)
        changed: list[int] = np.flatnonzero(self._epochs != before).tolist()
        return changed

    def _report_backlog(self, hashes: Any, ownership: Ownership) -> None:
        """Rows of lent units wait at the target from now on. A push is ordered by this backlog."""
        if not self._shared.event_listeners:
            return
        lent = hashes[self._shared.instance.stands(hashes) == int(Stand.LENT)]
        if not len(lent):
            return
        count, now_s = len(ownership.groups), ports.now_s()
        rows: Counter[Unit] = Counter()
        for route_hash, n in zip(*(column.tolist() for column in np.unique(lent, return_counts=True)), strict=True):
            unit = Unit("key", route_hash) if route_hash in ownership.keys else Unit("group", route_hash % count)
            rows[unit] += n
        for tell in self._shared.event_listeners:
            for unit, n in rows.items():
                tell(Waiting(unit, n, now_s))


def _epochs_of(ownership: Ownership | None) -> npt.NDArray[np.uint32]:
    return np.array([] if ownership is None else ownership.groups.epochs, np.uint32)
