"""Gives the keys of a lost host new owners: fences it, divides what its log says it owned, and writes its will.

The driver's side of a takeover, without Spark. Until the will is there the host can be started again and owns everything: a
failure before the will costs time and nothing else. After the will the heirs finish by themselves, whichever host is lost next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
WAIT_S = 2.0  # how long an heir may wait for progress before it answers

Shares = dict[str, dict[str, Units]]  # by heir, by operator


class Ask(Protocol):
    """Sends the request to the host and returns the answer."""

    def __call__(self, host: str, request: typed.Request[Reply], /) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Inherited:
    """What an heir has taken over: by operator, the units with their epochs."""

    served: dict[str, typed.Epochs]
    bytes: int
    by_copies: bool


@dataclass(frozen=True, slots=True)
class LostHost:
    """A lost host that is fenced: no process can write to its changelog any more. The fields describe that changelog."""

    lost: str
    directory: Path
    generation: int
    next_lsn: int
    owned: dict[str, Ownership]  # by operator
    operators: tuple[str, ...]  # including operators whose keys never move
    ends: Mapping[int, int] = field(default_factory=dict)  # by generation, the lsn before which its log was read

    @property
    def name(self) -> str:
        return f"will-{self.lost}-{self.generation}"

    def unsettled(self, operators: Iterable[str]) -> str:
        """Why no other host can take over from this one; empty if one can.

        `operators`: those of which the host owns keys by the routing tables. An operator that was not in the changelog yet when
        the host was lost would be left without an owner of those keys.
        """
        for operator in operators:
            if operator not in self.owned:
                return f"its changelog does not have {operator} yet"
        for operator, ownership in self.owned.items():
            if ownership.outgoing or ownership.incoming:
                return f"a hand-over of {operator} was under way"
        return ""


def fence(directory: Path, durability: Durability) -> LostHost:
    """Claim the next generation of the host's changelog: a process that still writes there is refused at its next write."""
    restore_if_lost(str(directory.parent.parent), directory.name)
    _, left = take_over(directory, durability)
    newest = [part.info for part in left.newest_parts()]
    owned = {info["op"]: Ownership.from_dict(directory.name, info["own"]) for info in newest if info["kind"] == "own"}
    operators = tuple(sorted({info["op"] for info in newest}))
    return LostHost(directory.name, directory, left.generation, left.next_lsn, owned, operators, left.ends())


def divide(owned: Mapping[str, Units], heirs: Sequence[str], copies: Mapping[str, Mapping[str, Units]]) -> Shares:
    """Give every heir about as many units of each operator; but an heir that has copies gets the units of its copies."""
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


def hand_to_heirs(lost_host: LostHost, shares: Shares, ask: Ask) -> dict[str, Inherited]:
    """All heirs take over at the same time. Returns what each has taken over; an error means that there is no will."""
    reports: dict[str, messages.TakeoverReport | None] = {}  # of each heir that was asked
    try:
        for heir, share in shares.items():
            reports[heir] = None
            ask(heir, prepare_takeover(share, _answers_for_timers(shares), lost_host))
        for heir in shares:
            reports[heir] = _prepared(heir, lost_host, ask)
        # Another application may have opened the checkpoint and started the host again meanwhile.
        check_newest(lost_host.directory, lost_host.generation)
        write_will(lost_host.directory, lost_host.name, shares, lost_host.ends, lost_host.owned)
    except GodwitError:
        if read_will(lost_host.directory) is None:  # the will may be written although an error came after it
            for heir in reports:
                _give_up(heir, lost_host, ask)
            raise
    lease = read_lease(lost_host.directory)
    if lease is not None and lease.generation <= lost_host.generation:
        end_lease(lost_host.directory, lease.generation)
    return {heir: _inherited(heir, lost_host, shares[heir], reports[heir], ask) for heir in shares}


def _answers_for_timers(shares: Shares) -> dict[str, str]:
    """By operator, the heir that answers for outputs of the lost host's timers: one with a share of the operator."""
    return {operator: heir for heir in sorted(shares, reverse=True) for operator in shares[heir]}


def prepare_takeover(
    share: Mapping[str, Units], timers: Mapping[str, str], lost_host: LostHost
) -> messages.PrepareTakeover:
    return messages.PrepareTakeover(
        lost_host.name, lost_host.lost, dict(share), dict(timers), lost_host.generation, lost_host.next_lsn
    )


def _prepared(heir: str, lost_host: LostHost, ask: Ask) -> messages.TakeoverReport:
    """Wait until the heir has prepared. If it makes no progress, raise: the lost host can be started again instead."""
    read_bytes, since_s = -1, ports.now_s()
    while True:
        report = ask(heir, messages.ReportTakeover(lost_host.name, WAIT_S))
        if report.state == "prepared":
            return report
        if report.state == "failed" and report.failure is not None:
            raise report.failure
        if report.bytes > read_bytes:
            read_bytes, since_s = report.bytes, ports.now_s()
        elif ports.now_s() > since_s + STUCK_S:
            raise HostUnavailable(f"{heir} has made no progress for {STUCK_S:.0f} s", host=heir)


def _give_up(heir: str, lost_host: LostHost, ask: Ask) -> None:
    """Abandon the takeover at an heir. An heir that has restarted asks the lost host for the outcome when that is back."""
    try:
        ask(heir, messages.AbandonTakeover(lost_host.name))
    except HostUnavailable:
        return


def _inherited(
    heir: str, lost_host: LostHost, share: Mapping[str, Units], report: messages.TakeoverReport | None, ask: Ask
) -> Inherited:
    served = _served(heir, lost_host, share, ask)
    return Inherited(served, 0, False) if report is None else Inherited(served, report.bytes, report.by_copies)


def _served(heir: str, lost_host: LostHost, share: Mapping[str, Units], ask: Ask) -> dict[str, typed.Epochs]:
    """The heir's units with their epochs. An heir that has restarted cannot answer; it finds the will by itself."""
    try:
        return ask(heir, messages.CompleteTakeover(lost_host.name)).served
    except GodwitError:
        return {
            operator: {unit: lost_host.owned[operator].share(unit).epoch + 1 for unit in units}
            for operator, units in share.items()
        }
