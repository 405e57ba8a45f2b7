"""Which timers have fired in the batch in progress, where the lanes of a batch are made by key.

Then a lane has all rows of its keys, and a host fires the timers of the lane's keys when the lane has ended. A key may move to
another host at any time, before or after its timers have fired. So a host remembers, for the keys that have arrived in this
batch, which lanes had fired at their previous owner. The last arrival of a key counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from godwit.model.units import Units

Lanes = frozenset[int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Keys that have come from another host: these units without some keys, and the lanes that have fired for them."""

    units: Units
    without: frozenset[int] = frozenset()  # keys of these groups that did not come with their group
    lanes: Lanes = frozenset()

    def has(self, key: int, group_count: int) -> bool:
        return key in self.units.keys or (key % group_count in self.units.groups and key not in self.without)

    def within(self, other: Arrival, group_count: int) -> Arrival:
        """The keys that are in both, with the lanes of this one."""
        keys = {key for key in self.units.keys if other.has(key, group_count)}
        keys |= {key for key in other.units.keys if self.has(key, group_count)}
        units = Units(self.units.groups & other.units.groups, frozenset(keys))
        return Arrival(units, self.without | other.without, self.lanes)

    def to_dict(self) -> dict[str, Any]:
        return {"units": self.units.to_dict(), "without": sorted(self.without), "lanes": sorted(self.lanes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Arrival:
        return cls(Units.from_dict(data["units"]), frozenset(data["without"]), frozenset(data["lanes"]))


@dataclass(frozen=True, slots=True)
class Release:
    """Keys that have left for another host, and the lanes that had fired for them. `before`: they left in the batch before.

    `confirmed`: the target owns them. Then only the lanes are of interest that had fired for all of them.
    """

    target: str
    keys: tuple[Arrival, ...]
    before: bool = False
    confirmed: bool = False

    def lacks(self, lane: int) -> bool:
        """Whether the target has to fire timers of the lane: some of the keys left before the lane had fired here."""
        return any(lane not in part.lanes for part in self.keys)

    def unfired(self) -> Release:
        return replace(self, keys=tuple(replace(part, lanes=frozenset()) for part in self.keys))

    def to_dict(self) -> dict[str, Any]:
        keys = [part.to_dict() for part in self.keys]
        return {"target": self.target, "keys": keys, "before": self.before, "confirmed": self.confirmed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Release:
        keys = tuple(map(Arrival.from_dict, data["keys"]))
        return cls(data["target"], keys, data["before"], data.get("confirmed", False))


@dataclass(frozen=True, slots=True)
class FiredLanes:
    """`here`: for keys that were here when the batch began. `arrivals`: for keys that have come since, each key once.

    `released`: for keys that have left, by step of the hand-over. A batch may last long, and its keys may move often: the size
    of all this does not depend on how often they have moved.
    """

    here: Lanes = frozenset()
    arrivals: tuple[Arrival, ...] = ()
    released: Mapping[str, Release] = field(default_factory=dict)

    def next_batch(self) -> FiredLanes:
        """Nothing has fired yet. A target may have been in the new batch already when keys left for it in the batch before."""
        recent = {step: release for step, release in self.released.items() if not release.before}
        return FiredLanes(released={step: replace(release.unfired(), before=True) for step, release in recent.items()})

    def anew(self) -> FiredLanes:
        """The batch begins anew: nothing has fired yet."""
        return FiredLanes(released={step: release.unfired() for step, release in self.released.items()})

    def has_fired(self, key: int, lane: int, group_count: int) -> bool:
        """Whether the timers of the key, which belongs to this lane, have fired in this batch, here or elsewhere."""
        return self.lookup(lane, group_count)(key)

    def lookup(self, lane: int, group_count: int) -> Callable[[int], bool]:
        """`has_fired` for many keys of the lane: one pass over the arrivals, not one for each key."""
        lanes = _ByUnit.of(self.here, self.arrivals, group_count)
        return lambda key: lane in lanes.of_key(key)

    def fire(self, lane: int) -> FiredLanes:
        """The timers of all keys of the lane that are here have fired."""
        arrivals = tuple(replace(arrival, lanes=arrival.lanes | {lane}) for arrival in self.arrivals)
        return replace(self, here=self.here | {lane}, arrivals=arrivals)

    def of(self, units: Units, without: Collection[int], group_count: int) -> tuple[Arrival, ...]:
        """What the next owner of these units has to know."""
        all_of_them = Arrival(units, frozenset(without), self.here)
        parts = [arrival.within(all_of_them, group_count) for arrival in self.arrivals]
        return (all_of_them, *(part for part in parts if part.units))

    def arrived(self, arrivals: Iterable[Arrival], group_count: int) -> FiredLanes:
        lanes = _ByUnit.of(self.here, (*self.arrivals, *arrivals), group_count)
        return replace(self, arrivals=lanes.arrivals())

    def release(self, step: str, target: str, units: Units, without: Collection[int], group_count: int) -> FiredLanes:
        return replace(self, released={**self.released, step: Release(target, self.of(units, without, group_count))})

    def confirm(self, step: str) -> FiredLanes:
        """The target owns the keys of this step. One release is enough for all keys that a target owns: the newest."""
        release = self.released.get(step)
        if release is None:
            return self
        alike = {
            name: other
            for name, other in self.released.items()
            if name == step or (other.confirmed and (other.target, other.before) == (release.target, release.before))
        }
        lanes = frozenset.intersection(*(part.lanes for other in alike.values() for part in other.keys))
        others = {name: other for name, other in self.released.items() if name not in alike}
        confirmed = replace(release, keys=(Arrival(Units(), lanes=lanes),), confirmed=True)
        return replace(self, released={**others, step: confirmed})

    def take_back(self, step: str, units: Units, without: Collection[int], group_count: int) -> FiredLanes:
        """Keys of a released step belong to this host again, because the target was lost before it owned them."""
        released = dict(self.released)
        release = released.pop(step, None)
        # A step that was released in an earlier batch is unknown: nothing has fired for it in this one.
        unknown = Arrival(units, frozenset(without))
        back = (unknown,) if release is None else release.keys
        return replace(self, released=released).arrived(back, group_count)

    def left_unfired(self, lane: int) -> list[tuple[str, str]]:
        """Steps by which keys have left before the lane had fired here, and their targets: the timers fire there."""
        return [(step, release.target) for step, release in self.released.items() if release.lacks(lane)]

    def complete(self, lane: int) -> bool:
        """Whether the lane has fired for all keys that are here."""
        return lane in self.here and all(lane in arrival.lanes for arrival in self.arrivals)

    # -- as a document -----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "here": sorted(self.here),
            "arrivals": [arrival.to_dict() for arrival in self.arrivals],
            "released": {step: release.to_dict() for step, release in self.released.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> FiredLanes:
        """None: from a mark of an earlier version."""
        if not data:
            return cls()
        released = {step: Release.from_dict(release) for step, release in data["released"].items()}
        return cls(frozenset(data["here"]), tuple(map(Arrival.from_dict, data["arrivals"])), released)


@dataclass(slots=True)
class _ByUnit:
    """The lanes that have fired, by group of keys, and by key where a key differs from its group."""

    here: Lanes
    group_count: int
    groups: dict[int, Lanes] = field(default_factory=dict)
    keys: dict[int, Lanes] = field(default_factory=dict)

    @classmethod
    def of(cls, here: Lanes, arrivals: Iterable[Arrival], group_count: int) -> _ByUnit:
        made = cls(here, group_count)
        for arrival in arrivals:
            made._add(arrival)
        return made

    def _add(self, arrival: Arrival) -> None:
        known = {key: self.of_key(key) for key in arrival.without} | self.keys
        has = arrival.has
        self.keys = {key: arrival.lanes if has(key, self.group_count) else lanes for key, lanes in known.items()}
        self.groups |= dict.fromkeys(arrival.units.groups, arrival.lanes)
        self.keys |= dict.fromkeys(arrival.units.keys, arrival.lanes)

    def of_key(self, key: int) -> Lanes:
        return self.keys[key] if key in self.keys else self._of_group(key)

    def _of_group(self, key: int) -> Lanes:
        return self.groups.get(key % self.group_count, self.here)

    def arrivals(self) -> tuple[Arrival, ...]:
        """Each key once. Keys for which the same lanes have fired as for keys that were here need no word."""
        groups = {group: lanes for group, lanes in self.groups.items() if lanes != self.here}
        keys = {key: lanes for key, lanes in self.keys.items() if lanes != self._of_group(key)}
        return tuple(
            Arrival(
                Units(
                    frozenset(group for group, of_group in groups.items() if of_group == lanes),
                    frozenset(key for key, of_key in keys.items() if of_key == lanes),
                ),
                frozenset(key for key in keys if groups.get(key % self.group_count) == lanes),
                lanes,
            )
            for lanes in dict.fromkeys((*groups.values(), *keys.values()))
        )
