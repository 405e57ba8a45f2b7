"""What the machines of a migration hear and what they ask for.

Events are in the past tense and name facts, failures of I/O too; effects are imperative and are carried out in order by
the host that runs the machine (`runtime.mover`, `runtime.receiver`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from godwit.model.units import Unit, Units

Forward = Literal["rows", "changes"]


class Event:
    """Something that has happened. Those with a `step` concern that step, the others all of them."""

    __slots__ = ()


# -- what an origin hears --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun(Event):
    """The migration was asked for, and the target answers."""


@dataclass(frozen=True, slots=True)
class Turn(Event):
    """A step may go: the machine tells it to itself, in the order of the plan."""

    step: int


@dataclass(frozen=True, slots=True)
class Nearly(Event):
    """A step is to be offered: the machine tells it to itself, so that rows are at the target before their state."""

    step: int


@dataclass(frozen=True, slots=True)
class Offered(Event):
    """The target expects the units: their rows may be sent to it."""

    units: Units


@dataclass(frozen=True, slots=True)
class Wanted(Event):
    """Rows of these units wait at the target."""

    units: Units


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """Rows of a lent unit were sent on to the target, where they wait for it."""

    unit: Unit
    rows: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Copied(Event):
    """All of the step's state has been sent once, while the origin went on working."""

    step: int


@dataclass(frozen=True, slots=True)
class CaughtUp(Event):
    """The target has replayed all but a little of what came after the copy."""

    step: int


@dataclass(frozen=True, slots=True)
class HandoverAsked(Event):
    """A standby is to take over now."""


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The target has all of the step, durable."""

    step: int


@dataclass(frozen=True, slots=True)
class Declined(Event):
    """The target is in a batch in which it cannot take the step over; the next batch brings both together."""

    step: int


@dataclass(frozen=True, slots=True)
class BatchBegan(Event):
    """The origin's instance has begun a batch."""


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The record that gives the step away is durable: the commit point."""

    step: int


@dataclass(frozen=True, slots=True)
class Missing(Event):
    """The target does not have the whole of a step that was released."""

    step: int


@dataclass(frozen=True, slots=True)
class Served(Event):
    """The target serves the step, and will after any restart."""

    step: int


@dataclass(frozen=True, slots=True)
class TargetGone(Event):
    """The target is lost for good, and others have what it owned. It had never owned the step, and nobody will."""

    step: int


@dataclass(frozen=True, slots=True)
class PeerLost(Event):
    """The connection to the target broke; the target may be gone, or not."""


@dataclass(frozen=True, slots=True)
class PeerBack(Event):
    """There is a connection to the target again, perhaps to a later generation of it."""


@dataclass(frozen=True, slots=True)
class AbortAsked(Event):
    """Somebody wants what has not been released yet to stay."""

    reason: str = ""


# -- what an origin asks for -----------------------------------------------------------------------------------------


class Effect:
    """Something to be done, in the order given."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Offer(Effect):
    """Tell the target to expect the units, and to hold their rows."""

    units: Units


@dataclass(frozen=True, slots=True)
class Lend(Effect):
    """From now on send rows of the units on to the target, though their state is still here."""

    units: Units


@dataclass(frozen=True, slots=True)
class Copy(Effect):
    """Send the state of the units, slice by slice between rows; forward what changes in what was sent already."""

    step: int
    units: Units
    forward: Forward


@dataclass(frozen=True, slots=True)
class Cut(Effect):
    """Apply no more rows of the units: hold them."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Ship(Effect):
    """Send what of the units the target does not have yet: state or the last changes, and the ledger."""

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
    """Go on applying rows of the units here, held ones first."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class TakeBack(Effect):
    """The step was released, and its target is gone without ever having owned it: own it again, durably."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Forget(Effect):
    """The target has confirmed: drop the state of the units."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class End(Effect):
    """All steps have come to an end: `done` of them at the target, `dropped` of them still here."""

    done: int
    dropped: int
    reason: str


# -- what a target hears, and asks for -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promised(Event):
    """The origin offers units ahead of their state."""

    units: Units


@dataclass(frozen=True, slots=True)
class Announced(Event):
    """State of a step is about to come."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Arrived(Event):
    """Everything of a step is here; `fits` says whether this instance is in a batch in which it can take it.

    A step that was released already always fits: nobody else can take it.
    """

    step: int
    units: Units
    fits: bool


@dataclass(frozen=True, slots=True)
class Durable(Event):
    """What arrived of a step is durable here."""

    step: int


@dataclass(frozen=True, slots=True)
class ReleaseHeard(Event):
    """The origin says, or its log says, that it has released the step."""

    step: int


@dataclass(frozen=True, slots=True)
class AbortHeard(Event):
    """The origin says, or its log says, that it keeps the step."""

    step: int
    units: Units = field(default_factory=Units)  # where the origin says it: they may be offered and not announced


@dataclass(frozen=True, slots=True)
class OriginLost(Event):
    """The connection from the origin broke."""


@dataclass(frozen=True, slots=True)
class Expect(Effect):
    """Hold rows of these units; ask for those that rows wait for."""

    units: Units


@dataclass(frozen=True, slots=True)
class AnswerOffered(Effect):
    units: Units


@dataclass(frozen=True, slots=True)
class Stage(Effect):
    """Write down that copies of the units may lie here from now on; what comes of the step is taken."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Persist(Effect):
    """Write down that the step is prepared, and make it durable together with its state."""

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
    """Own the units from now on, held rows first; then tell the origin."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class Discard(Effect):
    """Drop what has come of the units: they stay with the origin."""

    step: int
    units: Units


@dataclass(frozen=True, slots=True)
class AskOutcome(Effect):
    """Ask the origin, or whoever follows it, whether its log has released the step; ask until there is an answer."""

    step: int
