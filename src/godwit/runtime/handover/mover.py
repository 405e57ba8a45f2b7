"""The origin's side of a migration on a host: a thread that runs the protocol's machine.

Everything that goes to the target goes through one queue, and what tells of keys is put there with the instance's lock: so the
target hears of copies and of the rows applied after them in the order in which they happened. What is large is sent in slices
while the queue is empty, and later messages of a step stay behind the slices of that step: effects leave in the order given.
Decides nothing that the machine decides; how an effect is carried out is in `origin_effects`, what is known in `outgoing`.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress

from godwit import ports
from godwit.errors import Bug, GodwitError
from godwit.migration.events import (
    AbortRequested,
    Begun,
    CaughtUp,
    Event,
    Served,
    TargetDisconnected,
    TargetLost,
    TargetReconnected,
    Waiting,
)
from godwit.migration.origin import PROTOCOLS, Origin, Phase, with_timers
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.connection import (
    CONNECTION_ERRORS,
    RETRY_S,
    Answered,
    Broken,
    ConnectionLost,
    Failed,
    Reached,
    TargetConnection,
)
from godwit.runtime.handover.host_services import HostServices
from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.outgoing import OutgoingHandover
from godwit.runtime.handover.switch_interval import prompt
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.liveness.wills import last_owned

BEHIND_ROWS_MAX = 5_000  # forwarded and not yet replayed, below which the target counts as caught up


class Mover:
    """`released`: the steps that an earlier generation of this host has released, if it is to see them through."""

    def __init__(
        self,
        services: HostServices,
        shared: SharedInstance,
        request: messages.StartMigration,
        released: dict[int, Units] | None = None,
    ) -> None:
        self.request = request
        self.failure: GodwitError | None = None
        self.handover = OutgoingHandover(services, shared, request, released is not None)
        self._services = services
        protocol = PROTOCOLS[request.protocol]
        self._protocol = protocol if shared.instance.spec.time_mode == "none" else with_timers(protocol)
        self._machine = Origin.resumed(self._protocol, released or {})
        self._connection = TargetConnection(services, request, self.handover.queue)
        self._effects = OriginEffects(self.handover, self._connection, self._protocol, self._phase)
        self._began = self.handover.resumed
        self._thread = ports.thread(self._run, f"godwit-mover-{request.id}")

    # -- what others see ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._connection.idle.set()
        self._thread.join(timeout_s)

    def post(self, event: Event) -> None:
        self.handover.post(event)

    @property
    def ended(self) -> bool:
        return self.handover.ended

    def wait_news(self, wait_s: float) -> None:
        """Until something has changed, but not longer than this."""
        handover = self.handover
        with handover.news:
            seen = handover.news_count
            deadline_s = ports.now_s() + wait_s
            while not self.ended and handover.news_count == seen and (left_s := deadline_s - ports.now_s()) > 0:
                handover.news.wait(left_s)

    def outcome(self, number: int) -> str:
        """For a target that asks whether a step that was not released is still open."""
        if self.ended or not self._began:
            return "kept" if self.ended else "open"
        step = next((step for step in self._machine.steps if step.number == number), None)
        return "kept" if step is None or step.phase is Phase.DROPPED else "open"

    def report(self) -> messages.MigrationReport:
        handover, request, steps = self.handover, self.request, self._machine.steps
        figures = handover.figures
        return messages.MigrationReport(
            request.id,
            "ended" if self.ended else "running",
            request.protocol,
            request.target,
            steps=len(steps) or len(request.steps),
            done=sum(step.phase is Phase.DONE for step in steps),
            dropped=sum(step.phase is Phase.DROPPED for step in steps),
            reason=str(self.failure) if self.failure else self._machine.reason,
            keys=figures.keys,
            keys_total=figures.keys_total,
            bytes=figures.bytes,
            rows_forwarded=figures.rows_forwarded,
            bytes_forwarded=figures.bytes_forwarded,
            rows_applied=handover.shipment.watcher.rows,
            waits=handover.shared.waits(figures.began_ms),
            phases=[[name, round(at_ms, 2)] for name, at_ms in figures.phases],
            moved=dict(figures.moved),
            began_ms=figures.began_ms,
            ended_ms=figures.ended_ms,
        )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        handover = self.handover
        try:
            if not handover.resumed:
                self._guarded(self._prepare)
            while not self._over():
                self._guarded(self._go_on)
        finally:
            self._connection.disconnect()
            while handover.to_forget and not self._services.stopping():
                self._effects.forget(*handover.to_forget.popleft())
            handover.end()
            handover.note_phase("ended")

    def _prepare(self) -> None:
        handover, shipment = self.handover, self.handover.shipment
        with handover.shared.lock:
            handover.shared.event_listeners.append(handover.post)
        shipment.index()
        handover.figures.keys_total = len(shipment)
        with handover.shared.lock:
            sizes = shipment.sizes(self.request.steps)
        self._machine = Origin(self._protocol, self.request.steps, sizes, self.request.side_by_side)
        handover.note_phase("indexed")

    def _guarded(self, job: Callable[[], None]) -> None:
        """Whatever fails: rows of steps that can be dropped must not wait, and the target must hear what was released."""
        try:
            job()
        except Exception as error:  # noqa: BLE001 see above
            failure = error if isinstance(error, GodwitError) else Bug(f"{type(error).__name__}: {error}")
            self.failure = self.failure or failure.at(host=self._services.host, operator=self.request.operator)
            self._disconnect(AbortRequested(str(error)))
            self._connection.idle.wait(RETRY_S)

    def _go_on(self) -> None:
        if self._connection.connect():
            with prompt():
                self._handle(TargetReconnected() if self._began else Begun())
                self._converse()
        else:
            self._handle_aborts()
            self._look_for_will()

    def _look_for_will(self) -> None:
        """A target that is lost for good confirms nothing. What it owned last tells what became of the steps released to it.

        Of steps that were not released the driver says what is to become of them.
        """
        last = last_owned(host_directory(self._services.checkpoint, self.request.target), self.request.operator)
        if last is None:
            return
        for step in self._machine.steps:
            released = self.handover.ownership.outgoing.get(self.handover.name(step.number))
            if released is not None and step.phase in (Phase.RELEASED, Phase.SHIPPED):
                served = last.served(released.epochs)
                self._handle(Served(step.number) if served else TargetLost(step.number))

    def _over(self) -> bool:
        return self._services.stopping() or self._machine.ended

    def _phase(self, step: int) -> Phase:
        return self._machine.phase(step)

    def _converse(self) -> None:
        """Until all is done or the connection breaks. Messages in the queue go with the connection; events stay."""
        try:
            while not self._over():
                self._next()
        except (ConnectionLost, *CONNECTION_ERRORS):
            self._disconnect(TargetDisconnected())

    def _disconnect(self, event: Event) -> None:
        """With the connection the target's copies are gone: the next connection sends all of the state again.

        Messages in the queue go too: on the next connection the end of a step would be taken for all of it.
        """
        self._connection.disconnect()
        self.handover.connection_ended()
        with suppress(GodwitError):
            self._handle(event)
        for earlier in self._connection.empty_queue():
            self.handover.post(earlier)

    def _handle_aborts(self) -> None:
        """Also while there is no connection to the target; other events wait for the next one."""
        for event in self._connection.empty_queue():
            if isinstance(event, AbortRequested):
                self._handle(event)
            else:
                self.handover.post(event)

    def _next(self) -> None:
        """The queue goes first; when it is empty, the next slice to be sent; when there is none, a step to be forgotten."""
        handover = self.handover
        try:
            busy = bool(handover.slices or handover.to_forget)
            item = handover.queue.get(block=not busy, timeout=None if busy else 0.5)
        except queue.Empty:
            if handover.slices:
                if next(handover.slices[0][1], self) is self:  # it has come to its end
                    handover.slices.popleft()
            elif handover.to_forget:
                self._effects.forget(*handover.to_forget.popleft())
            return
        if isinstance(item, Event):
            self._handle(item)
        else:
            self._effects.send(item)

    def _handle(self, event: Event) -> None:
        match event:
            case Broken(error, connection):
                if connection == self._connection.number:
                    raise ConnectionLost(str(error))
                return
            case Answered(answer, connection):
                if connection == self._connection.number or isinstance(answer, (Served, Failed)):  # those stay true
                    self._handle(answer)
                return
            case Failed(error):
                self.failure = error
                event = AbortRequested(str(error))
            case Reached(step, rows):
                self._marker_reached(step, rows)
                return
            case Begun():
                self._began = True
            case Waiting(_, rows, _):
                self.handover.figures.rows_forwarded += rows  # their routers send them to the target
        for effect in self._machine.on(event):
            self._effects.do(effect)
        self.handover.announce_news()

    def _marker_reached(self, step: int, rows: int) -> None:
        """If much was forwarded since the marker was sent, the target gets another."""
        forwarder = self.handover.forwarder(step)
        if forwarder is None:
            return
        if forwarder.rows - rows <= BEHIND_ROWS_MAX:
            self._handle(CaughtUp(step))
        else:
            self.handover.queue.put(self._effects.marker(step, forwarder))
