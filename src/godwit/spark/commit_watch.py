"""Follows the commit logs of queries whose progress Spark tracks asynchronously, and tells hosts which batches they name.

Until then hosts keep the rows of these batches. A thread of the driver lists the files of a commit log now and then, because
Spark tells nobody when it has written one. It works only while such a query runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from godwit.errors import GodwitError
from godwit.runtime.messages import NoteCommitted

EVERY_S = 1.0
_log = logging.getLogger("godwit.commits")


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run of a query that the operator takes part in."""

    operator: str
    query: str
    run: str


@dataclass(frozen=True, slots=True)
class CommitLogs:
    """What Spark knows. `committed`: the newest batch in the commit log of the operator's query; -1 before the first.

    `active`: the run of a query that runs now; None if none does.
    """

    committed: Callable[[str], int]
    active: Callable[[str], str | None]


class CommitWatch:
    """`tell`: asks every host, and does not wait for hosts that are down."""

    def __init__(
        self, logs: CommitLogs, hosts: Callable[[], Sequence[str]], tell: Callable[[str, NoteCommitted], object]
    ) -> None:
        self._logs = logs
        self._hosts = hosts
        self._tell = tell
        self._runs: dict[str, WatchedRun] = {}
        self._told: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self, run: WatchedRun, asynchronous: bool) -> None:
        """The run is admitted, and replaces earlier ones. If its progress is asynchronous, it is followed until it ends."""
        with self._changed:
            if self._closed or self._runs.get(run.operator) == run:
                return
            self._runs.pop(run.operator, None)
            self._told.pop(run.operator, None)
            if not asynchronous:
                return
            self._runs[run.operator] = run
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="godwit-commits", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, EVERY_S)
                if self._closed:
                    return
                if not self._runs:
                    self._thread = None
                    return
                runs = list(self._runs.values())
            for run in runs:
                try:
                    self.look(run)
                except Exception as error:  # noqa: BLE001 the log is read again, and hosts keep rows until then
                    _log.debug("the commit log of %s could not be read: %s", run.operator, error)

    def look(self, run: WatchedRun) -> None:
        """Read the commit log of the run once. What it names is of this run as long as no later run is active."""
        ended = self._logs.active(run.query) != run.run
        batch = self._logs.committed(run.operator)
        with self._changed:
            if self._runs.get(run.operator) != run:
                return  # a later run has been admitted, and may have written the newest name
            if ended:
                del self._runs[run.operator]
        if self._logs.active(run.query) in (None, run.run) and batch > self._told.get(run.operator, -1):
            self._told[run.operator] = batch
            for host in self._hosts():
                with suppress(GodwitError):
                    self._tell(host, NoteCommitted(run.operator, run.run, batch))
