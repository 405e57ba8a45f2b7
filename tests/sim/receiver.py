"""The target's shell: carries out what the real `Target` asks for, on the simulated host, disk and network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from godwit.migration.events import (
    AbortHeard,
    Announced,
    AnswerDeclined,
    AnswerMissing,
    AnswerOffered,
    AnswerPrepared,
    Arrived,
    AskOutcome,
    Discard,
    Durable,
    Effect,
    Event,
    Expect,
    OriginLost,
    Persist,
    Promised,
    ReleaseHeard,
    Serve,
)
from godwit.migration.target import Phase, Target
from godwit.model.ownership import Incoming
from godwit.model.units import Unit, Units
from tests.sim.disk import Row
from tests.sim.world import Pipe

if TYPE_CHECKING:
    from tests.sim.host import Host

RESOLVED = (Phase.SERVING, Phase.DROPPED)
BACKLOG_MAX = 1  # messages not dealt with at which the target counts as having caught up


class Receiver:
    def __init__(self, host: Host, migration: str, origin: str, prepared: dict[int, Units]) -> None:
        self.host, self.migration, self.origin = host, migration, origin
        self.world = host.world
        self.machine = Target(prepared)
        self.pipe: Pipe | None = None
        self.units = Units()  # what this migration is about
        self._epochs: dict[int, dict[Unit, int]] = {}  # step -> the epochs in which it is to be owned here
        self._come: dict[int, tuple[dict[int, tuple[str, int]], int]] = {}  # step -> keys apart, origin's batch
        self._backlog: deque[tuple[Any, ...]] = deque()
        self._working = False
        self._following: set[int] = set()  # copied, not caught up yet
        self._wanted: set[Unit] = set()
        if prepared:
            self.world.after(0, self.hear, OriginLost())

    @property
    def alive(self) -> bool:
        return self.host.alive

    def attach(self, pipe: Pipe, units: Units) -> None:
        """A new connection proves that the one before it is gone."""
        if self.pipe is not None:
            self.lost(self.pipe)
        self.host.receivers[self.migration] = self
        pipe.ends[1] = self
        self.pipe, self.units = pipe, units
        self._send("welcome")

    def unresolved(self) -> Units:
        """Units that may yet come to be owned here by this migration."""
        steps = self.machine.steps.values()
        open_ = self.units | self.machine.promised if self.pipe is not None or self._backlog else Units()
        for step in steps:
            open_ = open_ - step.units if step.phase in RESOLVED else open_ | step.units
        return open_

    # -- what is heard -----------------------------------------------------------------------------------------------

    def heard(self, pipe: Pipe, message: tuple[Any, ...]) -> None:
        """One after the other, each when its turn comes: replaying takes time."""
        if pipe is not self.pipe:
            return
        if "end overtakes" in self.world.holes and message[0] in ("announce", "ship"):
            self._take(message)
            return
        self._backlog.append(message)
        self._work_soon()

    def told(self, message: tuple[Any, ...]) -> None:
        """By the log of an origin that is lost."""
        self._backlog.append(message)
        self._work_soon()

    def phase(self, number: int) -> Phase | None:
        """None while something that was said of it has not been heard yet."""
        step = self.machine.steps.get(number)
        return None if step is None or self._backlog else step.phase

    def ask(self, number: int) -> None:
        self._ask(number)

    def over(self, event: Event) -> None:
        """What was said and not heard yet is not heard any more."""
        self._backlog.clear()
        self.hear(event)
        self._leave_if_over()

    def lost(self, pipe: Pipe) -> None:
        if pipe is not self.pipe:
            return
        self.pipe = None
        self._backlog.clear()
        self._following.clear()
        self._wanted.clear()
        if "a lost connection serves" in self.world.holes:
            for step in list(self.machine.steps.values()):
                if step.phase is Phase.PREPARED:
                    self.hear(ReleaseHeard(step.number))
        if "a lost connection drops" in self.world.holes:
            for step in list(self.machine.steps.values()):
                if step.phase is Phase.PREPARED:
                    self.hear(AbortHeard(step.number))
        self.hear(OriginLost())
        self._leave_if_over()

    def _work_soon(self) -> None:
        if not self._working:
            self._working = True
            self.world.after(self.world.dice.randint(0, 2), self._work)

    def _work(self) -> None:
        self._working = False
        if not self.alive:
            return
        for _ in range(3):
            if self._backlog and self.alive:
                self._take(self._backlog.popleft())
        if self.alive and len(self._backlog) <= BACKLOG_MAX:
            for number in sorted(self._following):
                self._send("caught up", number)
            self._following.clear()
        if self._backlog:
            self._work_soon()

    def _take(self, message: tuple[Any, ...]) -> None:  # noqa: C901 one line per message
        if message[0] not in ("state", "row"):
            self.world.tell(self.host.name, "hears", self.migration, *message)
        match message:
            case ("offer", units):
                self.hear(Promised(units))
            case ("announce", number, units, epochs):
                self._epochs[number] = epochs
                self.hear(Announced(number, units))
            case ("state", number, key, rows):
                if self._open(number):
                    self._install(key, rows)
            case ("row", number, key, row):
                if self._open(number):
                    self._replay(key, row)
            case ("early", number, ledger, batch):
                if self._open(number) and batch >= self.host.batch:
                    if batch > self.host.batch:
                        self.host.begin(batch)
                    self._enter(ledger)
            case ("copied", number):
                self._following.add(number)
                if "serve before all came" in self.world.holes:
                    self._arrived(number, self.machine.steps[number].units, {}, {}, self.host.batch, True)
            case ("ship", number, units, ledger, apart, batch, released):
                self._arrived(number, units, ledger, apart, batch, released)
            case ("released", number, epochs):
                self._released(number, epochs)
            case ("aborted", number, units):
                self.hear(AbortHeard(number, units))
            case ("end",) if self.pipe is not None:
                self.lost(self.pipe)

    def _open(self, number: int) -> bool:
        """Whether state of the step is news: what was prepared or served here already must not be written over."""
        if "served is taken in again" in self.world.holes:
            return True
        return self.machine.takes(number) and not self.host.own.served(self._epochs[number])

    def _install(self, key: int, rows: tuple[Row, ...]) -> None:
        if rows or key in self.host.state:
            self.host.state[key] = rows
            self.host.write("put", key, rows)

    def _replay(self, key: int, row: Row) -> None:
        rows = (*self.host.state.get(key, ()), row)
        self._install(key, rows)
        if row[0] >= self.host.batch and "ledger stays" not in self.world.holes:
            self._enter({row: (key, len(rows))})

    def _enter(self, ledger: dict[Row, tuple[int, int]]) -> None:
        ledger = {row: entry for row, entry in ledger.items() if row[0] >= self.host.batch}
        self.host.ledger.update(ledger)
        if ledger:
            self.host.write("ledger", ledger)

    def _arrived(
        self, number: int, units: Units, ledger: dict[Row, Any], apart: dict[int, Any], batch: int, released: bool
    ) -> None:
        if self.host.own.served(self._epochs.get(number, {})) and "served is taken in again" not in self.world.holes:
            return
        fits = released or self.host.batch <= batch
        if fits and self.machine.takes(number):
            if batch > self.host.batch:
                self.host.begin(batch)
            self._enter(ledger)
            self._come[number] = (apart, batch)
        self.hear(Arrived(number, units, fits))

    def _released(self, number: int, epochs: dict[Unit, int]) -> None:
        """What was served here before is not served anew, though a restart has forgotten the step: epochs tell."""
        if self.host.own.served(epochs) and "served is taken in again" not in self.world.holes:
            self.host.durably(lambda: self._send("served", number))
        else:
            self.hear(ReleaseHeard(number))

    def want(self, unit: Unit) -> None:
        if unit in self.machine.promised and unit not in self._wanted and self.pipe is not None:
            self._wanted.add(unit)
            self._send("wanted", Units.of(unit))

    # -- what is asked for -------------------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        if not self.alive:
            return
        for effect in self.machine.on(event):
            self.world.on_effect(type(effect).__name__, self.host)
            if not self.alive:
                return
            self.world.tell(self.host.name, "does", self.migration, effect)
            self._do(effect)
            self.host.changed()

    def _do(self, effect: Effect) -> None:
        own = self.host.own
        match effect:
            case Expect(units):
                own.expect(units, self.origin)
            case AnswerOffered(units):
                self._send("offered", units)
            case Persist(number, units):
                self._persist(number, units)
            case AnswerPrepared(number):
                self._send("prepared", number)
            case AnswerDeclined(number):
                self._send("declined", number, self.host.batch)
            case AnswerMissing(number):
                self._send("missing", number)
            case Serve(number):
                self._serve(number)
            case Discard(_, units):
                own.drop(units)
                self.host.drop(units)
                self.host.write_own()
                self.host.durably(lambda: None)
                self._leave_if_over()
            case AskOutcome(number):
                self._ask(number)

    def _persist(self, number: int, units: Units) -> None:
        apart, _ = self._come.pop(number, ({}, 0))
        epochs = {unit: epoch - 1 for unit, epoch in self._epochs[number].items()}
        self.host.own.prepare(f"{self.migration}/{number}", Incoming(units, self.origin, epochs, apart))
        self.host.write_own()
        self.host.durably(lambda: self.hear(Durable(number)))

    def _serve(self, number: int) -> None:
        step = f"{self.migration}/{number}"
        if step in self.host.own.incoming:
            self.host.own.serve(step)
            self.host.write_own()
        self.host.durably(lambda: self._send("served", number))
        self._leave_if_over()

    def _ask(self, number: int) -> None:
        if self.machine.steps[number].phase in (Phase.WRITING, Phase.PREPARED):
            question = ("outcome", self.migration, number)
            self.world.migration_messages += 1
            self.world.ask(self, self.host.name, self.origin, question, lambda answer: self._told(number, answer))

    def _told(self, number: int, answer: str) -> None:
        self.world.tell(self.host.name, "is told", self.migration, number, answer)
        if answer == "undecided":
            self.world.after(5 + self.world.delay(), self._ask, number)
        else:
            self.hear(ReleaseHeard(number) if answer == "released" else AbortHeard(number))

    def _leave_if_over(self) -> None:
        if self.pipe is None and self.machine.settled:
            self.host.receivers.pop(self.migration, None)

    def _send(self, *message: Any) -> None:
        self.world.migration_messages += 1
        if self.pipe is not None:
            self.pipe.send(self, message)
