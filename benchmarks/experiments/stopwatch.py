"""Timers that add up seconds by part, and what the parts of a batch come to. Knows nothing of Godwit.

`benchmarks.inside.row_timers` puts the timers around parts of a router and of a host. The timers assume that one thing happens
at a time: one lane, one host, one window on its way. Each side writes a line for every batch; `parts_of`, which is pure,
decides what the lines come to.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

Made = TypeVar("Made")
Place = tuple[Any, str, str]  # a class, the name of its method, the part that the method's time belongs to
Spent = Mapping[str, float]

HOST_PARTS: Final = ("gate", "processor", "state", "changelog", "answer")
ASKING: Final = "hosts"
INPUT: Final = "input"
ROUTER: Final = "router"


class Stopwatch:
    """Seconds by part, each without those of the parts that were called from it."""

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = defaultdict(float)
        self._thread = threading.local()

    def timed(self, call: Callable[..., Made], part: str) -> Callable[..., Made]:
        @wraps(call)
        def run(*given: Any, **named: Any) -> Made:
            inner_s: list[float] = self._thread.__dict__.setdefault("inner_s", [0.0])
            inner_s.append(0.0)
            began_s = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                took_s = time.perf_counter() - began_s
                self._spent_s[part] += took_s - inner_s.pop()
                inner_s[-1] += took_s

        return run

    def drawn(self, items: Iterable[Made], part: str) -> Iterator[Made]:
        """The same items; only the time in which they are made counts, not that in which they are used."""
        draw = self.timed(next, part)
        source, end = iter(items), object()
        while (item := draw(source, end)) is not end:
            yield item

    @contextmanager
    def around(self, places: Sequence[Place]) -> Iterator[None]:
        with ExitStack() as undo:
            for owner, name, part in places:
                undo.enter_context(replaced(owner, name, self.timed(vars(owner)[name], part)))
            yield

    def taken(self) -> dict[str, float]:
        """What was spent since this was last asked."""
        spent_s, self._spent_s = self._spent_s, defaultdict(float)
        return dict(spent_s)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# -- what the lines come to ----------------------------------------------------------------------------------------------


def note(path: str, batch: int, spent_s: Spent) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps([batch, spent_s]) + "\n")


def noted(path: str) -> dict[int, dict[str, float]]:
    """Of a batch that was noted twice, what it came to the last time."""
    return dict(map(json.loads, Path(path).read_text().splitlines()))


def parts_of(whole_ms: float, work_ms: float, in_router: Spent, in_host: Spent) -> dict[str, float]:
    """Milliseconds of a batch by part, which add up to the whole of it; `work_ms` is that of Spark's job."""
    routing_ms, asking_ms = in_router.get(ROUTER, 0.0) * 1e3, in_router.get(ASKING, 0.0) * 1e3
    hosts_ms = {name: in_host.get(name, 0.0) * 1e3 for name in HOST_PARTS}
    return {
        "Spark: planning and commits": whole_ms - work_ms,
        "Spark: tasks and rows": work_ms - routing_ms - asking_ms,
        "router": routing_ms,
        "wire": asking_ms - sum(hosts_ms.values()),
        **hosts_ms,
    }
