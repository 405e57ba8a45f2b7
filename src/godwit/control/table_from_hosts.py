"""The routing table, made from the ownership of the hosts. The hosts decide who owns a unit; a table only follows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from godwit.model.ownership import Ownership, Stand
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units


def first_table(initial: Routing, hosts: Sequence[str]) -> Routing:
    """The table of a new operator: the first table of the flock, with the hosts of now instead of those that have left."""
    joined = initial.joined(hosts)
    owners = [joined.hosts[at] for at in joined.owners]
    dealt = [owner if owner in hosts else hosts[group % len(hosts)] for group, owner in enumerate(owners)]
    return Routing(initial.version, tuple(hosts), tuple(hosts.index(owner) for owner in dealt))


def rebuilt(known: Routing, owned: Mapping[str, Ownership], hosts: Sequence[str]) -> Routing:
    """The table by the ownership of all hosts. A unit that no host knows keeps its owner of the known table."""
    groups = _newest(_reported_groups(owned))
    keys = _newest(_reported_keys(owned))
    table = known.joined(list(dict.fromkeys([*hosts, *(owner for owner, _ in (*groups.values(), *keys.values()))])))
    at = {host: position for position, host in enumerate(table.hosts)}
    owners, epochs = list(table.owners), list(table.epochs)
    for group, (owner, epoch) in groups.items():
        owners[group], epochs[group] = at[owner], epoch
    apart = {key: (at[owner], epoch) for key, (owner, epoch) in keys.items() if at[owner] != owners[key % len(owners)]}
    made = Routing(table.version, table.hosts, tuple(owners), tuple(epochs), apart)
    gone = [host for host in made.hosts if host not in hosts and not made.units_of(host)]
    made = made.parted(gone) if gone else made
    return known if _same(made, known) else Routing(known.version + 1, made.hosts, made.owners, made.epochs, made.apart)


def group_owners(owned: Sequence[Ownership], hosts: Sequence[str]) -> dict[int, tuple[str, int]]:
    """The groups whose owner is one of these hosts, with owner and epoch."""
    newest = _newest(_reported_groups({one.host: one for one in owned}))
    return {group: (owner, epoch) for group, (owner, epoch) in newest.items() if owner in hosts}


Reported = tuple[int, bool, str, int]  # unit, whether the host itself is the owner, owner, epoch


def _reported_groups(owned: Mapping[str, Ownership]) -> Iterator[Reported]:
    for host, ownership in owned.items():
        for group, share in enumerate(ownership.groups):
            if share.stand in (Stand.MINE, Stand.AWAY):
                yield group, share.stand is Stand.MINE, host if share.stand is Stand.MINE else share.peer, share.epoch


def _reported_keys(owned: Mapping[str, Ownership]) -> Iterator[Reported]:
    """What hosts report of keys routed apart. A host without a record of the key reports it with its group."""
    for key in {key for ownership in owned.values() for key in ownership.keys}:
        for host, ownership in owned.items():
            share = ownership.of(key)
            if share.stand is Stand.MINE or (share.stand is Stand.AWAY and key in ownership.keys):
                yield key, share.stand is Stand.MINE, host if share.stand is Stand.MINE else share.peer, share.epoch


def _newest(reports: Iterator[Reported]) -> dict[int, tuple[str, int]]:
    """The owner in the greatest epoch. In one epoch the report of the owner itself counts more than hints of others."""
    newest: dict[int, tuple[int, bool, str]] = {}
    for unit, is_owner, owner, epoch in reports:
        best = newest.get(unit)
        if best is None or (epoch, is_owner) > best[:2]:
            newest[unit] = (epoch, is_owner, owner)
    return {unit: (owner, epoch) for unit, (epoch, _, owner) in newest.items()}


def _same(one: Routing, other: Routing) -> bool:
    fields = [(table.hosts, tuple(table.owners), tuple(table.epochs), dict(table.apart)) for table in (one, other)]
    return fields[0] == fields[1]


def changed(before: Routing, after: Routing) -> dict[str, Units]:
    """The units that each host owns in the later table and not in the earlier one."""
    units_by_host: dict[str, list[Unit]] = {}
    for group in range(len(after.owners)):
        unit = Unit("group", group)
        if before.owner_of(unit) != after.owner_of(unit):
            units_by_host.setdefault(after.owner_of(unit), []).append(unit)
    for key in before.apart.keys() | after.apart.keys():
        if before.owner(key) != after.owner(key) and (key in after.apart or before.owner(key) in after.hosts):
            units_by_host.setdefault(after.owner(key), []).append(Unit("key", key))
    return {host: Units.of(*units) for host, units in units_by_host.items()}


def settled(units: Units, origin: Ownership, target: Ownership) -> dict[Unit, int] | None:
    """The units that have moved, with their epochs, by the ownership of both hosts; None while the hosts do not agree."""
    moved: dict[Unit, int] = {}
    for unit in units:
        here, there = origin.share(unit), target.share(unit)
        if there.stand is Stand.MINE:
            moved[unit] = there.epoch
        elif here.stand is not Stand.MINE or there.stand is Stand.PREPARED:
            return None  # released and not served yet, or prepared and not released: the hosts are about to decide
    return moved
