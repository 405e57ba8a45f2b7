"""The handle of a request: progress, waiting, aborting, and the report of what it did."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from godwit.control import migration_report
from godwit.control.migration_report import MoveProgress
from godwit.errors import GodwitError
from godwit.spark.change.move_options import CheckedOptions
from godwit.spark.checkpoint.history import now_text
from godwit.spark.results.migration_summary import MigrationProgress, MigrationSummary, progress_of, summary_of

SHOWN_EVERY_S = 0.1


class Migration:
    """What `Flock.scale`, `move`, `drain`, `rebalance` and `standby` return: a move of keys while the query runs.

    `id` names it in `Flock.history()` and `Flock.routing()`.
    """

    def __init__(self, name: str, kind: str, options: CheckedOptions, abort: Callable[[Migration, str], None]) -> None:
        self.id = name
        self.kind = kind
        self.options = options
        self.moves: list[MoveProgress] = []  # every move of the request, with its progress
        self.minimum: int | None = None
        self.aborting: str | None = None
        self.outcome = ""
        self.reason = ""
        self.error: GodwitError | None = None
        self._abort = abort
        self._changed = threading.Condition()
        self._phase = "queued"
        self._began_s = time.monotonic()
        self._started, self._ended = now_text(), ""
        self._phases: list[list[Any]] = [["queued", 0.0]]
        self._served_s: float | None = None
        self._moves_made = 0

    # -- for the user ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        progress = self.progress()
        moved = f"{progress.units_moved} of {progress.units} units moved"
        return f"<Migration {self.id} ({self.kind}): {progress.phase}, {moved}>"

    def progress(self) -> MigrationProgress:
        """Phase, units (groups and single keys) and keys moved so far and in total, bytes, and the same per move."""
        with self._changed:
            fields = migration_report.progress(self.moves, self.outcome or self._phase) | {"id": self.id}
        return progress_of(fields)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, or for complete copies of a standby; False after the timeout. Raises the error that ended it."""
        with self._changed:
            over = self._changed.wait_for(self._over, timeout_s)
        if self.error is not None:
            raise self.error
        return over

    def abort(self, reason: str = "aborted by the user") -> None:
        """Stop moving. Keys that have moved stay at their target; wait() returns when the migration has ended."""
        with self._changed:
            if self.ended or self.aborting is not None:
                return
            self.aborting = reason
            self._changed.notify_all()
        self._abort(self, reason)

    def report(self) -> MigrationSummary:
        """What the migration has done so far, or in the end.

        Keys and bytes moved, rows and bytes sent twice, how long rows of moving keys waited (stall), the time from the
        request until the last key served at its target (reconfiguration_s), phases with the seconds at which they began,
        groups moved and the least possible number, and the outcome of each move.
        """
        with self._changed:
            over_s = self._served_s if self._served_s is not None else time.monotonic() - self._began_s
            fields = {
                "id": self.id,
                "kind": self.kind,
                "protocol": self.options.protocol,
                "order": self.options.order,
                "outcome": self.outcome or self._phase,
                "reason": self.reason,
                "started": self._started,
                "ended": self._ended or None,
                "reconfiguration_s": round(over_s, 4),
                "phases": [list(phase) for phase in self._phases],
                "groups_minimum": self.minimum,
                **migration_report.totals(self.moves),
            }
        return summary_of(fields)

    # -- for the request queue ---------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    @property
    def standing(self) -> bool:
        return self._phase == "standing" and not self.outcome

    def _over(self) -> bool:
        return self.ended or self.standing

    def enter(self, phase: str) -> None:
        """The request goes on with this phase."""
        with self._changed:
            if phase != self._phase:
                self._phase = phase
                self._phases.append([phase, round(time.monotonic() - self._began_s, 4)])
                self._changed.notify_all()

    def served_at(self, at_s: float) -> None:
        """A key is served at its target from this time on. The last key counts; what follows is cleaning up."""
        with self._changed:
            self._served_s = max(self._served_s or 0.0, at_s - self._began_s)

    def served_now(self) -> None:
        """A key is served at its target from now on."""
        self.served_at(time.monotonic())

    def stands(self) -> None:
        """The copies of a move of a standby are complete."""
        with self._changed:
            if all(progress.stood or progress.over for progress in self.moves) and not self.standing:
                self._phase = "standing"
                self._phases.append(["standing", round(time.monotonic() - self._began_s, 4)])
            self._changed.notify_all()

    def wait_copy(self, progress: MoveProgress, asked: str) -> str | None:
        """Wait for complete copies of a try other than `asked`, and return its name; None when the move is over."""
        with self._changed:
            while not progress.over:
                if progress.stood and progress.attempt != asked:
                    return progress.attempt
                self._changed.wait(0.2)
        return None

    def next_move(self) -> str:
        """A name for one attempt at a move, never used again."""
        with self._changed:
            self._moves_made += 1
            return f"{self.id}-{self._moves_made}"

    def take_report(self, progress: MoveProgress, answer: dict[str, Any]) -> None:
        """Take a report of the origin of one of the moves."""
        with self._changed:
            progress.take_report(answer)

    def end(self, outcome: str, reason: str = "", error: GodwitError | None = None) -> None:
        """The request has ended; `wait` returns, or raises the error."""
        with self._changed:
            self._ended, self.reason, self.error = now_text(), reason, error
            if self._served_s is None:
                self._served_s = time.monotonic() - self._began_s
            self._phases.append([outcome, round(time.monotonic() - self._began_s, 4)])
            self.outcome = outcome
            self._changed.notify_all()


def show(migration: Migration, asked: bool | None) -> None:
    """Wait for the migration, with a progress bar if stderr is a terminal."""
    if not (sys.stderr.isatty() if asked is None else asked):
        migration.wait()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(f"{migration.kind} {migration.id}", total=None)
        over = False
        while not over:
            over = migration.wait(SHOWN_EVERY_S)
            progress = migration.progress()
            text = f"{migration.kind} {migration.id}: {progress.phase}"
            bar.update(task, description=text, completed=progress.units_moved, total=progress.units or None)
