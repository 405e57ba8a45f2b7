"""A streaming source that moves on only when a timer is due, so that Spark runs a batch which fires timers without data.

Spark runs batches without data only for its own stateful operators. Where this source moves on, an operator with timers gets
rows without values (ticks) as a second input; the router drops them. The hosts fire timers when the batch is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from godwit import ports
from godwit.errors import GodwitError
from godwit.runtime.liveness.leases import host_directory, read_lease
from godwit.runtime.messages import CheckTimers, CheckWatermark
from godwit.runtime.router.route import Route
from godwit.spark.checkpoint.flock_directory import read_roster
from godwit.spark.checkpoint.source_offsets import TICK, TIMER_FORMAT
from godwit.transport import line, typed
from godwit.transport.flight import Client
from godwit.transport.typed import Reply, Request

FORMAT: Final = TIMER_FORMAT
ANSWER_S: Final = 5.0
PAUSE_S: Final = 0.05


def register(spark: SparkSession) -> None:
    """Once for each session: Spark warns of a source that takes the place of another one."""
    session: Any = spark._jsparkSession
    if not session.sessionState().dataSourceManager().dataSourceExists(FORMAT):
        with _active(spark):
            spark.dataSource.register(TimerSource)


@contextmanager
def _active(spark: Any) -> Iterator[None]:
    """Spark refuses a name that the active session has, though another session registers it."""
    sessions = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def ticks(spark: SparkSession, route: Route, by_query: bool) -> DataFrame:
    """The ticks of the route's operator, whenever a timer of the operator is due: one, or one for each lane by key.

    `by_query`: also whenever the watermark of the query has moved. The source itself gives no rows, which Spark would count as
    rows of the input.
    """
    options = {"operator": route.operator, "checkpoint": route.checkpoint, "token": route.token}
    if by_query:
        options["controller"] = route.controller
    moments = spark.readStream.format(FORMAT).options(hosts=",".join(route.routing.hosts), **options).load()
    count = route.partitions or 1

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        yield pa.RecordBatch.from_pydict({"tick": pa.array(range(count), pa.int64())})

    made.__name__ = f"godwit:{route.operator}:ticks"  # in plans
    return moments.mapInArrow(made, moments.schema)


class TimerSource(DataSource):
    """Options: operator, checkpoint, token, and hosts, which are asked if there is no roster.

    `controller`: the driver's address, if the watermark of the query counts.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "tick long"

    def streamReader(self, schema: StructType) -> TimerReader:
        return TimerReader(dict(self.options))


class TimerReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._operator = options["operator"]
        self._checkpoint = options["checkpoint"]
        self._defined_with = tuple(options["hosts"].split(","))
        self._token = options["token"]
        self._controller = options.get("controller")
        self._clients: dict[str, Client] = {}
        self._until_ms: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """So that the query ends, timers count that are due by now, or by the event time of the data at hand."""
        self._until_ms = _now_ms()

    def initialOffset(self) -> dict[str, Any]:
        return {TICK: 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {TICK: max(start[TICK] + 1, _now_ms())} if self._any_due() else start

    def _any_due(self) -> bool:
        """A host that does not answer is waited for a while: a batch with rows would wait for that host, too.

        After that it counts as one without due timers, and the next trigger asks it again. So if the host is back in time, its
        timers fire in the batch in which they are due, also where no rows have come. A driver that is busy is waited for in the
        same way: with `availableNow` there is no next trigger.
        """
        until_s = ports.now_s() + ANSWER_S
        while True:
            hosts = read_roster(self._checkpoint) or self._defined_with
            at_ms = _now_ms() if self._until_ms is None else min(_now_ms(), self._until_ms)
            due = [*(self._due(host, at_ms) for host in hosts), self._watermark_moved()]
            if any(due) or None not in due or ports.now_s() > until_s:
                return any(due)
            ports.sleep(PAUSE_S)

    def _watermark_moved(self) -> bool | None:
        """As in Spark, a batch without data follows where the watermark of the query has moved. None if nobody answers."""
        if self._controller is None:
            return False
        try:
            return self._ask(self._controller, CheckWatermark(self._operator)).moved
        except GodwitError:
            return None

    def _due(self, host: str, at_ms: int) -> bool | None:
        """None if the host does not answer. A host that has never served has no timers."""
        lease = read_lease(host_directory(self._checkpoint, host))
        if lease is None:
            return False
        try:
            return self._ask(lease.address, CheckTimers(self._operator, at_ms)).due
        except GodwitError:
            return None

    def _ask(self, address: str, request: Request[Reply]) -> Reply:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = line.connect(address, self._token)
        try:
            return typed.ask(client, request, ANSWER_S)
        except GodwitError:
            self._clients.pop(address).close()
            raise

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter(())

    def stop(self) -> None:
        for client in self._clients.values():
            client.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
