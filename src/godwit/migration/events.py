"""The events and the effects of a migration's state machines.

Events are in the past tense and name facts, including failures of I/O. Effects are imperative; the host that runs the machine
carries them out in order (`runtime.handover.mover`, `runtime.handover.receiver`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from godwit.errors import InvariantBroken
from godwit.model.units import Unit, Units

Forward = Literal["rows", "changes"]


class Event:
    """Something that has happened. An event with a `step` concerns that step, any other event all steps."""

    __slots__ = ()


# -- events of an origin ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun(Event):
    """The migration was requested, and the target answers."""


@dataclass(frozen=True, slots=True)
class Turn(Event):
    """The turn of a step has come, in the order of the plan. The machine makes this event."""

    step: int


@dataclass(frozen=True, slots=True)
class TurnNear(Event):
    """A step comes soon: it is offered, so that rows reach the target before their state. The machine makes this event."""

    step: int


@dataclass(frozen=True, slots=True)
class Offered(Event):
    """The target expects the units: routers may send their rows to the target."""

    units: Units


@dataclass(frozen=True, slots=True)
class UnitsRequested(Event):
    """The target requests these units, because rows of them wait there."""

    units: Units


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """The origin has refused rows of a lent unit; the rows go to the target and wait there for the unit."""

    unit: Unit
    rows: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Copied(Event):
    """All state of the step has been sent once, while the origin went on applying rows."""

    step: int


@dataclass(frozen=True, slots=True)
class CaughtUp(Event):
    """The target has replayed nearly all rows or changes that came after the copy."""

    step: int


@dataclass(frozen=True, slots=True)
class HandoverRequested(Event):
    """A standby must take over now."""


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The target has the whole step, durably."""

    step: int


@dataclass(frozen=True, slots=True)
class Declined(Event):
    """The target is in a batch in which it cannot take over the step; origin and target will meet in the next batch."""

    step: int


@dataclass(frozen=True, slots=True)
class BatchBegan(Event):
    """The origin's instance has begun a batch."""


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The record `released` of the step is durable: the commit point."""

    step: int


@dataclass(frozen=True, slots=True)
class Missing(Event):
    """The target does not have all of a step that was released."""

    step: int


@dataclass(frozen=True, slots=True)
class Served(Event):
    """The target serves the step, and will serve it after any restart."""

    step: int


@dataclass(frozen=True, slots=True)
class TargetLost(Event):
    """The target is lost for good, and other hosts have its units. It never owned the step, and no heir of it will."""

    step: int


@dataclass(frozen=True, slots=True)
class TargetDisconnected(Event):
    """The connection to the target broke; the target itself may still be alive."""


@dataclass(frozen=True, slots=True)
class TargetReconnected(Event):
    """There is a connection to the target again, perhaps to a later generation of the target."""


@dataclass(frozen=True, slots=True)
class AbortRequested(Event):
    """An abort was requested: steps that are not released yet must stay at the origin."""

    reason: str = ""


# -- effects of an origin --------------------------------------------------------------------------------------------


class Effect:
    """Something that the host must do, in the order given."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Offer(Effect):
    """Tell the target to expect the units and to let their rows wait."""

    units: Units


@dataclass(frozen=True, slots=True)
class Lend(Effect):
    """From now on refuse rows of the units with the target as hint, although their state is still at the origin."""

    units: Units


@dataclass(frozen=True, slots=True)
class Copy(Effect):
    """Send the state of the units, slice by slice between rows; forward later rows or changes of keys already sent."""

    step: int
    units: Units
    forward: Forward


@dataclass(frozen=True, slots=True)
class Cut(Effect):
    """Apply no more rows of the units: let them wait."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Ship(Effect):
    """Send all that the target does not have yet of the units: state or the last changes, and the ledger."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Release(Effect):
    """Write `released` and make it durable."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class TellReleased(Effect):
    step: int


@dataclass(frozen=True, slots=True)
class TellAborted(Effect):
    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Resume(Effect):
    """Go on applying rows of the units at the origin, waiting rows first."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class TakeBack(Effect):
    """Own a released step again, durably: its target is lost for good and never owned it."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Forget(Effect):
    """The target has confirmed: drop the state of the units."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class End(Effect):
    """All steps have ended: `done` of them at the target, `dropped` of them still at the origin."""

    done: int
    dropped: int
    reason: str


# -- events and effects of a target ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promised(Event):
    """The origin offers units ahead of their state."""

    units: Units


@dataclass(frozen=True, slots=True)
class Announced(Event):
    """State of a step will arrive next."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Arrived(Event):
    """A step has arrived completely; `fits` says whether the target is in a batch in which it can take over the step.

    A step that was released already always fits, because only this target can own it.
    """

    step: int
    units: Units
    fits: bool


@dataclass(frozen=True, slots=True)
class Durable(Event):
    """The step that has arrived is durable at the target."""

    step: int


@dataclass(frozen=True, slots=True)
class ReleaseReported(Event):
    """The origin, or its log, says that the step is released."""

    step: int


@dataclass(frozen=True, slots=True)
class AbortReported(Event):
    """The origin, or its log, says that the step stays at the origin."""

    step: int
    units: Units = field(default_factory=Units)  # from the origin: the units may be offered and not announced


@dataclass(frozen=True, slots=True)
class OriginDisconnected(Event):
    """The connection from the origin broke."""


@dataclass(frozen=True, slots=True)
class Expect(Effect):
    """Let rows of these units wait; ask the origin for units that rows wait for."""

    units: Units


@dataclass(frozen=True, slots=True)
class AnswerOffered(Effect):
    units: Units


@dataclass(frozen=True, slots=True)
class Stage(Effect):
    """Record that copies of the units may be at this target from now on; accept state of the step."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Persist(Effect):
    """Record that the step is prepared, and make the record durable together with the step's state."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class AnswerPrepared(Effect):
    step: int


@dataclass(frozen=True, slots=True)
class AnswerDeclined(Effect):
    step: int


@dataclass(frozen=True, slots=True)
class AnswerMissing(Effect):
    step: int


@dataclass(frozen=True, slots=True)
class Serve(Effect):
    """Own the units from now on and apply waiting rows first; then tell the origin."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Discard(Effect):
    """Drop the state that has arrived of the units: they stay with the origin."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class AskOutcome(Effect):
    """Ask the origin, its successor or its heirs whether the origin's log has released the step, until there is an answer."""

    step: int


# -- events that cannot happen ---------------------------------------------------------------------------------------


def impossible(event: Event, step: int, phase: str, story: Sequence[tuple[str, str]]) -> InvariantBroken:
    """An event that cannot happen in this phase, with the story of the step: its events, and the phases they led to."""
    earlier = ", ".join(f"{name} to {after}" for name, after in story) or "nothing"
    return InvariantBroken(f"{type(event).__name__} cannot happen to step {step} in phase {phase}; before: {earlier}")
