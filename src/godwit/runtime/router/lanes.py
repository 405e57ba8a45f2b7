"""Which number each row of a lane has, so that a batch that is read again has the same numbers; and which rows go together.

Usually the number is the row's position in its partition. After a shuffle rows come in any order, so they are sorted first: by
event time where there is one, then by a hash of their content; rows of equal content are interchangeable. Where a source may
cut a batch into other partitions, the user names lane and sequence columns. If Spark has partitioned the input by key, the rows
are sorted by key first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from godwit.errors import NotReplayable
from godwit.runtime.processor.rows import Index, event_times
from godwit.runtime.router.key_order import in_key_order
from godwit.runtime.router.route import Route
from godwit.state.ledger import COLUMN_LANE, joined

CHUNK_ROWS_MAX = 1 << 17
# How many columns Spark has put between the check and the routing hash: in lanes as the input has them, and in lanes by key.
EXTRA = {"position": 0, "content": 1, "columns": 2}
EXTRA_BY_KEY = {"position": 1, "content": 1, "columns": 2}


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows that are sent together: the user's columns (and the check behind them), row numbers ascending, routing hashes."""

    lane: str
    batch: pa.RecordBatch
    rows: Index
    hashes: Index

    def part(self, begin: int, end: int) -> RowSlice:
        batch = self.batch.slice(begin, end - begin)
        return RowSlice(self.lane, batch, self.rows[begin:end], self.hashes[begin:end])


def row_slices(
    batches: Iterable[pa.RecordBatch], route: Route, lane: str, block_rows: int | None = None
) -> Iterator[RowSlice]:
    """`block_rows`: every slice but the last has exactly so many rows, however Spark has cut its batches.

    In real time a tick is a slice without rows, if the operator has timers.
    """
    rows_only = (_without_ticks(batch) for batch in batches)
    filled = (batch for batch in rows_only if len(batch) or route.timers_in_real_time)
    if route.partitions:
        yield from _by_key(filled, route, lane)
        return
    match route.numbering:
        case "position" if block_rows is not None:
            yield from _by_position(_blocks(filled, block_rows), lane)
        case "position":
            yield from _by_position(_gathered(filled, CHUNK_ROWS_MAX) if route.gather else filled, lane)
        case "content":
            whole = list(filled)
            if whole:
                ordered = _by_content(joined(whole), route.event_time)
                whole.clear()  # from here on the partition is in memory once
                yield from _by_position(_slices(ordered, block_rows or CHUNK_ROWS_MAX), lane)
        case "columns":
            last: dict[int, int] = {}
            for batch in _gathered(filled, CHUNK_ROWS_MAX) if route.gather else filled:
                yield from _by_columns(batch, last) if len(batch) else _by_position([batch], lane)


def _by_key(batches: Iterable[pa.RecordBatch], route: Route, lane: str) -> Iterator[RowSlice]:
    """Spark's exchange keeps the order of rows from one partition, so the number of that partition identifies a row."""
    extra = EXTRA_BY_KEY[route.numbering]

    def identity(batch: pa.RecordBatch) -> list[Index]:
        columns = [_ints(batch, -1 - extra + at) for at in range(extra)]
        return (
            [_times(batch, route.event_time), *columns]
            if route.numbering == "content" and route.event_time
            else columns
        )

    def without_identity(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        return batch.select([*names[: -1 - extra], names[-1]])

    ordered = in_key_order(batches, identity)
    if route.numbering == "columns":
        ordered = (_without_repeats(batch, lane) for batch in ordered)
    yield from _by_position(map(without_identity, ordered), lane)


def _without_repeats(batch: pa.RecordBatch, lane: str) -> pa.RecordBatch:
    """The batch, which is in key order. Two rows of a key with the same lane and sequence have no order that repeats."""
    came_from, sequence, hashes = (_ints(batch, at) for at in (-3, -2, -1))
    same = (np.diff(came_from) == 0) & (np.diff(sequence) == 0) & (np.diff(hashes) == 0)
    if same.any():
        raise NotReplayable(
            f"a key has two rows with sequence {sequence[np.flatnonzero(same)[0]]} in the same lane",
            todo="Name a column that strictly ascends in the order of the input, such as Kafka's offset",
            lane=lane,
        )
    return batch


def _times(batch: pa.RecordBatch, event_time: str) -> Index:
    column = event_times(batch.column(batch.schema.get_field_index(event_time)))
    times: Index = column.cast(pa.int64()).fill_null(0).to_numpy()
    return times


def _gathered(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Larger batches: a processor that is called once per key and batch should see all of the key's rows."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(map(len, gathered)) >= rows_max:
            yield joined(gathered)
            gathered = []
    if gathered:
        yield joined(gathered)


def _blocks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    block: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches:
        rest = batch
        while len(rest) >= missing:
            yield joined([*block, rest.slice(0, missing)])
            rest = rest.slice(missing)
            block, missing = [], rows
        if len(rest):
            block.append(rest)
            missing -= len(rest)
    if block:
        yield joined(block)


def _slices(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def _by_position(batches: Iterable[pa.RecordBatch], lane: str) -> Iterator[RowSlice]:
    next_row = 0
    for batch in batches:
        rows = np.arange(next_row, next_row + len(batch), dtype=np.int64)
        next_row += len(batch)
        yield RowSlice(lane, batch.select(batch.schema.names[:-1]), rows, _ints(batch, -1))


def _by_content(batch: pa.RecordBatch, event_time: str | None) -> pa.RecordBatch:
    content = _ints(batch, -2)
    order = np.lexsort((content,) if event_time is None else (content, _times(batch, event_time)))
    names = batch.schema.names
    return batch.select([*names[:-2], names[-1]]).take(order)


def _by_columns(batch: pa.RecordBatch, last: dict[int, int]) -> Iterator[RowSlice]:
    """`last`: the newest sequence of every lane. A row that repeats a sequence would be taken for the earlier row."""
    lanes, rows, hashes = (_ints(batch, at) for at in (-3, -2, -1))
    user = batch.select(batch.schema.names[:-3])
    for lane in dict.fromkeys(lanes.tolist()):
        positions = np.flatnonzero(lanes == lane)
        numbers = np.append(last.get(lane, rows[positions[0]] - 1), rows[positions])
        falls = np.flatnonzero(np.diff(numbers) <= 0)
        if len(falls):
            before, after = numbers[falls[0] : falls[0] + 2].tolist()
            raise NotReplayable(
                f"the sequence column goes from {before} to {after} within a lane",
                todo="Name a column that strictly ascends in the order of the input, such as Kafka's offset",
                lane=f"{COLUMN_LANE}{lane}",
            )
        last[lane] = int(numbers[-1])
        yield RowSlice(f"{COLUMN_LANE}{lane}", user.take(positions), rows[positions], hashes[positions])


def _ints(batch: pa.RecordBatch, at: int) -> Index:
    column = batch.column(batch.num_columns + at)
    if column.null_count:
        raise NotReplayable(
            "a lane or sequence column is null", todo="Filter rows with a null in it out before the operator"
        )
    values: Index = np.ascontiguousarray(column.to_numpy())
    return values


def _without_ticks(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A tick is a row without a routing hash; its only purpose is that Spark runs the batch."""
    hashes = batch.column(batch.num_columns - 1)
    return batch.filter(hashes.is_valid()) if hashes.null_count else batch
