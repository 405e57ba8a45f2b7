"""How a host serves one lane of a batch: it opens the lane, answers its chunks in order, and finishes it.

Answers only work that is in the changelog. The instance decides what a request means; the gate decides which rows may pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import InvariantBroken, NotReplayable, StaleGeneration, WorkLost
from godwit.migration.events import BatchBegan
from godwit.model.progress import BatchRef, Verdict
from godwit.model.watermark import BatchWatermark
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.chunk.chunk_bytes import chunk_from
from godwit.runtime.durable.work import Work
from godwit.runtime.host.gate import Gate
from godwit.runtime.host_services import HostServices, no_driver
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.lane_requests import AdmitRun, AskWatermark
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import (
    Admit,
    ApplyRows,
    FinishLane,
    FireTimers,
    GetWatermark,
    LaneFinished,
    LaneOpened,
    OpenLane,
    RowsApplied,
    RunAdmitted,
    SparkWatermark,
    TimersFired,
)
from godwit.runtime.router.routing_table import read_routing
from godwit.state.ledger import ROW, in_row_order, joined
from godwit.transport import typed, wire
from godwit.transport.typed import Message


def replaced(host: str, generation: int) -> StaleGeneration:
    return StaleGeneration(f"generation {generation} of {host} has been replaced by a newer one")


class LaneExchange:
    """`admit`: asks the controller whether a run may work, and raises if not. `watermark`: asks it for Spark's watermark.

    `roster`: the hosts of the flock, if known.
    """

    def __init__(
        self,
        services: HostServices,
        admit: Callable[[Admit], RunAdmitted],
        watermark: Callable[[GetWatermark], SparkWatermark] = no_driver,
    ) -> None:
        self._services = services
        self._log = services.log
        self._admit = admit
        self._watermark = watermark
        self.roster: tuple[str, ...] = ()

    def serve(self, shared: SharedInstance, lane: OpenLane, reader: Any, writer: Any) -> None:
        """Serve the stream until the lane is finished, or the router is gone."""
        try:
            self._serve(shared, lane, reader, writer)
        except NotReplayable:
            # The router hears of the refusal only when it is durable: other hosts may inherit the keys before the next write,
            # and must not complete the batch.
            self._log.sync(shared.lsn)
            raise

    def _serve(self, shared: SharedInstance, lane: OpenLane, reader: Any, writer: Any) -> None:
        self._check_survived(shared, lane, lane.answered)
        if lane.batch >= 0:
            work = self._open(shared, lane)
            # Outputs of timers go firing by firing: the router gets firings of several hosts and puts them in order.
            opened = LaneOpened(work.lsn, self._log.generation, **work.begun)
            _write(writer, opened, joined(work.outputs) if work.outputs else None)
        else:
            with shared.lock:  # even if no row will come
                shared.instance.begin_initial(lane.run)
        gate = Gate(shared, self._services.stopping)
        while True:
            try:
                received = reader.read_chunk()
            except StopIteration:
                return
            message = typed.unpack(received.app_metadata, ApplyRows, FireTimers, FinishLane)
            if isinstance(message, FinishLane):
                self._finish(shared, lane, message)
                _write(writer, LaneFinished(self._newcomers(shared, message)))
                return  # this ends the stream; the router waits for its end
            if isinstance(message, FireTimers):
                in_real_time = message.in_real_time
                _write(writer, *(self._fire_due(shared, lane, message) if in_real_time else self._fire(shared, lane)))
                continue
            assert isinstance(message, ApplyRows)
            shared.chunks.enter()
            try:
                self.answer(writer, *self._apply(gate, shared, lane.request, message, received.data))
            finally:
                shared.chunks.leave()

    def _open(self, shared: SharedInstance, lane: OpenLane) -> Work:
        """A lane begins a batch here. If the operator has timers, it waits while units are between two owners."""
        instance, request = shared.instance, lane.request
        timers = instance.spec.timers_between_batches

        def ready() -> bool:
            fires = lane.carries and (instance.batch.has_unfired_timers or instance.timers.awaits_outputs)
            same = instance.progress.judge(request) is Verdict.SAME and not fires
            between = timers and (instance.memory.between_owners or shared.inheriting)
            return same or not (between or shared.paused) or self._services.stopping()

        with shared.changed:
            if not ready():
                began_s = ports.now_s()
                shared.changed.wait_for(ready)
                shared.stalled((ports.now_s() - began_s) * 1000, 1)  # the number of waiting rows is not known here
            before = (instance.progress.batch, instance.progress.attempt, instance.batch.has_unfired_timers)
            admit = self._admission(lane, instance.progress.lasting)
            now_ms, ask = self._services.clock_ms(), self._ask_watermark(lane)
            work = self._do(
                shared, lambda i: i.open(request, lane.lane, now_ms, admit, lane.carries, lane.batch_ms, ask)
            )
            if (instance.progress.batch, instance.progress.attempt, instance.batch.has_unfired_timers) != before:
                for tell in shared.event_listeners:
                    tell(BatchBegan())
        self._log.flush(work.lsn)
        return work

    def _fire_due(
        self, shared: SharedInstance, lane: OpenLane, message: FireTimers
    ) -> tuple[TimersFired, pa.RecordBatch | None]:
        """In real time: nothing is waited for. Timers of a key between two owners fire at its next owner."""
        now_ms, known = self._services.clock_ms(), dict(message.known)
        work = self.worked(shared, lambda i: i.fire_due(lane.request, lane.lane, now_ms, message.event_max_ms, known))
        outputs = joined(work.outputs) if work.outputs else None
        return TimersFired(work.lsn, tuple(work.begun["firings"])), outputs

    def _fire(self, shared: SharedInstance, lane: OpenLane) -> tuple[TimersFired, pa.RecordBatch | None]:
        """Waits while units are between two owners: their next owner has to know which of their timers have fired."""
        instance = shared.instance

        def ready() -> bool:
            return not (instance.memory.between_owners or shared.inheriting or shared.paused)

        with shared.changed:
            shared.changed.wait_for(lambda: ready() or self._services.stopping())
            if not ready():
                raise StaleGeneration("the host is stopping while timers wait for a hand-over")
            work = self._do(shared, lambda i: i.fire(lane.request, lane.lane))
            ask_also = tuple(instance.batch.fired_lanes.left_unfired(int(lane.lane)))
        self._log.flush(work.lsn)
        outputs = joined(work.outputs) if work.outputs else None
        return TimersFired(work.lsn, tuple(work.begun["firings"]), ask_also), outputs

    def _admission(self, lane: OpenLane, lasting: bool) -> AdmitRun:
        def admit(request: BatchRef, last_batch: int, fresh: bool) -> bool:
            if lane.scope is not None:
                return False
            query, run, batch = request.query, request.run, request.batch
            return self._admit(Admit(lane.operator, query, run, batch, last_batch, fresh, lasting)).asynchronous

        return admit

    def _ask_watermark(self, lane: OpenLane) -> AskWatermark:
        def ask(request: BatchRef) -> BatchWatermark:
            given = self._watermark(GetWatermark(lane.operator, request.query, request.run, request.batch))
            return BatchWatermark(given.eviction_ms, given.late_ms)

        return ask

    def _newcomers(self, shared: SharedInstance, finish: FinishLane) -> tuple[str, ...]:
        """Hosts that this router has not opened: the router must finish the lane there too."""
        if shared.instance.spec.ephemeral:
            return ()
        routing = read_routing(self._services.checkpoint, shared.instance.spec.name)
        roster = self.roster if routing is None else tuple(dict.fromkeys((*routing.hosts, *self.roster)))
        return tuple(host for host in roster if host not in finish.hosts)

    def _apply(
        self, gate: Gate, shared: SharedInstance, request: BatchRef, message: ApplyRows, data: pa.RecordBatch
    ) -> tuple[RowsApplied, pa.RecordBatch | None]:
        """Apply the rows that this instance owns; the others wait, or are refused."""
        if data.schema.names[-2:] != [ROW, wire.HASH]:
            raise InvariantBroken("a chunk without its row and hash columns", host=self._services.host)
        lane, clock_ms = message.lane, self._services.clock_ms

        def apply(chunk: Chunk) -> Work:
            if request.batch < 0:
                shared.instance.begin_initial(request.run)
                return self._do(shared, lambda i: i.initialise(lane, chunk.batch, chunk.rows, chunk.hashes, clock_ms()))
            return self._do(shared, lambda i: i.apply(request, lane, chunk))

        came_s = time.perf_counter()
        with shared.lock:
            let_in_s = time.perf_counter()
            shared.gauges.waited(let_in_s, let_in_s - came_s)
            passed = gate.let_in(chunk_from(data), message.seen, message.again, apply)
            outputs = [batch for work in passed.works for batch in work.outputs]
            lsn = shared.lsn
        self._log.flush(lsn)
        return RowsApplied(lsn, passed.refused), in_row_order(outputs) if outputs else None

    def answer(self, writer: Any, applied: RowsApplied, outputs: pa.RecordBatch | None) -> None:
        _write(writer, applied, outputs)

    def worked(self, shared: SharedInstance, job: Callable[[Instance], Work]) -> Work:
        """Run the job with the instance's lock, then wait until its work is in the changelog."""
        with shared.lock:
            work = self._do(shared, job)
        self._log.flush(work.lsn)
        return work

    def _do(self, shared: SharedInstance, job: Callable[[Instance], Work]) -> Work:
        """Run the job, with the lock held; when this returns, its parts are in line in the changelog."""
        counters, rows_before = shared.instance.counters, shared.instance.counters.rows
        began = time.perf_counter()
        shared.gauges.begins(began)
        try:
            work = job(shared.instance)
        finally:
            ended = time.perf_counter()
            shared.gauges.ends(ended, counters.rows - rows_before)
        counters.busy_s += ended - began
        return work

    def _finish(self, shared: SharedInstance, lane: OpenLane, finish: FinishLane) -> None:
        """Make all work of the lane durable, so that the task may end."""
        if lane.batch >= 0:
            self.worked(
                shared,
                lambda i: i.finish(lane.request, lane.lane, finish.rows, finish.event_max_ms, finish.applied_rows),
            )
        self._log.sync(shared.lsn)
        self._check_survived(shared, lane, finish.answered)
        if self._log.fenced():
            raise replaced(self._services.host, self._log.generation)

    def _check_survived(self, shared: SharedInstance, lane: OpenLane, answered: Iterable[tuple[int, int]]) -> None:
        """An attempt that rests on work which was lost with a machine must be repeated from its first row.

        Checked when the lane is opened, too: its later rows must not be applied before the lost ones.
        """
        for generation, lsn in answered:
            if not self._log.survived(generation, lsn):
                raise WorkLost(
                    "the host has restarted without work that it had answered, so this attempt must be repeated",
                    operator=shared.instance.spec.name,
                    batch=lane.batch,
                    lane=lane.lane,
                )


def _write(writer: Any, message: Message, data: pa.RecordBatch | None = None) -> None:
    header = typed.pack(message)
    if data is None:
        writer.write_metadata(header)
    else:
        writer.write_with_metadata(data, header)
