"""Gives the keys of a lost host new owners: fences it, deals out what its log says it owned, and writes its will.

The driver's side of a takeover, without Spark. Until the will is there the host can be started again and owns everything, so
whatever goes wrong before it is no more than lost time; after it the heirs finish by themselves, whoever else is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable
from godwit.model.ownership import Ownership
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.backup.restore import restore_if_lost
from godwit.runtime.liveness.leases import end_lease, read_lease
from godwit.runtime.liveness.wills import read_will, write_will
from godwit.state.fencing import check_newest
from godwit.state.recovery import take_over
from godwit.state.segments import Durability
from godwit.transport import typed
from godwit.transport.typed import Reply

STUCK_S = 20.0
WAIT_S = 2.0  # how long an heir may keep the question how far it is

Shares = dict[str, dict[str, Units]]  # by heir, by operator


class Ask(Protocol):
    """Sends the request to the host and gives the answer."""

    def __call__(self, host: str, request: typed.Request[Reply], /) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Inherited:
    """What an heir has taken over: by operator, the units with their epochs."""

    served: dict[str, typed.Epochs]
    bytes: int
    by_copies: bool


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
    words = [part.info for part in left.newest_parts()]
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


def settle(estate: Estate, shares: Shares, ask: Ask) -> dict[str, Inherited]:
    """Have the heirs take it over, all at once. Gives what each has got; raises only if it did not come to the will."""
    reports: dict[str, messages.TakeoverReport | None] = {}  # of each heir that was asked
    try:
        for heir, share in shares.items():
            reports[heir] = None
            ask(heir, prepare_takeover(share, _answers_for_timers(shares), estate))
        for heir in shares:
            reports[heir] = _prepared(heir, estate, ask)
        check_newest(estate.directory, estate.generation)  # it was started again meanwhile, by whoever has taken over
        write_will(estate.directory, estate.name, shares, estate.ends, estate.owned)
    except GodwitError:
        if read_will(estate.directory) is None:  # it may be there though something failed after that
            for heir in reports:
                _give_up(heir, estate, ask)
            raise
    lease = read_lease(estate.directory)
    if lease is not None and lease.generation <= estate.generation:
        end_lease(estate.directory, lease.generation)
    return {heir: _inherited(heir, estate, shares[heir], reports[heir], ask) for heir in shares}


def _answers_for_timers(shares: Shares) -> dict[str, str]:
    """By operator, the heir that answers for what the lost host's timers have put out: one of those that have a share of it."""
    return {operator: heir for heir in sorted(shares, reverse=True) for operator in shares[heir]}


def prepare_takeover(share: Mapping[str, Units], timers: Mapping[str, str], estate: Estate) -> messages.PrepareTakeover:
    return messages.PrepareTakeover(
        estate.name, estate.lost, dict(share), dict(timers), estate.generation, estate.next_lsn
    )


def _prepared(heir: str, estate: Estate, ask: Ask) -> messages.TakeoverReport:
    """Until the heir has. A heir that makes no progress is not waited for: the lost host can always be started instead."""
    read_bytes, since_s = -1, ports.now_s()
    while True:
        report = ask(heir, messages.ReportTakeover(estate.name, WAIT_S))
        if report.state == "prepared":
            return report
        if report.state == "failed" and report.failure is not None:
            raise report.failure
        if report.bytes > read_bytes:
            read_bytes, since_s = report.bytes, ports.now_s()
        elif ports.now_s() > since_s + STUCK_S:
            raise HostUnavailable(f"{heir} has not come on for {STUCK_S:.0f} s", host=heir)


def _give_up(heir: str, estate: Estate, ask: Ask) -> None:
    """One that has restarted asks what became of it, and hears it from the lost host when that is back."""
    try:
        ask(heir, messages.AbandonTakeover(estate.name))
    except HostUnavailable:
        return


def _inherited(
    heir: str, estate: Estate, share: Mapping[str, Units], report: messages.TakeoverReport | None, ask: Ask
) -> Inherited:
    served = _served(heir, estate, share, ask)
    return Inherited(served, 0, False) if report is None else Inherited(served, report.bytes, report.by_copies)


def _served(heir: str, estate: Estate, share: Mapping[str, Units], ask: Ask) -> dict[str, typed.Epochs]:
    """The heir's units with their epochs. One that cannot say so, because it has restarted, finds the will by itself."""
    try:
        return ask(heir, messages.CompleteTakeover(estate.name)).served
    except GodwitError:
        return {
            operator: {unit: estate.owned[operator].share(unit).epoch + 1 for unit in units}
            for operator, units in share.items()
        }
