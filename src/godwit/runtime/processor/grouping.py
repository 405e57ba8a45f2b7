"""From a chunk of rows to rows by key; where there are many rows, without a Python loop over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.runtime.processor.rows import FEW_ROWS, Index, Rows
from godwit.state.keys import Key, KeyCodec, KeyColumns

Codes = npt.NDArray[np.int32]


def group_by_key(batch: pa.RecordBatch, row_index: Index, key_codec: KeyCodec) -> Rows:
    """Rows of the batch by their key columns, which go by the names in the key schema."""
    columns = [batch.column(batch.schema.get_field_index(name)) for name in key_codec.schema.names]
    few = len(row_index) <= FEW_ROWS
    keys, codes = (
        _merged(key_codec.from_arrow(columns), None) if few else _distinct(key_codec.plain_columns(columns), key_codec)
    )
    return Rows(batch, row_index, keys, codes)


def _distinct(columns: list[pa.Array[Any]], key_codec: KeyCodec) -> tuple[Sequence[Key], Codes]:
    codes = _codes(columns[0])
    for column in columns[1:]:
        more = _codes(column)
        codes = _renumbered(codes.astype(np.int64) * (int(more.max(initial=0)) + 1) + more)
    first = _first_positions(codes)
    keys = KeyColumns(key_codec, key_codec.stored_columns([column.take(first) for column in columns]))
    if key_codec.distinct_in_arrow or len(set(keys)) == len(keys):
        return keys, codes
    return _merged(keys.tuples(), codes)


def _merged(keys: list[Key], codes: Codes | None) -> tuple[Sequence[Key], Codes]:
    """Each key once. `codes`: the key of every row; None if the keys are those of the rows, in their order.

    Values that differ in Arrow may be one key (0.0 and -0.0).
    """
    place: dict[Key, int] = {}
    renumber = np.array([place.setdefault(key, len(place)) for key in keys], np.int32)
    return list(place), renumber if codes is None else renumber[codes]


def _codes(column: pa.Array[Any]) -> Codes:
    encoded = column.dictionary_encode(null_encoding="encode")
    return cast(Codes, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False))


def _renumbered(wide: Index) -> Codes:
    return _codes(pa.array(wide))


def _first_positions(codes: Codes) -> Index:
    """Position of the first row of each code; codes count up in order of first appearance."""
    count = int(codes.max(initial=-1)) + 1
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first
