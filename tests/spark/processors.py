"""Stateful processors as PySpark's users write them, each in the Row flavour and in the pandas flavour.

Each processor is written once; `flavoured` adds the few lines in which the flavours differ: how rows come and how
they leave. Output rows begin with the key columns, so that runs can be compared key by key.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import cloudpickle
import pandas as pd
import pytest
from pyspark import cloudpickle as pyspark_cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

Flavour = Literal["row", "pandas"]
FLAVOURS: tuple[Flavour, ...] = ("row", "pandas")
# Both flavours share all but the last step, which the tests of equivalence cover: the second one only in the long run.
FLAVOURS_LONG = ("row", pytest.param("pandas", marks=pytest.mark.long))
Key = tuple[Any, ...]

# Workers have no path to the tests: processors travel by value, to Spark's workers and to hosts.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pyspark_cloudpickle.register_pickle_by_value(sys.modules[__name__])


class InRows:
    def records(self, rows: Iterable[Any]) -> Iterator[Any]:
        yield from rows

    def emit(self, records: Iterable[dict[str, Any]]) -> Iterator[Any]:
        for record in records:
            yield Row(**record)


class InPandas:
    def records(self, frames: Iterable[pd.DataFrame]) -> Iterator[Any]:
        for frame in frames:
            yield from frame.itertuples(index=False)

    def emit(self, records: Iterable[dict[str, Any]]) -> Iterator[Any]:
        held = list(records)
        if held:
            yield pd.DataFrame(held)


def flavoured(kind: type[Logic], flavour: Flavour, **settings: Any) -> StatefulProcessor:
    mixin = InRows if flavour == "row" else InPandas
    return type(kind.__name__, (mixin, kind), {})(**settings)  # type: ignore[no-any-return]


class Logic(StatefulProcessor):
    """A processor without its flavour: `rows` gets one record after another and gives output records."""

    OUTPUT: str

    def records(self, rows: Iterable[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def emit(self, records: Iterable[dict[str, Any]]) -> Iterator[Any]:
        raise NotImplementedError

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        return iter(())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from self.emit(self.rows(key, self.records(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield from self.emit(self.timer(key, expiredTimerInfo.getExpiryTimeInMs(), timerValues))

    def close(self) -> None:
        pass


class RunningCount(Logic):
    """How many rows a key has had and their sum, told once per batch."""

    OUTPUT = "id string, n long, total double"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.counted = handle.getValueState("counted", "n long, total double")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        n, total = self.counted.get() if self.counted.exists() else (0, 0.0)
        for record in records:
            n, total = n + 1, total + record.value
        self.counted.update((n, total))
        yield {"id": key[0], "n": n, "total": total}


class Violations(Logic):
    """Readings above a limit are counted in state; a missing reading is no reading."""

    OUTPUT = "id string, count int, violations int"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.violations = handle.getValueState("violations", "n int")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        readings = [r.value for r in records if r.value is not None and r.value == r.value]
        held = self.violations.get() or (0,)
        now = held[0] + sum(reading > 100 for reading in readings)
        self.violations.update((now,))
        yield {"id": key[0], "count": len(readings), "violations": now}


class TopThree(Logic):
    """The three greatest values of a key, in a list that is put anew whenever it changes."""

    OUTPUT = "id string, top string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.top = handle.getListState("top", "value double")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        held = [value for (value,) in self.top.get()]
        top = sorted([*held, *(r.value for r in records)], reverse=True)[:3]
        if top != held:
            self.top.put([(value,) for value in top])
            yield {"id": key[0], "top": repr(top)}


class RecentAndWords(Logic):
    """Two variables: the events of late as a list that is cut to five, and a map of how often each word came."""

    OUTPUT = "id string, recent string, words string, forgotten long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.recent = handle.getListState("recent", "word string")
        self.words = handle.getMapState("words", "word string", "n int")
        self.forgotten = handle.getValueState("forgotten", "n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            self.recent.appendValue((record.word,))
            n = self.words.getValue((record.word,))[0] if self.words.containsKey((record.word,)) else 0
            self.words.updateValue((record.word,), (n + 1,))
        recent = list(self.recent.get())
        if len(recent) > 5:
            self.recent.put(recent[-5:])
            held = self.forgotten.get()
            self.forgotten.update(((held[0] if held else 0) + len(recent) - 5,))
        words = sorted(((word, n) for (word,), (n,) in self.words.iterator()), key=repr)
        shown = [word for (word,) in self.recent.get()]
        forgotten = self.forgotten.get()
        yield {"id": key[0], "recent": repr(shown), "words": repr(words), "forgotten": forgotten and forgotten[0]}


class Scripted(Logic):
    """Does what its rows say: every method of every kind of state, one call per row, the answer as text."""

    OUTPUT = "id string, op string, answer string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.value = handle.getValueState("value", "word string, n long")
        self.other = handle.getValueState("other", "word string, n long")
        self.list = handle.getListState("list", "word string, n long")
        self.map = handle.getMapState("map", "word string", "word string, n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            n = None if record.n is None or record.n != record.n else int(record.n)
            yield {"id": key[0], "op": record.op, "answer": self._answer(record.op, record.word, n)}

    def _answer(self, op: str, word: str | None, n: int | None) -> str:
        name, _, method = op.partition(".")
        state, item = getattr(self, name), (word, n)
        match name, method:
            case "map", "keys":
                return repr(sorted(map(tuple, state.keys()), key=repr))
            case "map", "values":
                return repr(sorted(map(repr, map(tuple, state.values()))))
            case "map", "iterator":
                return repr(sorted((tuple(k), repr(tuple(v))) for k, v in state.iterator()))
            case "map", ("getValue" | "containsKey" | "removeKey"):
                return _shown(getattr(state, method)((word,)))
            case "map", "updateValue":
                return _shown(state.updateValue((word,), (word, n)))
            case "list", "get":
                return repr([tuple(each) for each in state.get()])
            case "list", ("put" | "appendList"):
                return _shown(getattr(state, method)([item, (None, None), item]))
            case _, ("update" | "appendValue"):
                return _shown(getattr(state, method)(item))
        return _shown(getattr(state, method)())  # exists, get, clear


def _shown(answer: Any) -> str:
    return repr(tuple(answer)) if isinstance(answer, tuple) else repr(answer)


SCRIPT: tuple[str, ...] = (
    *"value.exists value.get value.update value.exists value.get value.update value.get".split(),
    *"other.get other.update value.clear value.get value.exists other.get value.clear".split(),
    *"list.exists list.get list.appendValue list.get list.appendList list.get list.put list.exists list.get".split(),
    *"list.appendValue list.clear list.exists list.get list.appendList list.get".split(),
    *"map.exists map.getValue map.containsKey map.keys map.values map.iterator map.updateValue map.exists".split(),
    *"map.getValue map.containsKey map.updateValue map.keys map.values map.iterator map.removeKey".split(),
    *"map.iterator map.removeKey map.updateValue map.iterator map.clear map.exists map.iterator".split(),
    *"map.updateValue map.getValue value.update list.appendValue".split(),
)


class KeyShown(Logic):
    """Keys of many types: what the processor is given, as text, and the parts of the key as they came."""

    OUTPUT = (
        "s string, i int, l long, day date, at timestamp, d decimal(10,2), b boolean, x double, ntz timestamp_ntz,"
        " raw binary, small short, tiny byte, f float, shown string, n long"
    )

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.seen = handle.getValueState("seen", "n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        held = self.seen.get()
        n = (held[0] if held else 0) + sum(1 for _ in records)
        self.seen.update((n,))
        names = [part.strip().split(" ")[0] for part in self.OUTPUT.replace("(10,2)", "").split(",")]
        yield dict(zip(names, key, strict=False)) | {"shown": repr(key), "n": n}


class Before(Logic):
    """Each row with the row before it of the same key, out of state: every type there and back, nulls too."""

    FIELDS = "i int, x double, s string, d decimal(12,3), day date, at timestamp, raw binary, flag boolean"
    OUTPUT = f"id string, shown string, {FIELDS}, many array<int>, named map<string,int>, pair struct<a:int,b:string>"
    NAMES = "i x s d day at raw flag many named pair".split()

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        nested = "many array<int>, named map<string,int>, pair struct<a:int,b:string>"
        self.before = handle.getValueState("before", f"{self.FIELDS}, {nested}")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            before = self.before.get()
            if before is not None:
                yield {"id": key[0], "shown": repr([*before[:8]])} | dict(zip(self.NAMES, before, strict=True))
            self.before.update(tuple([self._plain(getattr(record, name)) for name in self.NAMES]))

    def _plain(self, value: Any) -> Any:
        """What pandas makes of nulls and numbers, as a state takes it."""
        if isinstance(value, float) and value != value:
            return None
        if value is pd.NaT:
            return None
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            return dict(value)  # a map, as Spark gives it to the Row flavour
        if isinstance(value, pd.Timestamp):
            return value.to_pydatetime()
        return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


class Lapsing(Logic):
    """State with a time to live in all three kinds; every row adds to it under its own name, or only looks."""

    OUTPUT = "id string, now_ms long, word string, value string, list string, map string"

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.value = handle.getValueState("value", "word string", self.ttl_ms)
        self.list = handle.getListState("list", "word string", self.ttl_ms)
        self.map = handle.getMapState("map", "word string", "n int", self.ttl_ms)

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            if record.word != "look":
                self.value.update((record.word,))
                self.list.appendValue((record.word,))
                self.map.updateValue((record.word,), (1,))
            yield self._look(key, record.word, times.getCurrentProcessingTimeInMs())

    def _look(self, key: Key, word: str, now_ms: int) -> dict[str, Any]:
        held = self.value.get()
        return {
            "id": key[0],
            "now_ms": now_ms,
            "word": word,
            "value": held[0] if held else None,
            "list": " ".join(word for (word,) in self.list.get()),
            "map": " ".join(sorted(word for (word,) in self.map.keys())),  # noqa: SIM118 a MapState is no dict
        }


class Session(Logic):
    """Sessions by event time: each row pushes the end of its session out, by another timer in place of the last.

    A row named `stop` takes the timer away. When a session ends, a second timer is set for a reminder, once.
    """

    OUTPUT = "id string, what string, at_ms long, watermark_ms long, n long"
    GAP_MS = 10_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.open = handle.getValueState("open", "ends_ms long, n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            at_ms = _millis(record.at)
            ends_ms, n = self.open.get() if self.open.exists() else (None, 0)
            if ends_ms is not None:
                self.handle.deleteTimer(ends_ms)
            if record.word == "stop":
                self.open.clear()
            else:
                ends_ms = max(at_ms + self.GAP_MS, ends_ms or 0)
                self.handle.registerTimer(ends_ms)
                self.open.update((ends_ms, n + 1))
            timers = list(self.handle.listTimers())
            yield self._record(key, f"{record.word} {timers}", at_ms, times, n + 1)

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        held = self.open.get()
        if held is None:
            yield self._record(key, "reminded", at_ms, times, 0)
            return
        self.open.clear()
        self.handle.registerTimer(at_ms + 3_000)
        yield self._record(key, f"ended {sorted(self.handle.listTimers())}", at_ms, times, held[1])

    def _record(self, key: Key, what: str, at_ms: int, times: Any, n: int) -> dict[str, Any]:
        watermark_ms = times.getCurrentWatermarkInMs()
        return {"id": key[0], "what": what, "at_ms": at_ms, "watermark_ms": watermark_ms, "n": n}


class SilenceAlarm(Logic):
    """Tells by processing time that a key has been silent, three times, with no row needed for it."""

    OUTPUT = "id string, what string, in_time boolean"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.told = handle.getValueState("told", "n int")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        words = [record.word for record in records]
        now_ms = times.getCurrentProcessingTimeInMs()
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(now_ms + 300)
        self.told.update((0,))
        yield {"id": key[0], "what": " ".join(words), "in_time": abs(now_ms - _now_ms()) < 60_000}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        n = (self.told.get() or (0,))[0] + 1
        self.told.update((n,))
        now_ms = times.getCurrentProcessingTimeInMs()
        if n < 3:
            self.handle.registerTimer(now_ms + 200)
        yield {"id": key[0], "what": f"silent {n}", "in_time": at_ms <= now_ms <= _now_ms()}


class Seeded(Logic):
    """A count and a list that begin with initial state, which may also set a timer."""

    OUTPUT = "id string, what string, n long, notes string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.count = handle.getValueState("count", "n long")
        self.notes = handle.getListState("notes", "note string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        for record in self.records([initialState]):
            self.count.update(((self.count.get() or (0,))[0] + int(record.start),))
            self.notes.appendValue((record.note,))
            self._seed(timerValues)

    def _seed(self, times: Any) -> None:
        """More to do with an initial row."""

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        n = (self.count.get() or (0,))[0] + sum(1 for _ in records)
        self.count.update((n,))
        yield {"id": key[0], "what": "rows", "n": n, "notes": self._notes()}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], "what": "timer", "n": (self.count.get() or (-1,))[0], "notes": self._notes()}

    def _notes(self) -> str:
        return " ".join(sorted(note for (note,) in self.notes.get()))


class SeededWithTimer(Seeded):
    """Initial state sets a timer by processing time, and has state with a time to live."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.fresh = handle.getValueState("fresh", "yes boolean", 600_000)

    def _seed(self, times: Any) -> None:
        self.fresh.update((True,))
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 200)

    def _notes(self) -> str:
        return f"{super()._notes()} {'fresh' if self.fresh.exists() else 'lapsed'}"


