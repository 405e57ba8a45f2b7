"""A row_slice that is sent in parts, while how many rows go at once changes: every row goes once, and keys stay whole."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.runtime.router.lanes import RowSlice
from godwit.runtime.router.router import Router


def cut(hashes: list[int], paces: list[int | None], partitions: int = 0) -> list[RowSlice]:
    """The parts of one row_slice as they are sent, under these limits one after another, then under none."""
    limits = iter(paces)
    router: Any = object.__new__(Router)
    router._route = SimpleNamespace(gather=bool(partitions), partitions=partitions)
    router._pace = SimpleNamespace(rows_max=lambda: next(limits, None))
    numbers = np.arange(len(hashes), dtype=np.int64)
    row_slice = RowSlice("0", pa.record_batch({"n": numbers}), numbers, np.array(hashes, np.int64))
    return list(router._cut([row_slice]))


def rows(parts: list[RowSlice]) -> list[int]:
    return [int(row) for part in parts for row in part.rows]


@pytest.mark.parametrize("then", [None, 10, 25])
def test_more_may_go_at_once_when_a_part_has_gone(then: int | None) -> None:
    assert rows(cut(list(range(10)), [4, then])) == list(range(10))


PACES = st.lists(st.one_of(st.none(), st.integers(1, 80)), max_size=10)


@given(st.integers(1, 50), PACES)
def test_every_row_goes_once_and_in_order(count: int, paces: list[int | None]) -> None:
    assert rows(cut(list(range(count)), paces)) == list(range(count))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40).map(sorted), PACES)
def test_the_rows_of_a_key_go_together_where_the_input_is_partitioned_by_key(
    hashes: list[int], paces: list[int | None]
) -> None:
    parts = cut(hashes, paces, partitions=2)
    assert rows(parts) == list(range(len(hashes)))
    assert all(len(part.rows) for part in parts)
    assert all(before.hashes[-1] < after.hashes[0] for before, after in pairwise(parts))
