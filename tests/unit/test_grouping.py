"""Rows of a chunk by key: which keys there are, which rows are whose, in which order."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Rows
from godwit.state.keys import KeyCodec

KEY = pa.schema({"car": pa.string(), "day": pa.int32()})


def grouped(columns: dict[str, Any], schema: pa.Schema = KEY) -> Rows:
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return group_by_key(batch, np.arange(len(batch)), KeyCodec(schema))


def by_key(rows: Rows) -> dict[Any, list[int]]:
    """Each key's rows, through the order and bounds that processors use."""
    return {key: rows.order[rows.bounds[i] : rows.bounds[i + 1]].tolist() for i, key in enumerate(rows.keys)}


def test_keys_come_in_order_of_first_appearance_and_rows_in_order_of_arrival() -> None:
    rows = grouped({"car": ["b", "a", "b", "a", "c"], "day": [1, 1, 1, 1, 1]})
    assert rows.keys == [("b", 1), ("a", 1), ("c", 1)]
    assert by_key(rows) == {("b", 1): [0, 2], ("a", 1): [1, 3], ("c", 1): [4]}


def test_every_key_column_counts() -> None:
    rows = grouped({"car": ["a", "a", "b", "b", "a"], "day": [1, 2, 1, 2, 1]})
    assert by_key(rows) == {("a", 1): [0, 4], ("a", 2): [1], ("b", 1): [2], ("b", 2): [3]}


def test_null_is_a_key_of_its_own_in_every_column() -> None:
    rows = grouped({"car": [None, "a", None, None], "day": [1, None, 1, None]})
    assert by_key(rows) == {(None, 1): [0, 2], ("a", None): [1], (None, None): [3]}


def test_zeros_of_both_signs_and_all_nans_are_one_key_each() -> None:
    schema = pa.schema({"x": pa.float64()})
    rows = grouped({"x": [0.0, -0.0, math.nan, 1.0, -math.nan]}, schema)
    assert [len(found) for found in by_key(rows).values()] == [2, 2, 1]
    assert rows.codes.tolist() == [0, 0, 1, 2, 1]


def test_key_columns_are_found_by_name_wherever_they_stand() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([9, 8], pa.int64()), pa.array([1, 2], pa.int32()), pa.array(["a", "b"])], names=["n", "day", "car"]
    )
    rows = group_by_key(batch, np.array([40, 41]), KeyCodec(KEY))
    assert rows.keys == [("a", 1), ("b", 2)]
    assert rows.row_index.tolist() == [40, 41]


def test_one_row_and_no_rows() -> None:
    assert by_key(grouped({"car": ["a"], "day": [1]})) == {("a", 1): [0]}
    empty = grouped({"car": [], "day": []})
    assert (empty.keys, len(empty), by_key(empty)) == ([], 0, {})


def test_many_keys_in_many_columns_do_not_run_into_each_other() -> None:
    """Codes of columns are multiplied: the product must not overflow 32 bits."""
    count = 70_000
    numbers = list(range(count))
    schema = pa.schema({"a": pa.int64(), "b": pa.int64(), "c": pa.int64()})
    rows = grouped({"a": numbers, "b": numbers[::-1], "c": numbers}, schema)
    assert len(rows.keys) == count
    assert rows.codes.tolist() == numbers


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None])), max_size=30))
def test_grouping_is_what_a_dict_would_do(pairs: list[tuple[str | None, int | None]]) -> None:
    expected: dict[Any, list[int]] = {}
    for position, pair in enumerate(pairs):
        expected.setdefault(pair, []).append(position)
    rows = grouped({"car": [car for car, _ in pairs], "day": [day for _, day in pairs]})
    assert by_key(rows) == expected
    assert list(by_key(rows)) == list(expected)
    assert rows.rank.tolist() == [expected[pair].index(at) for at, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        (pa.timestamp("us"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)]),
        (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)]),
        (pa.binary(), [b"1", b"2"]),
        (pa.decimal128(9, 2), [decimal.Decimal("1.50"), decimal.Decimal("2.50")]),
        (pa.bool_(), [True, False]),
        (pa.int8(), [1, 2]),
    ],
)
def test_keys_of_every_kind_are_grouped(kind: pa.DataType, values: list[Any]) -> None:
    rows = grouped({"x": [*values, values[0]]}, pa.schema({"x": kind}))
    assert rows.codes.tolist() == [0, 1, 0]