class SeededDue(Seeded):
    """Initial state sets a timer that is due at once."""

    def _seed(self, times: Any) -> None:
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs())


class Stamped(Logic):
    """Passes rows on with their event time, every second row of a key left out: the first of two operators."""

    OUTPUT = "id string, word string, at timestamp"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.seen = handle.getValueState("seen", "n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        n = (self.seen.get() or (0,))[0]
        for record in records:
            n += 1
            if n % 2:
                yield {"id": key[0], "word": record.word, "at": record.at}
        self.seen.update((n,))


class Alarm(Logic):
    """Tells the times it is given, and sets timers relative to them: `value` milliseconds from now."""

    OUTPUT = "id string, what string, watermark_ms long"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + int(record.value))
            yield {"id": key[0], "what": "set", "watermark_ms": times.getCurrentWatermarkInMs()}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], "what": "rang", "watermark_ms": times.getCurrentWatermarkInMs()}


class Calls(Logic):
    """One output per call, with all values that it was called with, and one for a timer that is due at once."""

    OUTPUT = "id string, what string, seen string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.count = handle.getValueState("count", "n long")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        values = sorted(int(record.value) for record in records)
        self.count.update(((self.count.get() or (0,))[0] + len(values),))
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs())
        yield {"id": key[0], "what": "rows", "seen": " ".join(map(str, values))}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], "what": "timer", "seen": str(self.count.get()[0])}


