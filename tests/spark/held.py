"""A sink that lets batches through when the test says so: how far a query is never depends on how fast the machine is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import godwit
from godwit.testing.open_loop import Arrivals
from tests.spark.flocks import start

Move = Callable[[godwit.Flock], Any]
HELD_S_MAX = 120.0
AT_ONCE = 2  # batches that go through beside each move


class Held(Arrivals):
    """Spark computes a batch when its sink reads it, so a batch that is held here has not begun."""

    def __init__(self) -> None:
        super().__init__()
        self._passes = threading.Semaphore(0)
        self._open = threading.Event()

    def let(self, batches: int) -> None:
        self._passes.release(batches)

    def let_all(self) -> None:
        self._open.set()
        self._passes.release()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if not self._open.is_set():
            assert self._passes.acquire(timeout=HELD_S_MAX), f"batch {batch} was never let through"
        super().__call__(frame, batch)


def through(flock: godwit.Flock, frame: DataFrame, checkpoint: Path, *moves: Move) -> pa.Table:
    """All that comes out of the query when each move is made beside some batches, and some are left for after the last."""
    sink = Held()
    query = start(frame, sink, checkpoint)
    try:
        sink.let(1)
        for move in moves:
            sink.let(AT_ONCE)
            assert move(flock).report()["outcome"] == "done"
        sink.let_all()
        query.processAllAvailable()
    finally:
        sink.let_all()
        query.stop()
    assert len(sink.batches()) > 1 + AT_ONCE * len(moves), "rows came after the last move, too"
    return sink.rows()
