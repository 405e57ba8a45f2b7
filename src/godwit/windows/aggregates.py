"""Which aggregates there are, and how a user's choice of them is read and checked against the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.windows.aggregate import Aggregate
from godwit.windows.collecting import Collect, First, Last
from godwit.windows.numbers import Avg, Count, Max, Min, Sum

AggregateSpec: TypeAlias = str | Sequence[str]

FUNCTIONS: Final[Mapping[str, type[Aggregate]]] = {
    "count": Count,
    "sum": Sum,
    "avg": Avg,
    "min": Min,
    "max": Max,
    "first": First,
    "last": Last,
    "collect": Collect,
}

MERGED: Final = ("sum", "min", "max")


def parse_aggregates(aggregates: Mapping[str, AggregateSpec]) -> dict[str, tuple[str, str | None]]:
    """Function and column of each alias, checked as far as possible without the input."""
    if not isinstance(aggregates, Mapping):
        raise DefinitionError(
            f"aggregates={aggregates!r:.80} does not name the columns of the output",
            todo='Give a dict of names and aggregates, such as {"mean": ("avg", "speed"), "n": ("count",)}',
        )
    if not aggregates:
        raise DefinitionError("a window needs at least one aggregate", todo='Give e.g. {"n": ("count",)}')
    parsed: dict[str, tuple[str, str | None]] = {}
    for alias, spec in aggregates.items():
        function, *columns = [spec] if isinstance(spec, str) else spec
        if function not in FUNCTIONS:
            raise DefinitionError(
                f"aggregate {alias!r}: unknown function {function!r}",
                todo=f"There are {', '.join(FUNCTIONS)}",
            )
        if len(columns) > 1 or (not columns and function != "count"):
            raise DefinitionError(
                f"aggregate {alias!r}: {function} takes one column, not {len(columns)}",
                todo=f'Give e.g. {{"{alias}": ("{function}", "column of the input")}}',
            )
        parsed[alias] = function, columns[0] if columns else None
    return parsed


def merge_by(aggregates: Mapping[str, tuple[str, str | None]], columns: Sequence[str]) -> dict[str, str]:
    """How rows of a pane may be merged so that the aggregates stay the same; the last value for other columns."""
    ways: dict[str, str] = {}
    for alias, (function, column) in aggregates.items():
        if function not in MERGED or column is None:
            raise DefinitionError(
                f"aggregate {alias!r}: {function} needs every row, so rows cannot be merged for it",
                todo=f"Use {', '.join(MERGED)}: a sum over a column of ones counts rows, and a mean is one sum by another",
            )
        if column not in columns:
            raise DefinitionError(
                f"aggregate {alias!r}: {column!r} is a key or the event time, and a merged row has only one of it",
                todo="Give the input the same column twice, by two names",
            )
        if ways.setdefault(column, function) != function:
            raise DefinitionError(
                f"column {column!r} has a {ways[column]} and a {function}, and rows are merged one way only",
                todo="Give the input the same column twice, by two names",
            )
    return {name: ways.get(name, "last") for name in columns}


def bind_aggregate(alias: str, function: str, column: str | None, schema: pa.Schema) -> Aggregate:
    """The aggregate over the column as the input has it."""
    if column is None:
        return FUNCTIONS[function](alias, None, None)
    if column not in schema.names:
        raise DefinitionError(
            f"aggregate {alias!r}: the input has no column {column!r}",
            todo=f"It has {', '.join(schema.names)}",
        )
    source = schema.field(column).type
    if not FUNCTIONS[function].accepts(source):
        raise DefinitionError(f"aggregate {alias!r}: {function} does not take column {column!r} of type {source}")
    return FUNCTIONS[function](alias, column, source)
