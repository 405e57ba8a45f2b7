"""The origin's side of a migration on a host: a thread that runs the protocol's machine.

Every message to the target goes through one queue. Messages about keys are put there with the instance's lock, so the target
gets copies, and rows that were applied after them, in the order in which the origin made them. Large state is sent in slices
while the queue is empty. A later message of a step waits behind the slices of that step, so effects reach the target in the
order of the machine. Decides nothing that the machine decides. `origin_effects` carries out effects; `outgoing` has the facts.
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
    Taken,
    TargetConnection,
)
from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.outgoing import OutgoingHandover
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.liveness.wills import last_owned
from godwit.runtime.pacing.switch_interval import prompt

# Forwarded and not yet replayed: with so many rows at most, the target counts as caught up. After the cut rows of the step wait
# until the target has replayed them, so there should be few. But a target that does not come nearer is not waited for for ever.
BEHIND_ROWS_FEW = 100
BEHIND_ROWS_MAX = 5_000
MARKERS_MAX = 20  # that are sent in the hope of few rows


class Mover:
    """`released`: steps that an earlier generation of this host has released; the mover brings them to their end."""

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
        """Wait until something has changed, at most `wait_s`."""
        handover = self.handover
        with handover.news:
            seen = handover.news_count
            deadline_s = ports.now_s() + wait_s
            while not self.ended and handover.news_count == seen and (left_s := deadline_s - ports.now_s()) > 0:
                handover.news.wait(left_s)

    def outcome(self, number: int) -> str:
        """The outcome of a step that is not released, for a target that asks: it stays at the origin, or is still open."""
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
            with suppress(GodwitError):  # the changelog has failed: the next generation goes on
                handover.slices.clear()  # all steps have ended
                while handover.to_forget and not self._services.stopping():
                    handover.turns.wait(self._connection.idle)
                    self._work_on()
            handover.end()
            handover.note_phase("ended")

    def _prepare(self) -> None:
        handover, shipment = self.handover, self.handover.shipment
        with handover.shared.lock:
            handover.shared.event_listeners.append(handover.post)
        indexing = shipment.index()
        while True:
            with handover.turns.working():
                if next(indexing, self) is self:
                    break
            handover.turns.wait(self._connection.idle)
        handover.figures.keys_total = len(shipment)
        with handover.shared.lock:
            sizes = shipment.sizes(self.request.steps)
        self._machine = Origin(self._protocol, self.request.steps, sizes, self.request.side_by_side)
        handover.note_phase("indexed")

    def _guarded(self, job: Callable[[], None]) -> None:
        """An error aborts steps that are not released, so that their rows do not wait. Released steps go on."""
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
        """If the target is lost for good, its will has its last ownership, which shows whether it served the released steps.

        The driver decides about steps that are not released.
        """
        last = last_owned(host_directory(self._services.checkpoint, self.request.target), self.request.operator)
        if last is None:
            return
        for step in self._machine.steps:
            released = self.handover.shared.ownership.outgoing.get(self.handover.name(step.number))
            if released is not None and step.phase in (Phase.RELEASED, Phase.SHIPPED):
                served = last.served(released.epochs)
                self._handle(Served(step.number) if served else TargetLost(step.number))

    def _over(self) -> bool:
        return self._services.stopping() or self._machine.ended

    def _phase(self, step: int) -> Phase:
        return self._machine.phase(step)

    def _converse(self) -> None:
        """Send and handle events until all is done or the connection breaks."""
        try:
            while not self._over():
                self._next()
        except (ConnectionLost, *CONNECTION_ERRORS):
            self._disconnect(TargetDisconnected())

    def _disconnect(self, event: Event) -> None:
        """The target drops its copies with the connection: on the next connection all state is sent again.

        Messages in the queue are dropped too: on the next connection, the end of a step would be taken for the whole step.
        Events stay in the queue.
        """
        self._connection.disconnect()
        self.handover.connection_ended()
        with suppress(GodwitError):
            self._handle(event)
        for earlier in self._connection.empty_queue():
            self.handover.post(earlier)

    def _handle_aborts(self) -> None:
        """Handle abort requests while there is no connection to the target; other events wait for the next connection."""
        for event in self._connection.empty_queue():
            if isinstance(event, AbortRequested):
                self._handle(event)
            else:
                self.handover.post(event)

    def _next(self) -> None:
        """Take the next item of the queue. If there is none until the next turn, send or forget the next slice."""
        handover = self.handover
        busy = bool(handover.slices or handover.to_forget)
        urgent = bool(handover.slices) and handover.step(handover.slices[0][0]).shipped  # rows wait for what is sent
        wait_s = 0.5 if not busy else 0.0 if urgent else handover.turns.pause_s()
        try:
            item = handover.queue.get(block=wait_s > 0, timeout=wait_s or None)
        except queue.Empty:
            if busy and not urgent:
                handover.turns.begin(woken=wait_s > 0)
            if busy:
                self._work_on()
            return
        if isinstance(item, Event):
            self._handle(item)
        else:
            self._effects.send(item)

    def _work_on(self) -> None:
        """The next slice: of what is to be sent, or else of what is to be forgotten."""
        handover = self.handover
        with handover.turns.working():
            if handover.slices:
                if next(handover.slices[0][1], self) is self:  # the work has ended
                    handover.slices.popleft()
            elif next(handover.to_forget[0], self) is self:
                handover.to_forget.popleft()

    def _handle(self, event: Event) -> None:
        match event:
            case Broken(error, connection):
                if connection == self._connection.number:
                    raise ConnectionLost(str(error))
                return
            case Answered(answer, connection):
                if connection == self._connection.number or isinstance(
                    answer, (Served, Failed)
                ):  # true on any connection
                    self._handle(answer)
                return
            case Failed(error):
                self.failure = error
                event = AbortRequested(str(error))
            case Reached() | Taken():
                self._target_advanced(event)
                return
            case Begun():
                self._began = True
            case Waiting(_, rows, _):
                self.handover.figures.rows_forwarded += rows  # the routers send these rows to the target
        for effect in self._machine.on(event):
            self._effects.do(effect)
        self.handover.announce_news()

    def _target_advanced(self, event: Reached | Taken) -> None:
        match event:
            case Reached(step, rows):
                self._marker_reached(step, rows)
            case Taken(took_s, crowded):
                self.handover.turns.taken(took_s, crowded)

    def _marker_reached(self, step: int, rows: int) -> None:
        """The target has caught up, unless many rows were forwarded since the marker: then the target gets another marker."""
        forwarder = self.handover.forwarder(step)
        if forwarder is None:
            return
        outgoing = self.handover.step(step)
        outgoing.markers += 1
        enough = BEHIND_ROWS_FEW if outgoing.markers <= MARKERS_MAX else BEHIND_ROWS_MAX
        if forwarder.rows - rows <= enough:
            self._handle(CaughtUp(step))
        else:
            self.handover.queue.put(self._effects.marker(step, forwarder))
