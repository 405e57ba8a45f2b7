"""The input of a router in real time, read ahead: what has come while the router worked is handed over together.

Without this, the packets of a lane would stand in line one by one, however many there are, and a router that is slower than its
input for a moment would never make up for it. With it, packets become larger when there is more to do, and stay as small as
they come when there is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from godwit import ports
from godwit.state.ledger import joined

ROWS_MAX: Final = 4_096  # of packets that are handed over together: more would keep the first of them waiting
WAITING_MAX: Final = 1 << 16  # rows that are read ahead; then Spark waits


class ReadingAhead:
    """Batches of an iterator that a thread reads. The iterator must end, or fail, when the task does."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._changed = ports.condition(ports.lock())
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._ended = False
        self._failure: BaseException | None = None
        ports.thread(self._read, "godwit-reading-ahead").start()

    def _read(self) -> None:
        try:
            for batch in self._batches:
                with self._changed:
                    self._waiting.append(batch)
                    self._rows += len(batch)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._rows < WAITING_MAX)
        except BaseException as failure:  # noqa: BLE001 the router raises it
            self._failure = failure
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while batches := self._take():
            yield joined(batches)
        if self._failure is not None:
            raise self._failure

    def _take(self) -> list[Any]:
        """What waits, up to a number of rows; at least one batch. None are left if the input has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            count, rows = 0, 0
            for batch in self._waiting:
                rows += len(batch)
                if count and rows > ROWS_MAX:
                    rows -= len(batch)
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._rows -= rows
            self._changed.notify_all()
            return taken