class LaterAlarm(Logic):
    """Sets a timer that is due in any later batch, but not in this one."""

    OUTPUT = "id string, what string"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        list(records)
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 1)
        yield {"id": key[0], "what": "set"}

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], "what": "rang"}


def _millis(at: Any) -> int:
    """Of a naive datetime or timestamp in UTC."""
    return int(at.replace(tzinfo=dt.UTC).timestamp() * 1000)


def _now_ms() -> int:
    return int(dt.datetime.now(dt.UTC).timestamp() * 1000)


class Keeper(Logic):
    """One variable of each kind and a timer per row; one variable has the name of the key column."""

    OUTPUT = "id string, n long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.total = handle.getValueState("total", "n long, last string")
        self.events = handle.getListState("events", "word string, at timestamp")
        self.words = handle.getMapState("words", "word string", "n long")
        self.named = handle.getValueState("id", "same string")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        n = (self.total.get() or (0,))[0]
        for record in records:
            if record.word == "bad":
                raise ValueError("a bad row")
            n += 1
            self.total.update((n, record.word))
            self.events.appendValue((record.word, record.at))
            self.words.updateValue((record.word,), ((self.words.getValue((record.word,)) or (0,))[0] + 1,))
            self.handle.registerTimer(_millis(record.at) + 3_600_000)
            if record.word == "forget":
                self.total.clear()
                self.events.clear()
        yield {"id": key[0], "n": n}
