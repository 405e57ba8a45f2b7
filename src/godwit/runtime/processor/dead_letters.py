"""Dead letters: rows and timers that a processor failed on, set aside with what is needed to understand each of them.

A key's dead letters are a list in the key's state, so they are as durable, movable and exactly-once as all state.
Decides what a dead letter contains and how dead letters look as a table; not which rows become dead letters.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final, Literal

import msgpack
import pyarrow as pa

from godwit.errors import GodwitError
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.changes import COLUMN_VALUE, COLUMN_VAR, LETTERS
from godwit.state.keys import KeyCodec

ERROR_CHARS_MAX: Final = 4_000
ROWS_MAX: Final = 10_000
COLUMNS: Final = (
    ("kind", pa.string()),
    ("batch", pa.int64()),
    ("lane", pa.string()),
    ("row", pa.int64()),
    ("timer_ms", pa.int64()),
    ("code", pa.string()),
    ("error", pa.string()),
    ("failed_at", pa.timestamp("us", tz="UTC")),
    ("data", pa.string()),
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`row`: the number of the row in its lane, None for a timer. `data`: the row as an Arrow stream, None for a timer."""

    kind: Literal["row", "timer"]
    batch: int
    lane: str
    row: int | None
    timer_ms: int | None
    code: str
    error: str
    failed_ms: int
    data: bytes | None

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(astuple(self))
        return packed

    @classmethod
    def unpack(cls, payload: bytes) -> DeadLetter:
        return cls(*msgpack.unpackb(payload))


def row_letter(
    row: pa.RecordBatch, batch: int, lane: str, number: int, error: GodwitError, failed_ms: int
) -> DeadLetter:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    data = sink.getvalue().to_pybytes()
    return DeadLetter("row", batch, lane, number, None, error.code, _text(error), failed_ms, data)


def timer_letter(timer_ms: int, batch: int, lane: str, error: GodwitError, failed_ms: int) -> DeadLetter:
    return DeadLetter("timer", batch, lane, None, timer_ms, error.code, _text(error), failed_ms, None)


def _text(error: GodwitError) -> str:
    trace = error.fields.get("trace")
    return (error.message if trace is None else f"{error.message}\n{trace}")[:ERROR_CHARS_MAX]


def letters_schema(spec: OperatorSpec) -> pa.Schema:
    """Key columns, host, epoch, then what a letter says; a column named like one of the key's gets a suffix."""
    host, epoch, _, *names = spec.names_beside_key([name for name, _ in COLUMNS], "_letter")
    shown = [pa.field(name, kind) for name, (_, kind) in zip(names, COLUMNS, strict=True)]
    return pa.schema([*spec.key_schema, pa.field(host, pa.string()), pa.field(epoch, pa.int64()), *shown])


def rows_of_letters(
    spec: OperatorSpec, changes: Iterable[pa.RecordBatch], host: str, epoch: int
) -> Iterator[pa.RecordBatch]:
    """Batches of the letters' schema from all of an instance's state."""
    for batch in changes:
        letters = batch.filter(pa.array(batch.columns[COLUMN_VAR].to_numpy() == LETTERS))
        for start in range(0, len(letters), ROWS_MAX):
            yield _table(spec, letters.slice(start, ROWS_MAX), host, epoch)


def _table(spec: OperatorSpec, rows: pa.RecordBatch, host: str, epoch: int) -> pa.RecordBatch:
    codec = KeyCodec(spec.key_schema, spec.tz)
    arrays: list[Any] = codec.shown_columns(codec.from_arrow(rows.columns[:COLUMN_VAR]))
    arrays += [pa.array([host] * len(rows)), pa.array([epoch] * len(rows), pa.int64())]
    letters = [_cells(DeadLetter.unpack(payload or b"")) for payload in rows.columns[COLUMN_VALUE].to_pylist()]
    arrays += [pa.array([cells[at] for cells in letters], kind) for at, (_, kind) in enumerate(COLUMNS)]
    return pa.RecordBatch.from_arrays(arrays, schema=letters_schema(spec))


def _cells(letter: DeadLetter) -> tuple[Any, ...]:
    *cells, failed_ms, data = astuple(letter)
    return (*cells, failed_ms * 1_000, None if data is None else _json(data))


def _json(data: bytes) -> str:
    (row,) = pa.ipc.open_stream(data).read_all().to_pylist()
    return json.dumps(row, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)
