"""The latency of rows that left a query, and what a change did to it: disruption, jitter, time to stabilise.

Disruption and peak jitter are as Falcon defines them. Pure: arrays in, figures out. This module must not know where the rows
come from, and decides nothing about what is good enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

WINDOW_S: Final = 0.1
SIGMAS: Final = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Departures:
    """When each row left (seconds) and how long after its creation (milliseconds), by the time it left."""

    left_s: Reals
    latency_ms: Reals

    @classmethod
    def of(cls, left_s: Reals, created_s: Reals) -> Departures:
        order = np.argsort(left_s, kind="stable")
        return cls(left_s[order], ((left_s - created_s) * 1000)[order])

    def __len__(self) -> int:
        return len(self.left_s)

    def between(self, from_s: float, to_s: float = float("inf")) -> Departures:
        """Those that left in [from, to)."""
        first, stop = np.searchsorted(self.left_s, (from_s, to_s), side="left")
        return Departures(self.left_s[first:stop], self.latency_ms[first:stop])


@dataclass(frozen=True, slots=True)
class Steady:
    """Latency while nothing is moved."""

    rows: int
    mean_ms: float
    sigma_ms: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, rows: Departures) -> Steady:
        if not len(rows):
            raise ValueError("no row left in the steady part, so there is nothing to compare with")
        waits = rows.latency_ms
        p50, p99 = np.percentile(waits, (50, 99))
        return cls(len(rows), float(waits.mean()), float(waits.std()), float(p50), float(p99))

    @property
    def limit_ms(self) -> float:
        """From here on a row counts as late."""
        return self.mean_ms + SIGMAS * self.sigma_ms


def drift_ms(rows: Departures) -> float:
    """How much later rows leave in the second half than in the first: beyond sigma, it was not steady."""
    half = len(rows) // 2
    return float(rows.latency_ms[half:].mean() - rows.latency_ms[:half].mean()) if half else 0.0


def disruption_ms(rows: Departures, limit_ms: float, since_s: float) -> float:
    """The time that ends with late rows: from one departure to the next, wherever a late row is in the next.

    A silence that ends with late rows counts whole, which windows of a fixed width would not see.
    """
    times, late = _by_moment(rows, limit_ms)
    if not len(times):
        return 0.0
    gaps = np.diff(times, prepend=min(since_s, times[0]))
    return float(gaps[late].sum() * 1000)


def stabilise_s(rows: Departures, limit_ms: float, since_s: float) -> float | None:
    """Until the last late row has left; 0 if none was late, None if latency was not back at the end."""
    times, late = _by_moment(rows, limit_ms)
    if not late.any():
        return 0.0
    return None if late[-1] else float(times[late][-1] - since_s)


def _by_moment(rows: Departures, limit_ms: float) -> tuple[Reals, npt.NDArray[np.bool_]]:
    """The moments at which rows left, and whether a late one was among them."""
    times, first = np.unique(rows.left_s, return_index=True)
    if not len(times):
        return times, np.zeros(0, np.bool_)
    return times, np.maximum.reduceat(rows.latency_ms, first) >= limit_ms


def peak_p99_ms(rows: Departures, since_s: float) -> float:
    """The greatest p99 of the windows of 100 ms in which rows left."""
    windows = np.floor((rows.left_s - since_s) / WINDOW_S)
    starts = np.flatnonzero(np.diff(windows, prepend=-np.inf))
    return max(
        (float(np.percentile(part, 99)) for part in np.split(rows.latency_ms, starts[1:]) if len(part)), default=0.0
    )


def interruption(rows: Departures, steady: Steady, since_s: float) -> dict[str, Any]:
    """What rows suffered that left after the request at `since_s`; None throughout if none left: that is not nothing."""
    if not len(rows):
        return dict.fromkeys(("disruption_ms", "peak_jitter_p99_ms", "peak_jitter_max_ms", "stabilise_s"))
    raw = float(rows.latency_ms.max())
    return {
        "disruption_ms": round(disruption_ms(rows, steady.limit_ms, since_s), 1),
        "peak_jitter_p99_ms": round(peak_p99_ms(rows, since_s) - steady.mean_ms, 1),
        "peak_jitter_max_ms": round(raw - steady.mean_ms, 1),
        "stabilise_s": _rounded(stabilise_s(rows, steady.limit_ms, since_s)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
