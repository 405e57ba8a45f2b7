"""Processors that tell what they are given and what comes back: keys, values of state, DataFrames, refusals."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
from pyspark import cloudpickle as pyspark_cloudpickle
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessorHandle

from tests.spark.processors import Key, Logic, RunningCount

# Workers have no path to the tests: processors travel by value, to Spark's workers and to hosts.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pyspark_cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAN = float("nan")
NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 5)
PAIR = "p int, q string"
TIMER_MS = 1_714_564_799_000  # a second before noon of that day, in UTC


class KeyText(Logic):
    """What the processor is given as the key, with rows and with a timer, and what its rows look like; all as text."""

    OUTPUT = "id string, what string, shown string"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        shown = [tuple(record) for record in records]
        fields = getattr(key, "__fields__", None)
        self.handle.registerTimer(TIMER_MS)
        yield {
            "id": repr(tuple(key)),
            "what": "rows",
            "shown": f"{type(key).__name__} {fields} {sorted(map(repr, shown))}",
        }

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        listed = list(self.handle.listTimers()) == [at_ms]
        yield {"id": "timer", "what": repr(key), "shown": f"{type(key).__name__} {listed}"}


class Counted(Logic):
    """The key as text, and the number of its rows."""

    OUTPUT = "shown string, n long"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        yield {"shown": repr(tuple(key)), "n": sum(1 for _ in records)}


class NamedPair:
    """An object whose attributes are the fields of a struct."""

    def __init__(self) -> None:
        self.p, self.q, self.other = 3, "object", "not a field"


class Values(Logic):
    """Writes values of many Python types into value, list and map state, and tells what comes back."""

    OUTPUT = "id string, what string, answer string"
    CASES: tuple[tuple[str, Any], ...] = (
        (
            "x int",
            lambda: [
                (7,),
                [7],
                Row(x=7),
                (None,),
                (NAN,),
                iter([7]),
                np.array([7]),
                pd.Series([7]),
                (np.int32(7),),
            ],
        ),
        ("x string", lambda: [("a",), "b", (5,), (2.0,), (1e10,), (-1e-5,), (True,), (NAN,), (Decimal("1.50"),)]),
        ("x double, y float", lambda: [(0.1, 0.1), (NAN, NAN), (np.float32(0.1), np.float64(0.1)), (None, None)]),
        ("x decimal(5,2)", lambda: [(Decimal("1.555"),), (Decimal("-1"),), (NAN,), (None,)]),
        ("x binary", lambda: [("ü",), (b"\x00",), (bytearray(b"ab"),)]),
        ("x date", lambda: [(NOON,), (NOON.date(),)]),
        ("x timestamp", lambda: [(NOON,), (NOON.replace(tzinfo=dt.UTC),), (pd.Timestamp(NOON),)]),
        ("x timestamp_ntz", lambda: [(NOON,), (pd.Timestamp(NOON),)]),
        ("x array<int>", lambda: [([1, None],), ((1, 2),), ([],), (None,), ([NAN, np.int64(2)],)]),
        ("x map<string,int>", lambda: [({"a": 1},), ({1: 1},), ({"a": None},), ({},), (None,)]),
        (
            f"x struct<{PAIR}>",
            lambda: [
                (Row(p=1, q="row"),),
                ((1, "tuple"),),
                ([1, "list"],),
                ({"p": 1, "q": "dict"},),
                ({"q": "one field"},),
                ({"p": 1, "r": "a field more"},),
                (NamedPair(),),
                (None,),
            ],
        ),
        (
            f"x array<struct<{PAIR}>>, y map<string,struct<at:timestamp,l:array<int>>>",
            lambda: [
                ([Row(p=1, q="u"), (2, None), None, {"p": 3}], {"k": (NOON, [1])}),
                ([], {"l": None}),
                (None, {"k": Row(at=None, l=None)}),
            ],
        ),
        ("x map<string,map<string,array<int>>>", lambda: [({"a": {"b": [1]}},), ({"c": None},)]),
    )

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.states = [
            (
                handle.getValueState(f"v{i}", s),
                handle.getListState(f"l{i}", s),
                handle.getMapState(f"m{i}", "k int, n int", s),
            )
            for i, (s, _) in enumerate(self.CASES)
        ]

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        (number,) = [int(record.n) for record in records]
        schema, values = self.CASES[number]
        value, elements, entries = self.states[number]
        yield {"id": key[0], "what": f"{schema} before", "answer": self._shown(value, elements, entries)}
        for at, (one, other, third) in enumerate(zip(values(), values(), values(), strict=True)):
            value.update(one)
            elements.appendList([other])
            entries.updateValue((at % 2, None), third)
            yield {"id": key[0], "what": f"{schema} {at}", "answer": self._shown(value, elements, entries)}

    def _shown(self, value: Any, elements: Any, entries: Any) -> str:
        listed, mapped = list(elements.get())[-1:], sorted(map(repr, entries.iterator()))
        return f"{value.exists()} {value.get()!r} {listed!r} {mapped}"


class FrameSizes(Logic):
    """How many rows each DataFrame of a call has; a Row counts as one."""

    OUTPUT = "id string, sizes string"

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        sizes = [len(frame) if isinstance(frame, pd.DataFrame) else 1 for frame in rows]
        yield from self.emit([{"id": key[0], "sizes": repr(sizes)}])


class FrameTypes(Logic):
    """The names and types of the columns of each DataFrame, and its values."""

    OUTPUT = "id string, types string, values string"

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            types = {name: str(kind) for name, kind in frame.dtypes.items()}
            yield from self.emit([{"id": key[0], "types": repr(types), "values": repr(frame.to_numpy().tolist())}])


class Given(Logic):
    """Puts out what it is made with, for each key."""

    OUTPUT = "id string, n int"

    def __init__(self, **record: Any) -> None:
        self.record = record

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], **self.record}


class Nameless(Given):
    """Puts out a plain tuple, or a Row without names, for each key."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield Row(key[0], 1) if self.record["row"] else (key[0], 1)


