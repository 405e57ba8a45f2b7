"""Applies the rows of a chunk: whole or not at all, and each row once.

Rows that were applied before are answered from the ledger. The others go to user code, and what user code changes becomes
durable together with their entry in the ledger, in `DurableChanges.change`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from godwit.errors import NotReplayable
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.changelog_parts import mark_part
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.batch_checks import BatchChecks, partition_changed
from godwit.runtime.instance.failure_isolation import IsolatingRun
from godwit.runtime.instance.user_code import UserCode
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Times, times_us
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keys import Key
from godwit.state.ledger import Entry


@dataclass(frozen=True, slots=True)
class AppliedElsewhere:
    """How rows that their owner has applied are applied to the copies of another instance."""

    times: Times
    over: bool  # the batch is committed, so what the rows change is settled at once
    record: bool  # a router may ask for the rows again, so the ledger keeps them


class ChunkApplier:
    def __init__(self, memory: Memory, durable: DurableChanges, checks: BatchChecks, code: UserCode) -> None:
        self._memory = memory
        self._durable = durable
        self._checks = checks
        self._code = code

    def apply(self, request: BatchRef, lane: str, chunk: Chunk) -> Work:
        """Apply rows of a lane, ascending by number."""
        self._checks.check_current(request, lane)
        ledger, counters = self._memory.ledger, self._memory.counters
        last_row = int(chunk.rows[-1]) if len(chunk) else -1
        unseen = self._unseen(lane, chunk)
        recorded: list[pa.RecordBatch] = []
        if unseen is not None:
            recorded = ledger.recorded(lane, chunk.rows[~unseen])
            chunk = chunk.filter(unseen)
        if len(chunk):
            ledger.begin(lane)  # before user code runs: rows that fail belong to the batch too
        work = self._apply_unseen(request, lane, chunk) if len(chunk) else Work(lsn=self._durable.lsn)
        work.outputs = [*recorded, *work.outputs]
        if self._memory.progress.lasting and last_row >= 0:
            ledger.reached.note(lane, request.batch, last_row)
        if unseen is not None:
            counters.replayed += len(unseen) - len(chunk)
        if len(chunk):
            counters.rows += len(chunk)
            counters.sample(chunk.hashes)
        return work

    def follow(self, request: BatchRef, lane: str, chunk: Chunk, times: Times) -> Work:
        """Replay rows that the owner has applied and answered, so that the copy here stays equal to the owner's state.

        If the batch is over here, it is committed: no router asks for its rows again, and their changes are settled at once.
        Rows that outlast their batch may be asked for again.
        """
        progress, ledger = self._memory.progress, self._memory.ledger
        over = request.batch < progress.batch
        # No router asks for rows of a reverted attempt either.
        record = progress.lasting or (not over and request.run == progress.run)
        unseen = ledger.unseen(lane, chunk.rows, chunk.hashes, chunk.checks) if record else None
        chunk = chunk if unseen is None else chunk.filter(unseen)
        ledger.mixed.add(lane)
        if not len(chunk):
            return Work(lsn=self._durable.lsn)
        return self._apply_unseen(request, lane, chunk, AppliedElsewhere(times, over, record))

    def _unseen(self, lane: str, chunk: Chunk) -> Any:
        ledger = self._memory.ledger
        end = ledger.finished.get(lane)
        if end is not None and len(chunk) and (last := int(chunk.rows[-1])) >= end:
            # Checked here too: an attempt that Spark stops early (a speculative copy) never reports its number of rows.
            raise self._checks.spoil(partition_changed(lane, f"had {end} rows before and now has a row {last}"))
        try:
            return ledger.unseen(lane, chunk.rows, chunk.hashes, chunk.checks)
        except NotReplayable as error:
            raise self._checks.spoil(error) from None

    def _apply_unseen(
        self, request: BatchRef, lane: str, chunk: Chunk, elsewhere: AppliedElsewhere | None = None
    ) -> Work:
        counters = self._memory.counters
        late = counters.late

        def undo() -> None:
            counters.late = late

        return self._durable.change(lambda work: self._prepare(work, request, lane, chunk, elsewhere), undo)

    def _prepare(
        self, work: Work, request: BatchRef, lane: str, chunk: Chunk, elsewhere: AppliedElsewhere | None
    ) -> InstallInMemory:
        memory = self._memory
        memory.ledger.make_room()  # first, because it may fail
        times = memory.batch.times if elsewhere is None else elsewhere.times
        on_time = _on_time(chunk, times, memory.spec)
        run = IsolatingRun(memory, self._code, request, lane, times)
        keys = self._process(run, on_time, times, counted=elsewhere is None)
        if late := len(chunk) - len(on_time) + run.late_rows:
            memory.counters.late += late
            work.parts.append(mark_part(memory))
        entry = Entry(chunk.rows, chunk.hashes, run.outputs, checks=chunk.checks)
        record, over = (True, False) if elsewhere is None else (elsewhere.record, elsewhere.over)
        install_entry = self._durable.prepare_entry(work, lane, entry, record, settled=over)
        if elsewhere is not None:
            _mark_as_taken_over(work)

        def install() -> None:
            install_entry()
            if over:
                memory.state.settle_keys(keys)
            for follower in memory.followers:
                follower.applied(request, lane, chunk, times, keys, work)

        return install

    def _process(self, run: IsolatingRun, chunk: Chunk, times: Times, counted: bool) -> Sequence[Key]:
        """User code works on the stage. `counted`: the rows count for hot keys; rows of copies count at their owner."""
        memory = self._memory
        memory.state.now_ms = times.processing_ms
        if not len(chunk):
            return []
        grouped = group_by_key(chunk.batch, chunk.rows, memory.key_codec)
        run.rows(chunk, grouped)
        if memory.hot is not None and counted:
            memory.hot.add(grouped, chunk.hashes)
        return grouped.keys


def _mark_as_taken_over(work: Work) -> None:
    """Mark replayed entries: the router may finish the lane at the owner only, so they do not begin the lane here."""
    for info, _ in work.parts:
        if info["kind"] == "ledger":
            info["from"] = "owner"


def late_us(times: Times, spec: OperatorSpec) -> int | None:
    """The newest event time that counts as late; None if no row can be late."""
    if spec.time_mode != "eventTime" or spec.event_time is None or spec.ephemeral:
        return None
    return (times.late_ms - spec.lateness_ms) * 1000


def _on_time(chunk: Chunk, times: Times, spec: OperatorSpec) -> Chunk:
    """As in Spark, rows at or before the watermark of the batch before are not processed. Here they are counted."""
    newest_us = late_us(times, spec)
    if newest_us is None or spec.event_time is None:
        return chunk
    event_times = chunk.batch.column(chunk.batch.schema.get_field_index(spec.event_time))
    return chunk.filter(times_us(event_times) > newest_us)
