"""How far a benchmark is, on stderr: a live line for a person, a line per phase for a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.running.watch import Watch


class Lines:
    def phase(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def rows(self, seen: int, total: int) -> None:
        del seen, total


@dataclass(slots=True)
class Bar:
    progress: Progress
    task: TaskID

    def phase(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def rows(self, seen: int, total: int) -> None:
        self.progress.update(self.task, completed=seen, total=total)


@contextmanager
def watching() -> Iterator[Watch]:
    if not sys.stderr.isatty():
        yield Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Standard output is for results: left to itself, the bar would draw it to stderr.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        yield Bar(progress, progress.add_task("starting", total=None))
