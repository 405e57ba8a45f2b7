"""Every protocol's machines, both ends, against a dict of who owns what: whatever is delivered, broken, killed or aborted.

Two hosts and nothing else: real `Origin`, `Target` and `Ownership`, a connection that may break, records that are written but
not durable yet. The model is {unit: number of rows applied} and the one fact of DESIGN 5: the origin owns a unit until its
`released` is durable, the target from then on.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from godwit.migration import PROTOCOLS
from godwit.migration import events as ev
from godwit.migration import origin as origin_side
from godwit.migration.origin import Origin
from godwit.migration.target import Target
from godwit.model.ownership import Incoming, Ownership, Stand
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units

UNITS = (Unit("group", 0), Unit("group", 1), Unit("key", 6))
STEPS = (Units.of(UNITS[0]), Units.of(*UNITS[1:]))
FAULTS_MAX = 4
FIRST = Routing.spread(["A"], 4)
ANSWERS: dict[str, type[ev.Event]] = {
    "offered": ev.Offered,
    "wanted": ev.UnitsRequested,
    "caught up": ev.CaughtUp,
    "prepared": ev.Prepared,
    "missing": ev.Missing,
    "served": ev.Served,
}


class Side:
    """One host: what it owns in memory and on disk, its copies, and records that are not durable yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.own = Ownership.initial(name, FIRST)
        self.disk = self.own.to_dict()
        self.rows: dict[Unit, int] = {}
        self.batch = 0
        self.unflushed: deque[tuple[dict[str, Any], Any]] = deque()  # record, what to do when it is durable
        self.inbox: deque[tuple[Any, ...]] = deque()

    def write(self, then: Any) -> None:
        self.unflushed.append((self.own.to_dict(), then))

    def restart(self) -> None:
        self.unflushed.clear()
        self.inbox.clear()
        self.own = Ownership.from_dict(self.name, self.disk)


