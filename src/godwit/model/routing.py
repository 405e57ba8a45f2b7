"""The routing table: which host owns which group, and which keys are routed apart from their group. A hint, never the fact.

A key's routing hash is Spark's own `xxhash64` of its columns, so that Spark computes it for whole batches in the JVM and
Python computes the same for a single key. A group is a fixed hash bucket. The facts are in the hosts' logs (`ownership`). A
routing table may be stale, because a host that does not own a key names the owner in its refusal. The size of a table depends
on the number of groups and of keys routed apart, not on the number of keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from godwit.model.units import Unit, Units

GROUPS = 1024


@dataclass(frozen=True, slots=True)
class Routing:
    """`owners[group]` is a position in `hosts`; `apart` maps a routing hash to (position, epoch)."""

    version: int
    hosts: tuple[str, ...]
    owners: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    apart: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.epochs:
            object.__setattr__(self, "epochs", (1,) * len(self.owners))

    @classmethod
    def spread(cls, hosts: Sequence[str], groups: int = GROUPS) -> Routing:
        """Contiguous ranges of groups, of sizes that differ by at most one."""
        return cls(1, tuple(hosts), tuple(group * len(hosts) // groups for group in range(groups)))

    def group(self, route_hash: int) -> int:
        return route_hash % len(self.owners)

    def owner(self, route_hash: int) -> str:
        apart = self.apart.get(route_hash)
        return self.hosts[self.owners[self.group(route_hash)] if apart is None else apart[0]]

    def owner_of(self, unit: Unit) -> str:
        return self.hosts[self.owners[unit.id]] if unit.kind == "group" else self.owner(unit.id)

    def units_of(self, host: str) -> Units:
        """All units that a host owns."""
        if host not in self.hosts:
            return Units()
        at = self.hosts.index(host)
        keys = frozenset(key for key, (position, _) in self.apart.items() if position == at)
        return Units(frozenset(self.groups_of(host)), keys)

    def groups_of(self, host: str) -> list[int]:
        position = self.hosts.index(host)
        return [group for group, owner in enumerate(self.owners) if owner == position]

    def joined(self, hosts: Sequence[str]) -> Routing:
        """The table with these hosts added; they own nothing yet."""
        new = tuple(host for host in hosts if host not in self.hosts)
        return replace(self, version=self.version + 1, hosts=self.hosts + new) if new else self

    def parted(self, hosts: Sequence[str]) -> Routing:
        """The table without these hosts, which own nothing any more.

        The table may have missed moves and still give units to one of these hosts. Those units go to the first host of the
        table, which refuses their rows and names the owner.
        """
        left = tuple(host for host in self.hosts if host not in hosts)
        place = {position: left.index(host) if host in left else 0 for position, host in enumerate(self.hosts)}
        apart = {key: (place[position], epoch) for key, (position, epoch) in self.apart.items()}
        owners = tuple(place[position] for position in self.owners)
        return Routing(self.version + 1, left, owners, self.epochs, apart)

    def moved(self, epochs: Mapping[Unit, int], to: str) -> Routing:
        """The table in which `to` owns these units, each in the epoch given; entries with a newer epoch stay."""
        at = self.hosts.index(to)
        owners, known, apart = list(self.owners), list(self.epochs), dict(self.apart)
        for unit, epoch in epochs.items():
            if unit.kind == "group" and epoch >= known[unit.id]:
                owners[unit.id], known[unit.id] = at, epoch
            elif unit.kind == "key" and epoch >= apart.get(unit.id, (0, 0))[1]:
                apart[unit.id] = (at, epoch)
        lone = {key: (owner, epoch) for key, (owner, epoch) in apart.items() if owner != owners[key % len(owners)]}
        for key in apart.keys() - lone.keys():  # the key has the owner of its group again: the group's epoch covers it
            known[key % len(owners)] = max(known[key % len(owners)], apart[key][1])
        return Routing(self.version + 1, self.hosts, tuple(owners), tuple(known), lone)

    def same_owners(self, other: Routing) -> bool:
        """Whether both tables are equal apart from their versions."""
        return replace(self, version=other.version) == other

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "hosts": list(self.hosts),
            "owners": list(self.owners),
            "epochs": list(self.epochs),
            "apart": [[key, *value] for key, value in sorted(self.apart.items())],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Routing:
        apart = {key: (owner, epoch) for key, owner, epoch in data.get("apart", ())}
        return cls(data["version"], tuple(data["hosts"]), tuple(data["owners"]), tuple(data.get("epochs", ())), apart)

    def packed(self) -> dict[str, Any]:
        """As `to_dict`, in bytes: 14 bytes for each key routed apart."""
        keys = sorted(self.apart)
        return {
            "version": self.version,
            "hosts": list(self.hosts),
            "owners": array("H", self.owners).tobytes(),
            "epochs": array("I", self.epochs).tobytes(),
            "apart": array("q", keys).tobytes(),
            "apart_owners": array("H", [self.apart[key][0] for key in keys]).tobytes(),
            "apart_epochs": array("I", [self.apart[key][1] for key in keys]).tobytes(),
        }

    @classmethod
    def unpacked(cls, data: Mapping[str, Any]) -> Routing:
        apart = zip(
            _numbers("q", data["apart"]),
            zip(_numbers("H", data["apart_owners"]), _numbers("I", data["apart_epochs"]), strict=True),
            strict=True,
        )
        owners, epochs = _numbers("H", data["owners"]), _numbers("I", data["epochs"])
        return cls(data["version"], tuple(data["hosts"]), tuple(owners), tuple(epochs), dict(apart))


def _numbers(code: str, data: bytes) -> array[int]:
    numbers: array[int] = array(code)
    numbers.frombytes(data)
    return numbers
