"""Rows of a lane in the order of their keys: the same whether they fit into memory or go through files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.runtime.router.key_order import end_of_key, in_key_order

MIN, MAX = -(2**63), 2**63 - 1
HASHES = st.one_of(st.integers(MIN, MAX), st.sampled_from([MIN, -1, 0, 1, MAX]))
ROWS = st.lists(
    st.tuples(HASHES, st.integers(0, 2)), max_size=60
)  # routing hash, and the partition that a row came from


def batches_of(rows: list[tuple[int, int]], size: int) -> list[pa.RecordBatch]:
    """`n`: the place of the row in the input."""
    numbered = [(at, came_from, route_hash) for at, (route_hash, came_from) in enumerate(rows)]
    parts = [numbered[begin : begin + size] for begin in range(0, len(rows), size)]
    columns = [[np.array(column, np.int64) for column in zip(*part, strict=True)] for part in parts]
    return [pa.record_batch(of_part, ["n", "came_from", "hash"]) for of_part in columns]


def came_from(batch: pa.RecordBatch) -> list[np.ndarray]:
    return [batch.column(1).to_numpy()]


@given(ROWS, st.integers(1, 20), st.sampled_from([0, 200, 1 << 20]))
def test_by_key_then_by_partition_then_as_they_came(rows: list[tuple[int, int]], size: int, memory_bytes: int) -> None:
    ordered = [
        at for batch in in_key_order(batches_of(rows, size), came_from, memory_bytes) for at in batch[0].to_pylist()
    ]
    assert ordered == sorted(range(len(rows)), key=lambda at: (*rows[at], at))


@pytest.mark.parametrize(("end", "of_key"), [(1, 2), (2, 2), (3, 5), (5, 5), (6, 6), (9, 6)])
def test_a_key_ends_where_the_hash_changes(end: int, of_key: int) -> None:
    assert end_of_key(np.array([-4, -4, 0, 0, 0, 7]), end) == of_key
