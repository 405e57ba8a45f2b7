"""What a flock's hosts have measured, gathered, for people and for those who decide. What follows is decided elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from godwit.control.load_measures import METRICS, HotKey, InstanceLoad, OperatorLoad, Sample
from godwit.control.offered_rate import offered
from godwit.errors import GodwitError
from godwit.runtime.messages import GetStatus
from godwit.spark.hosts.host_jobs import Hosts
from godwit.spark.hosts.membership import Membership
from godwit.spark.hosts.owner_tables import OwnerTables

Told = dict[str, dict[str, Any]]  # what instances of an operator say, by host


class HostMeasures:
    def __init__(self, hosts: Hosts, members: Membership, owners: OwnerTables) -> None:
        self._hosts = hosts
        self._members = members
        self._owners = owners

    def sample(self) -> Sample:
        """As of now, for a decision."""
        told = self._ask()
        owning = self._owning()
        found = {name: self._load(name, instances, owning) for name, instances in told.items()}
        silent = tuple(host for host in owning if any(host not in instances for instances in told.values()))
        return Sample(time.monotonic(), owning, found, silent)

    def roster(self) -> tuple[int, int]:
        """How many hosts own something, and how many are started and empty."""
        owning = len(self._owning())
        return owning, len(self._members.hosts()) - owning

    def _owning(self) -> tuple[str, ...]:
        return tuple(host for host in self._members.hosts() if self._owners.owned(host))

    def told(self) -> dict[str, Any]:
        """For people: each operator's metrics, and what each of its instances says."""
        told = self._ask()
        owning = self._owning()
        return {name: self._shown(name, instances, owning) for name, instances in told.items()}

    def _ask(self) -> dict[str, Told]:
        """By operator and host; a host that is away is left out."""
        found: dict[str, Told] = {name: {} for name in self._owners.names()}
        for host in self._members.hosts():
            try:
                answer = self._hosts.ask_now(host, GetStatus())
            except GodwitError:
                continue
            for instance in answer.instances:
                if instance["instance"] in found:
                    found[instance["instance"]][host] = instance
        return found

    def _load(self, operator: str, told: Told, owning: Sequence[str]) -> OperatorLoad:
        here = {host: told[host] for host in owning if host in told}
        merges = any(one.get("merges") for one in here.values())
        return OperatorLoad({host: _instance(one) for host, one in here.items()}, _offered(here), _hot(here), merges)

    def _shown(self, operator: str, told: Told, owning: Sequence[str]) -> dict[str, Any]:
        load = self._load(operator, told, owning)
        sample = Sample(0.0, tuple(owning), {operator: load})
        metrics = {name: metric.of(sample, operator) for name, metric in METRICS.items()}
        return {
            **metrics,
            "true_rows_per_s": load.true_rows_per_s,
            "offered_rows_per_s": load.offered_rows_per_s,
            "hot_keys": [{"key": hot.key, "host": hot.host, "share": round(hot.share, 4)} for hot in load.hot],
            "limiting_key": load.limiting_key(),
            "hosts": {host: _line(instance) for host, instance in told.items()},
        }


def _instance(told: Mapping[str, Any]) -> InstanceLoad:
    short, long = told["gauges"]["short"], told["gauges"]["long"]
    true = short["true_rows_per_s"] or long["true_rows_per_s"]
    return InstanceLoad(short["useful"], short["rows_per_s"], true, short["wait_ms"], told["bytes"], told["keys"])


def _offered(told: Told) -> float | None:
    """What comes in, of all instances. One that does not work is offered nothing: its last batches may have been long ago."""
    working = [one["batches"] for one in told.values() if one["gauges"]["short"]["useful"] > 0]
    return offered(working) if working else 0.0


def _line(told: Mapping[str, Any]) -> dict[str, Any]:
    keys = [{**hot, "key": _name(hot["key"])} for hot in told["gauges"]["hot"]["keys"]]
    lately = {"last_5_s": told["gauges"]["short"], "last_60_s": told["gauges"]["long"]}
    return {"keys": told["keys"], "state_bytes": told["bytes"], **lately, "hot_keys": keys}


def _hot(told: Told) -> tuple[HotKey, ...]:
    """Heavy keys of all hosts. One that moved lately was counted in two places, and is now where it has most."""
    rows = sum(instance["gauges"]["hot"]["rows"] for instance in told.values())
    found: dict[int, list[tuple[int, str, str]]] = {}
    for host, instance in told.items():
        for hot in instance["gauges"]["hot"]["keys"]:
            found.setdefault(hot["hash"], []).append((hot["rows_at_least"], host, _name(hot["key"])))
    keys = [
        HotKey(max(places)[2], hash_, max(places)[1], sum(count for count, *_ in places) / rows)
        for hash_, places in found.items()
    ]
    return tuple(sorted(keys, key=lambda key: -key.share)[:8])


def _name(key: Sequence[Any]) -> str:
    return ", ".join(map(str, key))
