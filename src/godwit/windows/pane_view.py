"""The state of windows as a person would write it: a list of panes with their times, and the aggregates by name.

Windows are stored for speed: fields for each slot, and a map of older panes. A description is stored with the state variable,
as metadata of its schema, so that state can be read without the processor.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa

from godwit.runtime.processor.state_columns import Columns, Packer
from godwit.windows.aggregate import ROWS, Aggregate
from godwit.windows.aggregates import FUNCTIONS
from godwit.windows.panes import Panes

METADATA: Final = b"godwit.window"
Stored = Mapping[str, Any]  # the fields of a key's state, or of a pane, by name


@dataclass(frozen=True, slots=True)
class PaneView:
    """`pane`: the length of a pane, in microseconds or rows. `whole`: a window is one pane. `tz`: of the event time."""

    kind: Literal["event", "count"]
    pane: int
    slots: int
    whole: bool
    tz: str | None
    aggregates: tuple[Aggregate, ...]

    def metadata(self) -> dict[bytes, bytes]:
        sources = pa.schema([pa.field(one.alias, one.source or pa.null()) for one in self.aggregates])
        fields = {
            "kind": self.kind,
            "pane": self.pane,
            "slots": self.slots,
            "whole": self.whole,
            "tz": self.tz,
            "aggregates": [[one.alias, _function(one), one.column] for one in self.aggregates],
            "sources": base64.b64encode(sources.serialize()).decode("ascii"),
        }
        return {METADATA: json.dumps(fields).encode()}

    @classmethod
    def of(cls, schema: pa.Schema) -> Self | None:
        """The view that is stored with this schema; None if it is not the state of windows."""
        text = (schema.metadata or {}).get(METADATA)
        if text is None:
            return None
        fields = json.loads(text)
        sources = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields.pop("sources"))))
        bound = [
            FUNCTIONS[function](alias, column, None if column is None else sources.field(alias).type)
            for alias, function, column in fields.pop("aggregates")
        ]
        return cls(**fields, aggregates=tuple(bound))

    # -- what is shown -----------------------------------------------------------------------------------------------

    def columns(self) -> list[pa.Field[Any]]:
        """Columns in the place of the state variables."""
        moment: Any = pa.timestamp("us", tz=self.tz) if self.kind == "event" else pa.int64()
        ends = ("start", "end") if self.kind == "event" else ("first_row", "next_row")
        fields = [pa.field(name, moment) for name in ends]
        aliases = [one.alias for one in self.aggregates]
        fields += [] if ROWS in aliases else [pa.field(ROWS, pa.int64())]
        fields += [
            pa.field(f"{one.alias}_value" if one.alias in ends else one.alias, one.output) for one in self.aggregates
        ]
        listed = pa.field("windows" if self.whole else "panes", pa.list_(pa.struct(fields)))
        return [listed, pa.field("next_end", moment) if self.kind == "event" else pa.field("rows_seen", pa.int64())]

    def arrays(
        self, states: Sequence[Stored | None], older: Sequence[Sequence[tuple[Stored, Stored]] | None]
    ) -> list[Any]:
        """The columns of these keys, from the fields of their state and their older panes."""
        listed = [self._panes(state or {}, more or ()) for state, more in zip(states, older, strict=True)]
        flat = [pane for panes in listed for pane in panes]
        starts = np.array([start for start, _ in flat], np.int64)
        values = self._values([stored for _, stored in flat])
        kind, last = self.columns()
        struct: Any = kind.type.value_type
        bounds = [pa.array(each).cast(struct.field(0).type) for each in (starts, starts + self.pane)]
        results = list(Panes(self.aggregates).results(values).values())
        rows = [] if struct.get_field_index(ROWS) != 2 or len(struct) == 2 + len(results) else [pa.array(values[ROWS])]
        parts = [part.cast(field.type) for part, field in zip([*bounds, *rows, *results], struct, strict=True)]
        offsets = pa.array(np.cumsum([0, *map(len, listed)]), pa.int32())
        panes = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(parts, fields=list(struct)))
        return [panes, pa.array([self._last(state or {}) for state in states], pa.int64()).cast(last.type)]

    def _last(self, state: Stored) -> int | None:
        if self.kind == "count":
            return state.get("seen")
        return state.get("next_end_us") if state.get("waits") else None

    def _panes(self, state: Stored, older: Sequence[tuple[Stored, Stored]]) -> list[tuple[int, Stored]]:
        """Start and fields of each pane with rows, in order."""
        names = list(Panes(self.aggregates).fields)
        filled = [at for at in range(self.slots) if state.get(f"{ROWS}_{at}")]
        panes: list[tuple[int, Stored]] = [
            (self._start(state, at), {name: state[f"{name}_{at}"] for name in names}) for at in filled
        ]
        panes += [(key["start_us"], pane) for key, pane in older]
        return sorted(panes, key=lambda pane: pane[0])

    def _start(self, state: Stored, slot: int) -> int:
        if self.kind == "event":
            return int(state[f"start_us_{slot}"])
        last = (state["seen"] - 1) // self.pane  # the pane of the newest row: others are before it, in their slots
        return int((last - (last - slot) % self.slots) * self.pane)

    def _values(self, panes: Sequence[Stored]) -> Columns:
        dtypes = Packer(Panes(self.aggregates).fields).dtypes
        return {name: _column([pane[name] for pane in panes], dtype) for name, dtype in dtypes.items()}


def _column(values: list[Any], dtype: np.dtype[Any]) -> Any:
    column = np.empty(len(values), dtype)
    column[:] = values
    return column


def _function(aggregate: Aggregate) -> str:
    return next(name for name, kind in FUNCTIONS.items() if kind is type(aggregate))


def stored_schema(fields: Mapping[str, pa.DataType], view: PaneView) -> pa.Schema:
    """The fields of a window's state, with the description of how they are shown."""
    described: Any = view.metadata()
    return pa.schema(dict(fields), metadata=described)
