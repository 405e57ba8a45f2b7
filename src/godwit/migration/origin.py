"""The origin's side of every migration: steps that go from phase to phase by a protocol's table.

A migration is a list of steps; a step is a set of units that are handed over together. A protocol is a table from (phase,
event) to (effects, next phase). All that follows the commit point is the same for all protocols and is in this file:
one durable record of the origin, `released`, commits a step, and the origin tells the target until the target has confirmed. A
released step is taken back in one case only: the target is lost for good, its log is closed, and by that log the target never
owned the step. A step that is not released can be dropped at any time: the origin still owns its units and goes on.

A protocol file gives a table, says how many steps may run side by side, and may give a rule for their order. `register` makes
the protocol known by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from godwit.migration.events import (
    AbortRequested,
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
    Forward,
    HandoverRequested,
    Lend,
    Missing,
    Offer,
    Offered,
    Prepared,
    Release,
    Released,
    Resume,
    Served,
    Ship,
    TakeBack,
    TargetDisconnected,
    TargetLost,
    TargetReconnected,
    TellAborted,
    TellReleased,
    Turn,
    TurnNear,
    UnitsRequested,
    Waiting,
    impossible,
)
from godwit.model.units import Units


class Phase(Enum):
    QUEUED = "not begun"
    OFFERED = "the target was told to expect the step"
    LENT = "rows go to the target, the state is at the origin"
    COPYING = "the state is being sent while the origin applies rows"
    FOLLOWING = "the target replays rows or changes"
    CUT = "rows wait, the last changes are under way"
    WAITING = "the target declined the step; origin and target try again in the next batch"
    RELEASING = "the record `released` is being written"
    RELEASED = "the target owns the step"
    SHIPPED = "the target owns the step, and all of the step has been sent on this connection"
    DONE = "the target has confirmed"
    DROPPED = "the step stays at the origin"


OVER = frozenset((Phase.DONE, Phase.DROPPED))
REVOCABLE = (Phase.QUEUED, Phase.OFFERED, Phase.LENT, Phase.COPYING, Phase.FOLLOWING, Phase.CUT, Phase.WAITING)


@dataclass(slots=True, eq=False)
class Step:
    number: int
    units: Units
    size_bytes: int = 0
    phase: Phase = Phase.QUEUED
    waiting_rows: int = 0
    waiting_since_s: float | None = None
    story: list[tuple[str, str]] = field(default_factory=list)  # (event, phase it led to)


Action = Callable[[Step], list[Effect]]
PhaseTable = Mapping[tuple[Phase, type[Event]], tuple[Phase, Action]]
Choose = Callable[[Sequence[Step]], Step]


# -- what a transition does ------------------------------------------------------------------------------------------


def nothing(step: Step) -> list[Effect]:
    del step
    return []


def lend(step: Step) -> list[Effect]:
    return [Lend(step.units)]


def offer(step: Step) -> list[Effect]:
    """No effect of its own: the machine offers many steps to the target at once (`Origin._lead`)."""
    del step
    return []


OFFERING: PhaseTable = {
    (Phase.QUEUED, TurnNear): (Phase.OFFERED, offer),
    (Phase.OFFERED, Offered): (Phase.LENT, lend),
}


def copy(forward: Forward) -> Action:
    def copy_and_forward(step: Step) -> list[Effect]:
        return [Copy(step.number, step.units, forward)]

    copy_and_forward.__name__ = f"copy, forward {forward}"
    return copy_and_forward


def cut_and_ship(step: Step) -> list[Effect]:
    return [Cut(step.number, step.units), Ship(step.number, step.units)]


def cut_and_release(step: Step) -> list[Effect]:
    return [Cut(step.number, step.units), Release(step.number, step.units)]


def ship(step: Step) -> list[Effect]:
    return [Ship(step.number, step.units)]


def ship_and_tell(step: Step) -> list[Effect]:
    return [Ship(step.number, step.units), TellReleased(step.number)]


def release(step: Step) -> list[Effect]:
    return [Release(step.number, step.units)]


def tell_released(step: Step) -> list[Effect]:
    return [TellReleased(step.number)]


def resume(step: Step) -> list[Effect]:
    return [Resume(step.number, step.units)]


def resume_and_tell(step: Step) -> list[Effect]:
    return [Resume(step.number, step.units), TellAborted(step.number, step.units)]


def take_back(step: Step) -> list[Effect]:
    return [TakeBack(step.number, step.units)]


def forget(step: Step) -> list[Effect]:
    return [Forget(step.number, step.units)]


COMMON: PhaseTable = {
    (Phase.CUT, Prepared): (Phase.RELEASING, release),
    (Phase.CUT, Declined): (Phase.WAITING, resume),
    (Phase.WAITING, BatchBegan): (Phase.CUT, cut_and_ship),
    (Phase.RELEASING, Released): (Phase.RELEASED, tell_released),
    (Phase.RELEASED, Missing): (Phase.SHIPPED, ship_and_tell),
    (Phase.RELEASED, TargetReconnected): (Phase.RELEASED, tell_released),
    (Phase.RELEASED, Served): (Phase.DONE, forget),
    (Phase.SHIPPED, TargetReconnected): (Phase.RELEASED, tell_released),  # state under way was lost with the connection
    (Phase.SHIPPED, Served): (Phase.DONE, forget),
    (Phase.RELEASED, TargetLost): (Phase.DROPPED, take_back),
    (Phase.SHIPPED, TargetLost): (Phase.DROPPED, take_back),
    **{(phase, TargetDisconnected): (Phase.DROPPED, resume) for phase in REVOCABLE},
    **{(phase, AbortRequested): (Phase.DROPPED, resume_and_tell) for phase in REVOCABLE},
}


# -- events that cannot happen ---------------------------------------------------------------------------------------

_BEFORE_COPY = frozenset((Phase.QUEUED, Phase.OFFERED, Phase.LENT))
_BEFORE_CUT = _BEFORE_COPY | {Phase.COPYING, Phase.FOLLOWING}
_BEFORE_RELEASE = _BEFORE_CUT | {Phase.CUT, Phase.WAITING}
_EVER = frozenset(Phase)

# By event, the phases in which it cannot happen, unless the protocol has a line for it: the origin posts it itself, or the
# target answers something that was not sent on this connection. In all other phases an event without a line comes late or
# again, after the step has gone on (design/015), and changes nothing.
IMPOSSIBLE: Mapping[type[Event], frozenset[Phase]] = {
    Turn: _EVER,
    TurnNear: _EVER,
    Copied: _BEFORE_COPY,
    CaughtUp: _BEFORE_COPY,
    Prepared: _BEFORE_CUT,
    Declined: _BEFORE_CUT,
    Released: _EVER - {Phase.RELEASING},
    Missing: _BEFORE_RELEASE | {Phase.RELEASING},
    Served: _BEFORE_RELEASE,
    TargetLost: _EVER - {Phase.RELEASED, Phase.SHIPPED},
}


# -- a protocol, and the machine that runs it ------------------------------------------------------------------------


def first(steps: Sequence[Step]) -> Step:
    """The order of the plan."""
    return steps[0]


@dataclass(frozen=True, slots=True)
class Protocol:
    """`choose`: which of the steps goes next. `lead_bytes`: how much state is offered to the target ahead of its turn.

    `parcel_bytes`: steps that go one after another are joined to parcels of about this size; 0: steps are not joined.
    """

    name: str
    about: str
    table: PhaseTable
    choose: Choose = first
    parcel_bytes: int = 0
    lead_bytes: float = 0
    deterministic: bool = False  # whether the processor must give equal results for equal rows
    side_by_side: int = 1  # steps under way at once, unless the plan says otherwise
    until_asked: bool = False  # whether the target follows until a hand-over is requested


PROTOCOLS: dict[str, Protocol] = {}


def register(protocol: Protocol) -> Protocol:
    """Make a protocol known by its name to `Flock.move`, `Flock.scale` and so on."""
    PROTOCOLS[protocol.name] = protocol
    return protocol


def with_timers(protocol: Protocol) -> Protocol:
    """The protocol for an operator with timers: the origin releases a step only after the target has accepted it.

    A target that has fired the timers of a batch declines units whose timers the origin has not fired in that batch. The target
    cannot decline units that the origin has released already, so it would miss their timers in that batch.
    """
    early = [at for at, (_, action) in protocol.table.items() if action is cut_and_release]
    if not early:
        return protocol
    released = (Phase.RELEASING, Released)
    return replace(
        protocol,
        table={**protocol.table, **dict.fromkeys(early, (Phase.CUT, cut_and_ship)), released: COMMON[released]},
    )


class Origin:
    """Runs one migration at its origin. Events in, effects out: equal events always give equal effects."""

    def __init__(
        self,
        protocol: Protocol,
        steps: Sequence[Units],
        sizes: Sequence[int] = (),
        side_by_side: int | None = None,
    ) -> None:
        self.protocol = protocol
        self.steps = [Step(at, units, sizes[at] if sizes else 0) for at, units in enumerate(steps)]
        self.ended = False
        self.reason = ""
        self._side_by_side = side_by_side or protocol.side_by_side
        self._begun = False
        self._handing_over = False
        self._step_of = {unit: step for step in self.steps for unit in step.units}

    @classmethod
    def resumed(cls, protocol: Protocol, released: Mapping[int, Units]) -> Origin:
        """After a restart: the steps that are released and not confirmed by the log. All other steps have stayed."""
        machine = cls(protocol, [])
        machine.steps = [Step(number, units, phase=Phase.RELEASED) for number, units in released.items()]
        machine._begun = True
        return machine

    def on(self, event: Event) -> list[Effect]:
        if isinstance(event, Waiting):
            self._count_waiting(event)
            return []
        return [*self._handle(event), *self._next()]

    def _handle(self, event: Event) -> list[Effect]:
        match event:
            case Begun():
                self._begun = True
            case Offered():
                return [e for step in self._containing(event.units) for e in self._advance(step, event)]
            case UnitsRequested():
                asked = [s for s in self._containing(event.units) if (s.phase, UnitsRequested) in self.protocol.table]
                return self._advance(self._joined(asked), event) if asked else []
            case HandoverRequested():
                self._handing_over = True  # also for steps that are not ready for the hand-over yet
            case AbortRequested():
                self.reason = self.reason or event.reason or "aborted"
            case TargetDisconnected():
                self.reason = self.reason or "the target was lost"
        number = getattr(event, "step", None)
        if number is None:
            return self._all(event)
        step = self._step(number)
        return [] if step is None else self._advance(step, event)

    def _all(self, event: Event) -> list[Effect]:
        return [effect for step in self.steps for effect in self._advance(step, event)]

    def _advance(self, step: Step, event: Event) -> list[Effect]:
        """An event without a line in the table has come too late, or for the second time: it changes nothing.

        Unless it cannot have happened: then something is wrong that must not go on.
        """
        transition = self.protocol.table.get((step.phase, type(event)))
        if transition is None:
            if step.phase in IMPOSSIBLE.get(type(event), ()):
                raise impossible(event, step.number, step.phase.name, step.story)
            return []
        step.phase, action = transition
        step.story.append((type(event).__name__, step.phase.name))
        return action(step)

    def _next(self) -> list[Effect]:
        effects: list[Effect] = self._all(HandoverRequested()) if self._handing_over else []
        while self._begun:
            effects += self._lead()
            ready = self._awaiting(Turn)
            idle = len(
                self._awaiting(Turn, TurnNear, Offered, *((HandoverRequested,) if self.protocol.until_asked else ()))
            )
            under_way = sum(step.phase not in OVER for step in self.steps) - idle
            if not ready or under_way >= self._side_by_side:
                break
            step = self._joined(self._parcel(ready))
            effects += self._advance(step, Turn(step.number))
        if not self.ended and (self._begun or self.reason) and all(step.phase in OVER for step in self.steps):
            self.ended = True
            done = sum(step.phase is Phase.DONE for step in self.steps)
            effects.append(End(done, len(self.steps) - done, self.reason))
        return effects

    def _awaiting(self, *events: type[Event]) -> list[Step]:
        return [step for step in self.steps if any((step.phase, event) in self.protocol.table for event in events)]

    def _lead(self) -> list[Effect]:
        """Offer the next steps until about `lead_bytes` are offered or lent; at least one step, whatever its size."""
        ahead = self._awaiting(Offered, Turn)
        ahead_bytes = sum(step.size_bytes for step in ahead)
        offered = Units()
        far = self._awaiting(TurnNear)
        while far and ahead_bytes < self.protocol.lead_bytes:
            step = self.protocol.choose(far)
            far.remove(step)
            ahead_bytes += step.size_bytes
            offered |= step.units
            self._advance(step, TurnNear(step.number))
        return [Offer(offered)] if offered else []

    def _parcel(self, ready: list[Step]) -> list[Step]:
        """The steps of the next parcel: a hand-over costs about as much for many units as for a few."""
        chosen = [self.protocol.choose(ready)]
        size_bytes = chosen[0].size_bytes
        left = [step for step in ready if step is not chosen[0]] if self.protocol.parcel_bytes else []
        while left:
            step = self.protocol.choose(left)
            if size_bytes + step.size_bytes > self.protocol.parcel_bytes:
                break
            chosen.append(step)
            left.remove(step)
            size_bytes += step.size_bytes
        return chosen

    def _joined(self, steps: list[Step]) -> Step:
        """One step in place of several."""
        if len(steps) == 1:
            return steps[0]
        joined = Step(1 + max(step.number for step in self.steps), Units(), phase=steps[0].phase)
        for step in steps:
            joined.units |= step.units
            joined.size_bytes += step.size_bytes
            joined.waiting_rows += step.waiting_rows
        joined.story = [("joined", joined.phase.name)]
        replaced = {id(step) for step in steps}
        self.steps = [*(step for step in self.steps if id(step) not in replaced), joined]
        self._step_of.update(dict.fromkeys(joined.units, joined))
        return joined

    def _count_waiting(self, event: Waiting) -> None:
        step = self._step_of.get(event.unit)
        if step is not None:
            step.waiting_rows += event.rows
            if step.waiting_since_s is None:
                step.waiting_since_s = event.at_s

    def _containing(self, units: Units) -> list[Step]:
        steps = {id(step): step for unit in units if (step := self._step_of.get(unit)) is not None}
        return list(steps.values())

    def _step(self, number: int) -> Step | None:
        """None for a step that an earlier generation of this origin began and that stayed at the origin."""
        return next((step for step in self.steps if step.number == number), None)

    def phase(self, number: int) -> Phase:
        step = self._step(number)
        return Phase.DROPPED if step is None else step.phase


def drawn(protocol: Protocol) -> list[tuple[str, str, str, str]]:
    """The table for people: phase, event, action, next phase."""
    rows: list[tuple[str, str, str, str]] = []
    for (phase, event), (after, action) in protocol.table.items():
        name = action.__name__.replace("_", " ")
        rows.append((phase.name, event.__name__, name, after.name))
    return rows
