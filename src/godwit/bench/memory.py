"""How much memory hosts hold, sampled beside a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil

from godwit.errors import GodwitError

EVERY_S = 0.05
WHO_EVERY_S = 0.5  # hosts come and go seldom, and asking for them costs a round trip each


class Memory:
    """Resident bytes of all hosts together, by time; `pids` tells who they are now."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="godwit-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def peak_bytes(self, from_s: float, to_s: float) -> int:
        return max((size for at, size in self._samples if from_s <= at < to_s), default=0)

    def _run(self) -> None:
        processes: list[psutil.Process] = []
        asked_s = float("-inf")
        while not self._stop.wait(EVERY_S):
            if time.monotonic() - asked_s >= WHO_EVERY_S:
                asked_s = time.monotonic()
                with suppress(GodwitError):  # closing, or all hosts are away
                    processes = list(_processes(self._pids()))
            self._samples.append((time.time(), sum(map(_resident, processes))))


def _processes(pids: Iterable[int]) -> Iterable[psutil.Process]:
    for pid in pids:
        with suppress(psutil.Error):
            yield psutil.Process(pid)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
