"""In which order should lent keys be pushed? One link, keys of many sizes, rows that wait: `python -m tests.sim.orders`.

All keys are lent at once, with the rows that were waiting in front of the operator. The link sends one key at a time; rows
wait at the target until their key has come. Every order sees the same keys and the same rows; what it does with `Step`s is
what `push` does with them. Waiting is counted for all rows that had to wait. By-backlog is built for the least total; the
longest waits (p99) are a little shorter with an order that also looks at how long a key has been waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from godwit.migration.origin import Step
from godwit.migration.push import FRAME_BYTES, by_backlog
from godwit.model.units import Unit, Units

KEYS = 200
LOOKAHEAD_S = 0.05  # rows of so long a time wait already when the keys are lent
RATE_PER_S = 20_000.0  # of all keys together
BYTES_PER_S = 4_000_000.0
SIZE_MEDIAN_BYTES = 2_000
DRRS_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes and arrival times per key; times before 0 are of rows that wait already."""

    sizes: list[int]
    rates: list[float]
    arrivals: list[list[float]]


@dataclass(frozen=True, slots=True)
class Waiting:
    mean_ms: float
    p99_ms: float
    total_s: float


Choose = Callable[[Sequence[Step], float, Load], Step]


def load(seed: int, skew: float) -> Load:
    """`skew` 0 is uniform, otherwise the exponent of a Zipf law; sizes have nothing to do with rates."""
    dice = Random(seed)
    sizes = [max(64, int(SIZE_MEDIAN_BYTES * dice.lognormvariate(0.0, 1.0))) for _ in range(KEYS)]
    weights = [1 / (rank + 1) ** skew for rank in range(KEYS)]
    dice.shuffle(weights)
    rates = [RATE_PER_S * weight / sum(weights) for weight in weights]
    horizon_s = sum(size + FRAME_BYTES for size in sizes) / BYTES_PER_S
    return Load(sizes, rates, [_arrivals(dice, rate, horizon_s) for rate in rates])


def _arrivals(dice: Random, rate: float, horizon_s: float) -> list[float]:
    times, now_s = [], -LOOKAHEAD_S
    while (now_s := now_s + dice.expovariate(rate)) < horizon_s:
        times.append(now_s)
    return times


def push(load: Load, choose: Choose) -> Waiting:
    steps = [Step(key, Units.of(Unit("key", key)), size) for key, size in enumerate(load.sizes)]
    waits: list[float] = []
    now_s = 0.0
    while steps:
        for step in steps:
            times = load.arrivals[step.number]
            step.waiting_rows = bisect_right(times, now_s)
            step.waiting_since_s = times[0] if step.waiting_rows else None
        step = choose(steps, now_s, load)
        steps.remove(step)
        now_s += (step.size_bytes + FRAME_BYTES) / BYTES_PER_S
        times = load.arrivals[step.number]
        waits += [now_s - at_s for at_s in times[: bisect_right(times, now_s)]]
    waits.sort()
    return Waiting(1e3 * sum(waits) / len(waits), 1e3 * waits[ceil(0.99 * len(waits)) - 1], sum(waits))


# -- the orders ------------------------------------------------------------------------------------------------------


def by_hash(steps: Sequence[Step], now_s: float, load: Load) -> Step:
    return min(steps, key=lambda step: step.number * 2_654_435_761 % 2**32)


def by_arrival(steps: Sequence[Step], now_s: float, load: Load) -> Step:
    """The one that has been waited for longest."""
    return min(steps, key=lambda step: (step.waiting_since_s is None, step.waiting_since_s or 0.0))


def by_size(steps: Sequence[Step], now_s: float, load: Load) -> Step:
    return min(steps, key=lambda step: step.size_bytes)


def hot_first(steps: Sequence[Step], now_s: float, load: Load) -> Step:
    """By true rates, which a real origin can only estimate."""
    return max(steps, key=lambda step: load.rates[step.number])


def by_wait_and_weight(steps: Sequence[Step], now_s: float, load: Load) -> Step:
    """DRRS: half waiting time, half waiting rows by size, each against its greatest."""
    since = [now_s - step.waiting_since_s if step.waiting_since_s is not None else 0.0 for step in steps]
    weight = [step.waiting_rows / step.size_bytes for step in steps]
    since_max, weight_max = max(since) or 1.0, max(weight) or 1.0
    scores = [
        DRRS_WEIGHT * one / since_max + (1 - DRRS_WEIGHT) * other / weight_max
        for one, other in zip(since, weight, strict=True)
    ]
    return steps[max(range(len(steps)), key=scores.__getitem__)]


def by_smith(steps: Sequence[Step], now_s: float, load: Load) -> Step:
    return by_backlog(steps)


ORDERS: dict[str, Choose] = {
    "hash": by_hash,
    "arrival": by_arrival,
    "size": by_size,
    "hot-first": hot_first,
    "wait and weight": by_wait_and_weight,
    "by-backlog": by_smith,
}
SKEWS = {"uniform": 0.0, "Zipf 1.0": 1.0, "Zipf 1.25": 1.25, "Zipf 1.5": 1.5}


def compare(skew: float, seeds: int = 5) -> dict[str, Waiting]:
    found = {}
    for name, choose in ORDERS.items():
        runs = [push(load(seed, skew), choose) for seed in range(seeds)]
        found[name] = Waiting(
            sum(run.mean_ms for run in runs) / seeds,
            sum(run.p99_ms for run in runs) / seeds,
            sum(run.total_s for run in runs) / seeds,
        )
    return found


def main() -> None:
    print(f"{'traffic':10} {'order':16} {'mean ms':>8} {'p99 ms':>8} {'total s':>8}")
    for traffic, skew in SKEWS.items():
        for order, waiting in compare(skew).items():
            print(f"{traffic:10} {order:16} {waiting.mean_ms:8.1f} {waiting.p99_ms:8.1f} {waiting.total_s:8.1f}")


if __name__ == "__main__":
    main()
