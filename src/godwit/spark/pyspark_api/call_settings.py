"""What a call of a PySpark processor depends on beside the processor: arguments of the definition, and settings of Spark.

Spark reads its settings when a query starts; here they are read when the operator is defined. Must not know keys or state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

VALUE_BYTES_MAX: Final = 64 << 20
_ROWS_MAX: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_MAX: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_INT_TO_DECIMAL: Final = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_INT_OR_NA: Final = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
_SAFE: Final = "spark.sql.execution.pandas.convertToArrowArraySafely"
_BY_NAME: Final = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings that change what a pandas processor gets, and what becomes of its outputs.

    frame_rows_max, frame_bytes_max: of a DataFrame. int_or_na: whole numbers keep their type, and a null among them is
    pandas.NA. int_to_decimal: whole numbers are taken for decimals. safe: numbers that would lose digits are refused.
    by_name: output columns go by name, not by place.
    """

    frame_rows_max: int = _UNLIMITED
    frame_bytes_max: int = _UNLIMITED
    int_to_decimal: bool = False
    int_or_na: bool = False
    safe: bool = True
    by_name: bool = True

    @classmethod
    def of(cls, spark: SparkSession) -> SparkSettings:
        rows, size = str(spark.conf.get(_ROWS_MAX)), str(spark.conf.get(_BYTES_MAX))
        switches = [
            str(spark.conf.get(name)).lower() == "true" for name in (_INT_TO_DECIMAL, _INT_OR_NA, _SAFE, _BY_NAME)
        ]
        return cls(_limit(int(rows)), _limit(_bytes(size)), *switches)

    def frame_rows(self, data_bytes: int, rows: int) -> int:
        """The number of rows of a DataFrame, if the rows of the chunk have this size together."""
        if self.frame_bytes_max == _UNLIMITED or not data_bytes:
            return self.frame_rows_max
        return max(1, min(self.frame_rows_max, -(-self.frame_bytes_max * rows // data_bytes)))


def _limit(number: int) -> int:
    return number if 0 < number < _UNLIMITED else _UNLIMITED


def _bytes(text: str) -> int:
    """A number of bytes, as Spark writes it: 100, 100b, 64k, 2m, 1g."""
    digits = text.strip().lower().removesuffix("b")
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}.get(digits[-1:], 1)
    return int(digits.rstrip("kmgt")) * factor


@dataclass(frozen=True, slots=True)
class CallSettings:
    """`event_time_column`: the output column that carries the watermark on. `added_keys`: key columns that are expressions."""

    time_mode: str = "none"
    tz: str = "UTC"
    value_bytes_max: int = VALUE_BYTES_MAX
    spark: SparkSettings = SparkSettings()
    event_time_column: str = ""
    added_keys: tuple[str, ...] = ()
