"""Which host keeps the backup of which host: one that is not lost together with it. Each host keeps about as many. Pure.

A backup that moves to another peer is sent again as a whole, so a backup moves only if that makes it safer or evens the load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SPARE: Final = 1  # a peer may keep so many backups more than another before one of them moves


@dataclass(frozen=True, slots=True)
class Place:
    """The machine and disk of a host: what may be lost at once."""

    machine: str
    disk: str

    def shared_with(self, other: Place) -> tuple[bool, bool]:
        """Whether both would be lost with one disk, and with one machine. The disk counts first, because it has the log."""
        return self.disk == other.disk, self.machine == other.machine


def choose_peer(host: str, places: Mapping[str, Place], peers: Mapping[str, str]) -> str | None:
    """The host that is to keep the backup of this host; None if there is no other. `peers`: the peer of each host now."""
    others = sorted(name for name in places if name != host)
    if not others or host not in places:
        return None
    loads = Counter(peer for of, peer in peers.items() if of != host and peer in places)

    def risk(name: str) -> tuple[bool, bool]:
        return places[host].shared_with(places[name])

    safest = min(risk(name) for name in others)
    safe = [name for name in others if risk(name) == safest]
    least = min(loads[name] for name in safe)
    now = peers.get(host)
    if now in safe and loads[now] <= least + SPARE:
        return now
    after = sorted(
        safe, key=lambda name: (name <= host, name)
    )  # the next host in a circle, so that equal hosts make a ring
    return min(after, key=lambda name: loads[name])
