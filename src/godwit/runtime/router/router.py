"""The router: the code inside a Spark task that sends rows to the hosts that own their keys and puts the outputs in order.

It splits a lane's rows by their owners in its routing table, sends refused rows on to their owners, and lets the task end only
when every host has made the lane's work durable. It decides nothing about state, nor who owns a key.

Order (I3): the answers to slices are collected in the order of sending, and all rows of one slice are applied before the
next slice is looked at. New owners that were learnt from a refusal are used for new slices only when no slice is in flight. So
no row overtakes an earlier row of its key that is still on its way to, or back from, an older owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, NullKey
from godwit.runtime.messages import LaneOpened
from godwit.runtime.processor.merging import BLOCK_ROWS, Merging, checked_merge
from godwit.runtime.processor.rows import Index, event_times
from godwit.runtime.processor.spec import merge_of
from godwit.runtime.router.host_requests import RowsRequest
from godwit.runtime.router.key_order import end_of_key
from godwit.runtime.router.lanes import CHUNK_ROWS_MAX, RowSlice, row_slices
from godwit.runtime.router.links import Links
from godwit.runtime.router.pace import Pace
from godwit.runtime.router.rounds import Rounds
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile
from godwit.state.ledger import in_row_order
from godwit.transport.wire import CHECK, HASH, ROW

IN_FLIGHT_MAX = 3  # slices sent and not yet answered; more than one keeps hosts busy while the next slice is read
FIRE_EVERY_S = 0.1  # in real time: timers fire so late at most


class Router:
    """Takes a lane's rows through the operator."""

    def __init__(self, route: Route, task: Task) -> None:
        self._route = route
        self._task = task
        self._file = RoutingFile(route.checkpoint, route.operator, moves=task.scope is None)
        self._table = newest_table(route, self._file)
        self._sent: deque[tuple[RowSlice, list[RowsRequest], float]] = deque()
        self._pace = Pace(route.operator)
        self._row_count = 0
        self._event_max_ms: int | None = None
        self._fired_s = ports.now_s()
        self._nothing = pa.RecordBatch.from_pylist([], schema=route.output_schema)

    def run(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Outputs in the order of the input rows; returns when all is durable."""
        check = [pa.field(CHECK, pa.int32())] if self._route.checked else []
        wire_schema = pa.schema([*schema, *check, pa.field(ROW, pa.int64()), pa.field(HASH, pa.int64())])
        self._links = Links(self._route, self._task, wire_schema, self._file, self._table)
        self._rounds = Rounds(self._route, self._table, self._links, self._file)
        try:
            # Hosts that get no rows are opened too: the batch and its event time concern all hosts.
            self._links.begin(self._table.hosts)
            self._links.check_committed()
            if not self._route.partitions:
                yield from _ordered(self._links.timers())
            merging = merging_of(self._route, schema, self._links.opened())
            slices = row_slices(batches, self._route, self._task.lane, None if merging is None else BLOCK_ROWS)
            for row_slice in self._cut(self._read(slices, merging, wire_schema)):
                if len(row_slice.rows):
                    self._send(row_slice, wire_schema)
                    # In real time the next slice may never come.
                    yield from self._collect(0 if self._route.real_time else IN_FLIGHT_MAX - 1)
                yield from self._fire_due()
            yield from self._collect(0)
            if self._route.timers_end_lanes and self._task.carries:
                self._links.fire_timers()
                yield from _ordered(self._links.timers())
            self._finish()
        except GodwitError as error:
            request = self._task.request
            raise error.at(operator=self._route.operator, batch=request.batch, lane=self._task.lane) from None
        finally:
            self._links.close()

    def _fire_due(self) -> Iterator[pa.RecordBatch]:
        """In real time, timers fire while the batch runs: a few times in a second, also when no rows come (ticks)."""
        now_s = ports.now_s()
        if self._route.timers_in_real_time and not self._sent and now_s - self._fired_s >= FIRE_EVERY_S:
            self._fired_s = now_s
            yield from _ordered(self._links.fire_due(self._event_max_ms))

    def _read(self, slices: Iterable[RowSlice], merging: Merging | None, schema: pa.Schema) -> Iterator[RowSlice]:
        """Count the rows as they came, then merge them; cutting comes later, because it depends on the clock."""
        for row_slice in slices:
            self._check_keys(row_slice)
            self._note_event_time(row_slice.batch)
            self._row_count += len(row_slice.rows)
            yield row_slice if merging is None else _merged(row_slice, merging, schema)

    def _cut(self, slices: Iterable[RowSlice]) -> Iterator[RowSlice]:
        for whole in slices:
            begin, count = 0, len(whole.rows)
            if not count:  # a tick
                yield whole
            while begin < count:
                end = self._end(whole, begin)
                # The pace may change between two parts, also to more rows than are left; no row is sent twice.
                yield whole if begin == 0 and end >= count else whole.part(begin, end)
                begin = end

    def _end(self, whole: RowSlice, begin: int) -> int:
        """Where the next part of a slice ends. If a processor is to see all rows of a key in one call, keys are not cut."""
        route, count = self._route, len(whole.rows)
        if route.gather and not route.partitions:
            return count
        end = begin + (self._pace.rows_max() or CHUNK_ROWS_MAX)
        return end_of_key(whole.hashes, end) if route.partitions else end

    def _send(self, row_slice: RowSlice, schema: pa.Schema) -> None:
        by_host = self._split(_numbered(row_slice, schema), row_slice.hashes)
        requests = [RowsRequest(host, row_slice.lane, rows) for host, rows in by_host]
        self._links.open(request.host for request in requests)  # the table may have learnt of further hosts
        for request in requests:
            self._links.send(request)
        self._sent.append((row_slice, requests, ports.now_s()))

    def _split(self, batch: pa.RecordBatch, hashes: Index) -> Iterator[tuple[str, pa.RecordBatch]]:
        if len(self._table.hosts) == 1:
            yield self._table.hosts[0], batch
            return
        owners = self._table.owners(hashes)
        counts = np.bincount(owners)
        positions = np.flatnonzero(counts).tolist()
        # One copy in the order of the hosts, of which each host gets a slice; the rows of a host stay in order.
        by_owner = batch if len(positions) == 1 else batch.take(np.argsort(owners, kind="stable"))
        begin = 0
        for position in positions:
            count = int(counts[position])
            yield self._table.hosts[position], by_owner.slice(begin, count)
            begin += count

    def _check_keys(self, row_slice: RowSlice) -> None:
        if self._route.null_keys == "bucket":
            return
        for name in self._route.key_names:
            column = row_slice.batch.column(row_slice.batch.schema.get_field_index(name))
            if column.null_count:
                row = row_slice.rows[np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]]
                raise NullKey(
                    f"key column {name!r} is null",
                    todo='Filter rows with a null key out before, or pass null_keys="bucket" to give them a state of their own',
                    row=int(row),
                )

    def _note_event_time(self, batch: pa.RecordBatch) -> None:
        if self._route.event_time is None:
            return
        times = event_times(batch.column(batch.schema.get_field_index(self._route.event_time))).drop_null()
        if len(times):
            newest = _newest(times)
            self._event_max_ms = newest if self._event_max_ms is None else max(newest, self._event_max_ms)

    def _collect(self, left: int) -> Iterator[pa.RecordBatch]:
        """Until at most `left` slices are in flight; until none is, if the table has learnt from a refusal."""
        while len(self._sent) > (0 if self._rounds.learnt else left):
            row_slice, requests, sent_s = self._sent.popleft()
            outputs = self._rounds.apply_all(row_slice.lane, requests)
            self._pace.answered(len(row_slice.rows), sent_s, ports.now_s())
            yield from _ordered(outputs)
            if self._route.real_time and not outputs:
                yield self._nothing  # the answer for which the next packet waits
        if not self._sent:
            self._rounds.learnt = False

    def _finish(self) -> None:
        """A lane made of columns may have another number of rows when it is read again, so the number is not checked."""
        rows = None if self._route.numbering == "columns" else self._row_count
        self._links.finish(rows, self._event_max_ms)


def newest_table(route: Route, file: RoutingFile) -> OwnerTable:
    table = file.table()
    return table if table is not None and table.version > route.routing.version else OwnerTable(route.routing)


def merging_of(route: Route, schema: pa.Schema, opened: Sequence[LaneOpened]) -> Merging | None:
    """How rows of this batch are merged: as when the batch was first begun, even if the declaration has changed since.

    Rows of the batch may have been applied already, and must come merged in the same way again. A host that has applied no
    rows of the batch may answer with the present declaration.
    """
    if route.merge and not opened:
        raise HostUnavailable(
            "all known hosts have left, so no host can say how the batch was begun", todo="The task is retried by Spark"
        )
    merges = [merge_of(answer.merge) for answer in opened]
    merge = next((other for other in merges if other != route.merge), route.merge)
    if merge != route.merge:
        checked_merge(dict(merge), schema, route.key_names)  # the input may have changed too
    late_us = max((answer.late_us for answer in opened if answer.late_us is not None), default=None)
    return Merging(merge, schema, route.key_names, route.event_time, late_us) if merge else None


def _merged(row_slice: RowSlice, merging: Merging, schema: pa.Schema) -> RowSlice:
    block = merging.merged(_numbered(row_slice, schema))
    *names, row, hash_ = block.schema.names
    return RowSlice(row_slice.lane, block.select(names), block.column(row).to_numpy(), block.column(hash_).to_numpy())


def _numbered(row_slice: RowSlice, schema: pa.Schema) -> pa.RecordBatch:
    columns = [*_cast(row_slice.batch, schema), pa.array(row_slice.rows), pa.array(row_slice.hashes)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array[Any]]:
    """The columns in the types hosts expect; Spark may be set to give strings as large strings."""
    types = schema.types
    return [column if column.type == types[at] else column.cast(types[at]) for at, column in enumerate(batch.columns)]


def _newest(times: pa.Array[Any]) -> int:
    micros = pc.max(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())).as_py()
    return int(micros) // 1000


def _ordered(outputs: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if outputs:
        whole = in_row_order(outputs)
        yield whole.select(whole.schema.names[1:])
