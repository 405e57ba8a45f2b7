"""How a lane opens and finishes a batch at an instance. The rows between are applied in `chunk_applier`.

The first lane to open a batch settles the batch before; the first that has rows fires the due timers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from godwit.errors import CheckpointMismatch, NotReplayable
from godwit.model.progress import BatchRef, Verdict
from godwit.model.watermark import BatchWatermark
from godwit.runtime.durable.changelog_parts import end_lane, mark_part
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.batch_checks import BatchChecks, partition_changed
from godwit.runtime.instance.batches import Batches
from godwit.runtime.instance.chunk_applier import late_us
from godwit.runtime.instance.timer_firing import TimerFiring

# Asks whether a run not seen before is the newest: request, last batch, whether the state is fresh. Returns whether Spark
# tracks the progress of the run asynchronously.
AdmitRun = Callable[[BatchRef, int, bool], bool]
# Asks for Spark's watermark of a batch.
AskWatermark = Callable[[BatchRef], BatchWatermark]


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """What a router reports at the end of a lane: all rows, rows sent to this host, and the greatest event time."""

    row_count: int | None
    event_max_ms: int | None
    sent: int | None = None


@dataclass(frozen=True, slots=True)
class _Opening:
    """A lane opens. `given`: Spark's watermark, if the operator has that one and does not know it yet for this batch."""

    request: BatchRef
    lane: str
    now_ms: int
    carries: bool
    batch_ms: int | None
    asynchronous: bool
    given: BatchWatermark | None