class Interval(Given):
    """Has an interval in its state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.gap = handle.getValueState("gap", "gap interval day to second")

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        self.gap.update((dt.timedelta(seconds=1.5),))
        yield {"id": key[0], "n": (self.gap.get() or (dt.timedelta(),))[0].microseconds}


class Passing(Logic):
    """Passes rows on, with their event time shifted by `value` seconds."""

    OUTPUT = "id string, out timestamp"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            yield {"id": key[0], "out": record.at + dt.timedelta(seconds=record.value)}


class Marked(Passing):
    """Passes rows on with the watermark that the processor sees."""

    OUTPUT = "id string, out timestamp, watermark_ms long"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in super().rows(key, records, times):
            yield {**record, "watermark_ms": times.getCurrentWatermarkInMs()}


class Closing(Logic):
    """Passes on the newest event time of a key when the watermark has passed it."""

    OUTPUT = "id string, at timestamp, value long"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            self.handle.registerTimer(int(record.at.timestamp() * 1000) + 6_000)
        return iter(())

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        yield {"id": key[0], "at": dt.datetime.fromtimestamp(at_ms / 1000), "value": at_ms}


class Silent(Logic):
    """Tells of each row, and of each timer ten seconds behind it, at which watermark it was seen."""

    OUTPUT = "id string, what string, watermark_ms long"

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        for record in records:
            self.handle.registerTimer(int(record.at.timestamp() * 1000) + 10_000)
            yield self._record(key, f"row of {record.at}", times)

    def timer(self, key: Key, at_ms: int, times: Any) -> Iterator[dict[str, Any]]:
        yield self._record(key, f"timer of {at_ms}", times)

    def _record(self, key: Key, what: str, times: Any) -> dict[str, Any]:
        return {"id": key[0], "what": what, "watermark_ms": times.getCurrentWatermarkInMs()}


class Temporary(RunningCount):
    """Declares variables and deletes one of each kind in the same init; then tells how their uses are refused."""

    OUTPUT = "id string, said string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.gone = handle.getValueState("gone", "n int")
        super().init(handle)
        self.gone_list = handle.getListState("gone_list", "n int")
        for name in ("gone", "gone_list", "never there"):
            handle.deleteIfExists(name)

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        (counted,) = super().rows(key, records, times)
        yield {"id": key[0], "said": f"{counted['n']} {self._refused(self.gone.exists)} {list(self.gone_list.get())}"}
        yield {"id": key[0], "said": self._refused(lambda: self.gone.update((1,)))}

    def _refused(self, call: Any) -> str:
        try:
            return repr(call())
        except PySparkRuntimeError as error:
            return str(error).partition("] ")[2].partition(":")[0] or str(error).partition(":")[0]


class InitialCalls(Logic):
    """How often initial state came for a key, and how many rows in all."""

    OUTPUT = "id string, calls long, started long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.seen = handle.getValueState("seen", "calls long, rows long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        calls, rows = self.seen.get() or (0, 0)
        self.seen.update((calls + 1, rows + sum(1 for _ in self.records([initialState]))))

    def rows(self, key: Key, records: Iterator[Any], times: Any) -> Iterator[dict[str, Any]]:
        calls, rows = self.seen.get() or (0, 0)
        yield {"id": key[0], "calls": calls, "started": rows}
