"""Estimates the cost of a change before it is made: bytes moved, duration, and how long rows wait.

The estimate uses the size of the state and the cost of earlier changes; before the first change, careful guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BYTES_PER_S_GUESSED: Final = 20e6
JOIN_S_GUESSED: Final = 3.0
STALL_MS_GUESSED: Final = 50.0
FIXED_S: Final = 0.2  # a hand-over takes a few round trips, even of little state
NEWEST: Final = 0.5  # the weight of the last change against the earlier ones


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
    """Estimates that improve with every change."""

    def __init__(self) -> None:
        self._bytes_per_s = BYTES_PER_S_GUESSED
        self._join_s = JOIN_S_GUESSED
        self._stall_ms = STALL_MS_GUESSED

    def learn(self, moved_bytes: int, moving_s: float, stall_ms: float, join_s: float | None = None) -> None:
        """Take the figures of a change. A small one says little about bytes per second: most of its time is round trips."""
        if moved_bytes >= 1_000_000 and moving_s > 0:
            self._bytes_per_s = _nearer(self._bytes_per_s, moved_bytes / moving_s)
        self._stall_ms = _nearer(self._stall_ms, stall_ms)
        if join_s is not None:
            self._join_s = _nearer(self._join_s, join_s)

    def of(self, moved_bytes: float, joins: bool = False) -> Cost:
        time_s = FIXED_S + moved_bytes / self._bytes_per_s + (self._join_s if joins else 0.0)
        return Cost(int(moved_bytes), time_s, self._stall_ms)


def _nearer(estimate: float, measured: float) -> float:
    return estimate + NEWEST * (measured - estimate)
