"""Timers around the parts of a router and of a host, in the processes that run them.

A processor of this measurement (`Timed`) and a wrapper around the routers' tasks put the timers in place and take them out
again, so the product knows nothing of them and pays nothing when a run is not profiled. What the lines that both write come to
is decided by `stopwatch.parts_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from benchmarks.experiments.stopwatch import ASKING, INPUT, ROUTER, Place, Stopwatch, note, replaced
from benchmarks.workloads.tally import Tally
from godwit import Outputs, Rows, Times
from godwit.runtime.durable.durable_changes import DurableChanges
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host.gate import Gate
from godwit.runtime.instance.chunk_applier import ChunkApplier
from godwit.runtime.messages import OpenLane
from godwit.runtime.router import router
from godwit.runtime.router.links import Links
from godwit.spark.define import operator_frame
from godwit.state.changelog import Changelog
from godwit.state.keyed_state import KeyedState

Body = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

HOST: Final[Sequence[Place]] = (
    (LaneExchange, "_open", "gate"),
    (LaneExchange, "_apply", "gate"),
    (Gate, "let_in", "gate"),
    (ChunkApplier, "apply", "state"),
    (KeyedState, "prepare", "state"),
    (KeyedState, "install", "state"),
    (DurableChanges, "prepare_entry", "changelog"),  # what the changelog is to hold is put into bytes here
    (Changelog, "append", "changelog"),
    (Changelog, "flush", "changelog"),
    (LaneExchange, "_finish", "changelog"),
    (LaneExchange, "answer", "answer"),
)
ROUTER_PLACES: Final[Sequence[Place]] = tuple((Links, name, ASKING) for name in ("open", "send", "receive", "finish"))


# -- in a host -------------------------------------------------------------------------------------------------------


class Timed(Tally):
    """The same processor; as long as it is open, its host is timed."""

    def __init__(self, state_bytes: int, lines: str) -> None:
        super().__init__(state_bytes)
        self._lines = lines

    def open(self) -> None:
        self._undo, self._watch = ExitStack(), Stopwatch()
        self._undo.enter_context(self._watch.around(HOST))
        self._undo.enter_context(replaced(LaneExchange, "_finish", self._noted(LaneExchange._finish)))
        self._process = self._watch.timed(super().process, "processor")

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        return self._process(rows, state, times)

    def close(self) -> None:
        self._undo.close()

    def _noted(self, finish: Callable[..., None]) -> Callable[..., None]:
        """A lane that has finished has finished the batch: there is but one."""

        def run(exchange: LaneExchange, shared: Any, lane: OpenLane, *rest: Any) -> None:
            finish(exchange, shared, lane, *rest)
            note(self._lines, lane.batch, self._watch.taken())

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
        with watch.around(ROUTER_PLACES), replaced(router, "IN_FLIGHT_MAX", 1):
            outputs = watch.timed(body, ROUTER)(watch.drawn(batches, INPUT))
            yield from watch.drawn(outputs, ROUTER)
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if batch is not None:
            note(lines, int(batch), watch.taken())

    return run
