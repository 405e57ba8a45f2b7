"""What a router and a host say to each other: a lane of a batch is opened, its chunks are answered in order, it is finished.

Answers only what the changelog holds. What a request means is decided by the instance, what may pass by the gate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import InvariantBroken, StaleGeneration, WorkLost
from godwit.migration.events import BatchBegan
from godwit.model.progress import BatchRef, Verdict
from godwit.runtime.handover.parcels import chunk_from
from godwit.runtime.host.gate import Gate
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.memory.work import Chunk, Work
from godwit.runtime.router.routing_table import read_routing
from godwit.state.changelog import Changelog
from godwit.state.ledger import ROW, in_row_order, joined
from godwit.transport import wire

Together = Callable[[list[pa.RecordBatch]], pa.RecordBatch]


def replaced(host: str, generation: int) -> StaleGeneration:
    return StaleGeneration(f"generation {generation} of {host} has been replaced by a newer one")


class Exchange:
    """`roster`: the hosts there are, as far as is known here. `ask`: asks the controller."""

    def __init__(
        self,
        host: str,
        checkpoint: str,
        log: Changelog,
        clock_ms: Callable[[], int],
        stopping: Callable[[], bool],
        ask: Callable[..., Any],
    ) -> None:
        self._host = host
        self._checkpoint = checkpoint
        self._log = log
        self._clock_ms = clock_ms
        self._stopping = stopping
        self._ask = ask
        self.roster: tuple[str, ...] = ()

    def converse(self, shared: SharedInstance, header: dict[str, Any], reader: Any, writer: Any) -> None:
        request = BatchRef(
            wire.field(header, "query", str), wire.field(header, "run", str), wire.field(header, "batch", int)
        )
        lane = wire.field(header, "lane", str)
        self._check_survived(shared, request, lane, header)
        if request.batch >= 0:
            carries = header.get("carries", True) is True
            admit = self._admit(header)
            work = self._opened(shared, request, lane, admit, carries)
            self._answer(writer, work, joined, "opened", generation=self._log.generation, **work.begun)
        else:
            with shared.lock:  # also where no row will come
                shared.instance.begin_initial(request.run)
        gate = Gate(shared, self._stopping)
        while True:
            try:
                message = reader.read_chunk()
            except StopIteration:
                return
            note = wire.unpack(message.app_metadata, "rows", "finish")
            if note["kind"] == "rows":
                work, refused = self._rows(gate, shared, request, note, message.data)
                self.answer(writer, work, "outputs", **({"refused": refused} if refused else {}))
            else:
                self._finish(shared, request, lane, note)
                writer.write_metadata(wire.pack("finished", also=self._newcomers(shared, note)))
                return  # that ends the stream, which the router waits for

    def _opened(
        self,
        shared: SharedInstance,
        request: BatchRef,
        lane: str,
        admit: Callable[[BatchRef, int, bool], None],
        carries: bool,
    ) -> Work:
        """A lane begins a batch here. Where there are timers, it waits until what is between two owners is decided."""
        instance = shared.instance
        timers = instance.spec.time_mode != "none"

        def ready() -> bool:
            fires = carries and (instance.batch.has_unfired_timers or instance.timers.awaits_outputs)
            same = instance.progress.judge(request) is Verdict.SAME and not fires
            between = timers and (instance.memory.between_owners or shared.inheriting)
            return same or not (between or shared.paused) or self._stopping()

        with shared.changed:
            if not ready():
                began_s = ports.now_s()
                shared.changed.wait_for(ready)
                shared.stalled((ports.now_s() - began_s) * 1000, 1)  # how many rows wait behind it is not known here
            before = (instance.progress.batch, instance.progress.attempt, instance.batch.has_unfired_timers)
            work = self._do(shared, lambda i: i.open(request, lane, self._clock_ms(), admit, carries))
            if (instance.progress.batch, instance.progress.attempt, instance.batch.has_unfired_timers) != before:
                for tell in shared.event_listeners:
                    tell(BatchBegan())
        self._log.flush(work.lsn)
        return work

    def _newcomers(self, shared: SharedInstance, note: dict[str, Any]) -> list[str]:
        """Hosts that this router has not opened: they need to know how far its lane has come, too."""
        known = note.get("hosts")
        if known is None or shared.instance.spec.ephemeral:
            return []
        routing = read_routing(self._checkpoint, shared.instance.spec.name)
        roster = self.roster if routing is None else tuple(dict.fromkeys((*routing.hosts, *self.roster)))
        return [host for host in roster if host not in known]

    def _admit(self, header: dict[str, Any]) -> Callable[[BatchRef, int, bool], None]:
        def admit(request: BatchRef, last_batch: int, fresh: bool) -> None:
            if header.get("scope") is None:
                self._ask(
                    "admit",
                    operator=header["operator"],
                    query=request.query,
                    run=request.run,
                    batch=request.batch,
                    last_batch=last_batch,
                    fresh=fresh,
                )

        return admit

    def _rows(
        self, gate: Gate, shared: SharedInstance, request: BatchRef, note: dict[str, Any], data: pa.RecordBatch
    ) -> tuple[Work, dict[str, Any] | None]:
        """Apply what is this instance's; the rest waits, or is told to go elsewhere."""
        if data.schema.names[-2:] != [ROW, wire.HASH]:
            raise InvariantBroken("a chunk without its row and hash columns", host=self._host)
        lane = wire.field(note, "lane", str)

        def apply(chunk: Chunk) -> Work:
            if request.batch < 0:
                shared.instance.begin_initial(request.run)
                return self._do(
                    shared, lambda i: i.initialise(lane, chunk.batch, chunk.rows, chunk.hashes, self._clock_ms())
                )
            return self._do(shared, lambda i: i.apply(request, lane, chunk))

        came_s = time.perf_counter()
        with shared.lock:
            let_in_s = time.perf_counter()
            shared.gauges.waited(let_in_s, let_in_s - came_s)
            passed = gate.let_in(chunk_from(data), note.get("seen", 0), note.get("again", False), apply)
            work = Work([batch for done in passed.works for batch in done.outputs], lsn=shared.lsn)
        self._log.flush(work.lsn)
        return work, passed.refused

    def worked(self, shared: SharedInstance, job: Callable[[Instance], Work]) -> Work:
        """Do it alone on the instance, then wait until all it rests on is in the changelog."""
        with shared.lock:
            work = self._do(shared, job)
        self._log.flush(work.lsn)
        return work

    def _do(self, shared: SharedInstance, job: Callable[[Instance], Work]) -> Work:
        """With the lock held: do it; what it must leave in the changelog is in line when this returns."""
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

    def answer(self, writer: Any, work: Work, kind: str, **fields: Any) -> None:
        self._answer(writer, work, in_row_order, kind, **fields)

    def _answer(self, writer: Any, work: Work, together: Together, kind: str, **fields: Any) -> None:
        """What timers have put out goes one firing after another: whoever gets it from several hosts puts it in order."""
        note = wire.pack(kind, lsn=work.lsn, **fields)
        if not work.outputs:
            writer.write_metadata(note)
            return
        writer.write_with_metadata(together(work.outputs), note)

    def _finish(self, shared: SharedInstance, request: BatchRef, lane: str, note: dict[str, Any]) -> None:
        """All of the lane's work here becomes durable, and the task may end."""
        rows = wire.field(note, "rows", (int, type(None)))
        if request.batch >= 0:
            self.worked(shared, lambda i: i.finish(request, lane, rows, note.get("event_max_ms"), note.get("sent")))
        self._log.sync(shared.lsn)
        self._check_survived(shared, request, lane, note)
        if self._log.fenced():
            raise replaced(self._host, self._log.generation)

    def _check_survived(self, shared: SharedInstance, request: BatchRef, lane: str, note: dict[str, Any]) -> None:
        """An attempt that rests on work which was lost with a machine must be repeated from its first row.

        Looked at when the lane is opened, too: its later rows must not be applied before those that were lost.
        """
        for generation, lsn in wire.field(note, "answered", list):
            if not self._log.survived(generation, lsn):
                raise WorkLost(
                    "the host restarted from before work it had answered, so this attempt must be repeated",
                    operator=shared.instance.spec.name,
                    batch=request.batch,
                    lane=lane,
                )
