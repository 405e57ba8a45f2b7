"""The one form in which state moves: rows of (key, variable, what happened), in order.

The changelog, snapshots and migrations all carry it. Decides what a change row means and which rows still
matter (`latest`); it must not know what is inside a value or how state is kept in memory.

A row is the key columns, then var, op, sub, value. `sub` is what changes inside the variable: nothing for a
value, a position for a list, the encoded user key for a map, the expiry for a timer. A key column may
itself be named "var" or "value", so readers address these four by position: `COLUMN_VAR` and its neighbours
count from the end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.errors import StateTooLarge
from godwit.state.columns import Payloads
from godwit.state.keys import Key, KeyCodec, KeyColumns

PUT: Final = 0
REMOVE: Final = 1
CLEAR: Final = 2

TIMERS: Final = -1  # in the var column of timer rows
LETTERS: Final = 2**15 - 1  # in the var column of dead letters, which are no variable of the user

COLUMN_VAR: Final = -4
COLUMN_OP: Final = -3
COLUMN_SUB: Final = -2
COLUMN_VALUE: Final = -1

_BATCH_BYTES_MAX: Final = 2**31 - 1  # Arrow's binary type has 32-bit offsets
_CELLS_FEW: Final = 200  # below this, setting up the faster way takes longer than it saves
_U64 = struct.Struct(">Q")
_SIGN: Final = 1 << 63  # shifts signed times so that their bytes sort as the times do

RowNumbers = npt.NDArray[np.int64]
Cells: TypeAlias = Sequence[bytes] | Payloads  # of a column: bytes, or as many bytes in every row of an array


def position_sub(position: int) -> bytes:
    """The sub of a list element."""
    return _U64.pack(position)


def position(sub: bytes) -> int:
    position: int = _U64.unpack(sub)[0]
    return position


def timer_sub(expiry_ms: int) -> bytes:
    """The sub of a timer."""
    return _U64.pack(expiry_ms + _SIGN)


def timer_ms(sub: bytes) -> int:
    """The expiry that a timer's sub means."""
    return int.from_bytes(sub, "big") - _SIGN


@dataclass(frozen=True, slots=True)
class Block:
    """Changes of one variable that are all of one kind; None for a column that is all null."""

    var: int
    op: int
    keys: Sequence[Key]
    subs: Sequence[bytes] | None = None
    values: Cells | None = None


@dataclass(slots=True)
class Changes:
    """Changes in the order in which they happened."""

    blocks: list[Block] = field(default_factory=list)

    def add(
        self,
        var: int,
        op: int,
        keys: Sequence[Key],
        subs: Sequence[bytes] | None = None,
        values: Cells | None = None,
    ) -> None:
        if len(keys):
            self.blocks.append(Block(var, op, keys, subs, values))

    def __len__(self) -> int:
        return sum(len(block.keys) for block in self.blocks)

    def to_batch(self, key_codec: KeyCodec) -> pa.RecordBatch:
        blocks = self.blocks
        lengths = [len(block.keys) for block in blocks]
        arrays = [
            *_key_columns([block.keys for block in blocks], key_codec),
            _repeated([b.var for b in blocks], lengths, np.int16),
            _repeated([b.op for b in blocks], lengths, np.int8),
            _binary([b.subs for b in blocks], lengths),
            _binary([b.values for b in blocks], lengths),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=changes_schema(key_codec))


@lru_cache(maxsize=256)
def changes_schema(key_codec: KeyCodec) -> pa.Schema:
    return pa.schema(
        [
            *key_codec.stored_schema,
            pa.field("var", pa.int16()),
            pa.field("op", pa.int8()),
            pa.field("sub", pa.binary()),
            pa.field("value", pa.binary()),
        ]
    )


def _key_columns(parts: Sequence[Sequence[Key]], key_codec: KeyCodec) -> list[pa.Array[Any]]:
    if len(parts) == 1:
        return key_codec.to_arrow(parts[0])
    if not any(isinstance(keys, KeyColumns) for keys in parts):
        return key_codec.to_arrow(list(chain.from_iterable(parts)))
    return [pa.concat_arrays(columns) for columns in zip(*map(key_codec.to_arrow, parts), strict=True)]


def _repeated(numbers: list[int], lengths: list[int], kind: type[np.integer[Any]]) -> pa.Array[Any]:
    """Each number as often as its length says."""
    if len(numbers) != 1:
        array: pa.Array[Any] = pa.array(np.repeat(np.array(numbers, kind), lengths))
        return array
    number, count, letter = numbers[0], lengths[0], np.dtype(kind).char
    return _a_few(number, count, letter) if count < _CELLS_FEW else _as_often(number, count, letter)


def _as_often(number: int, count: int, kind: str) -> pa.Array[Any]:
    array: pa.Array[Any] = pa.array(np.full(count, number, kind))
    return array


# An array never changes, and chunks of a few rows need the same ones again and again.


@lru_cache(maxsize=4096)
def _a_few(number: int, count: int, kind: str) -> pa.Array[Any]:
    return _as_often(number, count, kind)


@lru_cache(maxsize=_CELLS_FEW)
def _few_nulls(count: int) -> pa.Array[Any]:
    return pa.nulls(count, pa.binary())


