"""The target's side of a migration on a host: runs the machine of a target over as many connections as it takes.

Messages go to `copies`, in the order sent, as long as the machine accepts state of their step. The machine also decides what
becomes of the copies. State that comes late, again, or of a step that is prepared or served is ignored. A copy is not
served before the origin has released it: the gate holds or refuses its rows, and its timers do not fire. The lock rule is that
of `incoming.IncomingHandover`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from godwit import ports
from godwit.errors import GodwitError
from godwit.migration.events import (
    AbortReported,
    Announced,
    Arrived,
    AskOutcome,
    Discard,
    Durable,
    Effect,
    Event,
    Expect,
    OriginDisconnected,
    Persist,
    Promised,
    ReleaseReported,
    Serve,
    Stage,
)
from godwit.migration.target import Target, TargetPhase
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.answers import Answers, outcome_of
from godwit.runtime.handover.copies import Copies
from godwit.runtime.handover.incoming import IncomingHandover, SendAgain
from godwit.runtime.handover.target_effects import TAKEN_OVER, TargetEffects
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory, read_lease
from godwit.runtime.liveness.waits import waits
from godwit.runtime.pacing.switch_interval import prompt
from godwit.runtime.pacing.turns import SliceTime
from godwit.transport import bodies, typed
from godwit.transport.flight import GONE

COPIED = (messages.StepState, messages.StateBeforeBatch, messages.StepLedger)
ASK_AGAIN_S = 0.02
ORPHAN_WAIT_S = 2.0  # for the end of a connection whose origin is gone
ORPHAN_ASK_S = 0.05  # how often an absent origin is asked; when it is back, it makes the copies anew


class Receiver:
    """One migration at its target, over as many connections as it takes."""

    def __init__(
        self,
        services: HostServices,
        shared: SharedInstance,
        migration: str,
        origin: str,
        prepared: dict[int, Units] | None = None,
        standby: bool = False,
    ) -> None:
        self.id = migration
        self.origin = origin
        self.handover = IncomingHandover(services, shared, migration, origin)
        self.answers = Answers()
        self.open_connections = 0  # including broken ones whose end is not noticed yet
        self.origin_away = False  # the origin of a standby is away, and its copies are still here
        self._services = services
        self._shared = shared
        self._machine = Target(prepared)
        self._copies = Copies(self.handover)
        self._effects = TargetEffects(self.handover)
        self._standby = standby  # copies of a standby outlive the connection
        self._acting = ports.rlock()
        self._slice = SliceTime(shared.chunks)  # of the thread that serves the newest connection
        self._connection: ExitStack | None = None  # the newest connection, with the resources that it uses
        self._no_connection = ports.event()
        self._no_connection.set()
        self._wanted = Units()  # units requested on this connection
        shared.want_listeners.append(self.want)
        for number, units in (prepared or {}).items():
            self.handover.add_accepted(units)
            self.handover.add_copies(units, self.handover.shared.ownership.incoming[self.handover.name(number)].apart)

    # -- the connection ----------------------------------------------------------------------------------------------

    def serve(self, reader: Any, writer: Any, generation: int) -> None:
        """Serve one connection from this generation of the origin, until the connection ends.

        An origin that is stopped, or whose machine has vanished, never ends its connection. So a newer connection or a newer
        generation ends it too: its resources are freed, though the thread that reads from it may stay until TCP gives up.
        """
        directory = host_directory(self._services.checkpoint, self.origin)
        lease = read_lease(directory)
        if lease is not None and lease.generation > generation:
            return  # this generation does not know yet that it has been replaced
        with ExitStack() as connection:
            connection.enter_context(prompt())
            self._begin(connection)
            try:
                while True:
                    with waits().over(directory, lease, lambda: self._try_end(connection)):
                        message = reader.read_chunk()
                    if not self._receive(connection, message, writer):
                        return
            except (StopIteration, GodwitError, *GONE):
                return
            finally:
                self._end(connection)

    def _begin(self, connection: ExitStack) -> None:
        with self._acting:
            self._end(self._connection)
            self.drop_copies()
            self._connection = connection
            self._no_connection.clear()
            self._wanted = Units()

    def _receive(self, connection: ExitStack, message: Any, writer: Any) -> bool:
        """Handle a message; False after the last message, and if there is a newer connection."""
        received = typed.unpack(message.app_metadata, *messages.FROM_ORIGIN)
        if isinstance(received, COPIED):
            self._give_way(received.step)
        with self._slice, self._acting:
            if self._connection is not connection or isinstance(received, messages.Bye):
                return False
            if isinstance(received, messages.Hello):
                self.answers.start(writer)
                return True
            try:
                self.take(received, bodies.body_of(message) if message.data is not None else None)
            except SendAgain:
                return False  # the origin connects again, and sends again what it has released
            except GodwitError as error:
                self.answers.send(messages.TargetFailed(error.at(host=self._services.host)))
            return True

    def _give_way(self, number: int) -> None:
        """Copies that nobody waits for give way to rows. Rows that are to be replayed do not: the copy has to keep up."""
        step = self.handover.steps.get(number)
        if step is not None and step.ahead:
            self._slice.begin()

    def _end(self, connection: ExitStack | None) -> None:
        """End the connection, if it is the newest: late messages of it must not count as messages of the next connection."""
        with self._acting:
            if connection is not None and self._connection is connection:
                self._connection = None
                connection.close()
                self._connection_ended()
                self._no_connection.set()

    def _try_end(self, connection: ExitStack) -> None:
        """Called repeatedly by the thread that ends waits, which must not wait: the holder of `_acting` may wait for it."""
        if self._acting.acquire(blocking=False):
            try:
                self._end(connection)
            finally:
                self._acting.release()

    def _connection_ended(self) -> None:
        """Complete copies of a standby stay until the origin is back: if it is lost for good, this host may be its heir."""
        self.answers.stop()
        self.origin_away = self._standby and self.copied_up_to is not None
        if self.origin_away:
            ports.thread(self._await_origin, "godwit-await-origin").start()
        else:
            self._handle(OriginDisconnected())

    def _await_origin(self) -> None:
        pause = ports.event()
        while self.origin_away and not self._services.stopping():
            if outcome_of(self._services, self.origin, self._shared.instance.name, self.handover.name(0)) != "away":
                self._or_end_host(self.drop_copies)
            pause.wait(ORPHAN_ASK_S)

    def drop_copies(self) -> None:
        """Drop the copies of a standby whose origin is away: the origin is back, or the copies are of no use."""
        with self._acting:
            if self.origin_away:
                self.origin_away = False
                self._handle(OriginDisconnected())

    @property
    def settled(self) -> bool:
        """Whether nothing of this migration is open here any more."""
        return not self.open_connections and self._machine.settled and not self.origin_away

    # -- copies of a standby whose origin is lost --------------------------------------------------------------------

    @property
    def copied_up_to(self) -> int | None:
        """The origin's batch up to which all copies are current; None if a copy is not complete."""
        steps, copied = self._machine.steps, self.handover.copied_up_to
        whole = all(at in copied and step.phase is TargetPhase.ABSENT for at, step in steps.items())
        return min(copied.values()) if steps and whole else None

    def copied_before(self, batch: int) -> bool:
        """Whether the copies were complete before the batch began: only then can they give the state from before the batch."""
        return self.handover.copied_in < batch

    def take_over_copies(self, other: Receiver, units: Units) -> bool:
        """Take over the copies that another migration has brought here; False if they are not all of these units.

        The origin is fenced. Messages that are still on their way are waited for, because they make the copies more current.
        """
        other._no_connection.wait(ORPHAN_WAIT_S)
        with other._acting, self._acting:
            other._end(other._connection)
            with self._shared.changed:
                return self._taken_over(other, units)

    def _taken_over(self, other: Receiver, units: Units) -> bool:
        batch = other.copied_up_to
        if not other.origin_away or batch is None:
            return False
        if not self._effects.take_over_copies(other.handover, units, batch):
            return False
        other._machine, other.origin_away = Target(), False
        self._machine.on(Announced(TAKEN_OVER, units))  # its effects are done: the copies are recorded
        return True

    def drop_taken_over(self) -> None:
        with self._acting:
            self._effects.drop_taken_over()

    @property
    def operator(self) -> str:
        return self._shared.instance.name

    def close(self) -> None:
        with self._shared.lock:
            self._shared.want_listeners.remove(self.want)

    def want(self, units: Units) -> None:
        """Rows wait for these units; called with the instance's lock. Each unit is requested once per connection."""
        missing = (units & self._machine.promised) - self._wanted
        if missing:
            self._wanted |= missing
            self.answers.send(messages.UnitsWanted(missing))

    # -- what comes --------------------------------------------------------------------------------------------------

    def take(self, message: messages.FromOrigin, body: Any) -> None:
        """Handle a message of the origin, or of an heir that reads the lost origin's changelog."""
        with self._acting:
            self._take(message, body)

    def _take(self, message: messages.FromOrigin, body: Any) -> None:
        if message.written is not None:
            self.handover.written = message.written
        match message:
            case messages.OfferUnits(units):
                self._offer(units)
            case messages.AnnounceStep():
                self._announced(message)
            case messages.OriginProgress(progress):
                self._copies.origin_progress(progress)
            case messages.StepEnd(step, units):
                fits = self._machine.takes(step) and self._copies.end_fits(message)
                self._handle(Arrived(step, units, fits))
            case messages.StepReleased():
                self._released(message)
            case messages.SliceEnd(step):
                self.answers.send(messages.SliceTaken(step, *self._slice.end()))
            case messages.StepAborted(step, units):
                self._handle(AbortReported(step, units))
            case _:
                self._take_copy(message, body)

    def _take_copy(self, message: messages.FromOrigin, body: Any) -> None:
        """Take up state of a step that accepts state. State of any other step is late, and is dropped here."""
        copies = self._copies
        match message:
            case _ if not self._machine.takes(getattr(message, "step")):  # noqa: B009 messages without a step are above
                return
            case messages.CopyMarker(step, rows):
                copies.complete(message)
                self.answers.send(messages.MarkerReached(step, rows))
            case messages.StepState():
                copies.state(message, body)
            case messages.StepBackup():
                copies.backup(message)
            case messages.StepChanges():
                copies.changes(message, body)
            case messages.StepRows():
                copies.rows(message, body)
            case messages.StateBeforeBatch():
                copies.state_before_batch(message, body)
            case messages.StepLedger():
                copies.ledger(message, body)
            case _:
                raise AssertionError(message)

    def _offer(self, units: Units) -> None:
        """Expect the offered units, except those that this host owns or has prepared."""
        with self._shared.changed:
            expected = self._effects.accept(units)
        if expected:
            self._handle(Promised(expected))

    def _announced(self, message: messages.AnnounceStep) -> None:
        if self._served(message.epochs):
            self.answers.send(messages.StepServed(message.step))
        else:
            step = self.handover.step(message.step)
            step.apart, step.epochs, step.ahead = message.apart, message.epochs, message.ahead
            try:
                self._handle(Announced(message.step, message.units))
            except GodwitError:
                self._machine.refuse(message.step)
                raise

    def _released(self, message: messages.StepReleased) -> None:
        if self._served(message.epochs):
            self.answers.send(messages.StepServed(message.step))
        else:
            self._handle(ReleaseReported(message.step))

    def _served(self, epochs: typed.Epochs) -> bool:
        """Whether this host has owned the units in these epochs; it may have given them away since.

        The record is durable when this returns True, because the origin drops the state when it hears of it: memory is ahead
        of a changelog that could not be written, until the host has ended.
        """
        ownership = self._shared.instance.ownership
        if ownership is None or not ownership.served(epochs):
            return False
        self._services.log.sync(self._shared.lsn)
        return True

    # -- effects -----------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        for effect in self._machine.on(event):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Expect(units):
                self._effects.expect(units)
            case Stage(step, units):
                self._effects.stage(step, units)
            case Persist(step, units):
                self._effects.prepare(step, units)
                self._handle(Durable(step))
            case Serve(step, units):
                self._effects.serve(step, units)
                self.answers.send(messages.StepServed(step))
            case Discard(step, units):
                self._effects.discard(step, units)
            case AskOutcome(step):
                self.ask_outcome(step)
            case _:
                self.answers.send_for(effect)

    # -- the origin's decision ---------------------------------------------------------------------------------------

    def ask_outcome(self, step: int) -> None:
        """Ask the origin, which knows the outcome from its log. It may be restarting, so a thread asks until it answers."""
        ports.thread(self._asking, "godwit-ask", (step,)).start()

    def _asking(self, step: int) -> None:
        pause = ports.event()
        while not self._services.stopping():
            outcome = outcome_of(self._services, self.origin, self._shared.instance.name, self.handover.name(step))
            if outcome in ("released", "kept"):
                event = ReleaseReported(step) if outcome == "released" else AbortReported(step)
                self._or_end_host(partial(self._handle, event))
                return
            pause.wait(ASK_AGAIN_S)

    def _or_end_host(self, job: Callable[[], None]) -> None:
        """For a thread of its own, which nobody waits for. After an error, the machine has gone on without its effect.

        Then only the changelog is valid: the next generation of the host asks the origin again.
        """
        try:
            with self._acting:
                job()
        except GodwitError as error:
            self._services.log.fail(error)
