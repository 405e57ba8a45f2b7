"""Aggregates that keep values as they are: first, last, collect. Nulls count for first and last only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from godwit.runtime.processor.rows import Array, Index
from godwit.runtime.processor.state_columns import Columns
from godwit.windows.aggregate import ROWS, Aggregate, Into, Mask, is_atomic, stored_type


class Edge(Aggregate):
    """The value of the first or last row, null if that row has null."""

    __slots__ = ()
    part: ClassVar[str]

    @property
    def parts(self) -> Mapping[str, pa.DataType]:
        return {self.part: stored_type(cast(pa.DataType, self.source)), "ok": pa.bool_()}

    @property
    def output(self) -> pa.DataType:
        return cast(pa.DataType, self.source)

    @classmethod
    def accepts(cls, source: pa.DataType) -> bool:
        return is_atomic(source)

    def add(self, panes: Columns, into: Index, values: Array, valid: Mask | None) -> None:
        row = np.full(len(panes[ROWS]), -1)
        in_turn = self._in_turn(np.arange(len(into)))
        row[into[in_turn]] = in_turn  # a repeated index keeps what is assigned last
        chosen = np.flatnonzero((row >= 0) & self._takes(panes[ROWS]))
        panes[self.name(self.part)][chosen] = values[row[chosen]]
        panes[self.name("ok")][chosen] = True if valid is None else valid[row[chosen]]

    def merge(self, target: Columns, into: Into, source: Columns, at: Index) -> None:
        where = np.arange(len(target[ROWS]))[into]
        takes = self._takes(target[ROWS][where])
        for part in self.parts:
            target[self.name(part)][where[takes]] = source[self.name(part)][at[takes]]

    def result(self, panes: Columns) -> pa.Array[Any]:
        values = panes[self.name(self.part)]
        return pa.array(values, self.parts[self.part], mask=~panes[self.name("ok")]).cast(self.output)

    @staticmethod
    @abstractmethod
    def _in_turn(rows: Index) -> Index:
        """Row numbers in an order in which the row that counts comes last."""

    @staticmethod
    @abstractmethod
    def _takes(rows_before: Array) -> Mask:
        """Whether a pane with this many rows takes the value of a later row."""


class First(Edge):
    """The first row's value."""

    __slots__ = ()
    part = "first"

    @staticmethod
    def _in_turn(rows: Index) -> Index:
        return rows[::-1]

    @staticmethod
    def _takes(rows_before: Array) -> Mask:
        return cast(Mask, rows_before == 0)


class Last(Edge):
    """The last row's value."""

    __slots__ = ()
    part = "last"

    @staticmethod
    def _in_turn(rows: Index) -> Index:
        return rows

    @staticmethod
    def _takes(rows_before: Array) -> Mask:
        return np.ones(len(rows_before), np.bool_)


class Collect(Aggregate):
    """All values but nulls, in order. Its state grows with the window and is not fixed-width."""

    __slots__ = ()

    @property
    def parts(self) -> Mapping[str, pa.DataType]:
        return {"values": pa.list_(stored_type(cast(pa.DataType, self.source)))}

    @property
    def output(self) -> pa.DataType:
        return pa.list_(cast(pa.DataType, self.source))

    @classmethod
    def accepts(cls, source: pa.DataType) -> bool:
        return is_atomic(source)

    def add(self, panes: Columns, into: Index, values: Array, valid: Mask | None) -> None:
        if valid is not None:
            into, values = into[valid], values[valid]
        order = np.argsort(into, kind="stable")
        owners, counts = np.unique(into, return_counts=True)
        cells, lists, start = values[order].tolist(), panes[self.name("values")], 0
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            lists[owner] = [*(lists[owner] or ()), *cells[start : start + count]]
            start += count

    def merge(self, target: Columns, into: Into, source: Columns, at: Index) -> None:
        lists, others = target[self.name("values")], source[self.name("values")]
        for here, there in zip(np.arange(len(lists))[into].tolist(), at.tolist(), strict=True):
            lists[here] = [*(lists[here] or ()), *(others[there] or ())]

    def result(self, panes: Columns) -> pa.Array[Any]:
        stored = self.parts["values"]
        return pa.array([cells or [] for cells in panes[self.name("values")]], stored).cast(self.output)
