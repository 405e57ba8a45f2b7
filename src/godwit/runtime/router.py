"""The router: the code inside a Spark task that sends rows to the hosts that own their keys and puts the outputs in order.

It numbers the rows of its lane, splits them by owner, keeps what is unanswered so that it can send it again to a restarted
host, and lets the task end only when every host has made the lane's work durable. It decides nothing about state.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from godwit.errors import GodwitError, HostUnavailable, NullKey
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.leases import Lease, host_directory, read_lease, read_obituary
from godwit.runtime.rows import Index
from godwit.transport import wire
from godwit.transport.flight import GONE, Client, wrong_token
from godwit.transport.wire import HASH, ROW

WINDOWS_MAX = 3  # sent and not yet answered; more than one keeps hosts busy while the next is read
CHUNK_ROWS_MAX = 1 << 17
BREAKS_MAX = 20


@dataclass(frozen=True, slots=True)
class Route:
    """What a router needs to know about its operator and its flock; shipped with the task."""

    operator: str
    checkpoint: str
    routing: Routing
    output_schema: pa.Schema
    key_names: tuple[str, ...]
    token: str = field(repr=False)
    null_keys: str = "error"
    event_time: str | None = None
    gather: bool = True
    wait_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """Which task this is: lane, batch, and the scope of a batch DataFrame's evaluation."""

    request: BatchRef
    lane: str
    scope: str | None = None


