"""Processors that do wrong when told to, and a small world to watch the damage in: an operator, its query, its flock."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyspark.cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import godwit
from tests.spark.flocks import Kept, wait_until
from tests.spark.side_by_side import Feed

# Hosts and Python workers have no `tests` on their path: what is defined here travels whole.
for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

EVENTS = pa.schema({"key": pa.string(), "n": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
AT = dt.datetime(2024, 5, 1)
OUTPUT = "key string, count bigint, n bigint"
BAD = "bad"  # the key at which a processor misbehaves
HANG_S = 600.0


class Moody(StatefulProcessor):
    """Counts rows by key. While the file `mood` holds a word, does that wrong at the key "bad"."""

    def __init__(self, mood: Path) -> None:
        self.mood = mood

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n bigint, last string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self.total.get()[0] if self.total.exists() else 0
        for row in rows:
            n += 1
            yield self.answer(key[0], n, row.n)
        self.total.update((n, key[0]))
        if key[0] == BAD and self.mood.exists():
            self.misbehave(self.mood.read_text())

    def answer(self, key: str, count: int, n: int) -> Row:
        mood = self.mood.read_text() if key == BAD and self.mood.exists() else ""
        match mood:
            case "yields a wrong type":
                return Row(key=key, count="many", n=n)
            case "yields another column":
                return Row(key=key, total=count, n=n)
            case "yields too many values":
                return Row(key, count, n, "more")
            case "yields no row":
                return "neither a Row nor a tuple"  # type: ignore[return-value]
        return Row(key=key, count=count, n=n)

    def misbehave(self, mood: str) -> None:
        match mood:
            case "throws":
                raise ValueError("no such car")
            case "keeps a wrong type":
                self.total.update(("many", "x"))
            case "keeps too few fields":
                self.total.update((5,))
            case "keeps too much":
                self.total.update((5, "x" * 5000))
            case "hangs in Python":
                while True:
                    time.sleep(0.001)
            case "hangs in C":
                time.sleep(HANG_S)
            case "exits":
                raise SystemExit("enough")

    def close(self) -> None:
        pass


class Count(godwit.Processor):
    """The same, native; outputs and state as the mood wants them."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.string()), ("count", pa.int64()), ("n", pa.int64())])

    def __init__(self, mood: Path) -> None:
        self.mood = mood

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> Any:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        mood = self.mood.read_text() if (BAD,) in rows.keys and self.mood.exists() else ""
        match mood:
            case "yields a wrong type":
                return self.emit(rows, count=[{"many": 1}] * len(rows))
            case "yields another column":
                return self.emit(rows, count=count, total=count)
            case "yields too few rows":
                return self.emit(rows, count=count[:-1])
            case "yields no outputs":
                return [1, 2, 3]
            case "keeps a wrong type":
                state["n"] = ["many"] * len(rows.keys)
            case "keeps fractions":
                state["n"] = state["n"] + 0.5
            case "throws":
                raise ValueError("no such car")
        return self.emit(rows, count=count)


class Case:
    """One operator on a flock, its input and its sink; the query can be run again and again."""

    def __init__(self, spark: SparkSession, flock: godwit.Flock, root: Path, name: str) -> None:
        self.spark = spark
        self.flock = flock
        self.name = name
        self.root = root
        root.mkdir(exist_ok=True)
        self.feed = Feed(root / "feed", EVENTS)
        self.sink = Kept()
        self.mood = root / "mood"
        self.frame: DataFrame

    def define(self, **changed: Any) -> Case:
        given: dict[str, Any] = {"frame": self.feed.stream(self.spark), "keys": "key", "outputStructType": OUTPUT}
        self.frame = self.flock.transformWithState(
            **{**given, "statefulProcessor": Moody(self.mood), "name": self.name, **changed}
        )
        return self

    def define_native(self, **changed: Any) -> Case:
        given: dict[str, Any] = {"frame": self.feed.stream(self.spark), "keys": "key", "processor": Count(self.mood)}
        self.frame = self.flock.process(**{**given, "name": self.name, **changed})
        return self

    def add(self, *keys: str | None, first: int = 0) -> None:
        self.feed.add([(key, first + n, AT) for n, key in enumerate(keys)])

    def start(self) -> Any:
        writer = self.frame.writeStream.foreachBatch(self.sink).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.root / "spark")).start()

    def run(self) -> str:
        """All that is there; the words of the failure, or none."""
        query = self.start()
        try:
            assert query.awaitTermination(120), "still running"
        except StreamingQueryException as error:
            return str(error)
        return ""

    def state(self) -> dict[str | None, int]:
        wait_until(lambda: self.flock.status()["hosts"]["host-0"]["state"] == "serving", what="the host serves")
        column = "total" if "total" in self.flock.state(self.name).columns else "state"
        return {row["key"]: row[column]["n"] for row in self.flock.state(self.name).collect()}

    def counts(self) -> list[tuple[Any, Any]]:
        """(key, count) as they left, sorted."""
        return sorted(((key, count) for key, count, _ in self.sink.rows()), key=repr)


class Life:
    """A flock that is opened again and again over one checkpoint, and its query."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.case = Case(spark, None, root / "case", "count")  # type: ignore[arg-type]
        self.godwit = root / "godwit"
        self.spark_checkpoint = root / "case" / "spark"

    def open(self, **changed: Any) -> godwit.Flock:
        self.case.flock = godwit.Flock(self.spark, **{"hosts": 1, "checkpoint": self.godwit, **changed})
        return self.case.flock

    def run(self, **changed: Any) -> str:
        """One life of the application: open, define, run all there is, close."""
        with self.open(**changed):
            return self.case.define().run()

    def counts(self) -> list[tuple[Any, Any]]:
        return self.case.counts()


def assert_said(text: str, code: str, *words: str) -> None:
    """The whole message of the error stands in what the user sees, in one piece."""
    assert f"[{code}]" in text, text
    message = text[text.index(f"[{code}]") :]
    for word in words:
        assert word in message, f"{word!r} is not in {message}"
