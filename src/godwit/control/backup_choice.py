"""Which host keeps the backup of which: one that would not be lost with it, and each about as many. Pure.

A backup that moves is sent again as a whole, so one that is as safe where it is stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SPARE: Final = 1  # a keeper may have so many more than another before a backup moves for it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host is, and where it writes: what may be lost at once."""

    machine: str
    disk: str

    def shared_with(self, other: Place) -> tuple[bool, bool]:
        """What both would be lost with; the disk counts first, as it holds what is to be kept."""
        return self.disk == other.disk, self.machine == other.machine


def keeper_of(host: str, places: Mapping[str, Place], kept_by: Mapping[str, str]) -> str | None:
    """Who is to keep the backup of this host; None where there is no other. `kept_by`: how it is now, by host."""
    others = sorted(name for name in places if name != host)
    if not others or host not in places:
        return None
    loads = Counter(keeper for of, keeper in kept_by.items() if of != host and keeper in places)

    def risk(name: str) -> tuple[bool, bool]:
        return places[host].shared_with(places[name])

    safest = min(risk(name) for name in others)
    safe = [name for name in others if risk(name) == safest]
    least = min(loads[name] for name in safe)
    now = kept_by.get(host)
    if now in safe and loads[now] <= least + SPARE:
        return now
    after = sorted(safe, key=lambda name: (name <= host, name))  # the next one round, so that hosts alike make a ring
    return min(after, key=lambda name: loads[name])
