"""The origin's shell: carries out what the real `Origin` asks for, on the simulated host, disk and network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.migration import PROTOCOLS
from godwit.migration.events import (
    AbortAsked,
    BatchBegan,
    Begun,
    CaughtUp,
    Copied,
    Copy,
    Cut,
    Declined,
    Effect,
    End,
    Event,
    Forget,
    HandoverAsked,
    Lend,
    Missing,
    Offer,
    Offered,
    PeerBack,
    PeerLost,
    Prepared,
    Release,
    Released,
    Resume,
    Served,
    Ship,
    TellAborted,
    TellReleased,
    Waiting,
    Wanted,
)
from godwit.migration.origin import Origin, Phase
from godwit.model.units import Unit, Units
from tests.sim.disk import Row
from tests.sim.world import Pipe

if TYPE_CHECKING:
    from tests.sim.host import Host

ANSWERS: dict[str, type[Event]] = {
    "caught up": CaughtUp,
    "prepared": Prepared,
    "missing": Missing,
    "served": Served,
}
RETRY_MAX = 3  # a target that is busy with these units is asked again so often


STEP_BYTES = (1 << 20, 1 << 20, 50 << 10)  # more than any protocol's parcel or lead is, or a part of it


class Mover:
    def __init__(
        self,
        host: Host,
        migration: str,
        target: str,
        protocol: str,
        steps: list[Units],
        side_by_side: int | None = None,
        machine: Origin | None = None,
    ) -> None:
        self.host, self.migration, self.target = host, migration, target
        self.world = host.world
        # Protocols that join steps, or have rows wait for the next few only, do so in some migrations and not in others.
        sizes = [STEP_BYTES[sum(map(ord, migration)) % len(STEP_BYTES)] for _ in steps]
        self.machine = machine or Origin(PROTOCOLS[protocol], steps, sizes, side_by_side)
        self.units = Units()
        for step in self.machine.steps:
            self.units |= step.units
        self._met = machine is not None  # whether the target has answered before, to this generation or an earlier one
        self._tries = 0
        self._forward: dict[int, str] = {}  # key sent on this pipe -> what follows it: "rows" or "changes"
        self._copying: dict[int, list[int]] = {}  # step -> keys to be sent yet
        self._early: dict[int, list[Row]] = {}  # for a hole only: rows from before a key's state was sent
        self._told: set[int] = set()  # steps whose ledger as it was at the end of the copy was sent on this pipe
        self._dirty: dict[int, int] = {}  # key whose change is not sent yet -> step
        self.pipe = self._connect()

    @classmethod
    def resumed(cls, host: Host, migration: str, released: dict[int, Units]) -> Mover:
        """After a restart of the origin: what was released is told until it is confirmed."""
        target = host.own.outgoing[f"{migration}/{next(iter(released))}"].target
        protocol = host.checks.protocols[migration]
        return cls(host, migration, target, protocol, [], None, Origin.resumed(PROTOCOLS[protocol], released))

    @property
    def alive(self) -> bool:
        return self.host.alive and self.host.movers.get(self.migration, self) is self

    def _connect(self) -> Pipe:
        hello = ("migrate", self.migration, self.host.name, self.units, self._met)
        return self.world.connect(self, self.host.name, self.target, hello)

    # -- what is heard -----------------------------------------------------------------------------------------------

    def heard(self, pipe: Pipe, message: tuple[Any, ...]) -> None:
        if pipe is not self.pipe:
            return
        self.world.tell(self.host.name, "hears", self.migration, *message)
        match message:
            case ("welcome",):
                event = PeerBack() if self._met else Begun()
                self._met = True
                self.hear(event)
            case ("busy",):
                self._busy()
            case ("offered", units):
                self.hear(Offered(units))
            case ("wanted", units):
                self.hear(Wanted(units))
            case ("declined", number, batch):
                self.hear(Declined(number))
                self._catch_up(batch)
            case (word, number):
                self.hear(ANSWERS[word](number))

    def _catch_up(self, batch: int) -> None:
        """The batch that the target is in has begun here meanwhile, or begins now: that it is there proves that it may."""
        if "declined waits for a router" in self.world.holes:
            return
        if self.host.batch >= batch:
            self.hear(BatchBegan())
        else:
            self.host.advance(batch)

    def _busy(self) -> None:
        self._tries += 1
        if self._tries > RETRY_MAX:
            self.hear(AbortAsked("the target is busy with these keys"))
        else:
            self.world.after(10 + self.world.delay(), self._reconnect)

    def lost(self, pipe: Pipe) -> None:
        if pipe is not self.pipe:
            return
        self._forward.clear()
        self._copying.clear()
        self._dirty.clear()
        self._told.clear()
        self.hear(PeerLost())
        if self.alive and not self.machine.ended:
            self.world.after(self.world.delay(), self._reconnect)

    def _reconnect(self) -> None:
        if self.alive and not self.machine.ended:
            self.pipe = self._connect()

    def batch_began(self) -> None:
        self.hear(BatchBegan())

    def abort(self) -> None:
        self.hear(AbortAsked("asked"))

    def hand_over(self) -> None:
        self.hear(HandoverAsked())

    def note_waiting(self, unit: Unit) -> None:
        self.hear(Waiting(unit, 1, float(self.world.now)))

    def applied(self, key: int, row: Row) -> None:
        """A row was applied here: who has the key's state already needs it too, after that state."""
        match self._forward.get(key):
            case "rows":
                self._send("row", self._step_of(key), key, row)
            case "changes":
                self._dirty[key] = self._step_of(key)
                self.world.after(self.world.delay(), self._send_dirty)
            case None if "copy and replay" in self.world.holes:
                self._early.setdefault(key, []).append(row)

    def _step_of(self, key: int) -> int:
        group = key % len(self.host.own.groups)
        return next(step.number for step in self.machine.steps if key in step.units.keys or group in step.units.groups)

    def _send_dirty(self) -> None:
        if self.alive:
            for key, number in self._dirty.items():
                self._send("state", number, key, self.host.state.get(key, ()))
            self._dirty.clear()

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

    def _do(self, effect: Effect) -> None:  # noqa: C901 one line per effect
        own, holes = self.host.own, self.world.holes
        match effect:
            case Offer(units):
                self._send("offer", units)
            case Lend(units):
                own.lend(units, self.target)
            case Copy(number, units, forward):
                self._announce(number)
                self._copying[number] = self.host.keys_of(units)
                self._early.clear()
                self.world.after(self.world.delay(), self._copy, number, forward, self.pipe)
            case Cut(_, units):
                own.cut(units, self.target)
            case Ship(number, units):
                self._ship(number, units)
            case Release(number, units):
                self._release(number, units)
            case TellReleased(number):
                self._send("released", number, self._epochs(number))
            case TellAborted(number, units):
                self._send("aborted", number, units)
            case Resume(number, units):
                for key in self.host.keys_of(units):
                    self._forward.pop(key, None)
                    self._dirty.pop(key, None)
                self._copying.pop(number, None)
                self._told.discard(number)
                own.resume(units)
            case Forget(number, units):
                own.confirm(f"{self.migration}/{number}")
                self.host.drop(units)
                self.host.write_own()
                self.host.durably(lambda: None)
            case End(done, dropped, reason):
                self._end(done, dropped, reason)
        if isinstance(effect, Release) and "forget when released" in holes:
            self._lose(effect.units)

    def _release(self, number: int, units: Units) -> None:
        if "still applies" in self.world.holes:
            self.hear(Released(number))
            return
        self.host.own.release(f"{self.migration}/{number}", units, self.target)
        self.host.write_own()
        if "release before durable" in self.world.holes:
            self.host.durably(lambda: None)
            self.hear(Released(number))
        else:
            self.host.durably(lambda: self.hear(Released(number)))

    def _end(self, done: int, dropped: int, reason: str) -> None:
        self._send("end")
        self.pipe.close()
        del self.host.movers[self.migration]
        self.host.checks.ended(self.migration, done, dropped, reason)

    def _send(self, *message: Any) -> None:
        self.world.migration_messages += 1
        self.pipe.send(self, message)

    def _units(self, number: int) -> Units:
        return next(step.units for step in self.machine.steps if step.number == number)

    def _released(self, number: int) -> bool:
        return f"{self.migration}/{number}" in self.host.own.outgoing

    def _epochs(self, number: int) -> dict[Unit, int]:
        """The epochs in which the target is to own the step's units."""
        ahead = 0 if self._released(number) else 1
        return {unit: self.host.own.share(unit).epoch + ahead for unit in self._units(number)}

    def _announce(self, number: int) -> None:
        self._send("announce", number, self._units(number), self._epochs(number))

    def _copy(self, number: int, forward: str, pipe: Pipe) -> None:
        """The next slice. State and what follows it are on one stream, in order, so there is neither gap nor overlap."""
        keys = self._copying.get(number)
        if not self.alive or keys is None or pipe is not self.pipe:
            return
        for _ in range(min(len(keys), self.world.dice.randint(1, 3))):
            key = keys.pop(0)
            self._send("state", number, key, self.host.state.get(key, ()))
            self._forward[key] = forward
            for row in self._early.pop(key, ()):
                self._send("row", number, key, row)
        if keys:
            self.world.after(self.world.delay() * 2, self._copy, number, forward, pipe)
            return
        del self._copying[number]
        if forward == "rows" and "ledger stays" not in self.world.holes:
            self._send("early", number, self._ledger(self.host.keys_of(self._units(number))), self.host.batch)
            self._told.add(number)
        self._send("copied", number)
        if "forwarding ends early" in self.world.holes:
            self._forward = dict.fromkeys(self._forward, "nothing")
        self.hear(Copied(number))

    def _ship(self, number: int, units: Units) -> None:
        keys, released = self.host.keys_of(units), self._released(number)
        self._announce(number)
        for key in keys:
            if key not in self._forward or key in self._dirty:
                self._send("state", number, key, self.host.state.get(key, ()))
            self._dirty.pop(key, None)
        untold = [key for key in keys if number not in self._told or key not in self._forward]
        ledger = {} if "ledger stays" in self.world.holes else self._ledger(untold)
        self._send("ship", number, units, ledger, self.host.own.apart(units), self.host.batch, released)
        if "forget when shipped" in self.world.holes:
            self._lose(units)

    def _ledger(self, keys: list[int]) -> dict[Row, tuple[int, int]]:
        wanted = set(keys)
        return {row: entry for row, entry in self.host.ledger.items() if entry[0] in wanted}

    def _lose(self, units: Units) -> None:
        keys = self.host.keys_of(units)
        for key in keys:
            self.host.state.pop(key, None)
        self.host.write("drop", keys)

    def outcome(self, number: int) -> str | None:
        """None if this machine does not know the step; then the log decides."""
        phase = next((step.phase for step in self.machine.steps if step.number == number), None)
        if phase is None:
            return None
        if phase in (Phase.RELEASED, Phase.SHIPPED, Phase.DONE):
            return "released"
        return "kept" if phase is Phase.DROPPED else "undecided"
