"""Decides what happens when a host is lost: other hosts take over its keys at once, or it is started again from its changelog.

A host is lost when its Spark task has ended, by itself or because its heartbeats stopped. Its process may still run, so it is
fenced first. A takeover is never the only way: if there is a reason against it, or it fails before the will is written, the
host is started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from godwit.control.moves import spans
from godwit.control.recent_losses import WINDOW_S, RecentLosses
from godwit.errors import GodwitError, HostUnavailable
from godwit.model.units import Units
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.takeover import rescue
from godwit.runtime.takeover.rescue import Inherited, LostHost
from godwit.spark.change.request_queue import RequestQueue
from godwit.spark.hosts.flock_parts import FlockParts
from godwit.state.segments import Durability

RecoveryMode = Literal["storage", "parallel"]
REPLACE_AFTER_S: Final = 10.0
AGAIN_S: Final = 1.0


class LostHostHandler:
    """`active_scopes`: the evaluations of batch DataFrames that run now."""

    def __init__(
        self,
        parts: FlockParts,
        requests: RequestQueue,
        recovery: RecoveryMode,
        durability: Durability,
        active_scopes: Callable[[], list[str]],
    ) -> None:
        self._directory = parts.directory
        self._hosts = parts.hosts
        self._tables = parts.tables
        self._members = parts.members
        self._history = parts.history
        self._requests = requests
        self._recovery = recovery
        self._durability = durability
        self._active_scopes = active_scopes
        self._losses = RecentLosses()
        self._quarantined: dict[str, str] = {}
        self._one_at_a_time = threading.Lock()

    def lost(self, host: str, noticed: str) -> bool:
        """Whether other hosts own its keys now; if not, the host is to be started again. `noticed`: how it was noticed."""
        with self._one_at_a_time:
            if self._hosts.closing.is_set():
                return False
            if host not in self._members.hosts():
                return True
            began_s = time.monotonic()
            self._losses.add(host, began_s)
            copies = self._requests.copies_of(host)
            reason, inherited = self._reason_against_takeover(host, copies), dict[str, Inherited]()
            if not reason:
                try:
                    inherited = self._take_over(host, copies)
                except GodwitError as error:
                    reason = str(error)
            if reason:
                self._history.add("lost", host=host, noticed=noticed, recovery="storage", reason=reason)
                self._hosts.closing.wait(self._losses.pause_s)
                return False
            self._record_takeover(host, noticed, inherited, began_s)
        return True

    def quarantined(self) -> dict[str, str]:
        """Hosts that were lost too often to be started again, with the reason."""
        return dict(self._quarantined)

    def _reason_against_takeover(self, host: str, copies: Mapping[str, Mapping[str, Units]]) -> str:
        """Why other hosts must not take over; empty if they can."""
        owned = self._tables.owned(host)
        if not owned:
            return "it owned nothing"
        covered = all(not units - _all_of(copies.get(operator, {})) for operator, units in owned.items())
        if self._losses.storm:
            return "many hosts were lost recently, and other hosts might be lost by the same keys"
        wanted = self._recovery == "parallel" or covered or self._losses.flaps(host)
        if not wanted:
            return "recovery is 'storage', and there are no complete copies of its keys"
        if len(self._members.hosts()) == 1:
            return "there is no other host"
        if self._requests.keys_move():
            return "keys are being moved"
        return ""

    def _take_over(self, host: str, copies: Mapping[str, Mapping[str, Units]]) -> dict[str, Inherited]:
        """What each heir has got; an error if there is no will."""
        lost_host = rescue.fence(host_directory(str(self._directory.path), host), self._durability)
        if unsettled := lost_host.unsettled(self._tables.owned(host)) or self._evaluating(lost_host):
            raise HostUnavailable(unsettled, host=host)
        heirs = sorted((name for name in self._members.hosts() if name != host), key=self._groups_of)
        owned = {op: own.mine() for op, own in lost_host.owned.items() if own.mine()}
        if not owned:
            raise HostUnavailable("it owned nothing", host=host)
        return rescue.hand_to_heirs(lost_host, rescue.divide(owned, heirs, copies), self._hosts.ask_now)

    def _record_takeover(self, host: str, noticed: str, inherited: Mapping[str, Inherited], began_s: float) -> None:
        """Update tables, roster and history. The takeover is a fact, so this is retried, for instance if a disk is full."""
        before = len(self._members.hosts())
        while True:
            try:
                self._write_down(host, noticed, inherited, began_s)
                break
            except GodwitError:
                if self._hosts.closing.wait(AGAIN_S):
                    return
        threading.Thread(target=self._replace, args=(before,), name="godwit-replace", daemon=True).start()

    def _write_down(self, host: str, noticed: str, inherited: Mapping[str, Inherited], began_s: float) -> None:
        for heir, share in inherited.items():
            for operator, epochs in share.served.items():
                self._tables.moved(operator, epochs, heir)
                units = Units.of(*epochs)
                fields = {"operator": operator, "origin": host, "target": heir, "groups": spans(units.groups)}
                self._history.add("moved", migration=f"loss of {host}", keys=sorted(units.keys), **fields)
        self._requests.taken_over(host)
        self._members.lost(host)
        figures = {heir: {"bytes": share.bytes, "by_copies": share.by_copies} for heir, share in inherited.items()}
        took_s = round(time.monotonic() - began_s, 3)
        self._history.add("lost", host=host, noticed=noticed, recovery="taken over", heirs=figures, took_s=took_s)
        if self._losses.flaps(host):
            self._quarantined[host] = f"lost {self._losses.of(host)} times within {WINDOW_S:.0f} s"
            self._history.add("quarantined", host=host, reason=self._quarantined[host])

    def _groups_of(self, host: str) -> int:
        return sum(len(units) for units in self._tables.owned(host).values())

    def _evaluating(self, lost_host: LostHost) -> str:
        """Whether the host had state of a batch DataFrame that is being evaluated: no table has its owners."""
        active = set(self._active_scopes())
        running = [name for name in lost_host.operators if name.rpartition("@")[2] in active]
        return f"{running[0]} is being evaluated" if running else ""

    def _replace(self, count: int) -> None:
        """A new host joins in the place of the lost one, and gets its share from the heirs while the query runs.

        It joins after a pause, in which the heirs apply the rows that have waited, and not if somebody has scaled meanwhile.
        Runs in a thread of its own, because a request to another host that was lost waits until that loss is handled.
        """
        self._members.tell_roster()
        if self._hosts.closing.wait(REPLACE_AFTER_S) or len(self._members.hosts()) != count - 1:
            return
        try:
            self._requests.scale(count, {"wait": False, "progress": False})
        except GodwitError as error:  # for instance no free task slot: the flock goes on with fewer hosts
            self._history.add("not replaced", reason=str(error))


def _all_of(copies: Mapping[str, Units]) -> Units:
    units = Units()
    for some in copies.values():
        units |= some
    return units
