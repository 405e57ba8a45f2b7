"""Keeps a host's changelog short: a thread compacts sealed segments into snapshots, and gives way to rows.

A compaction that fails is tried again after growing pauses: the cause may go away (a full disk, too little memory, a missing
file). As long as compactions fail the log grows, `status()` shows the error, and the host goes on serving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from godwit import ports
from godwit.errors import Bug, Fenced, GodwitError
from godwit.runtime.pacing.chunks_inside import ChunksInside
from godwit.runtime.pacing.turns import Breaths
from godwit.state.changelog import Changelog
from godwit.state.snapshot import Compactor

INTERVAL_S = 1.0
AGAIN_S_MAX = 60.0  # between attempts of a compaction that fails again and again
SEALED_MIN = 2  # compacting one segment at a time would rewrite the small deltas more often than it saves

_logger = logging.getLogger(__name__)


class CompactionLoop:
    """`settled`: by instance, up to which batch its state is known to be committed."""

    def __init__(self, log: Changelog, settled: Callable[[], Mapping[str, int]]) -> None:
        self._log = log
        self._settled = settled
        self._compacting = ports.lock()
        self._stop = ports.event()
        self._breaths = Breaths(ports.of_process(ChunksInside), self._stop)
        self._compactor = Compactor(log.generation, breathe=self._breaths)
        self._thread = ports.thread(self._run, "godwit-compaction")
        self.failure: GodwitError | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The files of the log stay as they are in this block."""
        with self._compacting:
            yield

    def _run(self) -> None:
        failures = 0
        while not self._stop.wait(_pause_s(failures)):
            try:
                self._compact_sealed()
            except Exception as error:  # noqa: BLE001 this thread must go on, and the error is shown
                failures += 1
                self._report(error, failures)
            else:
                failures = 0
                self.failure = None

    def _report(self, error: Exception, failures: int) -> None:
        failure = (
            error
            if isinstance(error, GodwitError)
            else Bug(f"compacting the log failed: {type(error).__name__}: {error}")
        )
        repeated = str(failure) == str(self.failure)  # once is enough
        if not repeated and not isinstance(failure, Fenced):  # a fenced host ends, and its log is no longer its own
            _logger.warning(
                "%s; the log grows until compaction succeeds, next attempt in %g s", failure, _pause_s(failures)
            )
        self.failure = failure

    def _compact_sealed(self) -> None:
        with self._compacting:
            sealed = self._log.sealed()
            if len(sealed) >= SEALED_MIN:
                self._breaths.begin()
                self._compactor.compact(self._log.directory, sealed, self._settled())


def _pause_s(failures: int) -> float:
    return INTERVAL_S if failures == 0 else float(min(INTERVAL_S * 2 ** min(failures, 30), AGAIN_S_MAX))
