"""Rows of tables as record batches of changes, in the form of `changes.py`, made block by block while they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from godwit.state.changes import CLEAR, PUT, Changes
from godwit.state.keys import Key, KeyCodec
from godwit.state.table import Row, Table

BLOCK_ROWS_MAX: Final = 50_000
BLOCK_BYTES_MAX: Final = 64 << 20


def put_batches(
    var: int, rows: Iterable[Row], key_codec: KeyCodec, rows_max: int = BLOCK_ROWS_MAX, bytes_max: int = BLOCK_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Changes that put these rows of a variable."""
    for block in _blocks(rows, rows_max, bytes_max):
        changes = Changes()
        _put(changes, var, block)
        yield changes.to_batch(key_codec)


def _put(changes: Changes, var: int, block: Sequence[Row]) -> None:
    subs: list[Any] = [row[1] for row in block]
    values: list[Any] = [row[2] for row in block]
    no_subs, no_values = subs[0] is None, values[0] is None  # one variable has them in all rows or in none
    changes.add(var, PUT, [row[0] for row in block], None if no_subs else subs, None if no_values else values)


def replacing_batches(
    parts: Sequence[tuple[Table, Sequence[Key], Iterator[Row]]], key_codec: KeyCodec, rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Changes that clear the keys of each table first, and then put the rows; few rows make one batch."""
    changes, size_bytes = Changes(), 0
    for table, keys, _ in parts:
        if keys:
            changes.add(table.var, CLEAR, keys)
    if not len(changes):
        return
    for table, _, rows in parts:
        for block in _blocks(rows, rows_max, bytes_max):
            more_bytes = sum(len(row[2] or b"") for row in block)
            if len(changes) + len(block) > rows_max or size_bytes + more_bytes > bytes_max:
                yield changes.to_batch(key_codec)
                changes, size_bytes = Changes(), 0
            _put(changes, table.var, block)
            size_bytes += more_bytes
    yield changes.to_batch(key_codec)


def _blocks(rows: Iterable[Row], rows_max: int, bytes_max: int) -> Iterator[list[Row]]:
    block: list[Row] = []
    size_bytes = 0
    for row in rows:
        block.append(row)
        size_bytes += len(row[2] or b"")
        if len(block) == rows_max or size_bytes >= bytes_max:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block
