"""Aggregates that compute: count, sum, avg, min, max, with Spark's rules for nulls, NaN and result types."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from godwit.errors import ProcessorFailed
from godwit.runtime.processor.rows import Array, Index
from godwit.runtime.processor.state_columns import Columns
from godwit.windows.aggregate import ROWS, Aggregate, Into, Mask, is_number, stored_type


class Count(Aggregate):
    """Rows, or the rows in which a column is not null."""

    __slots__ = ()
    output: ClassVar[pa.DataType] = pa.int64()

    @property
    def parts(self) -> Mapping[str, pa.DataType]:
        return {} if self.column is None else {"n": pa.int64()}

    def add(self, panes: Columns, into: Index, values: Array, valid: Mask | None) -> None:
        if self.column is not None:
            np.add.at(panes[self.name("n")], into if valid is None else into[valid], 1)

    def merge(self, target: Columns, into: Into, source: Columns, at: Index) -> None:
        if self.column is not None:
            target[self.name("n")][into] += source[self.name("n")][at]

    def result(self, panes: Columns) -> pa.Array[Any]:
        return pa.array(panes[ROWS if self.column is None else self.name("n")])

    @classmethod
    def accepts(cls, source: pa.DataType) -> bool:  # noqa: ARG003 - it takes any
        return True


class Sum(Aggregate):
    """Integers add up to a long and may not overflow it, floats to a double; null if no value was added."""

    __slots__ = ()

    @property
    def parts(self) -> Mapping[str, pa.DataType]:
        return {"sum": self.total, "n": pa.int64()}

    @property
    def total(self) -> pa.DataType:
        return pa.int64() if pa.types.is_integer(cast(pa.DataType, self.source)) else pa.float64()

    @property
    def output(self) -> pa.DataType:
        return self.total

    def add(self, panes: Columns, into: Index, values: Array, valid: Mask | None) -> None:
        if valid is not None:
            into, values = into[valid], values[valid]
        total = panes[self.name("sum")]
        before = total.astype(np.float64) if total.dtype.kind == "i" else None
        np.add.at(total, into, values.astype(total.dtype, copy=False))
        np.add.at(panes[self.name("n")], into, 1)
        if before is not None:
            np.add.at(before, into, values.astype(np.float64))
            self._check(total, before)

    def merge(self, target: Columns, into: Into, source: Columns, at: Index) -> None:
        total, added = target[self.name("sum")], source[self.name("sum")][at]
        before = total[into].astype(np.float64) + added if total.dtype.kind == "i" else None
        total[into] += added
        target[self.name("n")][into] += source[self.name("n")][at]
        if before is not None:
            self._check(total[into], before)

    def _check(self, total: Array, about: Array) -> None:
        # Wrapping around moves a sum by 2**64, far more than a double's rounding.
        if (np.abs(total - about) > 2.0**62).any():
            raise ProcessorFailed(
                f"the sum {self.alias!r} is beyond a 64-bit integer", todo="Cast the column to double"
            )

    def result(self, panes: Columns) -> pa.Array[Any]:
        return pa.array(panes[self.name("sum")], mask=panes[self.name("n")] == 0)


class Avg(Sum):
    """The mean as a double; null if no value was added."""

    __slots__ = ()
    output: ClassVar[pa.DataType] = pa.float64()
    total: ClassVar[pa.DataType] = pa.float64()

    def result(self, panes: Columns) -> pa.Array[Any]:
        count = panes[self.name("n")]
        return pa.array(panes[self.name("sum")] / np.maximum(count, 1), mask=count == 0)


class Extreme(Aggregate):
    """Smallest or largest value. NaN is larger than any number, as in Spark; null if no value was added."""

    __slots__ = ()
    part: ClassVar[str]
    better: ClassVar[np.ufunc]

    @property
    def parts(self) -> Mapping[str, pa.DataType]:
        return {self.part: stored_type(cast(pa.DataType, self.source)), "n": pa.int64()}

    @property
    def output(self) -> pa.DataType:
        return cast(pa.DataType, self.source)

    @classmethod
    def accepts(cls, source: pa.DataType) -> bool:
        return is_number(source) or pa.types.is_date32(source) or pa.types.is_timestamp(source)

    def add(self, panes: Columns, into: Index, values: Array, valid: Mask | None) -> None:
        if valid is not None:
            into, values = into[valid], values[valid]
        best, count = panes[self.name(self.part)], panes[self.name("n")]
        best[count == 0] = self._worst(best.dtype)
        with np.errstate(invalid="ignore"):  # NaN is a value like any other
            self.better.at(best, into, values)
        np.add.at(count, into, 1)
        best[count == 0] = 0

    def merge(self, target: Columns, into: Into, source: Columns, at: Index) -> None:
        best, count = target[self.name(self.part)], target[self.name("n")]
        other, others = source[self.name(self.part)][at], source[self.name("n")][at]
        mine = np.where(count[into] == 0, other, best[into])
        with np.errstate(invalid="ignore"):
            best[into] = np.where(others == 0, mine, self.better(mine, other))
        count[into] += others

    def result(self, panes: Columns) -> pa.Array[Any]:
        return pa.array(panes[self.name(self.part)], mask=panes[self.name("n")] == 0).cast(self.output)

    @staticmethod
    @abstractmethod
    def _worst(dtype: np.dtype[Any]) -> Any:
        """A value that loses against every other."""


class Min(Extreme):
    """The smallest value."""

    __slots__ = ()
    part = "min"
    better = np.fmin

    @staticmethod
    def _worst(dtype: np.dtype[Any]) -> Any:
        return np.nan if dtype.kind == "f" else np.iinfo(dtype).max


class Max(Extreme):
    """The largest value."""

    __slots__ = ()
    part = "max"
    better = np.maximum

    @staticmethod
    def _worst(dtype: np.dtype[Any]) -> Any:
        return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
