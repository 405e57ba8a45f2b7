"""An operator that was defined in an earlier application and not yet in this one: the hosts have its state, not its code.

A host that joins must be able to take its state. The state can be moved and read; rows cannot be applied to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import cloudpickle

from godwit.errors import DefinitionError
from godwit.runtime.processor.rows import Outputs, Rows, Times
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key
from godwit.state.variables import Variable


class UndefinedAdapter:
    """In the place of the adapter, until the operator is defined."""

    current_key: Key | None = None
    current_call: int = 0

    def __init__(self, spec: OperatorSpec) -> None:
        self.variables: tuple[Variable, ...] = spec.variables
        self.output_schema = spec.output_schema
        self._name = spec.name

    def open(self, state: KeyedState) -> None:
        return

    def process(self, rows: Rows, times: Times) -> Outputs:
        raise self._undefined()

    def expire(self, timers: Sequence[tuple[int, Key]], times: Times) -> Outputs:
        raise self._undefined()

    def initialise(self, rows: Rows, times: Times) -> None:
        raise self._undefined()

    def close(self) -> None:
        return

    def _undefined(self) -> DefinitionError:
        return DefinitionError(
            "the operator has not been defined since the flock was opened",
            todo="Define it with flock.transformWithState before the query starts",
            operator=self._name,
        )


def undefined_operator(spec: OperatorSpec) -> Operator:
    return Operator(spec, cloudpickle.dumps(UndefinedAdapter(spec)))
