"""How an instance goes from batch to batch: begins the next one, settles the one before, begins a batch anew.

As in Spark, the next batch proves that the one before is committed, and a later run that reads the batch in progress again
starts from the state of the batch before. Which requests may do that is decided in `batch_checks`.

If Spark tracks progress asynchronously, nothing is reverted: rows outlast their batch in the ledger until Spark's log names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import HostUnavailable, StaleRun
from godwit.model.ownership import Stand
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.model.watermark import BatchWatermark
from godwit.runtime.chunk.ownership_columns import selects
from godwit.runtime.durable.changelog_parts import ledger_part, mark_part
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.batch_checks import BatchChecks
from godwit.state.keys import Key


class Batches:
    def __init__(self, memory: Memory, durable: DurableChanges, checks: BatchChecks) -> None:
        self._memory = memory
        self._durable = durable
        self._checks = checks

    # -- the next batch ----------------------------------------------------------------------------------------------

    def begin(self, request: BatchRef, now_ms: int, given: BatchWatermark | None = None) -> None:
        """Begin the next batch. The ledger of the batch before is dropped when the new batch is in the changelog: `settle`.

        `given`: the watermark of the batch, if it is Spark's.
        """
        spec, batch = self._memory.spec, self._memory.batch
        if request.batch <= batch.progress.batch:
            self._begin_again(request, now_ms)
            return
        # Timers from initial state wait for the rows of the first batch, as in Spark.
        is_first = batch.times.processing_ms == 0
        batch.due = batch.times_at(now_ms, spec) if spec.timers_between_batches and not is_first else None
        batch.fired = False
        batch.fired_elsewhere, batch.unfired_keys, batch.pending_outputs = [], frozenset(), {}
        batch.unfired, batch.firings = Units(), 0  # timers that have not fired are due in the new batch, too
        batch.fired_lanes = batch.fired_lanes.next_batch()
        batch.before = None if batch.joined or batch.progress.batch < 0 else batch.progress.batch
        batch.joined = False
        batch.progress = batch.progress.advance(request.batch)
        batch.watermark = batch.watermark.copy()
        batch.watermark.next_batch(given)
        batch.times = batch.times_at(now_ms, spec)
        batch.began_at = None
        batch.merge = spec.merge
        batch.late_before = self._memory.counters.late
        batch.spoiled = ""

    def _begin_again(self, request: BatchRef, now_ms: int) -> None:
        """An earlier run had come further: a batch of a number that was used before begins. Such operators have no timers."""
        batch = self._memory.batch
        batch.progress = batch.progress.advance(request.batch)
        batch.times = batch.times_at(max(now_ms, batch.times.processing_ms), self._memory.spec)
        batch.merge, batch.spoiled = self._memory.spec.merge, ""

    def take_watermark(self, given: BatchWatermark) -> None:
        """Take Spark's watermark of the batch, which this instance has begun because another host was in it."""
        batch = self._memory.batch
        batch.watermark = batch.watermark.copy()
        batch.watermark.take(given)
        batch.times = batch.times_at(batch.times.processing_ms, self._memory.spec)

    def set_time(self, batch_ms: int) -> bool:
        """Spark's time of the batch, if another time was assumed. So a key that moves has the same time at both owners."""
        spec, batch = self._memory.spec, self._memory.batch
        if batch.times.processing_ms == batch_ms:
            return False
        batch.times = batch.times_at(batch_ms, spec)
        if batch.due is not None and not batch.fired:
            batch.due = batch.times
        return True

    def go_on(self, lane: str, now_ms: int, event_max_ms: int | None) -> None:
        """In real time a batch lasts for minutes: its time and its watermark go on while it runs.

        A later run of the batch begins with the watermark that the batch began with: its rows come again.
        """
        spec, batch = self._memory.spec, self._memory.batch
        if batch.began_at is None:
            batch.began_at = batch.watermark.to_dict()
            batch.watermark = batch.watermark.copy()
        batch.watermark.report(lane, event_max_ms)
        batch.watermark.next_batch()
        batch.times = batch.times_at(max(now_ms, batch.times.processing_ms), spec)

    def settle(self, now_ms: int, before: Progress) -> None:
        """The batch before is over: drop its before-images. If that proves that it is committed, drop its ledger, too.

        `before`: the progress up to now.
        """
        memory = self._memory
        ledger, progress = memory.ledger, memory.progress
        memory.state.settle()
        if before.lasting and progress.lasting:
            ledger.next_batch()
            if not progress.asynchronous:
                ledger.drop_committed(progress.current - 1)
        else:
            ledger.clear()
        ledger.batch = progress.batch
        memory.counters.recent.append((progress.batch, now_ms, memory.counters.rows))

    def know_committed(self, run: str, batch: int) -> None:
        """Spark's log names this batch of the run: drop the rows that outlast it. The changelog may learn of this later."""
        progress = self._memory.progress
        if progress.lasting and progress.run == run:
            self._memory.batch.progress = progress.know_committed(batch)
            self._memory.ledger.drop_committed(batch)

    def undo(self) -> Callable[[], None]:
        """Returns a function that restores the batch in progress as it is now, if the next one cannot begin."""
        memory = self._memory
        batch, late = replace(memory.batch), memory.counters.late

        def undo() -> None:
            memory.batch, memory.counters.late = batch, late

        return undo

    def catch_up(self, progress: Progress, now_ms: int) -> None:
        """Another instance of the operator is in this batch, so the batches before it are committed.

        If the other instance has begun the batch anew, in a later run of the query, so does this one.
        """
        request, own = BatchRef(progress.query or "", progress.run or "", progress.batch), self._memory.progress
        if own.behind(progress):
            self.follow_run(progress)
            own = self._memory.progress
        if progress.query is None or progress.batch <= own.batch or progress.run in own.fenced:
            self._outlast(progress)
            return
        self._checks.check_complete(request)

        def prepare(work: Work) -> InstallInMemory:
            batch = self._memory.batch
            if own.query is None:
                batch.progress = replace(progress, batch=-1, attempt=0, reading=None)
            elif own.run != progress.run:
                batch.progress = own.admit(request)
            self.begin(request, now_ms)
            batch.progress = batch.progress.joined(own, progress)
            work.parts.append(mark_part(self._memory))
            return lambda: self.settle(now_ms, own)

        self._durable.change(prepare, self.undo())

    def _outlast(self, progress: Progress) -> None:
        """Rows come from an instance where they outlast their batch. If they did not do so here, from now on they do.

        So the changelog gets the entries of the batch in progress again, in a form that outlasts it.
        """
        memory, own = self._memory, self._memory.progress
        if own.lasting or not progress.lasting:
            return
        if not memory.ledger.by_columns:
            raise HostUnavailable(
                "rows of the batch in progress are not known by lane and sequence here, and those of the other host are",
                todo="Wait until the next run of the query has begun: the keys move then",
                operator=memory.spec.name,
            )

        def prepare(work: Work) -> InstallInMemory:
            memory.batch.progress = own.outlasting(progress)
            work.parts += [ledger_part(memory, lane, entry) for lane, entry in memory.ledger.entries()]
            work.parts.append(mark_part(memory))
            return lambda: None

        self._durable.change(prepare, self.undo())

    def merge_watermark(self, watermark: Mapping[str, Any], same_batch: bool) -> None:
        """Add the event times of lanes that another instance knows, from this batch or from the end of the batch before."""
        batch = self._memory.batch
        batch.watermark.merge(watermark, same_batch)
        batch.times = batch.times_at(batch.times.processing_ms, self._memory.spec)

    # -- a batch that begins anew ------------------------------------------------------------------------------------

    def revert(self, request: BatchRef, asynchronous: bool = False) -> None:
        """A later run begins the batch in progress anew: everything is as it was when the batch began, and the log says so.

        Its timers fire again with the times they had, as a batch of Spark keeps its timestamp.
        """
        self._begin_anew(self._memory.progress.admit(request, asynchronous).again())

    def follow_run(self, progress: Progress) -> None:
        """Another instance has begun the batch in a later run of the query, or of the job that loads initial state."""
        if self._memory.progress.lasting:
            self._take_up(progress)
        elif progress.query is not None:
            self.revert(BatchRef(progress.query, progress.run or "", progress.batch), progress.asynchronous)
        else:
            self._begin_anew(self._memory.progress.initialised_by(progress.run or "", progress.fenced))

    def _take_up(self, progress: Progress) -> None:
        """Another instance is in a later run. Rows outlast their batch, so those that come again are known."""
        memory = self._memory

        def prepare(work: Work) -> InstallInMemory:
            memory.batch.progress = memory.progress.follow(progress)
            memory.batch.spoiled = ""
            work.parts.append(mark_part(memory))

            def install() -> None:
                memory.ledger.next_batch()
                memory.ledger.next_run()

            return install

        self._durable.change(prepare, self.undo())

    def fence_run(self, run: str) -> None:
        """Another instance is in a run that the run of this instance has replaced."""

        def prepare(work: Work) -> InstallInMemory:
            self._memory.batch.progress = self._memory.progress.fence(run)
            work.parts.append(mark_part(self._memory))
            return lambda: None

        self._durable.change(prepare, self.undo())

    def begin_initial(self, run: str) -> None:
        """A job loads initial state. Initial state of an earlier job that did not finish is dropped.

        So the later job may bring other rows, or the same rows in other partitions.
        """
        progress = self._memory.progress
        if run in progress.fenced:
            raise StaleRun("another job loads the initial state now", operator=self._memory.spec.name)
        if progress.query is None and run != progress.run:
            self._begin_anew(progress.initialised_by(run))

    def _begin_anew(self, progress: Progress) -> None:
        memory = self._memory

        def prepare(work: Work) -> InstallInMemory:
            keys = self._answered_for(list(memory.state.touched()))
            changes = memory.state.stage_revert(keys)
            prepared = memory.state.prepare()
            self._reset(progress)
            work.parts += [*self._settled_parts(changes), mark_part(memory)]

            def install() -> None:
                memory.state.install(prepared)
                memory.state.settle_keys(keys)
                memory.ledger.clear()
                for follower in memory.followers:
                    follower.reverted(keys, changes)

            return install

        self._durable.change(prepare, self.undo())

    def _reset(self, progress: Progress) -> None:
        batch = self._memory.batch
        batch.progress = progress
        batch.fired = progress.batch < 0
        batch.fired_elsewhere, batch.unfired_keys = [], frozenset()
        batch.pending_outputs, batch.unfired = {}, Units()
        batch.fired_lanes = batch.fired_lanes.anew()
        batch.watermark = replace(batch.watermark, reported={})
        if batch.began_at is not None:
            batch.watermark.restore(batch.began_at)
            batch.times = batch.times_at(batch.times.processing_ms, self._memory.spec)
        self._memory.counters.late = batch.late_before
        batch.spoiled = ""
        batch.merge = self._memory.spec.merge

    def revert_units(self, units: Units) -> None:
        """Revert keys from an origin that has not begun the batch anew yet: drop what the origin has applied of the batch."""
        memory = self._memory
        assert memory.ownership is not None, "keys came from another owner"
        touched = list(memory.state.touched())
        chosen = selects(units, memory.ownership)(memory.hashes_of(touched))
        keys = [touched[i] for i in np.flatnonzero(chosen).tolist()]

        def prepare(work: Work) -> InstallInMemory:
            changes = memory.state.stage_revert(keys)
            prepared = memory.state.prepare()
            work.parts += self._settled_parts(changes)

            def install() -> None:
                memory.state.install(prepared)
                memory.state.settle_keys(keys)

            return install

        self._durable.change(prepare)

    def _settled_parts(self, changes: Sequence[pa.RecordBatch]) -> list[NewPart]:
        info = {"kind": "state", "op": self._memory.name, "batch": self._memory.progress.batch, "settled": True}
        return [(dict(info), batch.serialize()) for batch in changes]

    def _answered_for(self, keys: list[Key]) -> list[Key]:
        """These keys without copies of keys that others own. Released keys stay: they may have to be sent again."""
        columns, ownership = self._memory.columns, self._memory.ownership
        if not keys or columns is None or ownership is None or columns.whole:
            return keys
        hashes = self._memory.hashes_of(keys)
        mine = ~np.isin(columns.stands(hashes), (int(Stand.AWAY), int(Stand.EXPECTED)))
        for outgoing in ownership.outgoing.values():
            mine |= selects(outgoing.units, ownership)(hashes)
        return [key for key, own in zip(keys, mine.tolist(), strict=True) if own]
