"""What one instance may apply: its stand to every group, and to every key that is routed apart from its group.

This module ensures I1 (one owner). An instance applies a row only if its stand to the row's key is `MINE`; every other stand
says what happens to the row instead. LENT, CUT and EXPECTED are never written to the log: they belong to a hand-over in
progress, and a restart goes back to MINE or AWAY (before `released` the origin owns a unit, after it the target
does).

An epoch counts the owners that a unit has had. A hint with a greater epoch is newer, so following hints ends at the owner.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from godwit.errors import InvariantBroken
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units


class Stand(IntEnum):
    """The role of an instance for a unit: rows of the unit are applied, refused with a hint, or wait."""

    MINE = 0  # apply: this instance owns the unit
    AWAY = 1  # refuse: another host owns the unit
    LENT = 2  # refuse: rows wait at the target, which gets the unit soon
    CUT = 3  # wait: the hand-over is being decided
    EXPECTED = 4  # wait: an origin has offered the unit, its state has not arrived
    PREPARED = 5  # wait: the state has arrived and is durable; the origin has not released the unit


ROWS_WAIT = frozenset((Stand.CUT, Stand.EXPECTED, Stand.PREPARED))
NOT_HERE = frozenset((Stand.AWAY, Stand.EXPECTED, Stand.PREPARED))  # owned by the peer, as far as this host knows


@dataclass(frozen=True, slots=True)
class Share:
    """What one instance knows of one unit."""

    stand: Stand
    epoch: int
    peer: str  # the owner, or the other host of the hand-over


class Groups:
    """The shares of all groups, in columns: they are written and searched as a whole far more often than one by one."""

    __slots__ = ("at", "epochs", "peers", "stands")

    def __init__(self, stands: bytearray, epochs: array[int], at: array[int], peers: list[str]) -> None:
        self.stands = stands
        self.epochs = epochs
        self.at = at  # for each group, the position of its peer in `peers`
        self.peers = peers

    @classmethod
    def of(cls, shares: Sequence[Share]) -> Groups:
        groups = cls(bytearray(len(shares)), array("I", bytes(4 * len(shares))), array("H", bytes(2 * len(shares))), [])
        for at, share in enumerate(shares):
            groups[at] = share
        return groups

    def __len__(self) -> int:
        return len(self.stands)

    def __getitem__(self, group: int) -> Share:
        return Share(Stand(self.stands[group]), self.epochs[group], self.peers[self.at[group]])

    def __setitem__(self, group: int, share: Share) -> None:
        self.stands[group], self.epochs[group] = share.stand, share.epoch
        self.at[group] = self.position(share.peer)

    def position(self, peer: str) -> int:
        if peer not in self.peers:
            self.peers.append(peer)
        return self.peers.index(peer)

    def change(self, groups: Collection[int], stand: Stand, peer: str, epochs: int) -> None:
        """Many groups at once: rows wait for that."""
        at = self.position(peer) if groups else 0
        for group in groups:
            self.stands[group] = stand
            self.epochs[group] += epochs
            self.at[group] = at

    def __iter__(self) -> Iterator[Share]:
        return map(self.__getitem__, range(len(self.stands)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        return {
            "stands": self.stands.translate(_DIGITS).decode(),
            "epochs": base64.b64encode(self.epochs.tobytes()).decode(),
            "at": base64.b64encode(self.at.tobytes()).decode(),
            "peers": list(self.peers),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Groups:
        epochs, at = array("I"), array("H")
        epochs.frombytes(base64.b64decode(data["epochs"]))
        at.frombytes(base64.b64decode(data["at"]))
        return cls(bytearray(map(int, data["stands"])), epochs, at, list(data["peers"]))


_DIGITS = bytes.maketrans(bytes(range(len(Stand))), "".join(str(int(stand)) for stand in Stand).encode())


def step_name(migration: str, number: int) -> str:
    """The name of a step of a migration, as changelogs and the hosts of a hand-over use it."""
    return f"{migration}/{number}"


def migration_and_number(step: str) -> tuple[str, int]:
    """Of a step, by its name."""
    migration, _, number = step.rpartition("/")
    return migration, int(number)


@dataclass(slots=True)
class Outgoing:
    """A step that this origin has released and that its target has not confirmed yet."""

    units: Units
    target: str
    epochs: dict[Unit, int] = field(default_factory=dict)  # in which the target owns the units


@dataclass(slots=True)
class Incoming:
    """A step that is durable at this target; its origin may or may not have released it."""

    units: Units
    origin: str
    epochs: dict[Unit, int]  # in which the origin owns the units
    apart: dict[int, tuple[str, int]]  # keys of these groups with another owner: routing hash -> (owner, epoch)


@dataclass(slots=True)
class Ownership:
    """`version` grows with every change, so that a faster copy of this object can tell that it is stale.

    `moving`: the units of migrations that have begun on this host. While a group is in `moving`, a key of that group that moves
    to this host stays apart from the group: the migration fixed the keys that it copies before this key arrived.
    """

    host: str
    groups: Groups
    keys: dict[int, Share] = field(default_factory=dict)
    outgoing: dict[str, Outgoing] = field(default_factory=dict)
    incoming: dict[str, Incoming] = field(default_factory=dict)
    version: int = 0
    moving: Units = field(default_factory=Units)

    @classmethod
    def initial(cls, host: str, routing: Routing) -> Ownership:
        """By the first routing table. A host that joined later is not in that table and owns nothing."""
        owners = [routing.hosts[position] for position in routing.owners]
        shares = [Share(Stand.MINE if owner == host else Stand.AWAY, 1, owner) for owner in owners]
        return cls(host, Groups.of(shares))

    # -- questions ---------------------------------------------------------------------------------------------------

    def of(self, route_hash: int) -> Share:
        apart = self.keys.get(route_hash)
        return self.groups[route_hash % len(self.groups)] if apart is None else apart

    def share(self, unit: Unit) -> Share:
        return self.groups[unit.id] if unit.kind == "group" else self.of(unit.id)

    def mine(self) -> Units:
        groups = frozenset(at for at, stand in enumerate(self.groups.stands) if stand == Stand.MINE)
        keys = frozenset(key for key, share in self.keys.items() if share.stand is Stand.MINE)
        return Units(groups, keys)

    def served(self, epochs: Mapping[Unit, int]) -> bool:
        """Whether this instance has owned all of these units in these epochs or later: then it has served the step already."""
        return bool(epochs) and all(self.epoch(unit) >= epoch for unit, epoch in epochs.items())

    def busy(self) -> bool:
        """Whether some unit is between two owners: then a new batch that may fire timers must wait."""
        stands = self.groups.stands
        between = (Stand.CUT, Stand.PREPARED)
        return any(stand in stands for stand in between) or any(s.stand in between for s in self.keys.values())

    def whole(self) -> bool:
        """Whether this instance owns every unit, as on a single host."""
        return not self.keys and self.groups.stands.count(Stand.MINE) == len(self.groups)

    def apart(self, units: Units) -> dict[int, tuple[str, int]]:
        """Keys of these groups that have an owner of their own; the target of the groups must know them."""
        count = len(self.groups)
        return {
            key: (share.peer if share.stand in NOT_HERE else self.host, share.epoch)
            for key, share in self.keys.items()
            if key % count in units.groups and key not in units.keys
        }

    # -- the origin's side -------------------------------------------------------------------------------------------

    def begin_move(self, units: Units) -> None:
        self.moving |= units

    def end_move(self, units: Units) -> None:
        self.moving -= units
        self._absorb(units)
        self.version += 1

    def lend(self, units: Units, to: str) -> None:
        self._change(units, {Stand.MINE}, Stand.LENT, to)

    def cut(self, units: Units, to: str) -> None:
        self._change(units, {Stand.MINE, Stand.LENT}, Stand.CUT, to)

    def resume(self, units: Units) -> None:
        """The hand-over does not take place: the origin stays the owner."""
        self._change(units, {Stand.LENT, Stand.CUT, Stand.MINE}, Stand.MINE, self.host)
        self._absorb(units)

    def release(self, step: str, units: Units, to: str) -> None:
        """The change is the commit point of the hand-over as soon as it is durable."""
        self._change(units, {Stand.CUT}, Stand.AWAY, to, epochs=1)
        self.outgoing[step] = Outgoing(units, to, {unit: self.epoch(unit) for unit in units})

    def take_back(self, step: str) -> None:
        """Own a released step again, because its target is lost for good and never owned it.

        The new epoch is the one after the epoch in which the target would have owned the units.
        """
        outgoing = self.outgoing.pop(step)
        for unit, epoch in outgoing.epochs.items():
            share = self.share(unit)
            if share.stand is not Stand.AWAY or share.epoch != epoch:
                raise InvariantBroken(
                    f"{unit.kind} {unit.id} of {step} is {share} on {self.host} and cannot be taken back"
                )
            self._set(unit, Share(Stand.MINE, epoch + 1, self.host))
        self._absorb(outgoing.units)
        self.version += 1

    def confirm(self, step: str) -> None:
        self.outgoing.pop(step, None)

    # -- the target's side -------------------------------------------------------------------------------------------

    def expect(self, units: Units, origin: str) -> None:
        self._change(units, {Stand.AWAY, Stand.EXPECTED}, Stand.EXPECTED, origin)

    def prepare(self, step: str, incoming: Incoming) -> None:
        self._change(incoming.units, {Stand.AWAY, Stand.EXPECTED, Stand.PREPARED}, Stand.PREPARED, incoming.origin)
        self.rejoin(incoming.units, incoming.apart)
        self.incoming[step] = incoming

    def rejoin(self, units: Units, apart: Collection[int]) -> bool:
        """Forget the keys of these groups that this host believes to be apart and that have gone back to their group.

        `apart`: the keys that are apart by the word of the groups' owner. Returns whether there were keys to forget.
        """
        count = len(self.groups)
        back = [
            key
            for key, share in self.keys.items()
            if key % count in units.groups and key not in apart and key not in units.keys and share.stand is Stand.AWAY
        ]
        for key in back:
            del self.keys[key]
        self.version += bool(back)
        return bool(back)

    def serve(self, step: str) -> Units:
        """Own the units of a prepared step: the origin has released it."""
        incoming = self.incoming.pop(step)
        for unit, epoch in incoming.epochs.items():
            self._set(unit, Share(Stand.MINE, epoch + 1, self.host))
        for key, (owner, epoch) in incoming.apart.items():
            known = self.keys.get(key)  # perhaps newer than what the origin knew: the key may have moved here since
            if known is None or (known.stand is Stand.AWAY and known.epoch < epoch):
                self.keys[key] = Share(Stand.AWAY, epoch, owner)
        self._absorb(incoming.units)
        self.version += 1
        return incoming.units

    def drop(self, units: Units) -> None:
        """Give up units that were offered or prepared: they stay with their origin."""
        for step in [step for step, incoming in self.incoming.items() if incoming.units & units]:
            del self.incoming[step]
        for unit in units:
            share = self.share(unit)
            if share.stand in (Stand.EXPECTED, Stand.PREPARED):
                self._set(unit, replace(share, stand=Stand.AWAY))
        self.version += 1

    def _absorb(self, units: Units) -> None:
        """A key with the same owner as its group needs no share of its own: the share of the group covers it."""
        count = len(self.groups)
        touched = (units.groups | {key % count for key in units.keys}) - self.moving.groups
        both = [key for key, share in self.keys.items() if share.stand is Stand.MINE and key % count in touched]
        for key in both:
            group, epoch = self.groups[key % count], self.keys[key].epoch
            if group.stand is Stand.MINE:
                del self.keys[key]
                self.groups[key % count] = replace(group, epoch=max(group.epoch, epoch))

    def _change(self, units: Units, legal: set[Stand], stand: Stand, peer: str, epochs: int = 0) -> None:
        for unit in units:
            if self._stand(unit) not in legal:
                raise InvariantBroken(
                    f"{unit.kind} {unit.id} is {self._stand(unit).name} on {self.host} and cannot become {stand.name}"
                )
        for key in units.keys:
            self.keys[key] = Share(stand, self.of(key).epoch + epochs, peer)
        self.groups.change(units.groups, stand, peer, epochs)
        self.version += 1

    def _stand(self, unit: Unit) -> Stand:
        return Stand(self.groups.stands[unit.id]) if unit.kind == "group" else self.of(unit.id).stand

    def epoch(self, unit: Unit) -> int:
        """The number of owners that the unit has had, as far as this host knows."""
        return self.groups.epochs[unit.id] if unit.kind == "group" else self.of(unit.id).epoch

    def _set(self, unit: Unit, share: Share) -> None:
        if unit.kind == "group":
            self.groups[unit.id] = share
        else:
            self.keys[unit.id] = share

    # -- as a document -----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": self._settled_groups().to_dict(),
            "keys": [list(self.keys), Groups.of([self._settled(share) for share in self.keys.values()]).to_dict()],
            "outgoing": {
                s: [o.units.to_dict(), o.target, [[*unit, e] for unit, e in o.epochs.items()]]
                for s, o in self.outgoing.items()
            },
            "incoming": {
                s: [i.units.to_dict(), i.origin, [[*unit, e] for unit, e in i.epochs.items()], list(i.apart.items())]
                for s, i in self.incoming.items()
            },
        }

    def _settled_groups(self) -> Groups:
        groups = self.groups
        memory = [at for stand in (Stand.LENT, Stand.CUT, Stand.EXPECTED) for at in _places(groups.stands, stand)]
        if not memory:
            return groups
        settled = Groups(bytearray(groups.stands), groups.epochs[:], groups.at[:], list(groups.peers))
        own = settled.position(self.host)
        for at in memory:
            stays_here = settled.stands[at] != Stand.EXPECTED
            settled.stands[at] = Stand.MINE if stays_here else Stand.AWAY
            settled.at[at] = own if stays_here else settled.at[at]
        return settled

    def _settled(self, share: Share) -> Share:
        """The share after a restart: the origin owns the unit again; a prepared target waits for the origin's decision."""
        match share.stand:
            case Stand.LENT | Stand.CUT:
                return Share(Stand.MINE, share.epoch, self.host)
            case Stand.EXPECTED:
                return replace(share, stand=Stand.AWAY)
            case Stand.MINE | Stand.AWAY | Stand.PREPARED:
                return share

    @classmethod
    def from_dict(cls, host: str, data: Mapping[str, Any]) -> Ownership:
        ownership = cls(host, Groups.from_dict(data["groups"]))
        keys, shares = data["keys"]
        ownership.keys = dict(zip(keys, Groups.from_dict(shares), strict=True))
        for step, (units, target, epochs) in data["outgoing"].items():
            ownership.outgoing[step] = Outgoing(Units.from_dict(units), target, _epochs(epochs))
        for step, (units, origin, epochs, apart) in data["incoming"].items():
            ownership.incoming[step] = Incoming(
                Units.from_dict(units),
                origin,
                _epochs(epochs),
                {key: (owner, epoch) for key, (owner, epoch) in apart},
            )
        # A key whose move apart from its group had not been decided is back in its group.
        ownership._absorb(Units(frozenset(range(len(ownership.groups)))))
        return ownership


def _epochs(lines: Sequence[Sequence[Any]]) -> dict[Unit, int]:
    return {Unit(kind, id_): epoch for kind, id_, epoch in lines}


def _places(stands: bytearray, stand: Stand) -> Iterator[int]:
    at = stands.find(stand)
    while at >= 0:
        yield at
        at = stands.find(stand, at + 1)
