"""The measures from which decisions are made: of instances, of operators, and the metrics that rules name.

A metric is one number for an operator, or for all operators together; None if nothing is known yet. Only hosts that own
something count: warm hosts, which are empty, do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HotKey:
    """A hot key. `share`: its part of the operator's rows, at least."""

    key: str
    hash: int
    host: str
    share: float


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """Recent figures of an instance. `useful`: the share of time in which it worked; true rate: rows per second of it."""

    useful: float = 0.0
    rows_per_s: float = 0.0
    true_rows_per_s: float | None = None
    wait_ms: float = 0.0
    state_bytes: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """`offered_rows_per_s`: rows that come in; more than are applied while the query falls behind."""

    instances: Mapping[str, InstanceLoad]
    offered_rows_per_s: float | None = None
    hot: tuple[HotKey, ...] = ()  # the hottest first
    merges: bool = False  # whether many rows of a hot key are merged into one, and count as one

    @property
    def rows_per_s(self) -> float:
        return sum(load.rows_per_s for load in self.instances.values())

    @property
    def useful(self) -> float:
        return sum(load.useful for load in self.instances.values())

    @property
    def state_bytes(self) -> int:
        return sum(load.state_bytes for load in self.instances.values())

    @property
    def true_rows_per_s(self) -> float | None:
        """The mean true rate of the instances that have worked, weighted by their useful time."""
        known = [load for load in self.instances.values() if load.true_rows_per_s]
        useful = sum(load.useful for load in known)
        if not useful:
            return None
        return sum(load.useful * (load.true_rows_per_s or 0.0) for load in known) / useful

    @property
    def demand(self) -> float:
        """The number of hosts whose whole time is needed to keep up with the rows that come in."""
        true = self.true_rows_per_s
        if true is None or self.offered_rows_per_s is None:
            return self.useful
        return self.offered_rows_per_s / true

    def skew(self, hosts: int) -> float:
        """How far the busiest host is above the mean, as a part of the mean."""
        mean = self.useful / hosts
        return max((load.useful for load in self.instances.values()), default=0.0) / mean - 1.0 if mean else 0.0

    def limiting_key(self) -> dict[str, Any] | None:
        """The hottest key. One host applies all its rows, which limits the rate of the operator."""
        true = self.true_rows_per_s
        if not self.hot or true is None or not self.hot[0].share:
            return None
        key = self.hot[0]
        offered = max(self.offered_rows_per_s or 0.0, self.rows_per_s)
        return {
            "key": key.key,
            "host": key.host,
            "share": round(key.share, 4),
            "load": round(key.share * offered / true, 4),  # of a host's time
            "rows_per_s_max": round(true / key.share),
            "merge": "declared" if self.merges else "not declared",
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """All operators at one time. `hosts`: the hosts that own something; `silent`: those of them that gave no answer."""

    at_s: float
    hosts: tuple[str, ...]
    operators: Mapping[str, OperatorLoad] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def of(self, operator: str | None) -> list[OperatorLoad]:
        if operator is None:
            return list(self.operators.values())
        return [self.operators[operator]] if operator in self.operators else []

    def by_host(self, operator: str | None, what: Callable[[InstanceLoad], float]) -> list[float]:
        """A figure of each host, summed over the operators; empty if there is no operator."""
        idle, looked_at = InstanceLoad(), self.of(operator)
        return [sum(what(one.instances.get(host, idle)) for one in looked_at) for host in self.hosts if looked_at]

    def demand(self, operator: str | None) -> float:
        """The needed number of hosts, without the load of a single key beyond the one host that can apply it."""
        demand = 0.0
        for one in self.of(operator):
            limit = one.limiting_key()
            demand += one.demand - max(0.0, (limit["load"] if limit else 0.0) - 1.0)
        return demand

    def most_skewed(self, operator: str | None) -> tuple[str, float] | None:
        names = [name for name in self.operators if operator in (None, name)]
        pairs = [(name, self.operators[name].skew(len(self.hosts))) for name in names]
        return max(pairs, key=lambda pair: pair[1], default=None)


Reading = Callable[[Sample, str | None], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """`spread`: whether the metric falls in proportion to the number of hosts."""

    about: str
    of: Reading
    spread: bool = False


def _busiest(what: Callable[[InstanceLoad], float]) -> Reading:
    return lambda sample, operator: max(sample.by_host(operator, what), default=None)


def _useful_mean(sample: Sample, operator: str | None) -> float | None:
    values = sample.by_host(operator, lambda load: load.useful)
    return sum(values) / len(values) if values else None


def _load(sample: Sample, operator: str | None) -> float | None:
    return sample.demand(operator) / len(sample.hosts) if sample.hosts and sample.of(operator) else None


def _skew(sample: Sample, operator: str | None) -> float | None:
    most = sample.most_skewed(operator)
    return None if most is None else most[1]


def _hot_share(sample: Sample, operator: str | None) -> float | None:
    shares = [one.hot[0].share * len(sample.hosts) for one in sample.of(operator) if one.hot]
    return max(shares, default=None)


def _rows_per_s(sample: Sample, operator: str | None) -> float | None:
    return sum(one.rows_per_s for one in sample.of(operator))


METRICS: Mapping[str, Metric] = {
    "useful": Metric("share of its time in which the busiest host works", _busiest(lambda load: load.useful), True),
    "useful_mean": Metric("share of their time in which hosts work, on average", _useful_mean, True),
    "load": Metric("share of their time that hosts would need to keep up with what comes in", _load, True),
    "wait_ms": Metric("how long chunks wait for the busiest instance", _busiest(lambda load: load.wait_ms)),
    "state_bytes": Metric("state of the fullest host", _busiest(lambda load: float(load.state_bytes)), True),
    "keys": Metric("keys of the fullest host", _busiest(lambda load: float(load.keys)), True),
    "skew": Metric("how far the busiest host is above the mean, as a part of it", _skew),
    "hot_share": Metric("rows of the hottest key, as a part of a host's even share", _hot_share),
    "rows_per_s": Metric("rows a second, of all hosts together", _rows_per_s),
}


def shown(value: float) -> str:
    """A figure for people: three digits, or a whole number if it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def numbered(values: Mapping[str, float | None]) -> Iterator[str]:
    yield from (f"{name} {shown(value)}" for name, value in values.items() if value is not None)
