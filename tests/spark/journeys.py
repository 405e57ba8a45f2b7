"""A job on its way from plain Spark to a flock, or back: the same processor, rows and keys in both places."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import pyarrow as pa
from pyspark import cloudpickle as pyspark_cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import godwit
from tests.spark.processors import Flavour, Key, Logic, flavoured
from tests.spark.side_by_side import Feed, Seen

# Workers have no path to the tests: processors travel by value, to Spark's workers and to hosts.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pyspark_cloudpickle.register_pickle_by_value(sys.modules[__name__])

OutputMode = Literal["append", "update"]
YEAR_MS = 365 * 24 * 3_600_000
HOUR_MS = 3_600_000
BIG = 2**60 + 1
NOON = dt.datetime(2024, 5, 1, 12)
OLD = dt.datetime(1500, 5, 1, 12, 0, 0, 123456)
FAR_MS = (10**15, 2**63 - 1)  # beyond the year 9999


@dataclass
class Journey:
    """The directories of one job below `root`, and how its query is defined in both places.

    `shaped`: what becomes of the stream before it is grouped. `settings`: of the processor.
    """

    spark: SparkSession
    root: Path
    kind: type[Logic]
    schema: pa.Schema
    keys: tuple[str, ...] = ("id",)
    flavour: Flavour = "row"
    time: str = "none"
    mode: OutputMode = "update"
    shaped: Callable[[DataFrame], DataFrame] = field(default=lambda frame: frame)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.feed = Feed(self.root / "feed", self.schema)

    @property
    def processor(self) -> StatefulProcessor:
        return flavoured(self.kind, self.flavour, **self.settings)

    @property
    def _method(self) -> str:
        return "transformWithState" if self.flavour == "row" else "transformWithStateInPandas"

    def in_spark(self, processor: StatefulProcessor | None = None, initial: Any = None, rows: bool = True) -> DataFrame:
        stream = self.feed.stream(self.spark)
        stream = stream if rows else stream.where("false")
        transform = getattr(self.shaped(stream).groupBy(*self.keys), self._method)
        made: DataFrame = transform(processor or self.processor, self.kind.OUTPUT, self.mode, self.time, initial)
        return made

    def in_flock(self, flock: godwit.Flock, **more: Any) -> DataFrame:
        transform = getattr(flock, self._method)
        stream = self.shaped(self.feed.stream(self.spark))
        made: DataFrame = transform(
            stream, list(self.keys), self.processor, self.kind.OUTPUT, self.mode, self.time, name="op", **more
        )
        return made

    def taken_over(self, flock: godwit.Flock) -> DataFrame:
        """The operator of a flock with the state of the query `old`, and the checkpointLocation `new`."""
        frame = self.in_flock(flock, initialState=godwit.spark_state(self.spark, self.root / "old"))
        godwit.continue_spark_query(frame, self.root / "old", self.root / "new")
        return frame

    def run(self, frame: DataFrame, checkpoint: str) -> list[tuple[Any, ...]]:
        """One batch with all that is there."""
        seen = Seen()
        writer = frame.writeStream.foreachBatch(seen.take).outputMode(self.mode).trigger(once=True)
        assert writer.option("checkpointLocation", str(self.root / checkpoint)).start().awaitTermination(240)
        return [row for _, row in seen.rows]

    def back(self, old: str = "new", path: Path | None = None) -> DataFrame:
        """The checkpointLocation `back` of plain Spark, and the query that goes on with it. path: of its files."""
        saved = godwit.state_for_spark(self.spark, self.root / "flock", "op", self.processor)
        whole = self.in_spark(saved.processor, saved.initialState, rows=False)
        godwit.continue_in_spark(whole, self.root / old, self.root / "back", outputMode=self.mode, path=path)
        return self.in_spark()


class Shown(Logic):
    """Writes its state once, and shows all of it for each batch of a key."""

    OUTPUT = "id string, seen string"

    def write(self) -> None:
        raise NotImplementedError

    def seen(self) -> Any:
        raise NotImplementedError

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        if any(record.word == "write" for record in records):
            self.write()
        yield {"id": repr(tuple(key)), "seen": repr(self.seen())}


class AllTypes(Shown):
    """Maps, times and nulls, wherever they may be in a value, a list or a map."""

    VALUE = (
        "m map<string,int>, s struct<a:int,t:timestamp,tags:map<string,array<double>>>, t timestamp, ntz timestamp_ntz, "
        "d double, n int, xs array<double>, bs array<boolean>, big array<bigint>, dec decimal(30,2), raw array<binary>, "
        "days array<date>, nested array<map<string,map<string,double>>>, times map<string,struct<at:timestamp>>"
    )

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", self.VALUE)
        self.list = handle.getListState("list", "at timestamp, tags array<struct<x:int>>, attrs map<string,double>")
        self.map = handle.getMapState("map", "k string, at timestamp", "attrs map<string,int>, x bigint")
        self.nulls = handle.getValueState("nulls", "a int, m map<string,int>")
        self.none = handle.getValueState("none", "a int")

    def write(self) -> None:
        nan = float("nan")
        self.value.update(
            (
                {"a": 1, "b": None},
                (7, NOON, {"t": [1.5, None, nan]}),
                NOON,
                OLD,
                nan,
                None,
                [1.0, None, nan],
                [True, None],
                [BIG, None],
                Decimal("1.25"),
                [b"\x00", None],
                [dt.date(1, 1, 1), None],
                [{"x": {"y": None}}, {}, None],
                {"u": (NOON,), "v": (None,), "w": None},
            )
        )
        self.list.put([(NOON, [(1,), (2,)], {"u": None, "v": nan}), (None, None, None), (OLD, [], {})])
        self.list.appendList([(NOON + dt.timedelta(seconds=n), None, {str(n): n / 2}) for n in range(200)])
        self.map.updateValue(("k", NOON), ({"y": None, "z": 3}, BIG))
        self.map.updateValue((None, NOON), (None, None))
        self.nulls.update((None, None))

    def seen(self) -> Any:
        entries = sorted(map(repr, self.map.iterator()))
        return self.value.get(), list(self.list.get()), entries, self.nulls.get(), self.none.get()


class Clockwork(Logic):
    """A timer that is due at once sets timers of long ago: they are due in the next batch, with those far ahead behind them."""

    OUTPUT = "id string, at_ms long, left string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.lasting = handle.getValueState("lasting", "n int", HOUR_MS)

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        now_ms = times.getCurrentProcessingTimeInMs()
        for at_ms in (now_ms - 1, now_ms + YEAR_MS, *FAR_MS):
            self.handle.registerTimer(at_ms)
        self.lasting.update((1,))
        yield {"id": key[0], "at_ms": now_ms, "left": "set"}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        if times.getCurrentProcessingTimeInMs() == at_ms + 1:
            for ago_ms in (1_000, 2_000, at_ms + 5):
                self.handle.registerTimer(at_ms - ago_ms)
        left = sorted(set(self.handle.listTimers()) - {at_ms})
        yield {"id": key[0], "at_ms": at_ms, "left": repr(left)}


class Early(Logic):
    """Timers by event time that are before the year 1970."""

    OUTPUT = "id string, at_ms long, left string"
    LATER = (-5, -7, -(10**12), -(10**15), -(10**15) - 1)

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        self.handle.registerTimer(-1)
        yield {"id": key[0], "at_ms": 0, "left": "set"}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        if at_ms == -1:
            for each in self.LATER:
                self.handle.registerTimer(each)
        yield {"id": key[0], "at_ms": at_ms, "left": ""}


class Lapsing(Logic):
    """Each row is an element of a list, an entry of a map with the number of the key's rows so far, and the value."""

    OUTPUT = "id string, n int"

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", "word string", self.ttl_ms)
        self.list = handle.getListState("list", "word string", self.ttl_ms)
        self.map = handle.getMapState("map", "word string", "n int", self.ttl_ms)

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        words = [record.word for record in records if record.word]
        for n, word in enumerate(words):
            self.value.update((word,))
            self.list.appendValue((word,))
            self.map.updateValue((word,), (n,))
        yield {"id": key[0], "n": len(words)}


