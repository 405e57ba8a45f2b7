"""What all ready windows share: aggregates by name, and an output schema inferred from the input.

Decides the shape of the output: the key columns, `window`, the aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.processor.native import Processor
from godwit.windows.aggregates import AggregateSpec, bind_aggregate, parse_aggregates
from godwit.windows.panes import Panes

WINDOW: Final = "window"  # the output column that says which window it is


class Window(Processor):
    """A processor that puts a key's rows into windows and gives one row for each window."""

    panes: Panes
    merges: bool = False
    """Whether many rows of a hot key may come as one."""

    def __init__(self, aggregates: Mapping[str, AggregateSpec]) -> None:
        self._specs = parse_aggregates(aggregates)

    def bind(self, input_schema: pa.Schema, key_names: Sequence[str]) -> pa.Schema:
        names = [*key_names, WINDOW, *self._specs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DefinitionError(
                f"the output would have two columns {twice[0]!r}",
                todo=f"It has {', '.join(names)}: rename one",
            )
        if self.merge and not self.merges:
            raise DefinitionError(
                "a window does not take `merge`: it decides by itself how rows become one",
                todo="Leave it out; windows of event time have an argument merge=True",
            )
        self.panes = Panes([bind_aggregate(alias, *spec, input_schema) for alias, spec in self._specs.items()])
        self._declare(input_schema)
        return pa.schema(
            [
                *(input_schema.field(name) for name in key_names),
                pa.field(WINDOW, self._window_type(input_schema), nullable=False),
                *(pa.field(a.alias, a.output) for a in self.panes.aggregates),
            ]
        )

    def _declare(self, input_schema: pa.Schema) -> None:
        """Set the state that the windows need, now that the aggregates are known."""
        raise NotImplementedError

    def _window_type(self, input_schema: pa.Schema) -> pa.DataType:
        raise NotImplementedError