def _binary(parts: Sequence[Cells | None], lengths: Sequence[int]) -> pa.Array[Any]:
    arrays = [_nulls(n) if part is None else _binary_array(part) for part, n in zip(parts, lengths, strict=True)]
    if len(arrays) == 1:
        return arrays[0]
    _check_size(sum(array.nbytes for array in arrays))
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, pa.binary())


def _nulls(count: int) -> pa.Array[Any]:
    return _few_nulls(count) if count < _CELLS_FEW else pa.nulls(count, pa.binary())


def _binary_array(cells: Cells) -> pa.Array[Any]:
    """What `pa.array` makes of bytes, in less than half the time where there are many."""
    if isinstance(cells, np.ndarray):
        return _of_one_width(cells)
    if len(cells) < _CELLS_FEW:
        _check_size(sum(map(len, cells)))
        return pa.array(cells, pa.binary())
    ends = np.cumsum(np.fromiter(map(len, cells), np.int64, len(cells)))
    _check_size(int(ends[-1]) if len(ends) else 0)
    offsets = np.zeros(len(cells) + 1, np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(
        pa.binary(), len(cells), [None, pa.py_buffer(offsets.data), pa.py_buffer(b"".join(cells))]
    )


def _of_one_width(cells: Payloads) -> pa.Array[Any]:
    count, width = cells.shape
    _check_size(count * width)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(cells).ravel()
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)])


def _check_size(size_bytes: int) -> None:
    if size_bytes > _BATCH_BYTES_MAX:
        raise StateTooLarge(
            f"{size_bytes} bytes of state changed at once, more than {_BATCH_BYTES_MAX}",
            todo="Let a micro-batch carry fewer rows, or keep less state per key",
        )


def latest(
    table: pa.Table,
    key_names: Sequence[str],
    keep_removals: bool = False,
    newest: Mapping[int, int | None] | None = None,
) -> pa.Table:
    """The rows that still matter: replaying them gives the state that replaying all of them gives.

    That is the last PUT of every (key, var, sub) that no later REMOVE or CLEAR undoes, standing where its
    sub came into being, because a map keeps its order of insertion. With `keep_removals` the result may
    also be replayed on top of older rows: the last CLEAR of each variable and the last REMOVE of each sub
    stay, ahead of the PUTs.

    `newest`: by number, the number of the newest form of the same variable, for numbers that are of one variable (see
    `layout`). Rows keep their own number.
    """
    count = table.num_rows
    if count == 0:
        return table
    op = table.column(len(key_names) + 1).to_numpy()
    row = np.arange(count, dtype=np.int64)
    of_var = _Groups.one(count)
    for i in range(len(key_names)):
        of_var = of_var.refined(table.column(i))
    of_var = of_var.refined(_same_variable(table.column(len(key_names)), newest or {}))
    of_sub = of_var.refined(table.column(len(key_names) + 2))

    if of_sub is of_var and of_var.in_order and (op == PUT).all():  # of one value: the usual case
        return table.take(of_var.last(row))

    clears, removes, puts = (row[op == kind] for kind in (CLEAR, REMOVE, PUT))
    last_clear = of_var.last(clears)
    removes = removes[removes > last_clear[of_var.codes[removes]]]
    last_remove = of_sub.last(removes)
    puts = puts[puts > np.maximum(last_clear[of_var.codes[puts]], last_remove[of_sub.codes[puts]])]
    first_put = of_sub.last(puts[::-1])

    rows_left = of_sub.last(puts)[of_sub.codes[np.sort(first_put[first_put >= 0])]]
    if keep_removals:
        rows_left = np.concatenate([last_clear[last_clear >= 0], last_remove[last_remove >= 0], rows_left])
    return table.take(rows_left)


def _same_variable(var: pa.ChunkedArray[Any], newest: Mapping[int, int | None]) -> pa.ChunkedArray[Any]:
    if not newest:
        return var
    numbers = var.to_numpy()
    same = numbers.copy()
    for number, last in newest.items():
        same[numbers == number] = number if last is None else last
    return pa.chunked_array([pa.array(same)])


class _Groups:
    """Rows that are alike: `codes` has a number below `size` for every row, equal where the rows are.

    `in_order`: the groups are numbered in the order in which they appear.
    """

    def __init__(self, codes: RowNumbers, size: int, in_order: bool) -> None:
        self.codes = codes
        self.size = size
        self.in_order = in_order

    @classmethod
    def one(cls, count: int) -> _Groups:
        """All rows are alike."""
        return cls(np.zeros(count, np.int64), 1, True)

    def refined(self, column: pa.ChunkedArray[Any]) -> _Groups:
        """Groups whose rows are alike in this column too (null is like null)."""
        if column.null_count == len(column):
            return self
        values, size = _encoded(column.combine_chunks())
        if self.size == 1 or size == 1:
            return self if size == 1 else _Groups(values, size, True)
        codes, size = self.codes * size + values, self.size * size
        if size <= 2 * len(codes):
            return _Groups(codes, size, False)
        return _Groups(*_encoded(pa.array(codes)), True)  # most numbers are unused: number the groups anew

    def last(self, rows: RowNumbers) -> RowNumbers:
        """The last of `rows` in every group, -1 where there is none."""
        last = np.full(self.size, -1, np.int64)
        last[self.codes[rows]] = rows  # where an index repeats, the last assignment stays
        return last


def _encoded(column: pa.Array[Any]) -> tuple[RowNumbers, int]:
    """A number for every value, in the order in which values appear, and how many there are."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)
