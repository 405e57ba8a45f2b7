"""Whether an operator may be defined again: on the state of an earlier definition, and while the flock is open.

Decides which definitions fit the checkpoint (with the rules of `runtime.processor.spec`), and that no running query still uses
the operator. Changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from godwit import windows
from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.spark.checkpoint.run_admission import RunAdmission


def on_state_of(operator: Operator, recorded: OperatorSpec | None) -> Operator:
    """The operator on the state of the recorded definition; raises CheckpointMismatch if it does not fit."""
    spec = operator.spec
    if recorded is None or recorded.ephemeral or spec.ephemeral:
        return operator  # state over a batch DataFrame ends with its evaluation
    _check_window(spec, recorded)
    return replace(operator, spec=spec.after(recorded, operator.deleted))


def _check_window(spec: OperatorSpec, recorded: OperatorSpec) -> None:
    """A ready window cannot become another one: half of the rows of an open window would be missing in a new aggregate."""
    ready = [name for name in (spec.processor, recorded.processor) if name in windows.__all__]
    same = spec.processor == recorded.processor and spec.variables == recorded.variables
    if ready and not same:
        raise CheckpointMismatch(
            f"the checkpoint has state of the window {recorded.processor}, and this is the window {spec.processor} with other "
            "aggregates or another size"
            if spec.processor == recorded.processor
            else f"the checkpoint has state of {recorded.processor}, and this definition is {spec.processor}",
            todo="Use the window that made the checkpoint, or another operator name or checkpoint directory",
            operator=spec.name,
        )


def check_unused(name: str, admission: RunAdmission) -> None:
    """Raise if a running query uses the operator."""
    query = admission.running_query(name)
    if query is not None:
        raise DefinitionError(
            f"the query {query} runs with this operator, so the operator cannot be defined again now",
            todo="Stop that query first (query.stop()), or give the new operator another name",
            operator=name,
        )