class Link:
    """One host as a lane sees it: a stream, what is unanswered on it, and the way back after a restart."""

    def __init__(self, host: str, route: Route, task: Task, schema: pa.Schema) -> None:
        self.host = host
        self.timers: pa.RecordBatch | None = None
        self._route = route
        self._task = task
        self._schema = schema
        self._directory = host_directory(route.checkpoint, host)
        self._unanswered: deque[tuple[bytes, pa.RecordBatch | None]] = deque()
        self._answered: dict[int, int] = {}
        self._lease: Lease | None = None
        self._client: Client | None = None
        self._deadline: float | None = None
        self._breaks = 0

    def connect(self) -> None:
        """Open a stream to the host's newest generation and say again what it has not answered."""
        while True:
            lease = self._wait_lease()
            try:
                self._open(lease)
                return
            except GONE as error:
                self._lost(error)

    def _open(self, lease: Lease) -> None:
        task, request = self._task, self._task.request
        self._lease = lease
        self._client = Client(lease.address, self._route.token)
        try:
            self._writer, self._reader = self._client.exchange(
                operator=self._route.operator,
                scope=task.scope,
                query=request.query,
                run=request.run,
                batch=request.batch,
                lane=task.lane,
            )
            self._writer.begin(self._schema)
        except flight.FlightUnauthenticatedError as error:
            raise wrong_token(lease.address) from error
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(
            target=_drain, args=(self._reader, self._inbox), name=f"godwit-link-{self.host}", daemon=True
        ).start()
        if request.batch >= 0:
            opened = self._read("opened")
            self.timers = opened[1]
        for note, data in self._unanswered:
            self._write(note, data)
        self._deadline = None

    def _wait_lease(self) -> Lease:
        """The address of a generation that we have not lost yet; polled, because the host tells only the file system."""
        self._deadline = self._deadline or time.monotonic() + self._route.wait_s
        pause_s = 0.002
        while True:
            lease = read_lease(self._directory)
            if lease is not None and lease != self._lease:
                return lease
            if lease is not None and time.monotonic() > self._deadline - self._route.wait_s + 1.0:
                self._lease = None  # the same generation may only have dropped the connection: try it again
            if time.monotonic() > self._deadline:
                raise HostUnavailable(
                    f"{self.host} has not served for {self._route.wait_s:g} s",
                    todo="Look at flock.status() and the executor's log; the task is retried by Spark",
                    operator=self._route.operator,
                    host=self.host,
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def _lost(self, error: BaseException) -> None:
        """The stream broke. If the host ended itself because of us, say why; otherwise go on with its successor."""
        self._close_client()
        self._breaks += 1
        if self._breaks > BREAKS_MAX:
            raise HostUnavailable(
                f"{self.host} broke the connection {self._breaks} times without an answer: {error}", host=self.host
            )
        if isinstance(error, flight.FlightUnauthenticatedError):
            raise wrong_token(self._lease.address if self._lease else self.host) from error
        if self._lease is not None:
            reason = read_obituary(self._directory, self._lease.generation)
            if reason is not None:
                raise reason.at(host=self.host)

    def send(self, note: bytes, data: pa.RecordBatch | None) -> None:
        self._unanswered.append((note, data))
        try:
            self._write(note, data)
        except GONE as error:
            self._lost(error)
            self.connect()

    def _write(self, note: bytes, data: pa.RecordBatch | None) -> None:
        if data is None:
            self._writer.write_metadata(note)
        else:
            self._writer.write_with_metadata(data, note)

    def receive(self, kind: str) -> pa.RecordBatch | None:
        """The answer to the oldest unanswered message."""
        while True:
            try:
                header, data = self._read(kind)
                break
            except GONE as error:
                self._lost(error)
                self.connect()
        self._unanswered.popleft()
        self._breaks = 0
        if "lsn" in header:
            assert self._lease is not None
            self._answered[self._lease.generation] = header["lsn"]
        return data

    def _read(self, kind: str) -> tuple[dict[str, Any], pa.RecordBatch | None]:
        message = self._inbox.get()
        if isinstance(message, BaseException):
            raise message
        return wire.unpack(message.app_metadata, kind), message.data

    def finish(self, rows: int, event_max_ms: int | None) -> None:
        answered = list(self._answered.items())
        self.send(wire.pack("finish", rows=rows, event_max_ms=event_max_ms, answered=answered), None)

    def close(self) -> None:
        if self._client is not None:
            try:
                self._writer.done_writing()
                self._writer.close()
            except GONE:
                pass
        self._close_client()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _drain(reader: Any, inbox: queue.SimpleQueue[Any]) -> None:
    """Read answers as they come, so that neither side ever waits for the other to read."""
    while True:
        try:
            message = reader.read_chunk()
        except BaseException as error:
            inbox.put(error)
            return
        inbox.put(message)


class Router:
    """Takes a lane's rows through the operator."""

    def __init__(self, route: Route, task: Task) -> None:
        self._route = route
        self._task = task
        self._owners = np.array(route.routing.owners, np.int32)
        self._links: list[Link] = []
        self._windows: deque[list[Link]] = deque()
        self._next_row = 0
        self._seq = 0
        self._event_max_ms: int | None = None

    def run(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Outputs in the order of the input rows; returns when all is durable."""
        wire_schema = pa.schema([*schema, pa.field(ROW, pa.int64()), pa.field(HASH, pa.int64())])
        try:
            self._connect(wire_schema)
            yield from self._timers()
            for batch in self._gathered(batches):
                self._send(batch, wire_schema)
                while len(self._windows) >= WINDOWS_MAX:
                    yield from self._collect()
            while self._windows:
                yield from self._collect()
            self._finish()
        except GodwitError as error:
            request = self._task.request
            raise error.at(operator=self._route.operator, batch=request.batch, lane=self._task.lane) from None
        finally:
            for link in self._links:
                link.close()

    def _connect(self, schema: pa.Schema) -> None:
        """To every host, also where no row will go: the batch and its event time concern them all."""
        self._links = [Link(host, self._route, self._task, schema) for host in self._route.routing.hosts]
        for link in self._links:
            link.connect()

    def _timers(self) -> Iterator[pa.RecordBatch]:
        fired = [link.timers for link in self._links if link.timers is not None]
        if fired:
            yield _in_order(fired)

    def _gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Whole lanes up to a bound when the processor is called per key, so that a key is called once; else as they come."""
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            if not len(batch):
                continue
            if not self._route.gather:
                yield batch
                continue
            held.append(batch)
            count += len(batch)
            if count >= CHUNK_ROWS_MAX:
                yield pa.concat_batches(held)
                held, count = [], 0
        if held:
            yield pa.concat_batches(held) if len(held) > 1 else held[0]

    def _send(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        """The last column is the routing hash that Spark computed; rows without one only made this batch happen."""
        batch = _without_ticks(batch)
        if not len(batch):
            return
        self._check_keys(batch)
        self._note_event_time(batch)
        hashes = batch.column(batch.num_columns - 1)
        rows = np.arange(self._next_row, self._next_row + len(batch), dtype=np.int64)
        columns = [*batch.columns[:-1], pa.array(rows), hashes]
        numbered = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._next_row += len(batch)
        self._seq += 1
        note = wire.pack("rows", seq=self._seq, lane=self._task.lane)
        window = []
        for link, part in self._split(numbered, hashes.to_numpy()):
            link.send(note, part)
            window.append(link)
        self._windows.append(window)

    def _split(self, batch: pa.RecordBatch, hashes: Index) -> Iterator[tuple[Link, pa.RecordBatch]]:
        if len(self._links) == 1:
            yield self._links[0], batch
            return
        owner = self._owners[hashes % len(self._owners)]
        for position, link in enumerate(self._links):
            mine = np.flatnonzero(owner == position)
            if len(mine) == len(batch):
                yield link, batch
            elif len(mine):
                yield link, batch.take(pa.array(mine))

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        if self._route.null_keys == "bucket":
            return
        for name in self._route.key_names:
            column = batch.column(batch.schema.get_field_index(name))
            if column.null_count:
                row = self._next_row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise NullKey(
                    f"key column {name!r} is null",
                    todo='Filter such rows out before the operator, or pass nullKeys="bucket" to give them a state of their own',
                    row=row,
                )

    def _note_event_time(self, batch: pa.RecordBatch) -> None:
        if self._route.event_time is None:
            return
        times = batch.column(batch.schema.get_field_index(self._route.event_time)).drop_null()
        if len(times):
            newest = _newest(times)
            self._event_max_ms = newest if self._event_max_ms is None else max(newest, self._event_max_ms)

    def _collect(self) -> Iterator[pa.RecordBatch]:
        answers = [link.receive("outputs") for link in self._windows.popleft()]
        outputs = [answer for answer in answers if answer is not None and len(answer)]
        if outputs:
            yield _in_order(outputs)

    def _finish(self) -> None:
        for link in self._links:
            link.finish(self._next_row, self._event_max_ms)
        for link in self._links:
            link.receive("finished")


def _without_ticks(batch: pa.RecordBatch) -> pa.RecordBatch:
    hashes = batch.column(batch.num_columns - 1)
    return batch.filter(hashes.is_valid()) if hashes.null_count else batch


def _newest(times: pa.Array[Any]) -> int:
    micros = pc.max(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())).as_py()
    return int(micros) // 1000


def _in_order(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Outputs of several hosts by input row, without the row column."""
    if len(batches) == 1:
        joined = batches[0]
    else:
        joined = pa.concat_batches(batches)
        joined = joined.take(pa.array(np.argsort(joined.column(0).to_numpy(), kind="stable")))
    return joined.select(joined.schema.names[1:])
