"""Which units have to go where: the fewest that make the spread even, or that take the load off a host.

Decides from a table and from measured load alone; how and when the moves are made is not known here. Groups spread by count, as
even as they can be, and a host that stays keeps what it has as far as its share reaches: no plan moves fewer groups. Load, if
it is known, decides which of the groups go, never how many. Rebalancing is by load instead, and leaves a spread alone that
is good enough: a move that gains little costs more than it brings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from godwit.control.moves import Move, gathered
from godwit.model.routing import Routing
from godwit.model.units import Unit

TOLERANCE = 0.1  # a host may have so much more than the mean before anything is moved
BYTES_SHARE = 0.2  # of a unit's weight; rows cost work all the time, bytes mostly memory


# -- even spread -----------------------------------------------------------------------------------------------------


def shares(routing: Routing, hosts: Sequence[str]) -> dict[str, int]:
    """How many groups each host should have: those that have more keep the odd ones."""
    count = len(routing.owners)
    least, odd = divmod(count, len(hosts))
    held = {host: len(routing.groups_of(host)) if host in routing.hosts else 0 for host in hosts}
    richest = sorted(hosts, key=lambda host: -held[host])[:odd]
    return {host: least + (host in richest) for host in hosts}


def minimum(routing: Routing, hosts: Sequence[str]) -> int:
    """The least number of groups that must move for an even spread over these hosts."""
    share = shares(routing, hosts)
    kept = sum(min(share[host], len(routing.groups_of(host))) for host in hosts if host in routing.hosts)
    return len(routing.owners) - kept


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
    """(host, group) of all that a host has beyond its share."""
    mean = sum(weights.values()) / len(share)
    found = []
    for host in routing.hosts:
        groups = routing.groups_of(host)
        surplus = len(groups) - share.get(host, 0)
        if surplus > 0:
            excess = sum(weights.get(group, 0.0) for group in groups) - (mean if host in share else 0.0)
            found += [(host, group) for group in _chosen(groups, surplus, excess, weights)]
    return found


def _chosen(groups: list[int], count: int, excess: float, weights: Mapping[int, float]) -> list[int]:
    """So many groups, which together weigh about as much as the host has too much of. The last ones, if none has weight."""
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
    """Heavy groups first, each to the host that has got least so far; groups without weight fill one host after another."""
    got = dict.fromkeys(room, 0.0)
    for origin, group in sorted(given, key=lambda pair: -weights.get(pair[1], 0.0)):
        target = min((host for host in room if room[host] > 0), key=lambda host: got[host])
        room[target] -= 1
        got[target] += weights.get(group, 0.0)
        yield origin, target, Unit("group", group)


def keys_home(operator: str, routing: Routing, leaving: Sequence[str]) -> list[Move]:
    """Keys routed apart on hosts that leave, back to the owners of their groups. Only once those groups have moved."""
    found = [(host, key) for host in leaving for key in routing.units_of(host).keys]
    owners = [routing.hosts[routing.owners[routing.group(key)]] for _, key in found]
    return gathered(operator, [(host, to, Unit("key", key)) for (host, key), to in zip(found, owners, strict=True)])


# -- by load ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What a host has counted: rows and bytes per group, and rows of the keys that have most."""

    rows: Mapping[int, float] = field(default_factory=dict)
    bytes: Mapping[int, float] = field(default_factory=dict)
    hot: Mapping[int, float] = field(default_factory=dict)  # routing hash -> rows


def weights_of(measured: Mapping[str, Measured]) -> dict[str, dict[Unit, float]]:
    """Per host the weight of its groups and of its hottest keys, as parts of all the flock's load."""
    rows_all = sum(sum(host.rows.values()) for host in measured.values())
    bytes_all = sum(sum(host.bytes.values()) for host in measured.values())
    by_rows = (1.0 - BYTES_SHARE if bytes_all else 1.0) / rows_all if rows_all else 0.0
    by_bytes = (BYTES_SHARE if rows_all else 1.0) / bytes_all if bytes_all else 0.0
    found: dict[str, dict[Unit, float]] = {}
    for name, host in measured.items():
        weights = {
            Unit("group", group): host.rows.get(group, 0.0) * by_rows + host.bytes.get(group, 0.0) * by_bytes
            for group in host.rows.keys() | host.bytes.keys()
        }
        found[name] = weights | {Unit("key", key): rows * by_rows for key, rows in host.hot.items()}
    return found


