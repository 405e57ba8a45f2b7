"""The state of a key as one column of bytes, in which it goes from the logs of a flock to Spark's own operator.

Bytes, because Spark changes values on their way to Python: in pandas a null is NaN and an instant is what the clock on the wall
shows, in Rows a map is a list of pairs. Decides what goes along: all variables that the operator declares, without what has
lapsed, and timers in milliseconds. Knows nothing of Spark's own state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import pyarrow as pa

from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.changes import COLUMN_SUB, COLUMN_VALUE, COLUMN_VAR, TIMERS, timer_ms
from godwit.state.deadlines import STAMP_BYTES, expiry_ms
from godwit.state.keys import Key, KeyCodec
from godwit.state.layout import FormReader
from godwit.state.variables import Variable

COLUMN: Final = "__godwit_state"  # no column in the input of an operator has a name that begins so
_ROWS_MAX: Final = 10_000
_BYTES_MAX: Final = 64 << 20
_TIMERS_PLACE: Final = -1


def unpacked(packed: bytes) -> tuple[list[list[Any]], list[int]]:
    """What is stored of each variable, and the timers. Of a variable: payloads, or pairs of sub and payload of a map."""
    *variables, timers = msgpack.unpackb(packed)
    return variables, timers


@dataclass(frozen=True, slots=True)
class PackedState:
    """now_ms: what has lapsed by this time is left out."""

    now_ms: int

    def rows(
        self, spec: OperatorSpec, changes: Iterable[pa.RecordBatch], host: str, epoch: int
    ) -> Iterator[pa.RecordBatch]:
        """As `rows_of_state`: key columns, host and epoch, then the packed state."""
        by_key: dict[Key, list[list[Any]]] = {}
        forms, codec = FormReader(spec.layout), KeyCodec(spec.key_schema, spec.tz)
        for batch in changes:
            self._collect(spec, codec, by_key, forms.current(batch))
        for keys, packed in _slices(by_key):
            columns: list[Any] = codec.shown_columns(keys)
            columns += [pa.array([host] * len(keys)), pa.array([epoch] * len(keys), pa.int64())]
            columns.append(pa.array(packed, pa.binary()))
            yield pa.RecordBatch.from_arrays(columns, names=[*spec.key_schema.names, "host", "epoch", COLUMN])

    def _collect(
        self, spec: OperatorSpec, codec: KeyCodec, by_key: dict[Key, list[list[Any]]], batch: pa.RecordBatch
    ) -> None:
        keys = codec.from_arrow(batch.columns[: len(spec.key_schema)])
        columns = [batch.column(batch.num_columns + at).to_pylist() for at in (COLUMN_VAR, COLUMN_SUB, COLUMN_VALUE)]
        numbered = zip(spec.layout.numbers, enumerate(spec.variables), strict=True)
        places = dict(numbered)
        for key, number, sub, value in zip(keys, *columns, strict=True):
            part = self._part(places, number, sub, value)
            if part is not None:
                place, stored = part
                state = by_key.setdefault(key, [])
                state += [[] for _ in range(len(spec.variables) + 1 - len(state))]
                state[place].append(stored)

    def _part(
        self, places: Mapping[int, tuple[int, Variable]], number: int, sub: bytes, value: bytes
    ) -> tuple[int, Any] | None:
        """The place of the variable, and what goes along of a change; None if nothing does."""
        if number == TIMERS:
            return _TIMERS_PLACE, timer_ms(sub)
        if number not in places:
            return None  # a dead letter, or a variable that is not declared now
        place, variable = places[number]
        if variable.ttl_ms is not None:
            if expiry_ms(value) <= self.now_ms:
                return None
            value = value[STAMP_BYTES:]
        return place, (sub, value) if variable.kind == "map" else value


def key_and_state(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows without host and epoch."""
    *names, _, _, state = batch.schema.names
    columns = [*batch.columns[: len(names)], batch.columns[-1]]
    return pa.RecordBatch.from_arrays(columns, names=[*names, state])


def _slices(by_key: Mapping[Key, list[list[Any]]]) -> Iterator[tuple[list[Key], list[bytes]]]:
    """Keys with their packed state, in slices that fit into an Arrow array."""
    keys: list[Key] = []
    packed: list[bytes] = []
    size_bytes = 0
    for key, state in by_key.items():
        keys.append(key)
        packed.append(msgpack.packb(state))
        size_bytes += len(packed[-1])
        if len(keys) == _ROWS_MAX or size_bytes >= _BYTES_MAX:
            yield keys, packed
            keys, packed, size_bytes = [], [], 0
    if keys:
        yield keys, packed
