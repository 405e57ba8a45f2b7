"""What a person sees while the query of `make demo-kafka` runs: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from godwit.demo.latency_line import BATCH_END, LEGEND, MARGIN, WINDOW_S, LatencyLine, Mark
from godwit.demo.steps import StepResult

REFRESHES_PER_S: Final = 5
PLAIN_EVERY_S: Final = 5.0
LETTERS: Final = "ABCDEFGHIJ"


BATCHES_EVERY_S: Final = 1.0
Came = Sequence[tuple[dict[str, Any], float]]


class View(ABC):
    """Takes results as they come and steps as they happen.

    `came`: what the reader has, result and time. `batch_ends_s`: when batches have ended so far.
    """

    def __init__(self, console: Console, came: Came, batch_ends_s: Callable[[], list[float]]) -> None:
        self.console = console
        self.line = LatencyLine(time.time())
        self._steps: list[Mark] = []
        self._came = came
        self._batch_ends_s = batch_ends_s
        self._batches: list[Mark] = []
        self._asked_s = 0.0
        self._taken = 0
        self._doing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def marks(self) -> list[Mark]:
        return [*self._batches, *self._steps]

    def restart(self) -> None:
        """The line begins now."""
        self.show(0)
        self.line = LatencyLine(time.time())

    def show(self, _: int) -> None:
        """Look at what has come since the last time."""
        now_s = time.time()
        if now_s - self._asked_s >= BATCHES_EVERY_S:
            self._asked_s = now_s
            self._batches = [Mark(BATCH_END, end_s, end_s) for end_s in self._batch_ends_s()]
        came = self._came[self._taken :]
        self._taken += len(came)
        for result, at_s in came:
            self.line.add(at_s, at_s * 1_000 - result["due"] / 1_000)
        if not came:
            self.line.close(now_s - WINDOW_S)  # the reader may still bring results of the newest window
        self.draw()

    def say(self, text: str) -> None:
        self._doing = text
        self.draw()

    def begin(self) -> None:
        """A step begins: its mark goes on until `end`."""
        self._steps.append(Mark(LETTERS[len(self._steps)], time.time()))

    def end(self, step: StepResult) -> None:
        letter = self._steps[-1].letter
        self._steps[-1] = Mark(letter, step.asked_s, step.asked_s + step.took_s)
        self._doing = ""
        self.console.print(f"  {letter} {step.summary()}", highlight=False)

    @abstractmethod
    def draw(self) -> None: ...


class LiveView(View):
    """Two lines that move on at the bottom of a terminal."""

    def __enter__(self) -> Self:
        self._live = Live(
            get_renderable=self._picture, console=self.console, refresh_per_second=REFRESHES_PER_S, transient=True
        )
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def draw(self) -> None:
        """`Live` does it, in its own time."""

    def _picture(self) -> Group:
        bars, marked = self.line.newest(self.marks, self.console.width - MARGIN)
        newest = self.line.p99_ms[-1] if self.line.p99_ms else None
        now = "no result came" if newest is None else f"p99 {newest:,.0f} ms"
        head = f"{len(self._came):,} results, {now}   {self._doing}"
        lines = (head, f"{'p99':>{MARGIN - 2}}  {bars}", " " * MARGIN + marked, " " * MARGIN + LEGEND)
        styles = ("", "green", "bold yellow", "dim")
        return Group(*(Text(text, style, no_wrap=True) for text, style in zip(lines, styles, strict=True)))


class PlainView(View):
    """A line every few seconds, for a file or a pipe."""

    def __init__(self, console: Console, came: Came, batch_ends_s: Callable[[], list[float]]) -> None:
        super().__init__(console, came, batch_ends_s)
        self._printed = 0

    def restart(self) -> None:
        super().restart()
        self._printed = 0

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False)

    def draw(self) -> None:
        windows = round(PLAIN_EVERY_S / WINDOW_S)
        while len(self.line.p99_ms) >= self._printed + windows:
            at_s = self._printed * WINDOW_S
            bars = self.line.bars(self._printed, self._printed + windows)
            self.console.print(f"{f'{at_s:.0f} s':>{MARGIN - 2}}  {bars}  {len(self._came):,} results", highlight=False)
            self._printed += windows


def view(console: Console, came: Came, batch_ends_s: Callable[[], list[float]]) -> View:
    return (LiveView if console.is_terminal else PlainView)(console, came, batch_ends_s)