def rebalance(
    operator: str,
    routing: Routing,
    hosts: Sequence[str],
    measured: Mapping[str, Measured],
    tolerance: float = TOLERANCE,
) -> list[Move]:
    """Few moves that bring the busiest host near the mean; none if it is near enough, or if they would gain little."""
    scale = _Scale(routing, hosts, weights_of(measured), tolerance)
    before = scale.excess()
    found: list[tuple[str, str, Unit]] = []
    while scale.excess() > tolerance / 2 and before > tolerance and len(found) < len(routing.owners):
        step = scale.next()
        if step is None:
            break
        found.append(step)
    return gathered(operator, found) if before - scale.excess() >= tolerance / 2 else []


class _Scale:
    """Loads while a plan is being made."""

    def __init__(
        self, routing: Routing, hosts: Sequence[str], weights: Mapping[str, dict[Unit, float]], tolerance: float
    ) -> None:
        self._count = len(routing.owners)
        self._got: set[str] = set()
        self._heavy = tolerance * sum(sum(_groups(w).values()) for w in weights.values()) / len(hosts)
        self.load = {host: sum(_groups(weights.get(host, {})).values()) for host in hosts}
        self._held = {
            host: {unit: weight for unit, weight in weights.get(host, {}).items() if routing.owner_of(unit) == host}
            for host in hosts
        }

    def excess(self) -> float:
        """By how much the busiest host is above the mean, as a part of it."""
        mean = sum(self.load.values()) / len(self.load)
        return max(self.load.values()) / mean - 1.0 if mean else 0.0

    def next(self) -> tuple[str, str, Unit] | None:
        """The unit whose move from the busiest to the idlest host gains most; a key only if it alone unbalances."""
        busiest, idlest = max(self.load, key=self.load.__getitem__), min(self.load, key=self.load.__getitem__)
        if busiest in self._got:
            return None  # it would hand on what it has just been given, or swap it
        gap = self.load[busiest] - self.load[idlest]
        group = self._best(busiest, gap, "group")
        key = self._best(busiest, gap, "key")
        chosen = key if key and self._gain(busiest, key, gap) > 2 * self._gain(busiest, group, gap) else group
        if chosen is None:
            return None
        weight = self._held[busiest][chosen]
        self.load[busiest] -= weight
        self.load[idlest] += weight
        self._got.add(idlest)
        self._settle(chosen)
        return busiest, idlest, chosen

    def _best(self, host: str, gap: float, kind: str) -> Unit | None:
        least = self._heavy if kind == "key" else 0.0
        fitting = [unit for unit, weight in self._held[host].items() if unit.kind == kind and least < weight < gap]
        return max(fitting, key=lambda unit: (self._gain(host, unit, gap), -unit.id), default=None)

    def _gain(self, host: str, unit: Unit | None, gap: float) -> float:
        return 0.0 if unit is None else min(self._held[host][unit], gap - self._held[host][unit])

    def _settle(self, chosen: Unit) -> None:
        """What was moved stays where it goes, and no plan moves a group and, apart from it, a key of that group."""
        group = chosen.id if chosen.kind == "group" else chosen.id % self._count
        for held in self._held.values():
            held.pop(chosen, None)
            held.pop(Unit("group", group), None)
            if chosen.kind == "group":
                for unit in [unit for unit in held if unit.kind == "key" and unit.id % self._count == group]:
                    del held[unit]


def _groups(weights: Mapping[Unit, float]) -> dict[Unit, float]:
    return {unit: weight for unit, weight in weights.items() if unit.kind == "group"}