class Total(Logic):
    """The number of rows of a key."""

    OUTPUT = "id string, n long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        n = (self.total.get() or (0,))[0] + sum(1 for _ in records)
        self.total.update((n,))
        yield {"id": repr(tuple(key)), "n": n}


class Calls(Total):
    """The numbers of rows and of calls of a key, for each call."""

    OUTPUT = "id string, n long, calls long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.calls = handle.getValueState("calls", "n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        calls = (self.calls.get() or (0,))[0] + 1
        self.calls.update((calls,))
        for record in super().rows(key, records, times):
            yield {**record, "calls": calls}


class Numbered(Logic):
    """A map by numbers in a field."""

    OUTPUT = "id string, seen string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.names = handle.getValueState("names", "names map<int,string>")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        self.names.update(self.names.get() or ({1: "one"},))
        yield {"id": key[0], "seen": repr((self.names.get() or (None,))[0])}


class Dated(Logic):
    """The processing time at which the initial state came; the processor of a user who makes initial state by himself."""

    OUTPUT = "id string, at_ms long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.at = handle.getValueState("at", "ms long", HOUR_MS)

    def handleInitialState(self, key: Key, initialState: Any, timerValues: Any) -> None:
        self.at.update((timerValues.getCurrentProcessingTimeInMs(),))

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], "at_ms": (self.at.get() or (times.getCurrentProcessingTimeInMs(),))[0]}
