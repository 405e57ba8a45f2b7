"""The definition of an operator without its code: the checkpoint stores it and compares it with later definitions.

Hosts rebuild state from it without the user's processor, and a restart with another key, schema or processor is refused by
comparing two of them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from godwit.errors import CheckpointMismatch
from godwit.model.watermark import Policy
from godwit.runtime.processor.merging import Merge
from godwit.state.variables import Variable

TimeMode = Literal["none", "processingTime", "eventTime"]


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

    def to_dict(self) -> dict[str, Any]:
        return {
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
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperatorSpec:
        fields = dict(data)
        fields["key_schema"] = schema_of(data["key_schema"])
        fields["output_schema"] = schema_of(data["output_schema"])
        fields["merge"] = merge_of(data.get("merge"))
        fields["variables"] = tuple(Variable.from_json(variable) for variable in data["variables"])
        return cls(**fields)

    def differences(self, stored: OperatorSpec) -> list[str]:
        """Why this definition does not fit the state that was made with the `stored` one. New variables are fine."""
        differences = []
        if not self.key_schema.equals(stored.key_schema):
            differences.append(f"key {_columns(self.key_schema)} instead of {_columns(stored.key_schema)}")
        if self.processor != stored.processor or self.flavour != stored.flavour:
            differences.append(
                f"processor {self.processor} ({self.flavour}) instead of {stored.processor} ({stored.flavour})"
            )
        if not self.output_schema.equals(stored.output_schema):
            differences.append(f"output {_columns(self.output_schema)} instead of {_columns(stored.output_schema)}")
        if self.time_mode != stored.time_mode:
            differences.append(f"timeMode {self.time_mode} instead of {stored.time_mode}")
        differences += self._variable_differences(stored)
        return differences

    def _variable_differences(self, stored: OperatorSpec) -> list[str]:
        differences = []
        for position, old in enumerate(stored.variables):
            new = self.variables[position] if position < len(self.variables) else None
            if new is None or new.name != old.name:
                differences.append(
                    f"state variable {old.name!r} is missing or out of its place (number {position + 1})"
                )
            elif not _same_variable(new, old):
                differences.append(f"state variable {new.name!r} has another type, kind or time to live")
        return differences

    def check_fits(self, stored: OperatorSpec) -> None:
        differences = self.differences(stored)
        if differences:
            raise CheckpointMismatch(
                "the checkpoint holds state of another definition: " + "; ".join(differences),
                todo="Use the definition that made the checkpoint, or another operator name or checkpoint directory",
                operator=self.name,
            )


@dataclass(frozen=True, slots=True)
class Operator:
    """A definition as it is shipped to hosts: the spec and the pickled adapter.

    Every evaluation of a batch DataFrame starts from `initial`: rows by host, an Arrow stream each.
    """

    spec: OperatorSpec
    adapter: bytes = field(repr=False)
    initial: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def merge_of(data: Sequence[Sequence[str]] | None) -> Merge:
    """From its form in JSON; older definitions have no merge."""
    return tuple((name, way) for name, way in data or ())


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode("ascii")


def schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _same_variable(new: Variable, old: Variable) -> bool:
    same_keys = (new.key_schema is None) == (old.key_schema is None) and (
        new.key_schema is None or old.key_schema is None or new.key_schema.equals(old.key_schema)
    )
    return new.kind == old.kind and new.ttl_ms == old.ttl_ms and new.schema.equals(old.schema) and same_keys


def _columns(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{column.name} {column.type}" for column in schema) + ")"
