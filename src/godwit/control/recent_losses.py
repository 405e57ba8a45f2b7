"""Counts recent losses of hosts, and decides what they mean: one host is bad, or there is a cause that hits all hosts.

A host that is lost repeatedly is not started again: other hosts take over its keys. If many hosts are lost, a takeover would
only move the cause (a row that kills its host) to another host, so each host is started again, after growing pauses.
Pure: the time is an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 60.0
FLAPS_MAX: Final = 3  # of one host
STORM_MAX: Final = 6  # of all
PAUSE_S_MAX: Final = 10.0


class RecentLosses:
    def __init__(self) -> None:
        self._recent: deque[tuple[float, str]] = deque()

    def add(self, host: str, at_s: float) -> None:
        self._recent.append((at_s, host))
        while self._recent and self._recent[0][0] <= at_s - WINDOW_S:
            self._recent.popleft()

    def of(self, host: str) -> int:
        return sum(name == host for _, name in self._recent)

    def flaps(self, host: str) -> bool:
        """Whether this host is lost so often that it should not be started again."""
        return self.of(host) >= FLAPS_MAX and not self.storm

    @property
    def storm(self) -> bool:
        """Whether so many hosts are lost that a takeover would only move the cause."""
        return len(self._recent) >= STORM_MAX

    @property
    def pause_s(self) -> float:
        """The pause before the next start; none while losses are rare."""
        beyond = len(self._recent) - STORM_MAX
        return min(0.5 * 2.0**beyond, PAUSE_S_MAX) if beyond >= 0 else 0.0
