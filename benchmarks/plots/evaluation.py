"""What was measured, out of lines of JSON: which of them count, and medians with spread over repeated runs.

Of each series (experiment, workload, trigger, what is swept; ours and others apart) the newest run counts and older ones are
left out, so that no figure mixes two commits. A line written twice in a run, as after a resume, counts once, the later one.
Pure; it must not know how anything is shown.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.campaign.aims import EXACTNESS
from benchmarks.running.measures import spread
from benchmarks.running.triggers import MICRO_BATCH

BENCHMARK: Final = "evaluation"
NOT_BACK: Final = math.inf  # time to stabilise of a run whose latency was not back at its end

WAYS: Final = (  # the order in which they are shown, everywhere
    ("godwit", "live"),
    ("godwit", "live-unordered"),
    ("godwit", "standby"),
    ("godwit", "push"),
    ("godwit", "fetch"),
    ("godwit", "pause"),
    ("godwit", "restart"),
    ("flink", "adaptive"),
    ("flink", "savepoint"),
    ("spark", "sql"),
    ("spark", "pandas"),
    ("godwit", "storage"),
    ("godwit", "parallel"),
    ("godwit", "native"),
    ("godwit", "at-rest"),
    ("godwit", "no-support"),
    ("godwit", "backup"),
    ("spark", "copy"),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over runs. A single run has no spread: all three are the same."""

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        whole = spread(list(values))
        if whole is None:
            return None
        return cls(whole["median"], whole["min"], whole["max"], int(whole["runs"]))


@dataclass(frozen=True, slots=True)
class Way:
    """By which system something was done, and how."""

    system: str
    name: str

    @property
    def rank(self) -> tuple[int, str, str]:
        pair = (self.system, self.name)
        return (WAYS.index(pair) if pair in WAYS else len(WAYS), *pair)

    @property
    def label(self) -> str:
        return self.name if self.system == "godwit" else f"{self.system.capitalize()} {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One line of results."""

    line: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self.line.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        return _number(self.line.get(name))

    def figure(self, name: str) -> float | None:
        """None where the system has no such figure, and for stall where no row was recorded as waiting: that is no proof."""
        value = self.number(name)
        if name.startswith("stall_") and self.line.get("stall_rows") == 0:
            return None
        if name == "stabilise_s" and value is None and self.number("disruption_ms"):
            return NOT_BACK
        return value

    @property
    def way(self) -> Way:
        return Way(self.text("system") or "godwit", self.text("way"))

    @property
    def trigger(self) -> str:
        """Spark's; of another system, that of our runs beside which it stands.

        Older results of other systems name none: they made their rows themselves, as our runs with micro-batches do.
        """
        return self.text("trigger") or ("" if self.ours else MICRO_BATCH)

    @property
    def ours(self) -> bool:
        return self.way.system == "godwit"

    @property
    def at(self) -> float | None:
        return self.number("at")

    @property
    def wrong(self) -> dict[str, int] | None:
        """What was lost, duplicated, out of order or wrong; None if that was not checked."""
        counts = {name: self.number(name) for name in EXACTNESS}
        if all(count is None for count in counts.values()):
            return None
        return {name: int(count) for name, count in counts.items() if count}

    @property
    def fault(self) -> str:
        """Why its figures are not to be trusted, in words; empty if they are."""
        counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in (self.wrong or {}).items()]
        outcome = self.text("outcome")
        return ", ".join([*counts, *([f"ended as {outcome}"] if outcome not in ("", "done") else [])])

    @property
    def sustained(self) -> bool:
        """Whether the system carried the load at all."""
        return self.line.get("sustained") is not False

    def numbers(self, name: str) -> dict[str, float]:
        """A figure that is itself a table of numbers by name."""
        value = self.line.get(name)
        pairs = value.items() if isinstance(value, Mapping) else ()
        return {str(part): number for part, value in pairs if (number := _number(value)) is not None}

    def spans(self, gap_s: float = 0.0) -> list[tuple[str, float, float]]:
        """Phases with their first and last second after the request; those of one name that overlap, or nearly, are one."""
        merged: list[tuple[str, float, float]] = []
        for name, first, last in sorted(self._phases()):
            if merged and merged[-1][0] == name and first <= merged[-1][2] + gap_s:
                merged[-1] = (name, merged[-1][1], max(last, merged[-1][2]))
            else:
                merged.append((name, first, last))
        return sorted(merged, key=lambda span: (span[1], span[2], span[0]))

    def _phases(self) -> Iterator[tuple[str, float, float]]:
        for name, *given in self.line.get("spans") or ():
            times = [time for value in given if (time := _number(value)) is not None]
            if len(times) == 2:  # one that never ended has no length
                yield str(name), times[0], times[1]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """What belongs in one picture: the same experiment, workload, trigger and, if one is swept, parameter."""

    experiment: str
    workload: str
    trigger: str
    swept: str
    runs: Sequence[Run]

    @property
    def ways(self) -> list[Way]:
        return sorted({run.way for run in self.runs}, key=lambda way: way.rank)

    @property
    def points(self) -> list[float]:
        return sorted({run.at for run in self.runs if run.at is not None})

    @property
    def places(self) -> list[float | None]:
        """The points, or the one place there is when nothing is swept."""
        return [*self.points] or [None]

    def of(self, way: Way, at: float | None = None) -> list[Run]:
        return [run for run in self.runs if run.way == way and (at is None or run.at == at)]

    def only(self, runs: Iterable[Run]) -> Panel:
        return Panel(self.experiment, self.workload, self.trigger, self.swept, list(runs))


