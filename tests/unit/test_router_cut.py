"""A row_slice that is sent in parts, while how many rows go at once changes: every row goes once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.runtime.router.lanes import RowSlice
from godwit.runtime.router.router import Router


def cut(rows: int, paces: list[int | None]) -> list[int]:
    """The rows of one row_slice as they are sent, under these limits one after another, then under none."""
    limits = iter(paces)
    router: Any = object.__new__(Router)
    router._route = SimpleNamespace(gather=False)
    router._pace = SimpleNamespace(rows_max=lambda: next(limits, None))
    numbers = np.arange(rows, dtype=np.int64)
    row_slice = RowSlice("0", pa.record_batch({"n": numbers}), numbers, numbers)
    return [int(row) for part in router._cut([row_slice]) for row in part.rows]


@pytest.mark.parametrize("then", [None, 10, 25])
def test_more_may_go_at_once_when_a_part_has_gone(then: int | None) -> None:
    assert cut(10, [4, then]) == list(range(10))


@given(st.integers(1, 50), st.lists(st.one_of(st.none(), st.integers(1, 80)), max_size=10))
def test_every_row_goes_once_and_in_order(rows: int, paces: list[int | None]) -> None:
    assert cut(rows, paces) == list(range(rows))
