"""Latency along a run, in steps of 100 ms around the request: what a plot shows. Pure, like `measures`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np

from godwit.testing.latency import WINDOW_S, Departures

DIGITS: Final = 2


def timeline(departures: Departures, request_s: float, from_s: float, to_s: float) -> dict[str, Any]:
    """Rows that left and their latency, by step; `from_s` and `to_s` count from the request. None where no row left."""
    steps = round((to_s - from_s) / WINDOW_S)
    edges_s = request_s + from_s + np.arange(steps + 1) * WINDOW_S
    cuts = np.searchsorted(departures.left_s, edges_s, side="left")
    parts = [departures.latency_ms[first:stop] for first, stop in pairwise(cuts)]
    figures = [np.percentile(part, (50, 99, 100)).round(DIGITS).tolist() if len(part) else [None] * 3 for part in parts]
    return {
        "step_ms": round(WINDOW_S * 1000),
        "from_s": from_s,
        "rows": [len(part) for part in parts],
        **{name: [each[at] for each in figures] for at, name in enumerate(("p50_ms", "p99_ms", "max_ms"))},
    }
