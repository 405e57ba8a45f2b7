"""Loads that change with time, second by second: a step, a day of sine and spikes; and the hosts that an oracle would use.

The oracle knows every second beforehand and changes the number of hosts at once and for nothing. Its hosts work as much of
their time as the latency target allows. Knows nothing of Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

NIGHT: Final = 0.25  # of the day's highest
SPIKES: Final = (
    (0.22, 0.03, 0.25),
    (0.62, 0.04, 0.3),
)  # (when, how long, how much more), as parts of the day and its top


def step(calm_s: int, after_s: int, calm: float) -> list[float]:
    """So much of the full rate for so long, then all of it."""
    return [calm] * calm_s + [1.0] * after_s


def day(seconds: int) -> list[float]:
    """Low at night, high at noon, with spikes that no curve foretells; the highest second is 1."""
    levels = []
    for second in range(seconds):
        part = second / seconds
        level = NIGHT + (1.0 - NIGHT) * (0.5 - 0.5 * math.cos(2 * math.pi * part))
        level += sum(more for at, long, more in SPIKES if at <= part < at + long)
        levels.append(level)
    return [level / max(levels) for level in levels]


def oracle(rates: Iterable[float], true_rate: float, useful_max: float) -> list[int]:
    """The fewest hosts, second by second."""
    return [max(1, math.ceil(rate / (true_rate * useful_max) - 1e-9)) for rate in rates]


def host_seconds(changes: Sequence[tuple[float, int]], until_s: float) -> float:
    """From (second, hosts from then on)."""
    ends = [*changes, (until_s, 0)]
    return sum(hosts * (min(end, until_s) - min(begin, until_s)) for (begin, hosts), (end, _) in pairwise(ends))
