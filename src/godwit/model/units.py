"""Units of ownership and migration: groups of keys, and single keys that are routed apart from their group.

A single key is identified by its 64-bit routing hash, so keys with the same hash move together. A group stands for all of its
keys except those that are routed apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


class Unit(NamedTuple):
    """One group or one key: the smallest thing that can change its owner."""

    kind: Literal["group", "key"]
    id: int


@dataclass(frozen=True, slots=True)
class Units:
    groups: frozenset[int] = frozenset()
    keys: frozenset[int] = frozenset()

    @classmethod
    def of(cls, *units: Unit) -> Units:
        return cls(
            frozenset(unit.id for unit in units if unit.kind == "group"),
            frozenset(unit.id for unit in units if unit.kind == "key"),
        )

    def __len__(self) -> int:
        return len(self.groups) + len(self.keys)

    def __bool__(self) -> bool:
        return bool(self.groups or self.keys)

    def __iter__(self) -> Iterator[Unit]:
        yield from (Unit("group", group) for group in sorted(self.groups))
        yield from (Unit("key", key) for key in sorted(self.keys))

    def __contains__(self, unit: Unit) -> bool:
        return unit.id in (self.groups if unit.kind == "group" else self.keys)

    def __or__(self, other: Units) -> Units:
        return Units(self.groups | other.groups, self.keys | other.keys)

    def __and__(self, other: Units) -> Units:
        return Units(self.groups & other.groups, self.keys & other.keys)

    def __sub__(self, other: Units) -> Units:
        return Units(self.groups - other.groups, self.keys - other.keys)

    def overlaps(self, other: Units, group_count: int) -> bool:
        """Whether some key may belong to both; a single key also belongs to its group."""
        if not self.groups.isdisjoint(other.groups) or not self.keys.isdisjoint(other.keys):
            return True
        return any(key % group_count in other.groups for key in self.keys) or any(
            key % group_count in self.groups for key in other.keys
        )

    def to_dict(self) -> dict[str, Any]:
        return {"groups": sorted(self.groups), "keys": sorted(self.keys)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Units:
        return cls(frozenset(data["groups"]), frozenset(data["keys"]))
