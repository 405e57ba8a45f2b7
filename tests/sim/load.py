"""A flock as a queue: rows come, hosts work them off, changes take time. What the decider is tried on.

Second by second. A host does `true_rate` rows a second. Rows that are not worked off wait. Latency grows as in a single-server
queue, 1 / (1 - share of the time in use), and by the time that the backlog takes. While keys move, hosts do less. Measures are
means of the last seconds, as hosts give them, so they lag behind.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.elasticity.curves import day, oracle
from godwit.control.load_measures import InstanceLoad, OperatorLoad, Sample
from godwit.control.rules import bottleneck, idle, sizing
from godwit.control.scaling_decisions import Decision, ScalingDecider

WINDOW_S = 5
OFFERED_S = 2
BASE_S = 0.05  # a row's latency on a flock that has nothing else to do
MOVING = 0.9  # of what hosts can do is left while keys move


@dataclass
class Second:
    """What one second was like."""

    rate: float
    hosts: int
    useful: float
    latency_s: float


@dataclass
class Flock:
    """`change_s`: how long a change takes, from the decision until the new hosts work."""

    decider: ScalingDecider
    hosts: int
    true_rate: float = 1000.0
    change_s: int = 2
    state_bytes: int = 10_000_000
    backlog: float = 0.0
    second: int = 0
    wanted: int = 0
    ready_at: int = -1
    lately: deque[Second] = field(default_factory=lambda: deque(maxlen=WINDOW_S))
    past: list[Second] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def run(self, rates: Iterable[float]) -> Flock:
        for rate in rates:
            self._work(rate)
            self._decide()
            self.second += 1
        return self

    @property
    def moving(self) -> bool:
        return self.ready_at > self.second

    def _work(self, rate: float) -> None:
        if self.ready_at == self.second:
            self.hosts = self.wanted
        can = self.hosts * self.true_rate * (MOVING if self.moving else 1.0)
        worked = min(can, self.backlog + rate)
        self.backlog += rate - worked
        useful = worked / can
        latency_s = BASE_S / max(1.0 - useful, 0.01) + self.backlog / can
        seen = Second(rate, self.hosts, useful, latency_s)
        self.lately.append(seen)
        self.past.append(seen)

    def _decide(self) -> None:
        decision = self.decider.tick(self.sample(), self.moving)
        if decision is not None:
            self.decisions.append(decision)
            self.wanted, self.ready_at = decision.hosts, self.second + self.change_s

    def sample(self) -> Sample:
        names = tuple(f"host-{at}" for at in range(self.hosts))
        lately = list(self.lately)
        useful = sum(one.useful for one in lately) / len(lately)
        offered = sum(one.rate for one in lately[-OFFERED_S:]) / len(lately[-OFFERED_S:])
        each = InstanceLoad(
            useful=useful,
            rows_per_s=useful * self.true_rate,
            true_rows_per_s=self.true_rate if useful else None,
            state_bytes=self.state_bytes // self.hosts,
        )
        return Sample(float(self.second), names, {"count": OperatorLoad(dict.fromkeys(names, each), offered)})

    # -- what came of it ---------------------------------------------------------------------------------------------

    def host_seconds(self) -> int:
        """A host that is on its way counts from the decision on: it has been started."""
        going = {d.at_s: d.hosts - d.hosts_before for d in self.decisions if d.hosts > d.hosts_before}
        starting = sum(more * self.change_s for more in going.values())
        return sum(second.hosts for second in self.past) + starting

    def held(self, target_s: float) -> float:
        """The share of seconds in which the latency target was held."""
        return sum(second.latency_s <= target_s for second in self.past) / len(self.past)

    def sizes(self) -> list[int]:
        return [decision.hosts for decision in self.decisions]

    def reversals(self, within_s: float) -> int:
        """Changes that undo the one before them, soon after it."""
        steps = [(decision.hosts - decision.hosts_before, decision.at_s) for decision in self.decisions]
        return sum(a * b < 0 and then_s - at_s < within_s for (a, at_s), (b, then_s) in pairwise(steps))


# -- side by side ----------------------------------------------------------------------------------------------------

USEFUL_MAX = 0.85  # of its time, at which a host just holds the target
TARGET_S = BASE_S / (1 - USEFUL_MAX) + 1e-9


def sine(low: float, high: float, period_s: int, periods: int) -> list[float]:
    waves = (0.5 - 0.5 * math.cos(2 * math.pi * at / period_s) for at in range(period_s * periods))
    return [low + (high - low) * wave for wave in waves]


LOADS: dict[str, list[float]] = {
    "step": [500.0] * 100 + [3000.0] * 300 + [500.0] * 400,
    "sine": sine(500, 3000, 600, 3),
    "day": [10_000 * level for level in day(1440)],
}
RULES = {"sizing": sizing(), "one by one": [bottleneck(), idle()]}


def compared(load: str, rules: str) -> str:
    """A line of the table in the design note."""
    rates = LOADS[load]
    best = oracle(rates, 1000.0, USEFUL_MAX)
    run = Flock(ScalingDecider(RULES[rules], 1, 30), best[0]).run(rates)
    exact = sum(a != b for a, b in pairwise(best))
    held, ratio = 100 * run.held(TARGET_S), run.host_seconds() / sum(best)
    return f"| {load} | {rules} | {len(run.decisions)} | {exact} | {held:.1f} % | {ratio:.2f} |"


if __name__ == "__main__":
    print("\n".join(compared(load, rules) for load in LOADS for rules in RULES))