class Handover(RuleBasedStateMachine):
    protocol = "pause"

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Side("A"), Side("B")
        self.a.rows = dict.fromkeys(UNITS, 0)
        self.model = dict.fromkeys(UNITS, 0)
        self.connected = True
        self.faults = 0
        self.asking: set[int] = set()
        self.followed: dict[Unit, str] = {}
        self.epochs: dict[int, dict[Unit, int]] = {}
        self.apart: dict[int, dict[int, tuple[str, int]]] = {}
        self.target = Target()
        self.origin: Origin | None = Origin(PROTOCOLS[self.protocol], STEPS, [1 << 20] * len(STEPS))
        self.at_origin(ev.Begun())

    # -- the origin ----------------------------------------------------------------------------------------------------

    def at_origin(self, event: ev.Event) -> None:
        if self.origin is not None:
            for effect in self.origin.on(event):
                self.do_at_origin(effect)

    def do_at_origin(self, effect: ev.Effect) -> None:  # noqa: C901 one line per effect
        own = self.a.own
        match effect:
            case ev.Offer(units):
                self.to_target("offer", units)
            case ev.Lend(units):
                own.lend(units, "B")
            case ev.Copy(number, units, forward):
                self.announce(number)
                for unit in units:
                    self.to_target("state", number, unit, self.a.rows[unit])
                    self.followed[unit] = forward
                self.to_target("copied", number)
                self.at_origin(ev.Copied(number))
            case ev.Cut(_, units):
                own.cut(units, "B")
            case ev.Ship(number, units):
                self.announce(number)
                for unit in units:
                    if unit not in self.followed:
                        self.to_target("state", number, unit, self.a.rows[unit])
                released = f"m/{number}" in own.outgoing
                self.to_target("ship", number, units, own.apart(units), self.a.batch, released)
            case ev.Release(number, units):
                own.release(f"m/{number}", units, "B")
                self.a.write(lambda: self.at_origin(ev.Released(number)))
            case ev.TellReleased(number):
                self.to_target("released", number, self.epochs_of(number))
            case ev.TellAborted(number, units):
                self.to_target("aborted", number, units)
            case ev.Resume(_, units):
                own.resume(units)
                for unit in units:
                    self.followed.pop(unit, None)
            case ev.Forget(number, units):
                own.confirm(f"m/{number}")
                for unit in units:
                    del self.a.rows[unit]
                self.a.write(None)

    def announce(self, number: int) -> None:
        self.to_target("announce", number, STEPS[number], self.epochs_of(number))

    def epochs_of(self, number: int) -> dict[Unit, int]:
        ahead = 0 if f"m/{number}" in self.a.own.outgoing else 1
        return {unit: self.a.own.share(unit).epoch + ahead for unit in STEPS[number]}

    def to_target(self, *message: Any) -> None:
        if self.connected:
            self.b.inbox.append(message)

    # -- the target ----------------------------------------------------------------------------------------------------

    def at_target(self, event: ev.Event) -> None:
        for effect in self.target.on(event):
            self.do_at_target(effect)

    def do_at_target(self, effect: ev.Effect) -> None:  # noqa: C901 one line per effect
        own = self.b.own
        match effect:
            case ev.Expect(units):
                own.expect(units, "A")
            case ev.AnswerOffered(units):
                self.to_origin("offered", units)
            case ev.Persist(number, units):
                epochs = {unit: epoch - 1 for unit, epoch in self.epochs[number].items()}
                own.prepare(f"m/{number}", Incoming(units, "A", epochs, self.apart[number]))
                self.b.write(lambda: self.at_target(ev.Durable(number)))
            case ev.AnswerPrepared(number):
                self.to_origin("prepared", number)
            case ev.AnswerDeclined(number):
                self.to_origin("declined", number, self.b.batch)
            case ev.AnswerMissing(number):
                self.to_origin("missing", number)
            case ev.Serve(number):
                if f"m/{number}" in own.incoming:
                    own.serve(f"m/{number}")
                self.b.write(lambda: self.to_origin("served", number))
            case ev.Discard(_, units):
                own.drop(units)
                self.drop_copies()
                self.b.write(None)
            case ev.AskOutcome(number):
                self.asking.add(number)

    def drop_copies(self) -> None:
        self.b.rows = {u: n for u, n in self.b.rows.items() if self.b.own.share(u).stand is not Stand.AWAY}

    def to_origin(self, *message: Any) -> None:
        if self.connected:
            self.a.inbox.append(message)

    def news(self, number: int) -> bool:
        return self.target.takes(number) and not self.b.own.served(self.epochs[number])

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(order=st.lists(st.integers(0, 4), min_size=2, max_size=10))
    def go_on(self, order: list[int]) -> None:
        """Several things that are due happen, in some order; without it, faults would end most runs before they begin."""
        for at in order:
            (self.deliver_to_target, self.deliver_to_origin, self.flush_origin, self.flush_target, self.tell_outcome)[
                at
            ]()

    @precondition(lambda self: self.faults < FAULTS_MAX)
    @rule(at=st.integers(0, 4))
    def go_wrong(self, at: int) -> None:
        self.faults += 1
        (self.break_connection, self.crash_origin, self.crash_target, self.crash_both, self.abort)[at]()

    def deliver_to_target(self) -> None:  # noqa: C901 one line per message
        match self.b.inbox.popleft() if self.b.inbox else None:
            case ("offer", units):
                self.at_target(ev.Promised(units))
            case ("announce", number, units, epochs):
                self.epochs[number] = epochs
                self.at_target(ev.Announced(number, units))
            case ("state", number, unit, rows) if self.news(number):
                self.b.rows[unit] = rows
            case ("row", number, unit) if self.news(number):
                self.b.rows[unit] += 1
            case ("copied", number):
                self.to_origin("caught up", number)
            case ("ship", number, units, apart, batch, released):
                if not self.b.own.served(self.epochs[number]):
                    self.apart[number] = apart
                    fits = released or batch >= self.b.batch
                    self.b.batch = max(batch, self.b.batch) if fits else self.b.batch
                    self.at_target(ev.Arrived(number, units, fits))
            case ("released", number, epochs):
                if self.b.own.served(epochs):
                    self.b.write(lambda: self.to_origin("served", number))
                else:
                    self.at_target(ev.ReleaseReported(number))
            case ("aborted", number, units):
                self.at_target(ev.AbortReported(number, units))

    def deliver_to_origin(self) -> None:
        match self.a.inbox.popleft() if self.a.inbox else ():
            case ("declined", number, batch):
                self.at_origin(ev.Declined(number))
                if self.a.batch < batch:
                    self.a.batch = batch
                self.at_origin(ev.BatchBegan())
            case (word, *arguments):
                self.at_origin(ANSWERS[word](*arguments))

    def flush_origin(self) -> None:
        self.flush(self.a)

    def flush_target(self) -> None:
        self.flush(self.b)

    def flush(self, side: Side) -> None:
        if side.unflushed:
            side.disk, then = side.unflushed.popleft()
            if then is not None:
                then()

    @rule(unit=st.sampled_from(UNITS), side=st.sampled_from("ab"))
    def apply_row(self, unit: Unit, side: str) -> None:
        one: Side = getattr(self, side)
        stand = one.own.share(unit).stand
        if stand is Stand.MINE:
            one.rows[unit] += 1
            self.model[unit] += 1
            if one is self.a and unit in self.followed:
                number = next(at for at, units in enumerate(STEPS) if unit in units)
                rows = self.followed[unit] == "rows"
                self.to_target(*(("row", number, unit) if rows else ("state", number, unit, one.rows[unit])))
        elif stand is Stand.EXPECTED:
            self.to_origin("wanted", Units.of(unit))
        elif stand is Stand.LENT:
            self.at_origin(ev.Waiting(unit, 1, 0.0))

    @rule(side=st.sampled_from("ab"))
    def begin_batch(self, side: str) -> None:
        one, other = (self.a, self.b) if side == "a" else (self.b, self.a)
        if one.batch <= other.batch and not one.own.busy():
            one.batch += 1
            if one is self.a:
                self.at_origin(ev.BatchBegan())

    def break_connection(self) -> None:
        if not self.connected:
            return
        self.connected = False
        self.a.inbox.clear()
        self.b.inbox.clear()
        self.followed.clear()
        self.at_origin(ev.TargetDisconnected())
        self.at_target(ev.OriginDisconnected())

    @precondition(lambda self: not self.connected and self.origin is not None and not self.origin.ended)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.at_origin(ev.TargetReconnected())

    def crash_origin(self) -> None:
        if self.connected:
            self.connected = False
            self.b.inbox.clear()
            self.at_target(ev.OriginDisconnected())
        self.followed.clear()
        self.a.restart()
        released = {int(step[2:]): out.units for step, out in self.a.own.outgoing.items()}
        self.origin = Origin.resumed(PROTOCOLS[self.protocol], released) if released else None
        kept = Units()
        for units in released.values():
            kept |= units
        mine = Stand.MINE
        self.a.rows = {u: n for u, n in self.a.rows.items() if self.a.own.share(u).stand is mine or u in kept}

    def crash_both(self) -> None:
        self.crash_origin()
        self.crash_target()

    def crash_target(self) -> None:
        self.asking.clear()
        self.b.restart()
        self.drop_copies()
        self.target = Target({int(step[2:]): come.units for step, come in self.b.own.incoming.items()})
        self.at_target(ev.OriginDisconnected())
        if self.connected:
            self.connected = False
            self.a.inbox.clear()
            self.followed.clear()
            self.at_origin(ev.TargetDisconnected())

    def tell_outcome(self) -> None:
        for number in sorted(self.asking):
            outcome = self.outcome(number)
            if outcome is not None:
                self.asking.discard(number)
                self.at_target(ev.ReleaseReported(number) if outcome else ev.AbortReported(number))

    def outcome(self, number: int) -> bool | None:
        """None while the origin's machine has not decided; its log decides if it has none."""
        steps = self.origin.steps if self.origin is not None else []
        phase = next((step.phase for step in steps if step.number == number), None)
        if phase is None:
            return f"m/{number}" in self.a.own.outgoing
        if phase is origin_side.Phase.DROPPED:
            return False
        given = (origin_side.Phase.RELEASED, origin_side.Phase.SHIPPED, origin_side.Phase.DONE)
        return True if phase in given else None

    def abort(self) -> None:
        self.at_origin(ev.AbortRequested("asked"))

    @precondition(lambda self: PROTOCOLS[self.protocol].until_asked)
    @rule()
    def hand_over(self) -> None:
        self.at_origin(ev.HandoverRequested())

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def only_the_owner_applies(self) -> None:
        on_disk = Ownership.from_dict("A", self.a.disk)
        for unit in UNITS:
            owner = "A" if on_disk.share(unit).stand is Stand.MINE else "B"
            applying = [side.name for side in (self.a, self.b) if side.own.share(unit).stand is Stand.MINE]
            assert applying in ([], [owner]), f"{unit} is {owner}'s and {applying} may apply it"

    @invariant()
    def whoever_applies_has_every_row(self) -> None:
        for unit in UNITS:
            for side in (self.a, self.b):
                if side.own.share(unit).stand is Stand.MINE:
                    assert side.rows[unit] == self.model[unit]

    def teardown(self) -> None:
        """Left alone, it ends: every unit has one owner with all of its rows, and nobody has a copy."""
        for _ in range(200):
            if not self.connected and self.origin is not None and not self.origin.ended:
                self.connect()
            if PROTOCOLS[self.protocol].until_asked:
                self.hand_over()
            self.go_on([0, 1, 2, 3, 4])
        assert self.origin is None or self.origin.ended
        if self.connected:  # the origin hangs up when its migration has ended
            self.break_connection()
            self.flush(self.b)
        for unit in UNITS:
            owners = [side for side in (self.a, self.b) if side.own.share(unit).stand is Stand.MINE]
            assert len(owners) == 1
            assert owners[0].rows[unit] == self.model[unit]
            assert unit not in (self.b if owners[0] is self.a else self.a).rows
        assert not self.a.own.outgoing
        assert not self.b.own.incoming


@pytest.mark.parametrize("protocol", ["pause", "fetch", "push", "live", "live-unordered", "standby"])
def test_handover_keeps_one_owner_and_every_row(protocol: str) -> None:
    machine = type("Handover_" + protocol.replace("-", "_"), (Handover,), {"protocol": protocol})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(
        max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
