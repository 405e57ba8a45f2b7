"""Which host owns which group of keys.

A key's routing hash is Spark's own `xxhash64` of its columns, so that Spark computes it for whole batches in the JVM and
Python computes the same for a single key. A group is a fixed hash bucket; the table maps groups to hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GROUPS = 1024


@dataclass(frozen=True, slots=True)
class Routing:
    """`owners[group]` is a position in `hosts`."""

    version: int
    hosts: tuple[str, ...]
    owners: tuple[int, ...]

    @classmethod
    def spread(cls, hosts: Sequence[str], groups: int = GROUPS) -> Routing:
        """Contiguous ranges of groups, as even as they can be."""
        return cls(1, tuple(hosts), tuple(group * len(hosts) // groups for group in range(groups)))

    def group(self, route_hash: int) -> int:
        return route_hash % len(self.owners)

    def owner(self, route_hash: int) -> str:
        return self.hosts[self.owners[self.group(route_hash)]]

    def groups_of(self, host: str) -> list[int]:
        position = self.hosts.index(host)
        return [group for group, owner in enumerate(self.owners) if owner == position]

    def to_dict(self) -> dict[str, Any]:
        return {"version": self.version, "hosts": list(self.hosts), "owners": list(self.owners)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Routing:
        return cls(data["version"], tuple(data["hosts"]), tuple(data["owners"]))
