"""Where the time of a row goes: timers around the parts of a router and of a host, in the processes that run them.

A processor of this measurement (`Timed`) and a wrapper around the routers' tasks put the timers in place and take them out
again, so the runtime knows nothing of them and pays nothing when they are not asked for. They assume that one thing happens
at a time: one lane, one host, one window on its way. Each side writes a line for every batch; what the lines come to is
decided by `parts_of`, which is pure.
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

import pyarrow as pa
from pyspark import TaskContext

from benchmarks.workloads.tally import Tally
from godwit import Outputs, Rows, Times
from godwit.runtime.host.exchange import Exchange
from godwit.runtime.host.gate import Gate
from godwit.runtime.instance.chunk_applier import ChunkApplier
from godwit.runtime.memory.durable_changes import DurableChanges
from godwit.runtime.router import router
from godwit.runtime.router.links import Links
from godwit.spark.define import operator_frame
from godwit.state.changelog import Changelog
from godwit.state.tables import KeyedState

Made = TypeVar("Made")
Body = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Place = tuple[Any, str, str]  # a class, the name of its method, the part that the method's time belongs to
Spent = Mapping[str, float]

HOST_PARTS: Final = ("gate", "processor", "state", "changelog", "answer")
HOST: Final[Sequence[Place]] = (
    (Exchange, "_opened", "gate"),
    (Exchange, "_rows", "gate"),
    (Gate, "let_in", "gate"),
    (ChunkApplier, "apply", "state"),
    (KeyedState, "prepare", "state"),
    (KeyedState, "merge", "state"),
    (DurableChanges, "prepare_entry", "changelog"),  # what the changelog is to hold is put into bytes here
    (Changelog, "append", "changelog"),
    (Changelog, "flush", "changelog"),
    (Exchange, "_finish", "changelog"),
    (Exchange, "answer", "answer"),
)
ASKING: Final = "hosts"
INPUT: Final = "input"
ROUTER: Final = "router"
ROUTER_PLACES: Final[Sequence[Place]] = tuple((Links, name, ASKING) for name in ("open", "send", "receive", "finish"))


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


# -- in a host -------------------------------------------------------------------------------------------------------


class Timed(Tally):
    """The same processor; as long as it is open, its host is timed."""

    def __init__(self, state_bytes: int, lines: str) -> None:
        super().__init__(state_bytes)
        self._lines = lines

    def open(self) -> None:
        self._undo, self._watch = ExitStack(), Stopwatch()
        self._undo.enter_context(self._watch.around(HOST))
        self._undo.enter_context(replaced(Exchange, "_finish", self._noted(Exchange._finish)))
        self._process = self._watch.timed(super().process, "processor")

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        return self._process(rows, state, times)

    def close(self) -> None:
        self._undo.close()

    def _noted(self, finish: Callable[..., None]) -> Callable[..., None]:
        """A lane that has finished has finished the batch: there is but one."""

        def run(exchange: Exchange, shared: Any, request: Any, *rest: Any) -> None:
            finish(exchange, shared, request, *rest)
            note(self._lines, request.batch, self._watch.taken())

        return run


# -- in a router's task ------------------------------------------------------------------------------------------------


@contextmanager
def routers_timed(lines: str) -> Iterator[None]:
    """Operators that are defined meanwhile have timed routers."""
    made = operator_frame._router_body
    with replaced(operator_frame, "_router_body", lambda *given: timed_body(made(*given), lines)):
        yield


def timed_body(body: Body, lines: str) -> Body:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        watch = Stopwatch()
        # A worker lives on after its task, so all is as it was when the task ends.
        with watch.around(ROUTER_PLACES), replaced(router, "WINDOWS_MAX", 1):
            outputs = watch.timed(body, ROUTER)(watch.drawn(batches, INPUT))
            yield from watch.drawn(outputs, ROUTER)
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if batch is not None:
            note(lines, int(batch), watch.taken())

    return run


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
