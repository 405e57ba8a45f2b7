"""How much memory hosts hold and how much of the processors all of the application uses, sampled beside a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import psutil

from godwit.errors import GodwitError

EVERY_S = 0.05
WHO_EVERY_S = 0.5  # hosts come and go seldom, and asking for them costs a round trip each


class Sampler:
    """A thread that calls `sample` every so often while a run goes on."""

    every_s = EVERY_S

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"godwit-{type(self).__name__}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def sample(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            self.sample()


class Memory(Sampler):
    """Resident bytes of all hosts together, by time; `pids` tells who they are now."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        super().__init__()
        self._pids = pids
        self._asked_s = float("-inf")
        self._processes: list[psutil.Process] = []
        self._samples: list[tuple[float, int]] = []

    def peak_bytes(self, from_s: float, to_s: float) -> int:
        return max((size for at, size in self._samples if from_s <= at < to_s), default=0)

    def sample(self) -> None:
        if time.monotonic() - self._asked_s >= WHO_EVERY_S:
            self._asked_s = time.monotonic()
            with suppress(GodwitError):  # closing, or all hosts are away
                self._processes = list(_processes(self._pids()))
        self._samples.append((time.time(), sum(map(_resident, self._processes))))


class CpuTime(Sampler):
    """Seconds of processor time that this process and all its descendants have used, by time: driver, Spark, tasks, hosts.

    What a process used since it was last looked at is lost when it ends: a tenth of a second at most.
    """

    every_s = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._asked_s = float("-inf")
        self._processes: list[psutil.Process] = []
        self._used_s: dict[tuple[int, float], float] = {}
        self.samples: list[tuple[float, float]] = []

    def used_s(self, from_s: float, to_s: float, steady_from_s: float) -> float:
        """What was used in [from, to] beyond what so long a time takes at the rate of [steady_from, from]."""
        return beyond_steady(self.samples, from_s, to_s, steady_from_s)

    def sample(self) -> None:
        if time.monotonic() - self._asked_s >= WHO_EVERY_S:
            self._asked_s = time.monotonic()
            me = psutil.Process()
            self._processes = [me, *me.children(recursive=True)]
        for process in self._processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._used_s[process.pid, process.create_time()] = times.user + times.system
        self.samples.append((time.time(), sum(self._used_s.values())))


def beyond_steady(samples: Sequence[tuple[float, float]], from_s: float, to_s: float, steady_from_s: float) -> float:
    """How much more a total, told by (time, total), grew in [from, to] than at its rate in [steady_from, from]."""
    at, totals = np.array(samples).T
    steady, begin, end = np.interp((steady_from_s, from_s, to_s), at, totals)
    rate = (begin - steady) / (from_s - steady_from_s)
    return float(end - begin - rate * (to_s - from_s))


def _processes(pids: Iterable[int]) -> Iterable[psutil.Process]:
    for pid in pids:
        with suppress(psutil.Error):
            yield psutil.Process(pid)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
