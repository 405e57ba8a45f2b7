"""The measures of all hosts, gathered: as a sample for decisions, and as a report for people. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from godwit.control.load_measures import METRICS, HotKey, InstanceLoad, OperatorLoad, Sample
from godwit.control.offered_rate import offered
from godwit.errors import GodwitError
from godwit.runtime.messages import GetStatus
from godwit.spark.hosts.flock_parts import FlockParts
from godwit.spark.results.measures import HotKeyShare, InstanceMeasures, LimitingKey, Measures, MeasuresByOperator

Reports = dict[str, dict[str, Any]]  # the status reports of the instances of an operator, by host


class HostMeasures:
    def __init__(self, parts: FlockParts) -> None:
        self._hosts = parts.hosts
        self._members = parts.members
        self._tables = parts.tables

    def sample(self) -> Sample:
        """The measures of now, for a decision."""
        reports = self._reports()
        owning = self._owning()
        loads = {name: self._load(instances, owning) for name, instances in reports.items()}
        silent = tuple(host for host in owning if any(host not in instances for instances in reports.values()))
        return Sample(time.monotonic(), owning, loads, silent)

    def roster(self) -> tuple[int, int]:
        """The number of hosts that own something, and the number of empty ones."""
        owning = len(self._owning())
        return owning, len(self._members.hosts()) - owning

    def _owning(self) -> tuple[str, ...]:
        return tuple(host for host in self._members.hosts() if self._tables.owned(host))

    def by_operator(self) -> MeasuresByOperator:
        """For people: the metrics of each operator, and the figures of each of its instances."""
        reports = self._reports()
        owning = self._owning()
        return MeasuresByOperator((name, self._shown(name, instances, owning)) for name, instances in reports.items())

    def _reports(self) -> dict[str, Reports]:
        """By operator and host; a host that is down is left out."""
        reports: dict[str, Reports] = {name: {} for name in self._tables.names()}
        for host in self._members.hosts():
            try:
                answer = self._hosts.ask_now(host, GetStatus())
            except GodwitError:
                continue
            for instance in answer.instances:
                if instance["instance"] in reports:
                    reports[instance["instance"]][host] = instance
        return reports

    def _load(self, reports: Reports, owning: Sequence[str]) -> OperatorLoad:
        of_owners = {host: reports[host] for host in owning if host in reports}
        merges = any(report.get("merges") for report in of_owners.values())
        instances = {host: _instance_load(report) for host, report in of_owners.items()}
        return OperatorLoad(instances, _offered_rate(of_owners), _hot_keys(of_owners), merges)

    def _shown(self, operator: str, reports: Reports, owning: Sequence[str]) -> Measures:
        load = self._load(reports, owning)
        sample = Sample(0.0, tuple(owning), {operator: load})
        metrics = {name: metric.of(sample, operator) for name, metric in METRICS.items()}
        limiting = load.limiting_key()
        return Measures(
            **metrics,
            true_rows_per_s=load.true_rows_per_s,
            offered_rows_per_s=load.offered_rows_per_s,
            hot_keys=tuple(HotKeyShare(key=hot.key, host=hot.host, share=round(hot.share, 4)) for hot in load.hot),
            limiting_key=None if limiting is None else LimitingKey(**limiting),
            hosts={host: _instance_measures(report) for host, report in reports.items()},
        )


def _instance_load(report: Mapping[str, Any]) -> InstanceLoad:
    short, long = report["gauges"]["short"], report["gauges"]["long"]
    true = short["true_rows_per_s"] or long["true_rows_per_s"]
    return InstanceLoad(short["useful"], short["rows_per_s"], true, short["wait_ms"], report["bytes"], report["keys"])


def _offered_rate(reports: Reports) -> float | None:
    """Rows a second that come in to all instances. An idle instance does not count: its last batches may be old."""
    working = [report["batches"] for report in reports.values() if report["gauges"]["short"]["useful"] > 0]
    return offered(working) if working else 0.0


def _instance_measures(report: Mapping[str, Any]) -> InstanceMeasures:
    keys = tuple({**hot, "key": _key_text(hot["key"])} for hot in report["gauges"]["hot"]["keys"])
    lately = {"last_5_s": report["gauges"]["short"], "last_60_s": report["gauges"]["long"]}
    return InstanceMeasures(keys=report["keys"], state_bytes=report["bytes"], **lately, hot_keys=keys)


def _hot_keys(reports: Reports) -> tuple[HotKey, ...]:
    """The hot keys of all hosts. Two hosts have counted a key that moved lately; the host with more of its rows counts."""
    rows = sum(report["gauges"]["hot"]["rows"] for report in reports.values())
    counts: dict[int, list[tuple[int, str, str]]] = {}
    for host, report in reports.items():
        for hot in report["gauges"]["hot"]["keys"]:
            counts.setdefault(hot["hash"], []).append((hot["rows_at_least"], host, _key_text(hot["key"])))
    keys = [
        HotKey(max(places)[2], hash_, max(places)[1], sum(count for count, *_ in places) / rows)
        for hash_, places in counts.items()
    ]
    return tuple(sorted(keys, key=lambda key: -key.share)[:8])


def _key_text(key: Sequence[Any]) -> str:
    return ", ".join(map(str, key))
