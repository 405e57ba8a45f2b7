"""Chunks of rows and changes of state as bytes, and what two hosts compare of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.processor.rows import Times
from godwit.state.keys import KeyCodec
from godwit.transport import wire


def chunk_body(chunk: Chunk) -> pa.Buffer:
    checks = [] if chunk.checks is None else [pa.array(chunk.checks)]
    columns = [*chunk.batch.columns, *checks, pa.array(chunk.rows), pa.array(chunk.hashes)]
    check = [pa.field(wire.CHECK, pa.int32())] if checks else []
    numbers = [pa.field(wire.ROW, pa.int64()), pa.field(wire.HASH, pa.int64())]
    schema = pa.schema([*chunk.batch.schema, *check, *numbers])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue()


def chunk_of(body: pa.Buffer) -> Chunk:
    batch = pa.ipc.open_stream(body).read_next_batch()
    return chunk_from(batch)


def chunk_from(batch: pa.RecordBatch) -> Chunk:
    """A chunk from a batch whose last two columns are row numbers and routing hashes, perhaps with checks before them."""
    names = batch.schema.names
    checked = wire.CHECK in names[-3:-2]
    numbers = [
        np.ascontiguousarray(batch.column(batch.num_columns + at).to_numpy()) for at in (-2, -1, -3)[: 2 + checked]
    ]
    return Chunk(batch.select(names[: -2 - checked]), *numbers)


def times_tuple(times: Times) -> tuple[int, int, int]:
    return times.processing_ms, times.watermark_ms, times.late_ms


def select_changes(changes: pa.RecordBatch, codec: KeyCodec, select: Callable[[Any], Any]) -> pa.RecordBatch:
    """The change rows of the selected keys."""
    keys = codec.from_arrow(changes.columns[: len(codec.schema)])
    hashes = np.array([codec.route_hash(key) for key in keys], np.int64)
    return changes.filter(pa.array(select(hashes)))


def fingerprint(changes: pa.RecordBatch, outputs: Sequence[pa.RecordBatch]) -> str:
    """The same for the same changes and outputs, whatever else was in the chunk with them."""
    import xxhash

    digest = xxhash.xxh64()
    for row in sorted(map(repr, changes.to_pylist())):
        digest.update(row.encode())
    for row in sorted(repr(row) for batch in outputs for row in batch.to_pylist()):
        digest.update(row.encode())
    return digest.hexdigest()
