"""Latency over time as lines of text: a bar for the p99 of each fifth of a second, and marks for what happened meanwhile.

Pure: times and latencies in, text out. Each step of a bar stands for twice the latency of the step below, so a flat line means
that latency stayed within a factor of two. This module must not know where rows come from, nor how lines get on a screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

WINDOW_S: Final = 0.2
STEPS_MS: Final = (10, 20, 40, 80, 160, 320, 640)
BARS: Final = "▁▂▃▄▅▆▇█"
SILENT: Final = "·"
GOES_ON: Final = "─"
MARGIN: Final = 8  # characters before the bars, for the time
BATCH_END: Final = "|"
_HEIGHTS: Final = f"{BARS[0]} < {STEPS_MS[0]} ms, each step doubles, {BARS[-1]} ≥ {STEPS_MS[-1]} ms"
LEGEND: Final = f"{_HEIGHTS}, {SILENT} no result, {BATCH_END} a batch ends"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened from one time to another; `to_s` is infinite while it goes on. Later marks hide earlier ones."""

    letter: str
    from_s: float
    to_s: float = float("inf")


class LatencyLine:
    """The p99 of every window that is over. Results are added in the order in which they came."""

    def __init__(self, from_s: float) -> None:
        self.from_s = from_s
        self.p99_ms: list[float | None] = []  # None: no result came in this window
        self._open: list[float] = []

    def add(self, came_s: float, latency_ms: float) -> None:
        self.close(came_s)
        self._open.append(latency_ms)

    def close(self, now_s: float) -> None:
        """Windows that have ended by now get no further results."""
        while now_s >= self.from_s + (len(self.p99_ms) + 1) * WINDOW_S:
            self.p99_ms.append(float(np.percentile(self._open, 99)) if self._open else None)
            self._open = []

    def bars(self, first: int, stop: int) -> str:
        return "".join(map(bar, self.p99_ms[first:stop]))

    def marked(self, marks: Sequence[Mark], first: int, stop: int) -> str:
        """The line under the bars: the letter where something began, and a dash for each further window that it took."""
        signs = [" "] * (stop - first)
        for mark in marks:
            began = self._window(mark.from_s)
            ended = min(self._window(mark.to_s), stop - 1)
            for at in range(max(began, first), ended + 1):
                signs[at - first] = GOES_ON
            if first <= began < stop:
                signs[began - first] = mark.letter
        return "".join(signs).rstrip()

    def _window(self, at_s: float) -> int:
        windows = (at_s - self.from_s) / WINDOW_S
        return len(self.p99_ms) if windows > len(self.p99_ms) else int(windows)

    def newest(self, marks: Sequence[Mark], width: int) -> tuple[str, str]:
        """Bars and marks of the last windows, as many as there is room for."""
        first = max(0, len(self.p99_ms) - width)
        return self.bars(first, first + width), self.marked(marks, first, first + width)

    def strips(self, marks: Sequence[Mark], width: int, to_s: float = float("inf")) -> Iterator[str]:
        """The whole time up to `to_s`, cut into strips that begin at full seconds."""
        of_second = round(1 / WINDOW_S)
        windows = max(1, (width - MARGIN) // of_second) * of_second
        end = min(len(self.p99_ms), self._window(to_s) + 1)
        for first in range(0, end, windows):
            stop = min(first + windows, end)
            yield f"{f'{first * WINDOW_S:.0f} s':>{MARGIN - 2}}  {self.bars(first, stop)}"
            under = self.marked(marks, first, stop)
            if under:
                yield " " * MARGIN + under


def bar(p99_ms: float | None) -> str:
    if p99_ms is None:
        return SILENT
    return BARS[sum(p99_ms >= step for step in STEPS_MS)]
