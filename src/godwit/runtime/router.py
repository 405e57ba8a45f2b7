"""The router: the code inside a Spark task that sends rows to the hosts that own their keys and puts the outputs in order.

It splits a lane's rows by owner, keeps what is unanswered so that it can be sent again to a restarted host, and lets the task
end only when every host has made the lane's work durable. It decides nothing about state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import GodwitError, NullKey
from godwit.runtime.lanes import Window, windows
from godwit.runtime.link import Link
from godwit.runtime.route import Route, Task
from godwit.runtime.rows import Index
from godwit.state.ledger import in_row_order
from godwit.transport import wire
from godwit.transport.wire import HASH, ROW

WINDOWS_MAX = 3  # sent and not yet answered; more than one keeps hosts busy while the next is read


class Router:
    """Takes a lane's rows through the operator."""

    def __init__(self, route: Route, task: Task) -> None:
        self._route = route
        self._task = task
        self._owners = np.array(route.routing.owners, np.int32)
        self._links: list[Link] = []
        self._sent: deque[list[Link]] = deque()
        self._row_count = 0
        self._event_max_ms: int | None = None

    def run(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Outputs in the order of the input rows; returns when all is durable."""
        wire_schema = pa.schema([*schema, pa.field(ROW, pa.int64()), pa.field(HASH, pa.int64())])
        try:
            self._connect(wire_schema)
            yield from self._timers()
            for window in windows(batches, self._route, self._task.lane):
                self._send(window, wire_schema)
                while len(self._sent) >= WINDOWS_MAX:
                    yield from self._collect()
            while self._sent:
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
            yield _without_row(in_row_order(fired))

    def _send(self, window: Window, schema: pa.Schema) -> None:
        self._check_keys(window)
        self._note_event_time(window.batch)
        self._row_count += len(window.rows)
        hashes = window.hashes
        numbered = pa.RecordBatch.from_arrays(
            [*_as(window.batch, schema), pa.array(window.rows), pa.array(hashes)], schema=schema
        )
        note = wire.pack("rows", lane=window.lane)
        asked = []
        for link, part in self._split(numbered, hashes):
            link.send(note, part)
            asked.append(link)
        self._sent.append(asked)

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
                yield link, batch.take(mine)

    def _check_keys(self, window: Window) -> None:
        if self._route.null_keys == "bucket":
            return
        for name in self._route.key_names:
            column = window.batch.column(window.batch.schema.get_field_index(name))
            if column.null_count:
                row = window.rows[np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]]
                raise NullKey(
                    f"key column {name!r} is null",
                    todo='Filter such rows out before, or pass nullKeys="bucket" to give them a state of their own',
                    row=int(row),
                )

    def _note_event_time(self, batch: pa.RecordBatch) -> None:
        if self._route.event_time is None:
            return
        times = batch.column(batch.schema.get_field_index(self._route.event_time)).drop_null()
        if len(times):
            newest = _newest(times)
            self._event_max_ms = newest if self._event_max_ms is None else max(newest, self._event_max_ms)

    def _collect(self) -> Iterator[pa.RecordBatch]:
        answers = [link.receive("outputs") for link in self._sent.popleft()]
        outputs = [answer for answer in answers if answer is not None and len(answer)]
        if outputs:
            yield _without_row(in_row_order(outputs))

    def _finish(self) -> None:
        """A lane made of columns may be cut otherwise when it is read again, so its number of rows proves nothing."""
        rows = None if self._route.numbering == "columns" else self._row_count
        for link in self._links:
            link.finish(rows, self._event_max_ms)
        for link in self._links:
            link.receive("finished")


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array[Any]]:
    """The columns in the types hosts expect; Spark may be set to give strings as large strings."""
    return [column.cast(schema.field(at).type) for at, column in enumerate(batch.columns)]


def _newest(times: pa.Array[Any]) -> int:
    micros = pc.max(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())).as_py()
    return int(micros) // 1000


def _without_row(outputs: pa.RecordBatch) -> pa.RecordBatch:
    return outputs.select(outputs.schema.names[1:])
