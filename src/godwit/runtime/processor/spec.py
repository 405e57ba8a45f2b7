"""The definition of an operator without its code: the checkpoint stores it and compares it with later definitions.

Hosts rebuild state from it without the user's processor. Decides which later definitions fit the state of an earlier one: state
variables may change as `state.layout` allows, output and processor may change, key and time may not.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import pyarrow as pa

from godwit.errors import CheckpointMismatch
from godwit.model.start import Start
from godwit.model.watermark import Policy
from godwit.runtime.processor.merging import Merge
from godwit.state.layout import Layout, PastForm, shown
from godwit.state.variables import Variable

TimeMode = Literal["none", "processingTime", "eventTime"]

_KEEP_VARIABLES: Final = (
    "Declare these variables as they were: a field may be added, removed, moved, or become a wider number. Or give the changed "
    "variable another name; deleteIfExists in init then drops the state of the old one"
)
_KEEP_OPERATOR: Final = "Use the definition that made the checkpoint, or another operator name or checkpoint directory"
_BESIDE_KEY: Final = ("host", "epoch", "timers")
_SUFFIX: Final = "_godwit"  # of these names, if a key column has one of them


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """An operator by name: key, state variables, output, time."""

    name: str
    processor: str
    flavour: Literal["row", "pandas", "native"]
    key_schema: pa.Schema
    output_schema: pa.Schema
    variables: tuple[Variable, ...]
    time_mode: TimeMode = "none"
    event_time: str | None = None
    delay_ms: int = 0
    watermark_policy: Policy = "max"
    lateness_ms: int = 0
    null_keys: Literal["error", "bucket"] = "error"
    tz: str = "UTC"
    timeout_s: float = 60.0
    ephemeral: bool = False
    merge: Merge = ()
    dead_letters: bool = False
    numbers: tuple[int, ...] = ()  # of the variables, in their order; empty if they are 0, 1, 2 and so on
    past: tuple[PastForm, ...] = ()
    outputs: int = 0  # counts the changes of the output schema
    partitions: int = 0  # the input is partitioned by key into so many lanes; 0: a lane is a partition of the input
    start: Start | None = None  # where the state of a Spark query ends that this operator has taken over
    life: int = 0  # counts how often the operator has begun anew, without the state that it had

    @property
    def timers_end_lanes(self) -> bool:
        """Whether timers fire at the end of their key's lane."""
        return self.partitions > 0 and self.time_mode != "none"

    @property
    def timers_between_batches(self) -> bool:
        """Whether timers fire when the next batch begins, because no lane has all rows of a key."""
        return self.partitions == 0 and self.time_mode != "none"

    @property
    def layout(self) -> Layout:
        return Layout(self.variables, self.numbers or tuple(range(len(self.variables))), self.past)

    @property
    def changed(self) -> bool:
        """Whether earlier definitions had state or outputs of another form."""
        return bool(self.past or self.outputs) and not self.ephemeral

    def names_beside_key(self, columns: Sequence[str], suffix: str) -> list[str]:
        """How host, epoch, timers and these columns are named where they are shown with the key columns.

        A name that is taken gets a suffix. Capitals make no difference: Spark cannot tell such columns apart.
        """
        taken = {name.lower() for name in self.key_schema.names}
        names = []
        for name, added in [(name, _SUFFIX) for name in _BESIDE_KEY] + [(name, suffix) for name in columns]:
            while name.lower() in taken:
                name += added
            taken.add(name.lower())
            names.append(name)
        return names

    def to_dict(self) -> dict[str, Any]:
        """A form that `json.dumps` takes. A definition that never changed has the form that older versions read."""
        changed = {
            "numbers": list(self.numbers),
            "past": [past.to_json() for past in self.past],
            "outputs": self.outputs,
            "start": None if self.start is None else self.start.to_dict(),
            "life": self.life,
        }
        return {name: value for name, value in changed.items() if value} | {
            "name": self.name,
            "processor": self.processor,
            "flavour": self.flavour,
            "key_schema": schema_text(self.key_schema),
            "output_schema": schema_text(self.output_schema),
            "variables": [variable.to_json() for variable in self.variables],
            "time_mode": self.time_mode,
            "event_time": self.event_time,
            "delay_ms": self.delay_ms,
            "watermark_policy": self.watermark_policy,
            "lateness_ms": self.lateness_ms,
            "null_keys": self.null_keys,
            "tz": self.tz,
            "timeout_s": self.timeout_s,
            "ephemeral": self.ephemeral,
            "merge": [list(pair) for pair in self.merge],
            "dead_letters": self.dead_letters,
            "partitions": self.partitions,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperatorSpec:
        fields = dict(data)
        fields["key_schema"] = schema_of(data["key_schema"])
        fields["output_schema"] = schema_of(data["output_schema"])
        fields["merge"] = merge_of(data.get("merge"))
        fields["variables"] = tuple(Variable.from_json(variable) for variable in data["variables"])
        fields["numbers"] = tuple(data.get("numbers", ()))
        fields["start"] = Start.from_dict(data["start"]) if data.get("start") else None
        fields["past"] = tuple(PastForm.from_json(past) for past in data.get("past", ()))
        return cls(**fields)

    # -- after an earlier definition ---------------------------------------------------------------------------------

    def after(self, stored: OperatorSpec, deleted: Sequence[str] = ()) -> OperatorSpec:
        """The same definition, on the state of the `stored` one. `deleted`: variables whose state is dropped.

        Raises CheckpointMismatch, and nothing has changed, if the state does not fit.
        """
        self._check_fits(stored, deleted)
        layout = stored.layout.evolved(self.variables, deleted)
        plain = not layout.past and layout.numbers == tuple(range(len(layout.numbers)))
        outputs = stored.outputs + (not self.output_schema.equals(stored.output_schema))
        numbers = () if plain else layout.numbers
        return replace(self, numbers=numbers, past=layout.past, outputs=outputs, life=stored.life)

    def _check_fits(self, stored: OperatorSpec, deleted: Sequence[str]) -> None:
        fixed = [
            f"its {name} is {was} in the checkpoint and {now} now"
            for name, was, now in self._fixed(stored)
            if was != now
        ]
        refusals = stored.layout.refusals(self.variables, deleted)
        if fixed or refusals:
            raise CheckpointMismatch(
                "the checkpoint has state that this definition cannot take over: " + "; ".join([*fixed, *refusals]),
                todo=(_KEEP_VARIABLES if not fixed else _KEEP_OPERATOR),
                operator=self.name,
            )

    def _fixed(self, stored: OperatorSpec) -> list[tuple[str, str, str]]:
        """What may not change, as it was and as it is now."""
        return [
            ("key", shown(stored.key_schema), shown(self.key_schema)),
            ("timeMode", stored.time_mode, self.time_mode),
            ("kind of processor", stored._kind, self._kind),
        ]

    @property
    def _kind(self) -> str:
        return "godwit.Processor" if self.flavour == "native" else "StatefulProcessor"

    def same_forms(self, other: OperatorSpec) -> bool:
        """Whether state and outputs have the same form as in the other definition."""
        return self.layout == other.layout and self.outputs == other.outputs

    def succeeds(self, earlier: OperatorSpec) -> bool:
        """Whether this is the earlier definition or was made after it: every form of the earlier one is known here."""
        forms = self.layout.forms
        return self.key_schema.equals(earlier.key_schema) and all(
            number in forms and same_form(forms[number], variable) for number, variable in earlier.layout.forms.items()
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """A definition as it is shipped to hosts: the spec and the pickled adapter.

    Every evaluation of a batch DataFrame starts from `initial`: rows by host, an Arrow stream each. `deleted`: the variables
    of earlier definitions whose state this one drops. `definition`: identifies the call that defined the operator.
    """

    spec: OperatorSpec
    adapter: bytes = field(repr=False)
    initial: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    deleted: tuple[str, ...] = ()
    definition: str = ""


def merge_of(data: Sequence[Sequence[str]] | None) -> Merge:
    """From its form in JSON; older definitions have no merge."""
    return tuple((name, way) for name, way in data or ())


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode("ascii")


def schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def same_form(one: Variable, other: Variable) -> bool:
    """Whether values of both are stored in the same form."""
    same_keys = one.key_schema is other.key_schema or (
        one.key_schema is not None and other.key_schema is not None and one.key_schema.equals(other.key_schema)
    )
    same_ttl = (one.ttl_ms is None) == (other.ttl_ms is None)
    return (
        one.name == other.name and one.kind == other.kind and one.schema.equals(other.schema) and same_keys and same_ttl
    )
