"""Keeps a host's changelog short: merges sealed segments into snapshots, beside the work and never in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from godwit.errors import CheckpointUnusable, GodwitError
from godwit.state.changelog import Changelog
from godwit.state.snapshot import Compactor

INTERVAL_S = 1.0
AGAIN_S = 30.0  # after a merge that found no room: somebody may make some
SEALED_MIN = 2  # merging one segment at a time would rewrite the small deltas more often than it saves


class Upkeep:
    def __init__(self, log: Changelog, settled: Callable[[], Mapping[str, int]]) -> None:
        self._log = log
        self._settled = settled
        self._compactor = Compactor(log.generation)
        self._merging = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="godwit-upkeep", daemon=True)
        self.failure: GodwitError | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def nothing_merged(self) -> Iterator[None]:
        """For whoever needs the files to stay as they are for a moment."""
        with self._merging:
            yield

    def _run(self) -> None:
        pause_s = INTERVAL_S
        while not self._stop.wait(pause_s):
            pause_s = INTERVAL_S
            try:
                self._merge_sealed()
                self.failure = None
            except CheckpointUnusable as error:
                self.failure = error
                pause_s = AGAIN_S
            except GodwitError as error:
                self.failure = error  # shown by status(); the log only grows from here on
                return

    def _merge_sealed(self) -> None:
        with self._merging:
            sealed = self._log.sealed()
            if len(sealed) >= SEALED_MIN:
                self._compactor.compact(self._log.directory, sealed, self._settled())
