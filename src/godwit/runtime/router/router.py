"""The router: the code inside a Spark task that sends rows to the hosts that own their keys and puts the outputs in order.

It splits a lane's rows by owner as its table has it, sees to it that rows which a host refuses get to their owner, and lets the
task end only when every host has made the lane's work durable. It decides nothing about state, nor who owns a key.

Order (DESIGN 5): windows are collected in the order in which they were sent, each seen through before the next is looked at,
and what was learnt from one is used for new windows only when none is in flight. So no row overtakes an earlier one of its key
that is still on its way to, or back from, an older owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, NullKey
from godwit.runtime.processor.merging import BLOCK_ROWS, Merging, checked_merge
from godwit.runtime.processor.rows import Index
from godwit.runtime.processor.spec import merge_of
from godwit.runtime.router.lanes import Window, windows
from godwit.runtime.router.links import Links
from godwit.runtime.router.pace import Pace
from godwit.runtime.router.pieces import Piece
from godwit.runtime.router.rounds import Rounds
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile
from godwit.state.ledger import in_row_order
from godwit.transport.wire import CHECK, HASH, ROW

WINDOWS_MAX = 3  # sent and not yet answered; more than one keeps hosts busy while the next is read
SMALL_ROWS_MAX = (
    256  # a window of so few is answered before the next is read, which with the real-time trigger may be never
)


class Router:
    """Takes a lane's rows through the operator."""

    def __init__(self, route: Route, task: Task) -> None:
        self._route = route
        self._task = task
        self._file = RoutingFile(route.checkpoint, route.operator, moves=task.scope is None)
        self._table = newest_table(route, self._file)
        self._sent: deque[tuple[Window, list[Piece], float]] = deque()
        self._pace = Pace(route.operator)
        self._row_count = 0
        self._event_max_ms: int | None = None

    def run(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Outputs in the order of the input rows; returns when all is durable."""
        check = [pa.field(CHECK, pa.int32())] if self._route.checked else []
        wire_schema = pa.schema([*schema, *check, pa.field(ROW, pa.int64()), pa.field(HASH, pa.int64())])
        self._links = Links(self._route, self._task, wire_schema, self._file, self._table)
        self._rounds = Rounds(self._route, self._table, self._links, self._file)
        try:
            # Every host, also where no row will go: the batch and its event time concern them all.
            self._links.begin(self._table.hosts)
            self._links.check_committed()
            yield from _ordered(self._links.timers())
            merging = merging_of(self._route, schema, self._links.begun())
            found = windows(batches, self._route, self._task.lane, None if merging is None else BLOCK_ROWS)
            for window in self._cut(self._read(found, merging, wire_schema)):
                self._send(window, wire_schema)
                yield from self._collect(0 if len(window.rows) <= SMALL_ROWS_MAX else WINDOWS_MAX - 1)
            yield from self._collect(0)
            self._finish()
        except GodwitError as error:
            request = self._task.request
            raise error.at(operator=self._route.operator, batch=request.batch, lane=self._task.lane) from None
        finally:
            self._links.close()

    def _read(self, found: Iterable[Window], merging: Merging | None, schema: pa.Schema) -> Iterator[Window]:
        """What is told of the lane is told of the rows as they came. Merged before they are cut, which goes by the clock."""
        for window in found:
            self._check_keys(window)
            self._note_event_time(window.batch)
            self._row_count += len(window.rows)
            yield window if merging is None else _merged(window, merging, schema)

    def _cut(self, found: Iterable[Window]) -> Iterator[Window]:
        for window in found:
            begin = 0
            while begin < len(window.rows):
                end = len(window.rows) if self._route.gather else begin + (self._pace.rows_max() or len(window.rows))
                # How many rows go at once may change in between, also to more than there are: what has gone is not sent again.
                yield window if begin == 0 and end >= len(window.rows) else window.part(begin, end)
                begin = end

    def _send(self, window: Window, schema: pa.Schema) -> None:
        numbered = _numbered(window, schema)
        pieces = [Piece(host, window.lane, part) for host, part in self._split(numbered, window.hashes)]
        self._links.open(piece.host for piece in pieces)  # the table may have learnt of further hosts
        for piece in pieces:
            self._links.send(piece)
        self._sent.append((window, pieces, ports.now_s()))

    def _split(self, batch: pa.RecordBatch, hashes: Index) -> Iterator[tuple[str, pa.RecordBatch]]:
        if len(self._table.hosts) == 1:
            yield self._table.hosts[0], batch
            return
        owners = self._table.owners(hashes)
        for position in np.flatnonzero(np.bincount(owners)).tolist():
            mine = np.flatnonzero(owners == position)
            yield self._table.hosts[position], batch if len(mine) == len(batch) else batch.take(mine)

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

    def _collect(self, left: int) -> Iterator[pa.RecordBatch]:
        """Until so many windows are in flight, or none, if one of them taught the table something."""
        while len(self._sent) > (0 if self._rounds.learnt else left):
            window, pieces, sent_s = self._sent.popleft()
            outputs = self._rounds.see_through(window.lane, pieces)
            self._pace.answered(len(window.rows), sent_s, ports.now_s())
            yield from _ordered(outputs)
        if not self._sent:
            self._rounds.learnt = False

    def _finish(self) -> None:
        """A lane made of columns may be cut otherwise when it is read again, so its number of rows proves nothing."""
        rows = None if self._route.numbering == "columns" else self._row_count
        self._links.finish(rows, self._event_max_ms)


def newest_table(route: Route, file: RoutingFile) -> OwnerTable:
    table = file.table()
    return table if table is not None and table.version > route.routing.version else OwnerTable(route.routing)


def merging_of(route: Route, schema: pa.Schema, begun: Sequence[Mapping[str, Any]]) -> Merging | None:
    """How this batch is merged: as it was begun, also by an application that had declared it otherwise.

    Rows of it may have been applied then, and have to come the same again. A host that has no rows of it yet may say what is
    declared now.
    """
    if route.merge and not begun:
        raise HostUnavailable(
            "no host is left of those that were known, so nobody can tell how the batch was begun",
            todo="The task is retried by Spark",
        )
    told = [merge_of(each.get("merge")) for each in begun]
    merge = next((each for each in told if each != route.merge), route.merge)
    if merge != route.merge:
        checked_merge(dict(merge), schema, route.key_names)  # the input may be another one, too
    late_us = max((each["late_us"] for each in begun if each.get("late_us") is not None), default=None)
    return Merging(merge, schema, route.key_names, route.event_time, late_us) if merge else None


def _merged(window: Window, merging: Merging, schema: pa.Schema) -> Window:
    block = merging.merged(_numbered(window, schema))
    *names, row, hash_ = block.schema.names
    return Window(window.lane, block.select(names), block.column(row).to_numpy(), block.column(hash_).to_numpy())


def _numbered(window: Window, schema: pa.Schema) -> pa.RecordBatch:
    columns = [*_as(window.batch, schema), pa.array(window.rows), pa.array(window.hashes)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array[Any]]:
    """The columns in the types hosts expect; Spark may be set to give strings as large strings."""
    return [column.cast(schema.field(at).type) for at, column in enumerate(batch.columns)]


def _newest(times: pa.Array[Any]) -> int:
    micros = pc.max(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())).as_py()
    return int(micros) // 1000


def _ordered(outputs: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if outputs:
        whole = in_row_order(outputs)
        yield whole.select(whole.schema.names[1:])
