"""How often hosts have been lost of late, and what that says: one of them is bad, or something is bad for all.

A host that is lost again and again is not started any more: others take over its keys, whatever is usual. If hosts are lost one
after another, taking over only carries the trouble on (a row that kills whoever applies it), so each is started again, ever
more slowly. Pure: the time is an argument.
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
        self._seen: deque[tuple[float, str]] = deque()

    def add(self, host: str, at_s: float) -> None:
        self._seen.append((at_s, host))
        while self._seen and self._seen[0][0] <= at_s - WINDOW_S:
            self._seen.popleft()

    def of(self, host: str) -> int:
        return sum(name == host for _, name in self._seen)

    def flaps(self, host: str) -> bool:
        """Whether this one had better not be started again."""
        return self.of(host) >= FLAPS_MAX and not self.storm

    @property
    def storm(self) -> bool:
        """Whether taking over would only carry the trouble on."""
        return len(self._seen) >= STORM_MAX

    @property
    def pause_s(self) -> float:
        """Before the next start: none as long as losses are rare."""
        beyond = len(self._seen) - STORM_MAX
        return min(0.5 * 2.0**beyond, PAUSE_S_MAX) if beyond >= 0 else 0.0
