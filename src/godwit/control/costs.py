"""What a change would cost, before it is made: bytes that move, how long that takes, how long rows wait.

From the state there is and from what earlier changes came to; careful guesses until there has been one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BYTES_PER_S_GUESSED: Final = 20e6
JOIN_S_GUESSED: Final = 3.0
STALL_MS_GUESSED: Final = 50.0
FIXED_S: Final = 0.2  # hand-overs take a few round trips, however little is handed over
NEWEST: Final = 0.5  # weight of the last change against those before it: what a flock moves does not change much


@dataclass(frozen=True, slots=True)
class Cost:
    """An estimate."""

    bytes: int
    time_s: float
    stall_ms: float

    def __str__(self) -> str:
        size = f"{self.bytes / 1e6:.1f} MB" if self.bytes >= 100_000 else f"{self.bytes / 1e3:.1f} kB"
        return f"about {size} in {self.time_s:.1f} s, rows waiting up to {self.stall_ms:.0f} ms"


class Costs:
    """Learns from changes that have been made."""

    def __init__(self) -> None:
        self._bytes_per_s = BYTES_PER_S_GUESSED
        self._join_s = JOIN_S_GUESSED
        self._stall_ms = STALL_MS_GUESSED

    def learn(self, moved_bytes: int, moving_s: float, stall_ms: float, join_s: float | None = None) -> None:
        """A small change tells little of how fast bytes go: most of its time is round trips."""
        if moved_bytes >= 1_000_000 and moving_s > 0:
            self._bytes_per_s = _nearer(self._bytes_per_s, moved_bytes / moving_s)
        self._stall_ms = _nearer(self._stall_ms, stall_ms)
        if join_s is not None:
            self._join_s = _nearer(self._join_s, join_s)

    def of(self, moved_bytes: float, joins: bool = False) -> Cost:
        time_s = FIXED_S + moved_bytes / self._bytes_per_s + (self._join_s if joins else 0.0)
        return Cost(int(moved_bytes), time_s, self._stall_ms)


def _nearer(known: float, seen: float) -> float:
    return known + NEWEST * (seen - known)
