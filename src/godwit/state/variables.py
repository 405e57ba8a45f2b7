"""What a state variable is: a name, a kind and the types of what it holds.

It must not know how values are encoded or where they are kept; it is the description that an operator
declares, that a checkpoint keeps and that a restart is compared with.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa

VariableKind = Literal["value", "list", "map"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One typed piece of a key's state.

    `schema` holds the fields of the value (of an element, of a map's value), `key_schema` those of a map's
    own key.
    """

    name: str
    kind: VariableKind
    schema: pa.Schema
    key_schema: pa.Schema | None = None
    ttl_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A form that `json.dumps` takes."""
        return {
            "name": self.name,
            "kind": self.kind,
            "schema": _schema_text(self.schema),
            "key_schema": None if self.key_schema is None else _schema_text(self.key_schema),
            "ttl_ms": self.ttl_ms,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        key_schema = data["key_schema"]
        return cls(
            name=data["name"],
            kind=data["kind"],
            schema=_schema(data["schema"]),
            key_schema=None if key_schema is None else _schema(key_schema),
            ttl_ms=data["ttl_ms"],
        )


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode("ascii")


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
