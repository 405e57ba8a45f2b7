"""The base of all aggregates of windows: typed columns of a partial result, and how more rows are added to them.

All zero (None where width varies) means that no row was added. An aggregate must not know which rows make a
window. It adds strictly from left to right, so that results do not depend on how rows were cut into chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.runtime.processor.rows import Array, Index
from godwit.runtime.processor.state_columns import Columns

Mask: TypeAlias = npt.NDArray[np.bool_]
Into: TypeAlias = Index | slice  # positions, each at most once, or all

ROWS: Final = "rows"  # the column that counts rows, kept for every pane


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_signed_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)


def is_atomic(kind: pa.DataType) -> bool:
    fixed = is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    return fixed or pa.types.is_string(kind) or pa.types.is_binary(kind)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """As numpy columns hold it: times are numbers."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


@dataclass(frozen=True, slots=True)
class Aggregate(ABC):
    """One aggregate of a window, bound to an input column."""

    alias: str
    column: str | None
    source: pa.DataType | None

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, pa.DataType]:
        """The columns of the partial result, by the last part of their names."""

    @property
    @abstractmethod
    def output(self) -> pa.DataType: ...

    @abstractmethod
    def add(self, panes: Columns, into: Index, values: Array, valid: Mask | None) -> None:
        """Add row i's value to pane `into[i]`. `panes[ROWS]` does not count these rows yet."""

    @abstractmethod
    def merge(self, target: Columns, into: Into, source: Columns, at: Index) -> None:
        """Add pane `at[i]` of `source`, which has rows, behind pane `into[i]` of `target`."""

    @abstractmethod
    def result(self, panes: Columns) -> pa.Array[Any]: ...

    def name(self, part: str) -> str:
        return f"{self.alias}_{part}"

    @classmethod
    def accepts(cls, source: pa.DataType) -> bool:
        return is_number(source)
