"""The target's side of every migration: what it does with promises, arrivals and the origin's last word.

The same for all protocols. A step that is not released yet is a copy and nothing more: rows are held, and the copy is dropped
when the origin says, or its log says, that it has kept the step. The target never decides by itself, nor by a timeout: when
the connection breaks it asks the origin, or whoever follows the origin, until there is an answer (DESIGN 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

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
from godwit.model.units import Units


class Phase(Enum):
    ABSENT = "nothing has come, or not all"
    WRITING = "all has come and is being made durable"
    RELEASED_WRITING = "released by the origin while it is being made durable"
    PREPARED = "durable; the origin decides"
    SERVING = "owned here"
    DROPPED = "stays with the origin"


@dataclass(slots=True)
class Step:
    number: int
    units: Units = field(default_factory=Units)
    phase: Phase = Phase.ABSENT


Action = Callable[[Step], list[Effect]]


def nothing(step: Step) -> list[Effect]:
    del step
    return []


def persist(step: Step) -> list[Effect]:
    return [Persist(step.number, step.units)]


def answer_prepared(step: Step) -> list[Effect]:
    return [AnswerPrepared(step.number)]


def answer_missing(step: Step) -> list[Effect]:
    return [AnswerMissing(step.number)]


def serve(step: Step) -> list[Effect]:
    return [Serve(step.number, step.units)]


def discard(step: Step) -> list[Effect]:
    return [Discard(step.number, step.units)]


def ask(step: Step) -> list[Effect]:
    return [AskOutcome(step.number)]


TABLE: Mapping[tuple[Phase, type[Event]], tuple[Phase, Action]] = {
    (Phase.ABSENT, Arrived): (Phase.WRITING, persist),
    (Phase.ABSENT, ReleaseHeard): (Phase.ABSENT, answer_missing),
    (Phase.ABSENT, AbortHeard): (Phase.DROPPED, discard),
    (Phase.ABSENT, OriginLost): (Phase.DROPPED, discard),
    (Phase.WRITING, Durable): (Phase.PREPARED, answer_prepared),
    (Phase.WRITING, ReleaseHeard): (Phase.RELEASED_WRITING, nothing),
    (Phase.WRITING, AbortHeard): (Phase.DROPPED, discard),
    (Phase.WRITING, OriginLost): (Phase.WRITING, ask),
    (Phase.RELEASED_WRITING, Durable): (Phase.SERVING, serve),
    (Phase.PREPARED, Arrived): (Phase.PREPARED, answer_prepared),
    (Phase.PREPARED, ReleaseHeard): (Phase.SERVING, serve),
    (Phase.PREPARED, AbortHeard): (Phase.DROPPED, discard),
    (Phase.PREPARED, OriginLost): (Phase.PREPARED, ask),
    (Phase.SERVING, Arrived): (Phase.SERVING, answer_prepared),
    (Phase.SERVING, ReleaseHeard): (Phase.SERVING, serve),  # told again: confirm again
    (Phase.DROPPED, Arrived): (Phase.WRITING, persist),  # declined before, or dropped with a lost connection: sent anew
    (Phase.DROPPED, ReleaseHeard): (Phase.DROPPED, answer_missing),
}


class Target:
    """One migration at its target. Nothing here outlives a restart but what `Ownership.incoming` has of it."""

    def __init__(self, prepared: Mapping[int, Units] | None = None) -> None:
        self.steps = {n: Step(n, units, Phase.PREPARED) for n, units in (prepared or {}).items()}
        self.promised = Units()

    def on(self, event: Event) -> list[Effect]:
        match event:
            case Promised(units):
                self.promised |= units
                return [Expect(units), AnswerOffered(units)]
            case Announced(number, units):
                self.steps.setdefault(number, Step(number)).units = units
                return []
            case Arrived(number, units, fits):
                step = self.steps.setdefault(number, Step(number))
                step.units = units
                if not fits and step.phase in (Phase.ABSENT, Phase.DROPPED):
                    step.phase = Phase.ABSENT
                    return [AnswerDeclined(number)]
                return self._advance(step, event)
            case OriginLost():
                effects = [effect for step in self.steps.values() for effect in self._advance(step, event)]
                left = self._unserved()
                self.promised = Units()
                return [*effects, Discard(-1, left)] if left else effects
            case _:
                number = getattr(event, "step")  # noqa: B009 events without a step are above
                return self._advance(self.steps.setdefault(number, Step(number)), event)

    @property
    def settled(self) -> bool:
        return all(step.phase in (Phase.ABSENT, Phase.SERVING, Phase.DROPPED) for step in self.steps.values())

    def _unserved(self) -> Units:
        """What was promised and is in no step yet: with the connection gone, nobody brings it.

        A step that was dropped has been discarded; by now another migration may be bringing its units.
        """
        left = self.promised
        for step in self.steps.values():
            left -= step.units
        return left

    def _advance(self, step: Step, event: Event) -> list[Effect]:
        found = TABLE.get((step.phase, type(event)))
        if found is None:
            return []
        step.phase, action = found
        return action(step)
