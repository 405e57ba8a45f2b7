"""The time of a migration, phase by phase, from its report. Pure; decides only how a stretch of time is named.

A request has phases of its own (waiting in the queue, stopping queries). While keys move, the origin of each move notes every
step that it has finished, and the time since the note before belongs to this step. Steps of a move may overlap: then a stretch
is named after the step that finishes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

MOVING: Final = "moving"
DOING: Final[Mapping[str, str]] = {
    "indexed": "finding the keys",
    "copied": "copying",
    "released": "handing over",
    "served": "taking over",
    "ended": "tidying up",
}
Span = list[Any]  # name, first and last second after the request


def spans_of(report: Mapping[str, Any]) -> list[Span]:
    """In place of the phase in which keys move, what was done in it, if the origins have told."""
    phases = report["phases"]
    own = [[name, round(begin, 3), round(end, 3)] for (name, begin), (_, end) in pairwise(phases)]
    moving = next((span for span in own if span[0] == MOVING), None)
    if moving is None:
        return own
    done = [span for move in report["moves"] for span in _within(moving, move["phases"])]
    return [span for span in own if span is not moving or not done] + done


def _within(moving: Span, notes: Sequence[Sequence[Any]]) -> Iterator[Span]:
    """Notes count milliseconds from when the move began. Copies that stood before the request began long before it."""
    _, begin_s, end_s = moving
    began_s = min(begin_s, end_s - notes[-1][1] / 1000) if notes else begin_s
    last: Span | None = None
    at_s = begin_s
    for note, at_ms in notes:
        since_s, at_s = at_s, max(begin_s, began_s + at_ms / 1000)
        name = DOING.get(note, note)
        if at_s == since_s:  # done before the request, or in no time
            continue
        if last is not None and last[0] == name:
            last[2] = round(at_s, 3)
            continue
        if last is not None:
            yield last
        last = [name, round(since_s, 3), round(at_s, 3)]
    if last is not None:
        yield last
