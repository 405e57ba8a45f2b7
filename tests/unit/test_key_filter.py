"""Filters that Spark pushes down to the data source of state."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

from godwit.spark.checkpoint.data_source import KeyFilter, _values

KEY = ("key",)


@pytest.mark.parametrize(
    ("pushed", "keys"),
    [
        (In(KEY, (1, 3)), [1]),
        (In(KEY, (1, None)), [1]),
        (In(KEY, (None,)), []),
        (EqualTo(KEY, 2), [2]),
        (EqualTo(KEY, None), []),
        (EqualNullSafe(KEY, None), [None]),
    ],
)
def test_null_key_is_let_through_by_null_safe_equality_only(pushed: Filter, keys: list[int | None]) -> None:
    """Before: `key IN (1, NULL)` gave the state of the null key, too."""
    batch = pa.RecordBatch.from_arrays([pa.array([1, None, 2], pa.int64())], names=["key"])
    name, values = _values(pushed, ())
    assert name is not None
    assert KeyFilter({0: values})(batch).column(0).to_pylist() == keys
