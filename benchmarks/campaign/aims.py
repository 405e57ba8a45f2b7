"""What the figures should come to, and whether they do: medians over the runs of one series on one machine.

Pure. An aim is left open, not met, if the series has no figures for it. An aim about stall is also open if no row was recorded
as waiting: hosts record rows that wait with their chunk, not a batch that waits at its opening, so no record proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from benchmarks.running.measures import spread

EXACTNESS: Final = ("lost", "duplicated", "out_of_order", "wrong_state")
BY_JITTER: Final = ("live", "push", "fetch", "pause", "restart")
JITTER: Final = "peak_jitter_p99_ms"
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Aim:
    text: str
    measured: str
    met: bool | None  # None: the series has no figures for it


def sound(line: Line) -> bool:
    """Whether all that should move has moved, and nothing was lost, done twice, put out of order or left wrong."""
    return line["outcome"] == "done" and all(line[name] == 0 for name in EXACTNESS)


def aims(lines: Sequence[Line]) -> list[Aim]:
    medians = Medians(lines)
    wrong = sum(line[name] for line in lines for name in EXACTNESS)
    all_aims = [Aim("exact: nothing lost, duplicated, out of order or wrong", f"{wrong} wrong", wrong == 0)]
    for protocol, figure, limit, unit in (
        ("live", "stall_p99_ms", 5.0, "ms"),
        ("live", "stall_max_ms", 15.0, "ms"),
        ("live", "disruption_ms", 0.0, "ms"),
        ("push", "stall_p99_ms", 15.0, "ms"),
    ):
        value = medians.get(protocol, figure)
        name = figure.removesuffix("_ms").replace("_", " ")
        met = None if value is None else value <= limit
        all_aims.append(Aim(f"{protocol}: {name} at most {limit:g} {unit}", _shown(value, unit), met))
    return [*all_aims, *_compared(medians)]


def _compared(medians: Medians) -> Iterator[Aim]:
    push, pause = medians.get("push", "stabilise_s"), medians.get("pause", "stabilise_s")
    less = None if push is None or not pause else 1 - push / pause
    measured = "not measured" if less is None else f"{less:.0%} ({push:.2f} against {pause:.2f} s)"
    yield Aim("push: at least 45 % less time to stabilise than pause", measured, None if less is None else less >= 0.45)
    jitters = [medians.get(protocol, JITTER) for protocol in BY_JITTER]
    known = [value for value in jitters if value is not None]
    rising = all(low < high for low, high in pairwise(known))
    measured = ", ".join(f"{name} {_shown(value, 'ms')}" for name, value in zip(BY_JITTER, jitters, strict=True))
    yield Aim(f"peak jitter: {' < '.join(BY_JITTER)}", measured, rising if len(known) == len(jitters) else None)
    live, restart = jitters[0], jitters[-1]
    times = None if live is None or restart is None else restart / max(live, 0.1)
    measured = "not measured" if times is None else f"{times:.0f} times"
    yield Aim("peak jitter of live: 100 times below restart", measured, None if times is None else times >= 100)


class Medians:
    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def get(self, protocol: str, figure: str) -> float | None:
        lines = [line for line in self._lines if line["protocol"] == protocol]
        if figure.startswith("stall_"):
            lines = [line for line in lines if line["stall_rows"]]
        over_runs = spread([line[figure] for line in lines])
        return None if over_runs is None else over_runs["median"]


def _shown(value: float | None, unit: str) -> str:
    return "not measured" if value is None else f"{value:.1f} {unit}"