def over(runs: Iterable[Run], figure: str) -> Spread | None:
    return Spread.of(run.figure(figure) for run in runs)


def median_run(runs: Sequence[Run], figure: str) -> Run | None:
    """The run in the middle by a figure, the lower of two; runs without it come first."""
    ordered = sorted(runs, key=lambda run: (run.figure(figure) or 0.0, run.number("repeat") or 0.0))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    runs: Sequence[Run]
    left_out: Sequence[Run]

    def panels(self, experiment: str) -> list[Panel]:
        """Those with nothing swept first."""
        groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
        for run in self.runs:
            if run.text("experiment") == experiment:
                groups[run.text("swept"), run.text("workload"), run.trigger].append(run)
        return [
            Panel(experiment, workload, trigger, swept, groups[swept, workload, trigger])
            for swept, workload, trigger in sorted(groups)
        ]

    def values_of(self, name: str) -> list[str]:
        """All values of a text, once each."""
        return sorted({run.text(name) for run in self.runs if run.text(name)})


def read(lines: Iterable[str]) -> Evaluation:
    runs = list(_parsed(lines))
    newest: dict[tuple[str, ...], str] = {}
    for run in runs:
        newest[_series(run)] = max(newest.get(_series(run), ""), run.text("run"))
    current = [run for run in runs if run.text("run") == newest[_series(run)]]
    once = {_identity(run): run for run in current}
    latest = sorted(once.values(), key=_place)
    return Evaluation(latest, [run for run in runs if run.text("run") != newest[_series(run)]])


def _parsed(lines: Iterable[str]) -> Iterator[Run]:
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"line {number} of the results is not JSON: {error}") from error
        if not isinstance(line, dict) or line.get("benchmark") != BENCHMARK:
            raise ValueError(f'line {number} of the results is not one of "benchmark": "{BENCHMARK}"')
        yield Run(line)


def _series(run: Run) -> tuple[str, ...]:
    """Ours and others apart: either can be measured again without the other."""
    place = (run.text("experiment"), run.text("workload"), run.trigger, run.text("swept"))
    return (*place, "" if run.ours else "others")


def _identity(run: Run) -> tuple[str, ...]:
    return (*_series(run), *(run.text(name) for name in ("case", "system", "way", "order", "at", "repeat")))


def _place(run: Run) -> tuple[object, ...]:
    at = -math.inf if run.at is None else run.at
    return (_series(run), run.way.rank, run.text("order"), at, run.number("repeat") or 0.0, run.text("case"))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
