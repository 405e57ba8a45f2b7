"""Jobs as they are ported from Spark: sessions, a join of two streams, top scores, and how users bend the API.

They do not share a base class with the other processors of these tests: each is what a user of PySpark would write.
Where Spark promises no order (rows of a key in a batch, `listTimers`), the jobs sort.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import cloudpickle
import pandas as pd
from pyspark import cloudpickle as pyspark_cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, TimestampType

# Workers have no path to the tests: processors travel by value, to Spark's workers and to hosts.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pyspark_cloudpickle.register_pickle_by_value(sys.modules[__name__])

HOUR_MS = 3_600_000


def millis(moment: dt.datetime) -> int:
    """Of a naive datetime in UTC, or of one that knows its zone."""
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


class Job(StatefulProcessor):
    """What each job has beside its processor: the output, and the state variables to compare at the end."""

    OUTPUT: str
    VARIABLES: tuple[str, ...] = ()

    def close(self) -> None:
        pass


class Sessions(Job):
    """Pages of a user on a device until ten seconds without any: a timer is moved with every page."""

    OUTPUT = (
        "user string, device string, what string, timers string, "
        "pages array<struct<at:timestamp,url:string,tags:array<string>>>"
    )
    VARIABLES = ("pages", "until")
    GAP_MS = 10_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        page = StructType([StructField("url", StringType()), StructField("tags", ArrayType(StringType()))])
        self.handle = handle
        self.pages = handle.getListState(
            "pages", StructType([StructField("at", TimestampType()), StructField("page", page)])
        )
        self.until = handle.getValueState("until", "ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield self._shown(key, f"watermark {timerValues.getCurrentWatermarkInMs()}")
        for row in sorted(rows, key=lambda row: (row.at, row.url)):
            self.pages.appendValue((row.at, Row(url=row.url, tags=[row.url[:1], None])))
            until, (before,) = millis(row.at) + self.GAP_MS, self.until.get() or (0,)
            if until > before:
                self.handle.deleteTimer(before)
                self.handle.registerTimer(until)
                self.until.update((until,))
        yield self._shown(key, "pages")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        pages = sorted(self.pages.get(), key=repr)
        self.pages.clear()
        self.until.clear()
        shown = [Row(at=at, url=page.url, tags=page.tags) for at, page in pages]
        yield self._shown(key, f"end {expiredTimerInfo.getExpiryTimeInMs()}", shown)

    def _shown(self, key: Any, what: str, pages: list[Row] | None = None) -> Row:
        timers = repr(sorted(self.handle.listTimers()))
        return Row(user=key[0], device=str(key[1]), what=what, timers=timers, pages=pages)


class Matches(Job):
    """Orders and payments of two streams that were united: pairs as they meet, and orders that nobody has paid in time."""

    OUTPUT = "id long, pair struct<order:struct<amount:double,at:timestamp>,payment:struct<by:string,at:timestamp>>, how string"
    VARIABLES = ("orders", "payments")
    WAIT_MS = 20_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.orders = handle.getListState("orders", "amount double, at timestamp")
        self.payments = handle.getMapState("payments", "by string", "at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: (row.side, row.at)):
            self.handle.registerTimer(millis(row.at) + self.WAIT_MS)
            if row.side == "order":
                self.orders.appendValue((row.amount, row.at))
                for (by,), (at,) in self.payments.iterator():
                    yield self._pair(key, (row.amount, row.at), (by, at), "order")
            else:
                self.payments.updateValue((row.by,), (row.at,))
                for order in self.orders.get():
                    yield self._pair(key, order, (row.by, row.at), "payment")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        limit_ms = expiredTimerInfo.getExpiryTimeInMs() - self.WAIT_MS
        orders = list(self.orders.get())
        kept = [order for order in orders if millis(order[1]) > limit_ms]
        if kept:
            self.orders.put(kept)
        else:
            self.orders.clear()
        for by, (at,) in self.payments.iterator():  # entries are removed while the map is read
            if millis(at) <= limit_ms:
                self.payments.removeKey(by)
        for order in orders:
            if order not in kept:
                yield self._pair(key, order, None, "given up")

    def _pair(self, key: Any, order: tuple[Any, ...], payment: tuple[Any, ...] | None, how: str) -> Row:
        paid = None if payment is None else Row(by=payment[0], at=payment[1])
        return Row(id=key[0], pair=Row(order=Row(amount=order[0], at=order[1]), payment=paid), how=how)


class TopScores(Job):
    """The three best scores of a game on a day, in a list of decimals, arrays, maps and bytes; gives a list, no generator."""

    OUTPUT = "game boolean, day date, place int, score decimal(10,3), tags array<string>, attrs map<string,double>, raw binary"
    VARIABLES = ("top",)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.top = handle.getListState(
            "top", "score decimal(10,3), tags array<string>, attrs map<string,double>, raw binary"
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        best = list(self.top.get())
        for row in rows:
            if row.what == "forget":
                self.top.clear()
                best = []
            else:
                best.append((row.score, row.tags, None if row.attrs is None else dict(row.attrs), row.raw))
        best.sort(key=lambda each: (-each[0], repr(each)))
        if best:
            self.top.put(best[:3])
        names = "score tags attrs raw".split()
        told = [dict(zip(names, each, strict=True)) for each in self.top.get()]
        return iter([Row(game=key[1], day=key[0], place=place, **each) for place, each in enumerate(told)])


class WindowTotals(Job):
    """A count for a key and a window, which is a struct in the key: a timer at its end gives it out."""

    OUTPUT = "id string, window struct<start:timestamp,end:timestamp>, n long, what string"
    VARIABLES = ("n",)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.n.get() or (0,))[0] + sum(1 for _ in rows)
        self.n.update((n,))
        self.handle.registerTimer(millis(key[1]["end"]))
        yield Row(id=key[0], window=key[1], n=n, what="rows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(id=key[0], window=key[1], n=(self.n.get() or (-1,))[0], what="end")
        self.n.clear()


class TimersOfTimers(Job):
    """Timers that delete others which are due with them, set themselves again, and set timers of the past and of later."""

    OUTPUT = "id string, what string, timers string"
    VARIABLES = ("fired",)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        first_ms = min(millis(row.at) for row in rows)
        for after_ms in (1_000, 2_000, 3_000, 3_000, 50_000):
            self.handle.registerTimer(first_ms + after_ms)
        for after_ms in (50_000, 777):  # the second one was never there
            self.handle.deleteTimer(first_ms + after_ms)
        yield self._shown(key, "rows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        n = (self.fired.get() or (0,))[0] + 1
        self.fired.update((n,))
        yield self._shown(key, f"{n} at {at_ms}")
        if n == 1:
            self.handle.deleteTimer(at_ms + 1_000)
            for after_ms in (1_500, 0, 60_000):
                self.handle.registerTimer(at_ms + after_ms)
        if n == 2:
            self.handle.registerTimer(at_ms - 5)
        if n == 3:
            self.handle.deleteTimer(at_ms)
        yield self._shown(key, f"{n} done")

    def _shown(self, key: Any, what: str) -> Row:
        return Row(id=key[0], what=what, timers=repr(sorted(self.handle.listTimers())))


class ChangedWhileRead(Job):
    """Maps and lists that change while they are read, and iterators that outlive a `clear`."""

    OUTPUT = "id string, seen string, left string"
    VARIABLES = ("entries", "elements")

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.entries = handle.getMapState("entries", "k int", "v int")
        self.elements = handle.getListState("elements", "v int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for n in sorted(row.n for row in rows):
            self.entries.updateValue((n,), (n,))
            self.elements.appendValue((n,))
        seen = []
        for (k,), (v,) in self.entries.iterator():
            seen.append(k)
            if k % 2:
                self.entries.removeKey((k,))
            else:
                self.entries.updateValue((k,), (v + 100,))
        read = []
        for (v,) in self.elements.get():
            read.append(v)
            if len(read) == 2:
                self.elements.appendValue((v * 100,))
        elements = self.elements.get()
        first = next(elements, None)
        self.elements.clear()
        left = [first, *elements]
        yield Row(id=key[0], seen=f"{sorted(seen)} {read} {left}", left=repr(sorted(self.entries.iterator())))


class PandasSessions(Job):
    """Sessions with DataFrames, by a key of date, flag and decimal; a session that has ended sets one more timer."""

    OUTPUT = "k string, what string, at timestamp, total double, times array<timestamp>"
    VARIABLES = ("values", "open")

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.values = handle.getListState("values", "at timestamp, v double")
        self.open = handle.getValueState("open", "until long, n int")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(list(rows)).sort_values("at")
        self.values.appendList(list(zip(frame["at"], frame["v"], strict=True)))
        until, (before, n) = millis(frame["at"].max().to_pydatetime()) + 5_000, self.open.get() or (0, 0)
        if until > before:
            self.handle.deleteTimer(before)
            self.handle.registerTimer(until)
        self.open.update((max(until, before), n + len(frame)))
        mean, newest = frame["v"].mean(), frame["at"].iloc[-1:].reset_index(drop=True)
        # Columns in another order, one too many, and instants of numpy in an array.
        told = {"times": [frame["at"].to_numpy()], "what": ["rows"], "k": [repr(key)], "more": [1], "total": [mean]}
        yield pd.DataFrame(told).assign(at=newest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        frame = pd.DataFrame(list(self.values.get()), columns=["at", "v"])
        _, n = self.open.get() or (0, 0)
        self.values.clear()
        self.open.clear()
        yield pd.DataFrame()
        shown = frame.assign(k=repr(key), what=f"{n} at {at_ms}", total=frame["v"].cumsum(), times=None)
        yield shown[["k", "what", "at", "total", "times"]]
        if n > 2:
            self.handle.registerTimer(at_ms + 1)
            self.open.update((0, 0))
            self.values.appendValue((None, None))


class Purchases(Job):
    """A small purchase and then a large one is fraud: structs in a value, decimals, dates and a map in the entries of a map."""

    OUTPUT = "card long, what string, total decimal(14,2), why struct<score:double,names:array<string>>"
    VARIABLES = ("small", "shops")

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.small = handle.getValueState("small", "at timestamp, why struct<score:double,names:array<string>>")
        self.shops = handle.getMapState(
            "shops", "shop string", "total decimal(14,2), days array<date>, lands map<string,int>"
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(card=key[0], what="begin")
        for row in sorted(rows, key=lambda row: row.at):
            total, days, lands = self.shops.getValue((row.shop,)) or (Decimal(0), [], {})
            lands = {**lands, row.land or "?": lands.get(row.land or "?", 0) + 1}
            self.shops.updateValue((row.shop,), (total + row.amount, sorted({*days, row.at.date()}), lands))
            small = self.small.get()
            if small and row.amount > 500 and millis(row.at) - millis(small[0]) < 60_000:
                yield Row(card=key[0], what="fraud", total=total + row.amount, why=small[1])
            if row.amount < 1:
                self.small.update((row.at, Row(score=float(row.amount) * 2, names=["small", row.land])))
            elif self.small.exists():
                self.small.clear()
        total = sum((each[0] for each in self.shops.values()), Decimal(0))
        names = sorted(name for (name,), _ in self.shops.iterator())
        yield Row(card=key[0], what="end", total=total, why=Row(score=1.0, names=names))
