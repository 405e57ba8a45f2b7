"""Timers of an instance: which of them are due in a batch, which of these fire here, and the firing itself.

As in Spark, timers fire after all rows of a batch. If the lanes of a batch are made by key, timers fire when the lane of their
key ends. Otherwise no lane knows that all rows of a key have come, and timers fire when the next batch begins. Each timer fires
once, at one owner, though its key may move meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from godwit.errors import DefinitionError
from godwit.model.fired_lanes import FiredLanes
from godwit.model.ownership import Stand
from godwit.model.progress import BatchRef
from godwit.model.units import Units
from godwit.runtime.chunk.ownership_columns import MINE, selects
from godwit.runtime.durable.batch_in_progress import fired_of
from godwit.runtime.durable.changelog_parts import mark_part
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.batches import Batches
from godwit.runtime.instance.failure_isolation import IsolatingRun
from godwit.runtime.instance.user_code import DueTimers, UserCode
from godwit.runtime.processor.rows import Index, Times
from godwit.state.ledger import Entry


class TimerFiring:
    def __init__(self, memory: Memory, durable: DurableChanges, code: UserCode) -> None:
        self._memory = memory
        self._durable = durable
        self._code = code

    def prepare(self, work: Work, lane: str) -> InstallInMemory:
        """Fire the timers that are due after the rows of the batch before; their outputs leave through this lane."""
        memory, batch = self._memory, self._memory.batch
        memory.state.now_ms = batch.times.processing_ms
        if not memory.staged:  # a copy must stay as its owner has it; expired entries are hidden anyway
            memory.state.expire_ttl(batch.times.processing_ms)
        timers = [] if batch.due is None else self._own(memory.state.due(self._due_ms(batch.due)))
        if batch.due is not None and timers:
            install = self._prepare_firing(work, lane, timers, batch.due)
        else:
            install = self._followed(work, self._durable.prepare_state(work))
        batch.fired, batch.unfired = True, self._between_owners(batch.unfired)
        return install

    def end_lane(self, lane: str, undo: Callable[[], None]) -> Work:
        """The lane, made by key, has no more rows: fire the timers of its keys that are due in this batch."""
        memory, batch, number = self._memory, self._memory.batch, int(lane)
        if batch.fired_lanes.complete(number):
            return Work(lsn=self._durable.lsn)
        memory.state.now_ms = batch.times.processing_ms
        timers = self._of_lane(memory.state.due(self._due_ms(batch.times)), number)
        fired = batch.fired_lanes.fire(number)
        if not timers and memory.spec.time_mode == "eventTime":
            # Nothing to write down: after a restart, and at other hosts, the watermark of this batch is the same.
            batch.fired_lanes = fired
            return Work(lsn=self._durable.lsn)

        def prepare(work: Work) -> InstallInMemory:
            install = self._prepare_firing(work, lane, timers, batch.times) if timers else nothing_to_install
            batch.fired_lanes = fired
            work.parts.append(mark_part(memory))
            return install

        return self._durable.change(prepare, undo)

    def fire_due(self, lane: str, batches: Batches, now_ms: int, event_max_ms: int | None) -> Work:
        """In real time: the time of the batch goes on, and timers that are due by then fire.

        A timer is part of its key's state, and is gone when it has fired: so each fires once, at the owner of its key.
        """
        memory = self._memory
        undo = batches.undo()
        batches.go_on(lane, now_ms, event_max_ms)
        memory.state.now_ms = memory.batch.times.processing_ms
        timers = self._of_owner(memory.state.due(self._due_ms(memory.batch.times)))
        if not timers:
            return Work(lsn=self._durable.lsn)

        def prepare(work: Work) -> InstallInMemory:
            install = self._prepare_firing(work, lane, timers, memory.batch.times)
            work.parts.append(mark_part(memory))
            return install

        return self._durable.change(prepare, undo)

    def _of_owner(self, timers: DueTimers) -> DueTimers:
        """Those of keys that are owned here."""
        memory, columns = self._memory, self._memory.columns
        if not timers or columns is None or columns.whole:
            return timers
        mine = np.isin(memory.stands(memory.hashes_of([key for _, key in timers])), (MINE, int(Stand.LENT)))
        return [timer for timer, own in zip(timers, mine.tolist(), strict=True) if own]

    def _prepare_firing(self, work: Work, lane: str, timers: DueTimers, times: Times) -> InstallInMemory:
        memory, progress = self._memory, self._memory.progress
        request = BatchRef(progress.query or "", progress.run or "", progress.batch)
        run = IsolatingRun(memory, self._code, request, lane, times)
        run.timers(timers)
        entry = Entry(_NO_ROWS, _NO_ROWS, run.outputs, firing=self._next_firing())
        install_entry = self._followed(work, self._durable.prepare_entry(work, lane, entry))

        def install() -> None:
            install_entry()
            memory.counters.timers_fired += len(timers)

        return install

    def _followed(self, work: Work, install_prepared: InstallInMemory) -> InstallInMemory:
        def install() -> None:
            install_prepared()
            for follower in self._memory.followers:
                follower.changed(self._memory.progress.batch, work.changes)

        return install

    def _of_lane(self, timers: DueTimers, lane: int) -> DueTimers:
        """The timers of keys of this lane that are owned here and have not fired in this batch, here or elsewhere."""
        memory, columns = self._memory, self._memory.columns
        if not timers:
            return timers
        hashes = memory.hashes_of([key for _, key in timers])
        chosen: Any = hashes % memory.spec.partitions == lane
        if columns is not None and not columns.whole:
            chosen &= np.isin(memory.stands(hashes), (MINE, int(Stand.LENT)))
        count = 1 if memory.ownership is None else len(memory.ownership.groups)
        has_fired = memory.batch.fired_lanes.lookup(lane, count)
        return [timers[at] for at in np.flatnonzero(chosen).tolist() if not has_fired(int(hashes[at]))]

    def _next_firing(self) -> str:
        """A name for the next firing, unique in the batch over all hosts."""
        ownership, batch = self._memory.ownership, self._memory.batch
        batch.firings += 1
        return f"{'' if ownership is None else ownership.host}/{batch.progress.batch}/{batch.firings}"

    def _own(self, timers: DueTimers) -> DueTimers:
        """The timers that fire here: not those of keys that others own, nor those that a previous owner fired in this batch.

        If this instance has fired its own timers, only timers that a lost owner had not fired are left.
        """
        memory, batch, columns = self._memory, self._memory.batch, self._memory.columns
        if not timers or columns is None:
            return timers
        if columns.whole and not batch.fired and not batch.fired_elsewhere:
            return timers
        assert memory.ownership is not None, "columns are made from an ownership"
        hashes = memory.hashes_of([key for _, key in timers])
        mine = np.isin(memory.stands(hashes), (MINE, int(Stand.LENT)))
        unfired: Any = np.isin(hashes, list(batch.unfired_keys))
        for units in batch.fired_elsewhere:
            fired = selects(units, memory.ownership)(hashes)
            mine &= ~fired | (unfired & ~np.isin(hashes, list(units.keys)))
        if batch.fired:
            mine &= selects(batch.unfired, memory.ownership)(hashes)
        return [timer for timer, own in zip(timers, mine.tolist(), strict=True) if own]

    def _between_owners(self, units: Units) -> Units:
        """The units whose timers cannot fire here yet, because their hand-over is not decided."""
        ownership = self._memory.ownership
        if ownership is None:
            return units
        fire = (Stand.MINE, Stand.LENT)
        return Units.of(*(unit for unit in units if ownership.share(unit).stand not in fire))

    def _due_ms(self, times: Times) -> int:
        return times.watermark_ms if self._memory.spec.time_mode == "eventTime" else times.processing_ms

    def inherit(self, units: Units, mark: Mapping[str, Any], same_batch: bool, lost: bool) -> None:
        """Take over the timers of units that arrive. `mark`: of their previous owner; it says which of their timers have fired.

        If this instance has fired its own timers, timers that a lost owner had not fired wait for the next lane that opens.
        """
        batch = self._memory.batch
        fired = fired_of(units, mark) if same_batch else Units()
        unfired_keys = self._unfired_keys(units, fired, mark) if fired else frozenset(units.keys)
        if not batch.fired:
            if fired:
                batch.fired_elsewhere.append(fired)
            batch.unfired_keys |= unfired_keys
        elif lost and self._memory.spec.time_mode != "none":
            batch.unfired |= (units - fired) | Units(keys=frozenset(mark.get("unfired_keys", ())) & unfired_keys)
        if same_batch and batch.due is None and mark["due"] is not None:
            batch.due = Times(*mark["due"])

    def inherit_lanes(self, step: str, units: Units, apart: Collection[int], mark: Mapping[str, Any] | None) -> None:
        """Where timers fire at the end of lanes: take over what has fired for units that arrive.

        `mark`: of their previous owner; None if that owner is in another batch, or begins this batch anew.
        """
        batch, ownership = self._memory.batch, self._memory.ownership
        assert ownership is not None, "units arrive only where there is an ownership"
        fired = FiredLanes.from_dict(None if mark is None else mark.get("fired_lanes"))
        release = fired.released.get(step)
        count = len(ownership.groups)
        arrivals = fired.of(units, apart, count) if release is None else release.keys
        batch.fired_lanes = batch.fired_lanes.arrived(arrivals, count)

    def _unfired_keys(self, units: Units, fired: Units, mark: Mapping[str, Any]) -> frozenset[int]:
        """Keys of groups that fired elsewhere whose own timers did not: when the groups fired, the keys were apart from them.

        Such a key may go back to its group in this batch, and then only its name tells that its timers are still due.
        """
        ownership = self._memory.ownership
        assert ownership is not None, "units arrive only where there is an ownership"
        count = len(ownership.groups)
        apart = {key for key, share in ownership.keys.items() if share.stand in (Stand.MINE, Stand.LENT, Stand.CUT)}
        known = apart | set(mark.get("unfired_keys", ()))
        return (units - fired).keys | {key for key in known if key % count in fired.groups}

    # -- questions ---------------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> bool:
        """Whether a batch without rows would fire a timer, or would move the watermark, as Spark does."""
        time_mode, watermark = self._memory.spec.time_mode, self._memory.batch.watermark
        if time_mode == "eventTime" and watermark.upcoming() > watermark.eviction:
            return True
        upcoming_ms = self._memory.state.next_timer_ms()
        if time_mode == "none" or upcoming_ms is None:
            return False
        return upcoming_ms <= (watermark.eviction if time_mode == "eventTime" else now_ms)

    @property
    def awaits_outputs(self) -> bool:
        """Whether this instance will soon answer for outputs of a previous owner's timers: their step is not served yet."""
        ownership = self._memory.ownership
        return ownership is not None and any(step in ownership.incoming for step in self._memory.batch.pending_outputs)

    def check_none_due(self) -> None:
        """On a batch DataFrame timers never fire, because no batch follows; a timer that is due already is an error."""
        spec = self._memory.spec
        upcoming_ms = self._memory.state.next_timer_ms() if spec.ephemeral and not spec.timers_end_lanes else None
        due_ms = self._due_ms(self._memory.batch.times)
        if upcoming_ms is not None and upcoming_ms <= due_ms:
            raise DefinitionError(
                f"a timer was set for {upcoming_ms} ms, which is over at {due_ms} ms, and timers do not fire on a batch "
                "DataFrame",
                todo="Set timers for times to come, or use a streaming DataFrame",
                operator=spec.name,
            )


def nothing_to_install() -> None:
    """Only the mark has changed."""


_NO_ROWS: Index = np.empty(0, np.int64)
