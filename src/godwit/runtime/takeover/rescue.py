"""Gives the keys of a lost host new owners: fences it, deals out what its log says it owned, and writes its will.

The driver's side of a takeover, without Spark. Until the will is there the host can be started again and owns everything, so
whatever goes wrong before it is no more than lost time; after it the heirs finish by themselves, whoever else is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, from_json
from godwit.model.ownership import Ownership
from godwit.model.units import Unit, Units
from godwit.runtime.backup.restore import restore_if_lost
from godwit.runtime.liveness.leases import end_lease, read_lease
from godwit.runtime.liveness.wills import read_will, write_will
from godwit.state.fencing import check_newest
from godwit.state.recovery import take_over
from godwit.state.segments import Durability
from godwit.transport import typed

STUCK_S = 20.0
WAIT_S = 2.0  # how long an heir may keep the question how far it is

Ask = Callable[..., dict[str, Any]]  # host, action, fields: what the host answers
Shares = dict[str, dict[str, Units]]  # by heir, by operator


@dataclass(frozen=True, slots=True)
class Estate:
    """A lost host's log, closed: nobody can write to it any more."""

    lost: str
    directory: Path
    generation: int
    next_lsn: int
    owned: dict[str, Ownership]  # by operator
    operators: tuple[str, ...]  # also those whose keys are not moved
    ends: Mapping[int, int] = field(default_factory=dict)  # by generation, the lsn before which its log was read

    @property
    def name(self) -> str:
        return f"will-{self.lost}-{self.generation}"

    def unsettled(self) -> str:
        """Why nobody else can take over from it; empty if somebody can."""
        for operator, ownership in self.owned.items():
            if ownership.outgoing or ownership.incoming:
                return f"a hand-over of {operator} was under way"
        return ""


def fenced(directory: Path, durability: Durability) -> Estate:
    """Whoever wrote there is stopped: at its next write it finds that there is a newer generation."""
    restore_if_lost(str(directory.parent.parent), directory.name)
    _, left = take_over(directory, durability)
    words = [part.info for part in left.last_words().parts()]
    owned = {info["op"]: Ownership.from_dict(directory.name, info["own"]) for info in words if info["kind"] == "own"}
    operators = tuple(sorted({info["op"] for info in words}))
    return Estate(directory.name, directory, left.generation, left.next_lsn, owned, operators, left.ends())


def dealt(owned: Mapping[str, Units], heirs: Sequence[str], copies: Mapping[str, Mapping[str, Units]]) -> Shares:
    """To every heir about as much of each operator; but to one that has copies of something, that."""
    shares: Shares = {}

    def give(heir: str, operator: str, units: Units) -> None:
        if units:
            share = shares.setdefault(heir, {})
            share[operator] = share.get(operator, Units()) | units

    for operator, units in owned.items():
        left = units
        for heir, copied in copies.get(operator, {}).items():
            give(heir, operator, left & copied)
            left -= copied
        others = [heir for heir in heirs if heir not in shares or operator not in shares[heir]] or heirs
        for at, unit in enumerate(left):
            give(others[at % len(others)], operator, Units.of(unit))
    return shares


def settle(estate: Estate, shares: Shares, ask: Ask) -> dict[str, dict[str, Any]]:
    """Have the heirs take it over, all at once. Gives what each says of it; raises only if it did not come to the will."""
    told: dict[str, dict[str, Any]] = {}
    try:
        for heir, share in shares.items():
            told[heir] = {}
            _ask_to_inherit(heir, share, _told_by(shares), estate, ask)
        for heir in shares:
            told[heir] = _prepared(heir, estate, ask)
        check_newest(estate.directory, estate.generation)  # it was started again meanwhile, by whoever has taken over
        write_will(estate.directory, estate.name, shares, estate.ends, estate.owned)
    except GodwitError:
        if read_will(estate.directory) is None:  # it may be there though something failed after that
            for heir in told:
                _give_up(heir, estate, ask)
            raise
    lease = read_lease(estate.directory)
    if lease is not None and lease.generation <= estate.generation:
        end_lease(estate.directory, lease.generation)
    return {heir: told[heir] | {"served": _served(heir, estate, shares[heir], ask)} for heir in shares}


def _told_by(shares: Shares) -> dict[str, str]:
    """By operator, the heir that answers for what the lost host's timers have put out: one of those that have a share of it."""
    return {operator: heir for heir in sorted(shares, reverse=True) for operator in shares[heir]}


def _ask_to_inherit(heir: str, share: Mapping[str, Units], timers: Mapping[str, str], estate: Estate, ask: Ask) -> None:
    given = {operator: units.to_dict() for operator, units in share.items()}
    where = {"generation": estate.generation, "next_lsn": estate.next_lsn}
    ask(heir, "inherit", name=estate.name, lost=estate.lost, shares=given, timers=dict(timers), **where)


def _prepared(heir: str, estate: Estate, ask: Ask) -> dict[str, Any]:
    """Until it has. One that does not come on is not waited for: the lost host can always be started instead."""
    told, since_s = -1, ports.now_s()
    while True:
        answer = ask(heir, "inheritance", name=estate.name, wait_s=WAIT_S)
        if answer["state"] == "prepared":
            return answer
        if answer["state"] == "failed":
            raise from_json(answer["reason"])
        if answer["bytes"] > told:
            told, since_s = answer["bytes"], ports.now_s()
        elif ports.now_s() > since_s + STUCK_S:
            raise HostUnavailable(f"{heir} has not come on for {STUCK_S:.0f} s", host=heir)


def _give_up(heir: str, estate: Estate, ask: Ask) -> None:
    """One that has restarted asks what became of it, and hears it from the lost host when that is back."""
    try:
        ask(heir, "disinherit", name=estate.name)
    except HostUnavailable:
        return


def _served(heir: str, estate: Estate, share: Mapping[str, Units], ask: Ask) -> dict[str, dict[Unit, int]]:
    """The heir's units with their epochs. One that cannot say so, because it has restarted, finds the will by itself."""
    try:
        told = ask(heir, "inherited", name=estate.name)["served"]
        return {operator: typed.epochs_from_list(epochs) for operator, epochs in told.items()}
    except GodwitError:
        return {
            operator: {unit: estate.owned[operator].share(unit).epoch + 1 for unit in units}
            for operator, units in share.items()
        }
