"""Settings of Spark that a pandas processor notices: the size of a DataFrame, and how its columns are read and written."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.spark.pyspark_api.call_settings import SparkSettings

NAMES = (
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
)
SWITCHES = ("false", "false", "true", "true")


class Session:
    """A session of which only settings are asked."""

    def __init__(self, *values: str) -> None:
        self.conf = dict(zip(NAMES, values, strict=True))


def settings(rows: str, size: str, *switches: str) -> SparkSettings:
    session: Any = Session(rows, size, *(switches or SWITCHES))
    return SparkSettings.of(session)


def test_no_limits_mean_one_dataframe_for_a_key() -> None:
    unlimited = settings("-1", "2147483647")
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
    assert settings(rows, size).frame_rows(of_bytes, 100) == expected


def test_switches_are_those_of_the_session() -> None:
    switched = settings("-1", "-1", "true", "true", "false", "false")
    assert (switched.int_to_decimal, switched.int_or_na, switched.safe, switched.by_name) == (True, True, False, False)
