"""What `Flock.measures()` returns for each operator: how much its hosts have to do, and which keys are hot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from godwit.spark.results.result_record import ResultRecord, aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeyShare(ResultRecord):
    """A hot key. `share`: its part of the operator's rows, at least."""

    key: str
    host: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitingKey(ResultRecord):
    """The hottest key. `load`: the part of a host's time that it needs; `rows_per_s_max`: of the operator, with this key."""

    key: str
    host: str
    share: float
    load: float
    rows_per_s_max: int
    merge: Literal["declared", "not declared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMeasures(ResultRecord):
    """An operator on one host, lately. The windows have useful, rows_per_s, true_rows_per_s, wait_ms and wait_ms_max."""

    keys: int
    state_bytes: int
    last_5_s: Mapping[str, float | None]
    last_60_s: Mapping[str, float | None]
    hot_keys: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Measures(ResultRecord):
    """An operator. The metrics have the names that rules use; docs/elasticity.md explains them."""

    useful: float | None
    useful_mean: float | None
    load: float | None
    wait_ms: float | None
    state_bytes: float | None
    keys: float | None
    skew: float | None
    hot_share: float | None
    rows_per_s: float | None
    true_rows_per_s: float | None
    offered_rows_per_s: float | None
    hot_keys: tuple[HotKeyShare, ...]
    limiting_key: LimitingKey | None
    hosts: Mapping[str, InstanceMeasures]

    def __repr__(self) -> str:
        metrics = [name for name in self if name not in ("hot_keys", "limiting_key", "hosts")]
        lines = aligned(("metric", "value"), [(name, self[name]) for name in metrics])
        rows = [(name, host.keys, host.state_bytes, *_recent(host)) for name, host in self.hosts.items()]
        lines += aligned(("host", "keys", "state bytes", "useful", "rows/s", "wait ms"), rows)
        if self.hot_keys:
            lines += aligned(("hot key", "host", "share"), [(hot.key, hot.host, hot.share) for hot in self.hot_keys])
        return "\n".join(lines)


class MeasuresByOperator(dict[str, Measures]):
    """The measures of all operators, by name, with a text that can be read."""

    def __repr__(self) -> str:
        return "\n\n".join(f"operator {name}\n{measures!r}" for name, measures in self.items()) or "no operators yet"


def _recent(host: InstanceMeasures) -> tuple[float | None, ...]:
    return tuple(host.last_5_s.get(name) for name in ("useful", "rows_per_s", "wait_ms"))
