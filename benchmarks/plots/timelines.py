"""Latency around a migration: one small picture a way, all of a panel with the same axes, the migration's phases shaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.plots import svg
from benchmarks.plots.charts import LEFT, RIGHT, WRONG, Look, span_title
from benchmarks.plots.evaluation import Run
from benchmarks.plots.svg import Scale


@dataclass(frozen=True, slots=True)
class Window:
    """The part of time and latency that all timelines of a panel show, so that they compare."""

    from_s: float
    to_s: float
    latencies_ms: tuple[float, float]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Window:
        """From 2 s before the request until a little after the slowest has settled, at least 3 s."""
        ends = [end for run in runs for end in _ends(run)]
        to_s = max(3.0, 1.15 * max(ends, default=0.0))
        last_s = max(points[-1][0] for run in runs if (points := _points(run, "p99_ms")))
        seen = [value for run in runs for name in ("p50_ms", "p99_ms") for _, value in _points(run, name) if value]
        return cls(-2.0, max(min(to_s, last_s), 1.0), (min(seen, default=1.0), max(seen, default=10.0)))


def _ends(run: Run) -> Iterator[float]:
    values = [run.figure(name) for name in ("stabilise_s", "reconfiguration_s", "recovery_s")]
    yield from (value for value in values if value is not None and math.isfinite(value))
    yield from (last for _, _, last in run.spans())


def _points(run: Run, name: str) -> list[tuple[float, float | None]]:
    entry = run.line.get("timeline") or {}
    first, step = float(entry.get("from_s", 0.0)), float(entry.get("step_ms", 100)) / 1000
    return [(first + index * step, value) for index, value in enumerate(entry.get(name) or ())]


def timeline(run: Run, look: Look, window: Window, phases: Mapping[str, str]) -> str:
    """The p50 and p99 of each 100 ms; a gap is a time in which no row left. The request is at 0."""
    top, bottom = 26.0, 126.0
    x = Scale(window.from_s, window.to_s, LEFT, RIGHT)
    y = Scale.around(window.latencies_ms, bottom, top, log=True)
    shades = [
        svg.rect(
            x(first), top, max(x(last), x(first) + 1.5), bottom, f"shade {phases[name]}", span_title(name, first, last)
        )
        for name, first, last in run.spans(gap_s=x.step)
        if first < window.to_s
    ]
    lines = [
        svg.path(
            (_placed(x, y, at, value) for at, value in _points(run, name) if window.from_s <= at <= x.high), class_
        )
        for name, class_ in (("p50_ms", f"line thin {look.class_}"), ("p99_ms", f"line {look.class_}"))
    ]
    parts = [
        svg.text(LEFT, 13, look.label + WRONG * look.wrong, "head wrong" if look.wrong else "head"),
        svg.bottom_axis(x, top, bottom, "s after the request"),
        svg.left_axis(y, LEFT, RIGHT, "ms"),
        *shades,
        svg.line(x(0), top, x(0), bottom, "request"),
        *lines,
    ]
    return svg.picture(bottom + 32, f"Latency of {look.label} around the migration", parts)


def _placed(x: Scale, y: Scale, at: float, value: float | None) -> tuple[float, float] | None:
    return None if value is None else (x(at), y(value))