class LaneRequests:
    def __init__(
        self, memory: Memory, durable: DurableChanges, checks: BatchChecks, batches: Batches, timers: TimerFiring
    ) -> None:
        self._memory = memory
        self._durable = durable
        self._checks = checks
        self._batches = batches
        self._timers = timers

    # -- open --------------------------------------------------------------------------------------------------------

    def open(
        self,
        request: BatchRef,
        lane: str,
        now_ms: int,
        admit: AdmitRun,
        carries: bool = True,
        batch_ms: int | None = None,
        ask_watermark: AskWatermark | None = None,
    ) -> Work:
        """`carries`: the lane has rows, so outputs of timers leave through it, and only through it, whenever it opens again.

        Lanes without rows cannot be told from each other, so they carry nothing. If no other lane opens, timers wait for the
        next batch. `now_ms`: the clock of the host. `batch_ms`: Spark's time of the batch; lanes without rows do not know it,
        and nothing depends on it before another lane opens.
        """
        asynchronous = False
        if self._memory.progress.judge(request) is Verdict.UNKNOWN_RUN:
            asynchronous = self._check_run(request, admit)
        opening = _Opening(request, lane, now_ms, carries, batch_ms, asynchronous, self._given(request, ask_watermark))
        work = self._durable.change(lambda work: self._prepare_open(work, opening), self._batches.undo())
        work.outputs = self._memory.ledger.timer_outputs(lane) if carries else []
        work.begun["firings"] = self._memory.ledger.firings(lane) if carries else []
        return work

    def _given(self, request: BatchRef, ask_watermark: AskWatermark | None) -> BatchWatermark | None:
        """Spark's watermark, if the operator has that one and the lane is the first of the batch here.

        It is the first one also where this host has begun the batch already, with another host from which keys come.
        """
        memory = self._memory
        first = request.batch > memory.progress.batch or not memory.batch.watermark.known
        if not first or ask_watermark is None or memory.spec.watermark_policy != "query":
            return None
        return ask_watermark(request)

    def _prepare_open(self, work: Work, opening: _Opening) -> InstallInMemory:
        memory, before, request = self._memory, self._memory.progress, opening.request
        batch, verdict = memory.batch, before.judge(request)
        # An unknown run was admitted above. The ledger knows which rows of the batch are applied here.
        if unknown := verdict is Verdict.UNKNOWN_RUN:
            batch.progress = before.admit(request, opening.asynchronous, drained=not memory.ledger.lanes)
            batch.merge = memory.spec.merge
            batch.spoiled = "" if before.lasting else batch.spoiled  # nothing is reverted, which would have done this
            # Lanes that had nothing to fire may have other rows in this run.
            batch.fired_lanes = batch.fired_lanes.anew()
            verdict = batch.progress.judge(request)
        self._checks.check(verdict, request, opening.lane)
        if begins := verdict is not Verdict.SAME:
            self._checks.check_complete(request)
            self._batches.begin(request, opening.now_ms, opening.given)
        elif opening.given is not None:
            self._batches.take_watermark(opening.given)
        timed = opening.batch_ms is not None and self._batches.set_time(opening.batch_ms)
        fires = opening.carries and batch.has_unfired_timers
        install_timers = self._timers.prepare(work, opening.lane) if fires else None
        # A run that is taken up within a batch is written down at once, so that the run before stays fenced after a restart.
        if begins or unknown or fires or timed or opening.given is not None:
            work.parts.insert(0, mark_part(memory))
        # Whether a row behind the watermark is late depends on the processor, too: that is decided row by row.
        by_event = late_us(batch.times, memory.spec) is not None
        work.begun = {"merge": batch.merge, "late_us": batch.times.late_ms * 1000 if by_event else None}
        work.begun |= {"before": batch.completed_before}

        def install() -> None:
            if unknown and before.lasting:
                memory.ledger.next_run()
            if begins:
                self._batches.settle(opening.now_ms, before)
            if install_timers is not None:
                install_timers()

        return install

    def _check_run(self, request: BatchRef, admit: AdmitRun) -> bool:
        """Admit a run that is new here. If it replays the batch in progress, rows of that batch are reverted, as in Spark.

        So the replayed batch may have other rows, or the same rows in other partitions. Rows that outlast their batch are not
        reverted: they are recognised. Returns whether Spark tracks the progress of the run asynchronously.
        """
        memory, progress = self._memory, self._memory.progress
        why = memory.incomplete if request.batch > progress.current and not memory.spec.ephemeral else ""
        try:
            asynchronous = admit(request, progress.current - bool(why), progress.query is None)
        except CheckpointMismatch as error:
            raise error if not why else self._checks.lost_batch(why, error) from None
        self._checks.check_not_older(request)
        if not progress.lasting and (why or (request.batch == progress.batch and memory.applied)):
            self._batches.revert(request, asynchronous)
        return asynchronous

    # -- fire --------------------------------------------------------------------------------------------------------

    def fire(self, request: BatchRef, lane: str) -> Work:
        """The lane, made by key, has sent all its rows: its timers fire. Timers that have fired before are answered again."""
        self._checks.check_current(request, lane)
        work = self._timers.end_lane(lane, self._batches.undo())
        work.outputs = self._memory.ledger.timer_outputs(lane)
        work.begun["firings"] = self._memory.ledger.firings(lane)
        return work

    def fire_due(
        self, request: BatchRef, lane: str, now_ms: int, event_max_ms: int | None, known: Mapping[str, int]
    ) -> Work:
        """In real time: timers that are due now fire; their outputs leave through this lane. `known`: as in `FireTimers`."""
        self._checks.check_current(request, lane)
        work = self._timers.fire_due(lane, self._batches, now_ms, event_max_ms)
        work.outputs = self._memory.ledger.timer_outputs(lane, known)
        work.begun["firings"] = self._memory.ledger.firings(lane, known)
        return work

    # -- finish ------------------------------------------------------------------------------------------------------

    def finish(self, request: BatchRef, lane: str, end: LaneEnd) -> Work:
        """The lane has sent all its rows; its event time counts from the next batch on."""
        self._checks.check_current(request, lane)
        self._check_replayed(lane, end)
        self._timers.check_none_due()
        if lane in self._memory.ledger.finished:
            return Work(lsn=self._durable.lsn)
        info = {"kind": "ledger", "op": self._memory.name, "batch": request.batch, "lane": lane}
        info |= {"finished": end.row_count, "event_max_ms": end.event_max_ms}

        def prepare(work: Work) -> InstallInMemory:
            work.parts.append((info, b""))
            return lambda: end_lane(self._memory, info)

        return self._durable.change(prepare)

    def _check_replayed(self, lane: str, end: LaneEnd) -> None:
        """Check that an earlier attempt of the lane had as many rows, and that all rows applied here were sent again."""
        ledger = self._memory.ledger
        before = ledger.finished.get(lane)
        if before is None and (applied := ledger.last_row(lane) + 1) > (end.row_count or 0):
            before = applied  # by an attempt that did not finish the lane
        if before is not None and before != end.row_count and end.row_count is not None:
            raise self._checks.spoil(partition_changed(lane, f"had {before} rows before and has {end.row_count} now"))
        if end.row_count is not None and end.sent is not None:
            self._check_sent(lane, end.sent)

    def _check_sent(self, lane: str, sent: int) -> None:
        """A row that came with another key may have gone to another host, which did not know it and has applied it."""
        ownership = self._memory.ownership
        if ownership is not None and ownership.outgoing:
            return  # the ledger still has rows of keys that another host owns now
        applied = self._memory.ledger.applied_here(lane)
        if applied is not None and applied > sent:
            raise self._checks.spoil(
                NotReplayable(
                    f"{applied} rows of this partition were applied here, and only {sent} were sent again: "
                    "the others came again with other keys, so replayed rows cannot be recognised",
                    todo="Name lane and sequence columns for this source, or make the input before the operator "
                    "deterministic",
                    lane=lane,
                )
            )
