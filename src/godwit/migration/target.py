"""The target's side of every migration: what it does with promises, arrivals and the origin's last word.

The same for all protocols. What comes of a step is taken only between its announcement, on the same connection, and its
preparation: a step that is prepared, served or kept by its origin takes no more state, whoever sends it and however late. A
step that is not released yet is a copy and nothing more: rows are held, and the copy is dropped when the origin says, or its
log says, that it has kept the step. The target never decides by itself, nor by a timeout: when the connection breaks it asks
the origin, or whoever follows the origin, until there is an answer (DESIGN 5).
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
    Stage,
)
from godwit.model.units import Units


class Phase(Enum):
    ABSENT = "nothing has come, or not all"
    MISSING = "released by the origin, not all here, asked for"
    WRITING = "all has come and is being made durable"
    RELEASED_WRITING = "released by the origin while it is being made durable"
    PREPARED = "durable; the origin decides"
    SERVING = "owned here"
    DROPPED = "stays with the origin"


OPEN = (Phase.ABSENT, Phase.MISSING)  # something of the step may still come


@dataclass(slots=True)
class Step:
    number: int
    units: Units = field(default_factory=Units)
    phase: Phase = Phase.ABSENT
    announced: bool = False  # on the connection there is


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
    (Phase.ABSENT, ReleaseHeard): (Phase.MISSING, answer_missing),
    (Phase.ABSENT, AbortHeard): (Phase.DROPPED, discard),
    (Phase.ABSENT, OriginLost): (Phase.ABSENT, discard),
    (Phase.MISSING, Arrived): (Phase.RELEASED_WRITING, persist),  # asked for once a connection: told again, it waits
    (Phase.MISSING, OriginLost): (Phase.ABSENT, discard),
    (Phase.WRITING, Durable): (Phase.PREPARED, answer_prepared),
    (Phase.WRITING, ReleaseHeard): (Phase.RELEASED_WRITING, nothing),
    (Phase.WRITING, AbortHeard): (Phase.DROPPED, discard),
    (Phase.WRITING, OriginLost): (Phase.WRITING, ask),
    (Phase.RELEASED_WRITING, Durable): (Phase.SERVING, serve),
    (Phase.PREPARED, Arrived): (Phase.PREPARED, answer_prepared),
    (Phase.PREPARED, ReleaseHeard): (Phase.SERVING, serve),
    (Phase.PREPARED, AbortHeard): (Phase.DROPPED, discard),
    (Phase.PREPARED, OriginLost): (Phase.PREPARED, ask),
    (Phase.SERVING, Arrived): (Phase.SERVING, serve),
    (Phase.SERVING, ReleaseHeard): (Phase.SERVING, serve),  # told again: confirm again
    (Phase.DROPPED, ReleaseHeard): (Phase.MISSING, answer_missing),
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
                return self._announced(self._step(number), units)
            case Arrived(number, _, fits):
                step = self._step(number)
                if step.phase in OPEN and not step.announced:
                    return []  # the end of something whose beginning came on another connection, or never
                if not fits and step.phase is Phase.ABSENT:
                    return [AnswerDeclined(number)]
                return self._advance(step, event)
            case AbortHeard(number, units):
                step = self._step(number)
                step.units = step.units or units
                return self._advance(step, event)
            case OriginLost():
                return self._origin_lost()
            case _:
                number = getattr(event, "step")  # noqa: B009 events without a step are above
                return self._advance(self._step(number), event)

    def takes(self, number: int) -> bool:
        """Whether state of this step is news."""
        step = self.steps.get(number)
        return step is not None and step.announced and step.phase in OPEN

    @property
    def settled(self) -> bool:
        return all(step.phase in (Phase.ABSENT, Phase.SERVING, Phase.DROPPED) for step in self.steps.values())

    def _step(self, number: int) -> Step:
        return self.steps.setdefault(number, Step(number))

    def _announced(self, step: Step, units: Units) -> list[Effect]:
        """Of a step that is served the origin has not heard so; any other that is not open has no use for state."""
        if step.phase not in OPEN:
            return serve(step) if step.phase is Phase.SERVING else []
        step.units, step.announced = units, True
        return [Stage(step.number, units)]

    def _origin_lost(self) -> list[Effect]:
        """The next connection announces anew what it brings."""
        effects = [effect for step in self.steps.values() for effect in self._advance(step, OriginLost())]
        left = self._unserved()
        self.promised = Units()
        for step in self.steps.values():
            if step.phase in OPEN:
                step.units, step.announced = Units(), False
        return [*effects, Discard(-1, left)] if left else effects

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
