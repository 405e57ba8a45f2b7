"""Committed state as a person would write it: times as timestamps, elements of a field together, windows by their aggregates.

`runtime.reading.export` decodes the state as it is stored; here it gets the columns that `Flock.state` shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.state_columns import LISTS
from godwit.runtime.reading.export import rows_of_state, state_schema
from godwit.state.variables import Variable
from godwit.windows.pane_view import PaneView

MOMENT: Final = pa.timestamp("us", tz="UTC")
# The years 1 to 9999: Python has no other moments.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
_BEFORE: Final = 2  # host and epoch stand between the key columns and the variables


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column, and the state variable that it shows; None for timers."""

    field: pa.Field[Any]
    variable: Variable | None


def shown_schema(spec: OperatorSpec) -> pa.Schema:
    """Key columns, host, epoch, a column per state variable, timers."""
    first = list(state_schema(spec))[: len(spec.key_schema) + _BEFORE]
    return pa.schema([*first, *(column.field for column in shown_columns(spec))])


def shown_columns(spec: OperatorSpec) -> list[ShownColumn]:
    """The columns behind key, host and epoch."""
    stored = list(state_schema(spec))[len(spec.key_schema) + _BEFORE :]
    timers = ShownColumn(stored[-1].with_type(pa.list_(MOMENT)), None)
    view = _view(spec)
    if view is not None:
        panes = view.columns()
        _, _, _, *names = spec.names_beside_key([pane.name for pane in panes], "_state")
        renamed = [pane.with_name(name) for name, pane in zip(names, panes, strict=True)]
        return [*(ShownColumn(pane, spec.variables[0]) for pane in renamed), timers]
    pairs = zip(stored, spec.variables, strict=False)
    return [*(ShownColumn(field.with_type(_type(field.type, each)), each) for field, each in pairs), timers]


def shown_rows(
    spec: OperatorSpec, changes: Iterable[pa.RecordBatch], host: str, epoch: int
) -> Iterator[pa.RecordBatch]:
    schema, view = shown_schema(spec), _view(spec)
    first = len(spec.key_schema) + _BEFORE
    for stored in rows_of_state(spec, changes, host, epoch):
        timers = _moments(stored.column(stored.num_columns - 1))
        if view is None:
            variables = [_array(stored.column(first + at), each) for at, each in enumerate(spec.variables)]
        else:
            states, older = stored.column(first).to_pylist(), [None] * stored.num_rows
            more = stored.column(first + 1).to_pylist() if len(spec.variables) > 1 else older
            variables = view.arrays(states, more)
        yield pa.RecordBatch.from_arrays([*stored.columns[:first], *variables, timers], schema=schema)


def _view(spec: OperatorSpec) -> PaneView | None:
    return PaneView.of(spec.variables[0].schema) if spec.flavour == "native" and spec.variables else None


def _moments(timers: Any) -> Any:
    """Milliseconds as timestamps. A timer beyond the years 1 to 9999 is shown at their end or beginning."""
    within: Any = pc.max_element_wise(pc.min_element_wise(timers.flatten(), pa.scalar(LAST_MS)), pa.scalar(FIRST_MS))
    shown = within.cast(pa.timestamp("ms", tz="UTC")).cast(MOMENT)
    counts = pc.fill_null(pc.list_value_length(timers), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, shown, mask=timers.is_null())


# -- fields with elements --------------------------------------------------------------------------------------------


def _lists(variable: Variable) -> dict[str, int]:
    """Fields of the processor that are stored as several: their names and numbers of elements."""
    text = (variable.schema.metadata or {}).get(LISTS)
    lists: dict[str, int] = {} if text is None or variable.kind != "value" else json.loads(text)
    return lists


def _type(stored: Any, variable: Variable) -> Any:
    lists = _lists(variable)
    if not lists:
        return stored
    fields, at = [], 0
    while at < len(stored):
        name, count = _gathered(stored.field(at).name, lists)
        fields.append(pa.field(name, pa.list_(stored.field(at).type)) if count else stored.field(at))
        at += count or 1
    return pa.struct(fields)


def _gathered(stored: str, lists: dict[str, int]) -> tuple[str, int]:
    name = stored.removesuffix("_0")
    return (name, lists[name]) if name != stored and name in lists else (stored, 0)


def _array(stored: Any, variable: Variable) -> Any:
    kind = _type(stored.type, variable)
    if kind == stored.type:
        return stored
    lists = _lists(variable)
    return pa.array([None if row is None else _row(row, kind, lists) for row in stored.to_pylist()], kind)


def _row(row: dict[str, Any], kind: Any, lists: dict[str, int]) -> dict[str, Any]:
    names = [field.name for field in kind]
    return {
        name: [row[f"{name}_{at}"] for at in range(lists[name])] if f"{name}_0" in row and name in lists else row[name]
        for name in names
    }
