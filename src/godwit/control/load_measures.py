"""What hosts have measured, as decisions are made from it: instances, operators, and the metrics that rules name.

A metric is one number for an operator, or for all of them together; None where nothing is known yet. The number of hosts is
that of hosts which own something: those that are kept warm take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key and its part of the operator's rows, at least."""

    key: str
    hash: int
    host: str
    share: float


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """An instance lately. `useful`: the share of the time in which it worked; true rate: rows per second of that time."""

    useful: float = 0.0
    rows_per_s: float = 0.0
    true_rows_per_s: float | None = None
    wait_ms: float = 0.0
    state_bytes: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """`offered`: rows a second that come in, which is more than are applied when the query falls behind."""

    instances: Mapping[str, InstanceLoad]
    offered_rows_per_s: float | None = None
    hot: tuple[HotKey, ...] = ()  # the hottest first
    merges: bool = False  # whether many rows of a hot key may come as one, and count as one

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
        """Of one instance: the mean of all that have worked, weighted by how long they did."""
        known = [load for load in self.instances.values() if load.true_rows_per_s]
        useful = sum(load.useful for load in known)
        if not useful:
            return None
        return sum(load.useful * (load.true_rows_per_s or 0.0) for load in known) / useful

    @property
    def demand(self) -> float:
        """How many hosts' whole time it takes to keep up with what comes in; less than they work while they catch up."""
        true = self.true_rows_per_s
        if true is None or self.offered_rows_per_s is None:
            return self.useful
        return self.offered_rows_per_s / true

    def skew(self, hosts: int) -> float:
        """By how much the busiest host is above the mean, as a part of it."""
        mean = self.useful / hosts
        return max((load.useful for load in self.instances.values()), default=0.0) / mean - 1.0 if mean else 0.0

    def limiting_key(self) -> dict[str, Any] | None:
        """The key that most rows have. One host applies it, so the operator goes no faster than that host allows."""
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
    """All operators at one time. `hosts` are those that own something, `silent` those of them that gave no answer."""

    at_s: float
    hosts: tuple[str, ...]
    operators: Mapping[str, OperatorLoad] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def of(self, operator: str | None) -> list[OperatorLoad]:
        if operator is None:
            return list(self.operators.values())
        return [self.operators[operator]] if operator in self.operators else []

    def by_host(self, operator: str | None, what: Callable[[InstanceLoad], float]) -> list[float]:
        """A figure of each host, summed over the operators that are looked at; none if there are no such."""
        idle, looked_at = InstanceLoad(), self.of(operator)
        return [sum(what(one.instances.get(host, idle)) for one in looked_at) for host in self.hosts if looked_at]

    def demand(self, operator: str | None) -> float:
        """In hosts' whole time, without what a single key wants beyond the one host that it can have."""
        found = 0.0
        for one in self.of(operator):
            limit = one.limiting_key()
            found += one.demand - max(0.0, (limit["load"] if limit else 0.0) - 1.0)
        return found

    def most_skewed(self, operator: str | None) -> tuple[str, float] | None:
        names = [name for name in self.operators if operator in (None, name)]
        pairs = [(name, self.operators[name].skew(len(self.hosts))) for name in names]
        return max(pairs, key=lambda pair: pair[1], default=None)


Reading = Callable[[Sample, str | None], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """`spread`: whether it falls in proportion when hosts are added."""

    about: str
    of: Reading
    spread: bool = False


def _busiest(what: Callable[[InstanceLoad], float]) -> Reading:
    return lambda sample, operator: max(sample.by_host(operator, what), default=None)


def _useful_mean(sample: Sample, operator: str | None) -> float | None:
    found = sample.by_host(operator, lambda load: load.useful)
    return sum(found) / len(found) if found else None


def _load(sample: Sample, operator: str | None) -> float | None:
    return sample.demand(operator) / len(sample.hosts) if sample.hosts and sample.of(operator) else None


def _skew(sample: Sample, operator: str | None) -> float | None:
    found = sample.most_skewed(operator)
    return None if found is None else found[1]


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
    """A figure for people: three digits, and whole numbers where they are large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def numbered(values: Mapping[str, float | None]) -> Iterator[str]:
    yield from (f"{name} {shown(value)}" for name, value in values.items() if value is not None)
