"""The target's side of every migration: what follows from offers, arrived state and the origin's decision.

The target's side is the same for all protocols. The target accepts state of a step only from its announcement on, on the same
connection, until the step is prepared. A step that is prepared, served, or dropped accepts no more state, however late the
state arrives. A step that is not released is only a copy: its rows wait, and the target drops the copy when the origin, or its
log, says that the step stays at the origin. The target decides nothing by itself or by a timeout: when the connection breaks,
it asks the origin, the origin's successor or its heirs until there is an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from godwit.migration.events import (
    AbortReported,
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
    OriginDisconnected,
    Persist,
    Promised,
    ReleaseReported,
    Serve,
    Stage,
    impossible,
)
from godwit.model.units import Units

STORY_EVENTS_MAX = 50  # of a step that is kept for days, on many connections


class TargetPhase(Enum):
    ABSENT = "state of the step is missing, all or in part"
    MISSING = "released by the origin; the target has requested the missing state"
    WRITING = "the whole step has arrived and is being made durable"
    RELEASED_WRITING = "released by the origin while the target makes the step durable"
    PREPARED = "durable; the origin decides"
    SERVING = "owned by the target"
    DROPPED = "stays with the origin"


OPEN = (TargetPhase.ABSENT, TargetPhase.MISSING)  # state of the step may still arrive


@dataclass(slots=True)
class TargetStep:
    number: int
    units: Units = field(default_factory=Units)
    phase: TargetPhase = TargetPhase.ABSENT
    announced: bool = False  # on the current connection
    story: list[tuple[str, str]] = field(default_factory=list)  # (event, phase it led to)


Action = Callable[[TargetStep], list[Effect]]


def nothing(step: TargetStep) -> list[Effect]:
    del step
    return []


def persist(step: TargetStep) -> list[Effect]:
    return [Persist(step.number, step.units)]


def answer_prepared(step: TargetStep) -> list[Effect]:
    return [AnswerPrepared(step.number)]


def answer_missing(step: TargetStep) -> list[Effect]:
    return [AnswerMissing(step.number)]


def serve(step: TargetStep) -> list[Effect]:
    return [Serve(step.number, step.units)]


def discard(step: TargetStep) -> list[Effect]:
    return [Discard(step.number, step.units)]


def ask(step: TargetStep) -> list[Effect]:
    return [AskOutcome(step.number)]


TABLE: Mapping[tuple[TargetPhase, type[Event]], tuple[TargetPhase, Action]] = {
    (TargetPhase.ABSENT, Arrived): (TargetPhase.WRITING, persist),
    (TargetPhase.ABSENT, ReleaseReported): (TargetPhase.MISSING, answer_missing),
    (TargetPhase.ABSENT, AbortReported): (TargetPhase.DROPPED, discard),
    (TargetPhase.ABSENT, OriginDisconnected): (TargetPhase.ABSENT, discard),
    # MISSING has no line for ReleaseReported: missing state is requested once per connection.
    (TargetPhase.MISSING, Arrived): (TargetPhase.RELEASED_WRITING, persist),
    (TargetPhase.MISSING, OriginDisconnected): (TargetPhase.ABSENT, discard),
    (TargetPhase.WRITING, Durable): (TargetPhase.PREPARED, answer_prepared),
    (TargetPhase.WRITING, ReleaseReported): (TargetPhase.RELEASED_WRITING, nothing),
    (TargetPhase.WRITING, AbortReported): (TargetPhase.DROPPED, discard),
    (TargetPhase.WRITING, OriginDisconnected): (TargetPhase.WRITING, ask),
    (TargetPhase.RELEASED_WRITING, Durable): (TargetPhase.SERVING, serve),
    (TargetPhase.PREPARED, Arrived): (TargetPhase.PREPARED, answer_prepared),
    (TargetPhase.PREPARED, ReleaseReported): (TargetPhase.SERVING, serve),
    (TargetPhase.PREPARED, AbortReported): (TargetPhase.DROPPED, discard),
    (TargetPhase.PREPARED, OriginDisconnected): (TargetPhase.PREPARED, ask),
    (TargetPhase.SERVING, Arrived): (TargetPhase.SERVING, serve),
    (TargetPhase.SERVING, ReleaseReported): (TargetPhase.SERVING, serve),  # the release is told again: confirm again
    (TargetPhase.DROPPED, ReleaseReported): (TargetPhase.MISSING, answer_missing),
}


class Target:
    """One migration at its target. After a restart only prepared steps remain, from `Ownership.incoming`."""

    def __init__(self, prepared: Mapping[int, Units] | None = None) -> None:
        self.steps = {n: TargetStep(n, units, TargetPhase.PREPARED) for n, units in (prepared or {}).items()}
        self.promised = Units()

    def on(self, event: Event) -> list[Effect]:
        match event:
            case Promised(units):
                self.promised |= units
                return [Expect(units), AnswerOffered(units)]
            case Announced(number, units):
                return self._announced(self._step(number), units)
            case Arrived(number, _, fits):
                step = self._step(number)
                if step.phase in OPEN and not step.announced:
                    return []  # the step was announced on another connection, or never
                if not fits and step.phase is TargetPhase.ABSENT:
                    return [AnswerDeclined(number)]
                return self._advance(step, event)
            case AbortReported(number, units):
                step = self._step(number)
                step.units = step.units or units
                return self._advance(step, event)
            case OriginDisconnected():
                return self._origin_disconnected()
            case _:
                number = getattr(event, "step")  # noqa: B009 events without a step are above
                return self._advance(self._step(number), event)

    def takes(self, number: int) -> bool:
        """Whether the target accepts state of this step."""
        step = self.steps.get(number)
        return step is not None and step.announced and step.phase in OPEN

    def refuse(self, number: int) -> None:
        """Accept no state of the step: the announcement was wrong."""
        self._step(number).announced = False

    @property
    def settled(self) -> bool:
        return all(
            step.phase in (TargetPhase.ABSENT, TargetPhase.SERVING, TargetPhase.DROPPED) for step in self.steps.values()
        )

    def _step(self, number: int) -> TargetStep:
        return self.steps.setdefault(number, TargetStep(number))

    def _announced(self, step: TargetStep, units: Units) -> list[Effect]:
        """A step that is not open accepts no state; if it is served, the origin does not know that yet and is told again."""
        if step.phase not in OPEN:
            return serve(step) if step.phase is TargetPhase.SERVING else []
        step.units, step.announced = units, True
        return [Stage(step.number, units)]

    def _origin_disconnected(self) -> list[Effect]:
        """The next connection announces again every step that it brings."""
        effects = [effect for step in self.steps.values() for effect in self._advance(step, OriginDisconnected())]
        left = self._unserved()
        self.promised = Units()
        for step in self.steps.values():
            if step.phase in OPEN:
                step.units, step.announced = Units(), False
        return [*effects, Discard(-1, left)] if left else effects

    def _unserved(self) -> Units:
        """Units that were offered and are in no step yet: the connection that would have brought them is gone.

        Units of a dropped step are not among them: they were discarded already, and another migration may bring them by now.
        """
        left = self.promised
        for step in self.steps.values():
            left -= step.units
        return left

    def _advance(self, step: TargetStep, event: Event) -> list[Effect]:
        """An event without a line in the table comes late or again (design/015), and changes nothing.

        But that a step is durable is this host's own word, given while it writes the step: at no other time can it happen.
        """
        transition = TABLE.get((step.phase, type(event)))
        if transition is None:
            if isinstance(event, Durable):
                raise impossible(event, step.number, step.phase.name, step.story)
            return []
        step.phase, action = transition
        step.story = [*step.story[-STORY_EVENTS_MAX:], (type(event).__name__, step.phase.name)]
        return action(step)
