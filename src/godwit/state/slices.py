"""Which slice of a snapshot the rows of a key belong to.

Decides it by a hash of the key columns, so that snapshots of any size can be merged slice by slice: rows of
one key meet in one slice. The hash is written into files (a slice holds the keys whose hash has certain
leading bits): it must stay as it is for as long as the format version does. It must not know what the rows
say, and has nothing to do with how keys are routed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_ROWS_AT_ONCE: Final = 1 << 16  # a byte of a text key takes some thirty while it is hashed: bounds that
_BASE: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)  # this and the next: the finaliser of splitmix64
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def split(table: pa.Table, key_count: int, slice_count: int) -> list[pa.Table]:
    """The rows of every slice, in their order. `slice_count` is a power of two."""
    if slice_count == 1:
        return [table]
    where = (key_hash(table, key_count) >> np.uint64(65 - slice_count.bit_length())).astype(np.int64)
    rows = table.take(np.argsort(where, kind="stable"))
    ends = np.cumsum(np.bincount(where, minlength=slice_count)).tolist()
    return [rows.slice(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]


def key_hash(table: pa.Table, key_count: int) -> Hashes:
    """A hash of every row's first `key_count` columns."""
    total = np.zeros(table.num_rows, np.uint64)
    for column in table.columns[:key_count]:
        total = _mixed(total * _BASE + _column_hash(column))
    return total


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _MIX_1
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _MIX_2
    return hashes ^ (hashes >> np.uint64(31))


def _column_hash(column: pa.ChunkedArray[Any]) -> Hashes:
    pieces = [
        _array_hash(chunk.slice(begin, _ROWS_AT_ONCE))
        for chunk in column.chunks
        for begin in range(0, len(chunk), _ROWS_AT_ONCE)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)


def _array_hash(array: pa.Array[Any]) -> Hashes:
    kind = array.type
    if pa.types.is_decimal(kind):
        hashes = _words_hash(array, kind.bit_width // 64)
    elif pa.types.is_floating(kind):
        hashes = array.to_numpy(zero_copy_only=False).astype(np.float64).view(np.uint64)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        hashes = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    else:
        hashes = _bytes_hash(array.cast(pa.binary()))
    return np.where(array.is_null().to_numpy(zero_copy_only=False), np.uint64(0), hashes)


def _words_hash(array: pa.Array[Any], words: int) -> Hashes:
    data = array.buffers()[1]
    assert data is not None
    first, count = array.offset * words, len(array) * words
    cells = np.frombuffer(memoryview(data), np.uint64, count, first * 8).reshape(-1, words)
    return np.asarray((cells * _powers(words)).sum(axis=1, dtype=np.uint64))


def _bytes_hash(array: pa.Array[Any]) -> Hashes:
    """The bytes of a cell as the digits of a number, modulo 2**64."""
    _, ends, data = array.buffers()
    hashes = np.zeros(len(array), np.uint64)
    if ends is None or data is None:
        return hashes
    offsets = np.frombuffer(memoryview(ends), np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    digits = np.frombuffer(memoryview(data), np.uint8)[offsets[0] : offsets[-1]]
    begins, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    place = np.arange(len(digits)) - np.repeat(begins, lengths)
    terms = (digits + np.uint64(1)) * _powers(int(lengths.max(initial=0)))[place]
    filled = lengths > 0
    if filled.any():
        hashes[filled] = np.add.reduceat(terms, begins[filled])
    return hashes


def _powers(count: int) -> Hashes:
    return np.cumprod(np.full(count, _BASE, np.uint64), dtype=np.uint64)
