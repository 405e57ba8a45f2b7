"""Which units have to go where: the fewest that make the spread even, or that take load off a host.

Decides from a routing table and the measured load alone; does not know how and when keys move. An even spread is by the number
of groups, and a host keeps as many groups as its share allows, so no plan moves fewer groups. Load, if known, decides which
groups go, not how many. Rebalancing is by load, and leaves a spread that is good enough as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from godwit.control.moves import Move, gathered
from godwit.model.routing import Routing
from godwit.model.units import Unit

TOLERANCE = 0.1  # a host may be so far above the mean before anything moves
BYTES_SHARE = 0.2  # the part of bytes in the weight of a unit; rows cost time, bytes mostly memory


# -- even spread -----------------------------------------------------------------------------------------------------


def shares(routing: Routing, hosts: Sequence[str]) -> dict[str, int]:
    """The number of groups that each host should have. The hosts with most groups now get the remainder."""
    count = len(routing.owners)
    least, odd = divmod(count, len(hosts))
    count_now = {host: len(routing.groups_of(host)) if host in routing.hosts else 0 for host in hosts}
    richest = sorted(hosts, key=lambda host: -count_now[host])[:odd]
    return {host: least + (host in richest) for host in hosts}


def minimum(routing: Routing, hosts: Sequence[str]) -> int:
    """The least number of groups that must move for an even spread over these hosts."""
    share = shares(routing, hosts)
    staying = sum(min(share[host], len(routing.groups_of(host))) for host in hosts if host in routing.hosts)
    return len(routing.owners) - staying


def spread(
    operator: str, routing: Routing, hosts: Sequence[str], weights: Mapping[int, float] | None = None
) -> list[Move]:
    """Moves to an even spread of the groups over exactly these hosts."""
    share = shares(routing, hosts)
    given = _given(routing, share, weights or {})
    room = {
        host: share[host] - len(routing.groups_of(host)) if host in routing.hosts else share[host] for host in hosts
    }
    return gathered(operator, _placed(given, {h: n for h, n in room.items() if n > 0}, weights or {}))


def _given(routing: Routing, share: Mapping[str, int], weights: Mapping[int, float]) -> list[tuple[str, int]]:
    """(host, group) of the groups that a host has beyond its share."""
    mean = sum(weights.values()) / len(share)
    surplus_groups = []
    for host in routing.hosts:
        groups = routing.groups_of(host)
        surplus = len(groups) - share.get(host, 0)
        if surplus > 0:
            excess = sum(weights.get(group, 0.0) for group in groups) - (mean if host in share else 0.0)
            surplus_groups += [(host, group) for group in _chosen(groups, surplus, excess, weights)]
    return surplus_groups


def _chosen(groups: list[int], count: int, excess: float, weights: Mapping[int, float]) -> list[int]:
    """`count` groups that together weigh about `excess`, or the last groups if weights are not known."""
    if not weights:
        return groups[-count:]
    left, chosen = list(groups), []
    for missing in range(count, 0, -1):
        wanted = excess / missing
        best = min(reversed(left), key=lambda group: abs(weights.get(group, 0.0) - wanted))
        left.remove(best)
        chosen.append(best)
        excess -= weights.get(best, 0.0)
    return chosen


def _placed(
    given: list[tuple[str, int]], room: dict[str, int], weights: Mapping[int, float]
) -> Iterator[tuple[str, str, Unit]]:
    """Targets for the groups: heavy groups first, each to the host that has received least so far."""
    got = dict.fromkeys(room, 0.0)
    for origin, group in sorted(given, key=lambda pair: -weights.get(pair[1], 0.0)):
        target = min((host for host in room if room[host] > 0), key=lambda host: got[host])
        room[target] -= 1
        got[target] += weights.get(group, 0.0)
        yield origin, target, Unit("group", group)


def keys_home(operator: str, routing: Routing, leaving: Sequence[str]) -> list[Move]:
    """Moves of keys routed apart, from hosts that leave to the owners of their groups. For use after the groups have moved."""
    keys_apart = [(host, key) for host in leaving for key in routing.units_of(host).keys]
    owners = [routing.hosts[routing.owners[routing.group(key)]] for _, key in keys_apart]
    return gathered(
        operator, [(host, to, Unit("key", key)) for (host, key), to in zip(keys_apart, owners, strict=True)]
    )


# -- by load ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """The counts of a host: rows and bytes per group, and rows of its hottest keys."""

    rows: Mapping[int, float] = field(default_factory=dict)
    bytes: Mapping[int, float] = field(default_factory=dict)
    hot: Mapping[int, float] = field(default_factory=dict)  # routing hash -> rows


def weights_of(measured: Mapping[str, Measured]) -> dict[str, dict[Unit, float]]:
    """By host the weights of its groups and hottest keys, as parts of the load of the flock."""
    rows_all = sum(sum(host.rows.values()) for host in measured.values())
    bytes_all = sum(sum(host.bytes.values()) for host in measured.values())
    by_rows = (1.0 - BYTES_SHARE if bytes_all else 1.0) / rows_all if rows_all else 0.0
    by_bytes = (BYTES_SHARE if rows_all else 1.0) / bytes_all if bytes_all else 0.0
    weights_by_host: dict[str, dict[Unit, float]] = {}
    for name, host in measured.items():
        weights = {
            Unit("group", group): host.rows.get(group, 0.0) * by_rows + host.bytes.get(group, 0.0) * by_bytes
            for group in host.rows.keys() | host.bytes.keys()
        }
        weights_by_host[name] = weights | {Unit("key", key): rows * by_rows for key, rows in host.hot.items()}
    return weights_by_host


def rebalance(
    operator: str,
    routing: Routing,
    hosts: Sequence[str],
    measured: Mapping[str, Measured],
    tolerance: float = TOLERANCE,
) -> list[Move]:
    """Few moves that bring the busiest host near the mean; none if it is near enough, or the gain would be small."""
    scale = _Scale(routing, hosts, weights_of(measured), tolerance)
    before = scale.excess()
    chosen: list[tuple[str, str, Unit]] = []
    while scale.excess() > tolerance / 2 and before > tolerance and len(chosen) < len(routing.owners):
        step = scale.next()
        if step is None:
            break
        chosen.append(step)
    return gathered(operator, chosen) if before - scale.excess() >= tolerance / 2 else []


class _Scale:
    """The loads of the hosts while a plan is made."""

    def __init__(
        self, routing: Routing, hosts: Sequence[str], weights: Mapping[str, dict[Unit, float]], tolerance: float
    ) -> None:
        self._count = len(routing.owners)
        self._got: set[str] = set()
        self._heavy = tolerance * sum(sum(_groups(w).values()) for w in weights.values()) / len(hosts)
        self.load = {host: sum(_groups(weights.get(host, {})).values()) for host in hosts}
        self._weights = {
            host: {unit: weight for unit, weight in weights.get(host, {}).items() if routing.owner_of(unit) == host}
            for host in hosts
        }

    def excess(self) -> float:
        """How far the busiest host is above the mean, as a part of the mean."""
        mean = sum(self.load.values()) / len(self.load)
        return max(self.load.values()) / mean - 1.0 if mean else 0.0

    def next(self) -> tuple[str, str, Unit] | None:
        """The unit whose move from the busiest to the idlest host gains most; a key only if it alone unbalances."""
        busiest, idlest = max(self.load, key=self.load.__getitem__), min(self.load, key=self.load.__getitem__)
        if busiest in self._got:
            return None  # the host would move on a unit that it has just received
        gap = self.load[busiest] - self.load[idlest]
        group = self._best(busiest, gap, "group")
        key = self._best(busiest, gap, "key")
        chosen = key if key and self._gain(busiest, key, gap) > 2 * self._gain(busiest, group, gap) else group
        if chosen is None:
            return None
        weight = self._weights[busiest][chosen]
        self.load[busiest] -= weight
        self.load[idlest] += weight
        self._got.add(idlest)
        self._settle(chosen)
        return busiest, idlest, chosen

    def _best(self, host: str, gap: float, kind: str) -> Unit | None:
        least = self._heavy if kind == "key" else 0.0
        fitting = [unit for unit, weight in self._weights[host].items() if unit.kind == kind and least < weight < gap]
        return max(fitting, key=lambda unit: (self._gain(host, unit, gap), -unit.id), default=None)

    def _gain(self, host: str, unit: Unit | None, gap: float) -> float:
        return 0.0 if unit is None else min(self._weights[host][unit], gap - self._weights[host][unit])

    def _settle(self, chosen: Unit) -> None:
        """No further move of this unit, and a plan never moves both a group and a single key of that group."""
        group = chosen.id if chosen.kind == "group" else chosen.id % self._count
        for weights in self._weights.values():
            weights.pop(chosen, None)
            weights.pop(Unit("group", group), None)
            if chosen.kind == "group":
                for unit in [unit for unit in weights if unit.kind == "key" and unit.id % self._count == group]:
                    del weights[unit]


def _groups(weights: Mapping[Unit, float]) -> dict[Unit, float]:
    return {unit: weight for unit, weight in weights.items() if unit.kind == "group"}
