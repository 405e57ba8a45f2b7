"""Settings of Spark that a pandas processor notices: how many rows a DataFrame has."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.spark.pyspark_api.call_settings import SparkSettings

NAMES = (
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
)


class Session:
    """A session of which only settings are asked."""

    def __init__(self, *values: str) -> None:
        self.conf = dict(zip(NAMES, values, strict=True))


def settings(*values: str) -> SparkSettings:
    session: Any = Session(*values)
    return SparkSettings.of(session)


def test_no_limits_mean_one_dataframe_for_a_key() -> None:
    unlimited = settings("-1", "2147483647", "false")
    assert unlimited == SparkSettings()
    assert unlimited.frame_rows(10**9, 10) > 10**9


@pytest.mark.parametrize(
    ("rows", "size", "of_bytes", "expected"),
    [
        ("10000", "2147483647", 10**9, 10_000),
        ("0", "100", 1_000, 10),  # 10 bytes a row
        ("3", "100", 1_000, 3),
        ("-1", "2", 1_000, 1),
        ("-1", "1k", 1_000, 103),
        ("-1", "25b", 1_000, 3),
        ("-1", "100", 0, 2**31 - 1),
    ],
)
def test_a_dataframe_has_as_many_rows_as_both_limits_allow(rows: str, size: str, of_bytes: int, expected: int) -> None:
    assert settings(rows, size, "false").frame_rows(of_bytes, 100) == expected


def test_whole_numbers_are_decimals_if_spark_is_told_so() -> None:
    assert settings("-1", "-1", "true").int_to_decimal
