"""Processors of the tests that take over Spark jobs: every output shows what the state was before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pandas as pd
import pyspark.cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

# Hosts and Python workers have no `tests` on their path: what is defined here travels whole.
for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

HOUR_MS = 3_600_000


class Counting(StatefulProcessor):
    """The number of rows so far, for each row."""

    OUTPUT = "id string, n long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.total.get() or (0,))[0]
        for _ in rows:
            n += 1
            yield Row(id=key[0], n=n)
        self.total.update((n,))

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.total.update((initialState["total"],))

    def close(self) -> None:
        pass


class Remembering(StatefulProcessor):
    """A variable of each kind, and a timer an hour after each row. Each output shows all of the state."""

    OUTPUT = "id string, what string, seen string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n int, last string")
        self.words = handle.getListState("words", "word string, at timestamp")
        self.counts = handle.getMapState("counts", "word string", "n long")

    def seen(self) -> str:
        words = [(word, str(at)) for word, at in self.words.get()]
        return repr((tuple(self.total.get() or ()), words, sorted((k[0], v[0]) for k, v in self.counts.iterator())))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.total.update(((self.total.get() or (0,))[0] + 1, row.word))
            self.words.appendValue((row.word, row.at))
            self.counts.updateValue((row.word,), ((self.counts.getValue((row.word,)) or (0,))[0] + 1,))
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + HOUR_MS)
        yield Row(id=key[0], what="rows", seen=self.seen())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(id=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()}", seen=self.seen())

    def close(self) -> None:
        pass


class Expiring(StatefulProcessor):
    """Variables with a TTL; the duration is given, so that a later definition can have another one."""

    OUTPUT = "id string, seen string"

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long", self.ttl_ms)
        self.words = handle.getListState("words", "word string", self.ttl_ms)
        self.counts = handle.getMapState("counts", "word string", "n long", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.word == "write":
                self.total.update(((self.total.get() or (0,))[0] + 1,))
                self.words.appendValue((row.word,))
                self.counts.updateValue((row.word,), (1,))
        state = self.total.get(), list(self.words.get()), list(self.counts.iterator())
        yield Row(id=key[0], seen=repr(tuple(bool(each) for each in state)))

    def close(self) -> None:
        pass


class Other(Counting):
    """Another kind of state under the same name."""

    def init(self, handle: Any) -> None:
        self.total = handle.getListState("total", "n long")


class Renamed(Counting):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("sum", "n long")


class Seeded(StatefulProcessor):
    """All words of a key, those of the initial state too; each output shows them."""

    OUTPUT = "id string, words string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.words = handle.getListState("words", "word string")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.words.appendValue((initialState["word"],))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.words.appendValue((row.word,))
        yield Row(id=key[0], words=" ".join(sorted(word for (word,) in self.words.get())))

    def close(self) -> None:
        pass


class CountingInPandas(StatefulProcessor):
    """As `Counting`, with DataFrames."""

    OUTPUT = Counting.OUTPUT
    PANDAS = True

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self.total.get() or (0,))[0]
        for frame in rows:
            yield pd.DataFrame({"id": key[0], "n": range(n + 1, n + 1 + len(frame))})
            n += len(frame)
        self.total.update((n,))

    def close(self) -> None:
        pass


class Alarm(StatefulProcessor):
    """A row sets two timers: one is due after a second, and one a year later."""

    OUTPUT = "id string, what string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now_ms + 1_000)
        self.handle.registerTimer(now_ms + 365 * 24 * HOUR_MS)
        yield Row(id=key[0], what="set")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        left = [at_ms for at_ms in self.handle.listTimers() if at_ms != expiredTimerInfo.getExpiryTimeInMs()]
        yield Row(id=key[0], what=f"rang, {len(left)} left")

    def close(self) -> None:
        pass
