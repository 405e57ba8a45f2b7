"""One migration under load: warm-up, a steady part to compare with, the request, and what happened to rows after it.

The results of the query can be checked (`workloads`), so the same run also says whether a row was lost, doubled or put out of
order. `sideways` moves groups to the last host, as many from each other host. `scale-out` moves to new hosts what an even
spread gives them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import godwit
from benchmarks.experiments.phases import spans_of
from benchmarks.inside.names import Migration
from benchmarks.running.measures import rate_of
from benchmarks.running.memory import CpuTime, Memory
from benchmarks.running.realtime import Feed, RealTime
from benchmarks.running.scratch import scratch
from benchmarks.running.settings import GROUPS, RESTART, STANDBY, START_S, Settings
from benchmarks.running.timeline import timeline
from benchmarks.running.triggers import REAL_TIME
from benchmarks.running.watch import Watch
from benchmarks.workloads import LANES, NAME, computation
from godwit.errors import GodwitError
from godwit.testing import open_loop
from godwit.testing.latency import Steady, drift_ms, interruption, peak_p99_ms
from godwit.workload import Workload

SHOWN_BEFORE_S: Final = 5.0
CAPACITY_BATCH_ROWS: Final = 50_000
CAPACITY_BATCHES: Final = 12
CAPACITY_WARM_UP: Final = 4

COSTS: Final = {  # by the report's name, by ours
    "reconfiguration_s": "reconfiguration_s",
    "keys": "keys_moved",
    "bytes": "bytes_moved",
    "rows_sent_twice": "rows_sent_twice",
    "bytes_sent_twice": "bytes_sent_twice",
    "groups_moved": "groups_moved",
    "groups_minimum": "groups_minimum",
    "outcome": "outcome",
    "phases": "phases",
}


def slots(settings: Settings) -> int:
    """Task slots: one for each host, one for each lane, one to spare for looking at state."""
    return settings.hosts_after + LANES + 1


# -- capacity --------------------------------------------------------------------------------------------------------


def capacity(spark: SparkSession, settings: Settings, watch: Watch) -> float:
    """Rows of the source a second when nothing but the query itself holds them back."""
    watch.phase("measuring capacity")
    rows = CAPACITY_BATCHES * CAPACITY_BATCH_ROWS
    options = {"rows_per_second": 0, "rows_per_batch": CAPACITY_BATCH_ROWS, "rows": rows, **shape(settings)}
    outputs = computation(settings).output_count(_workload(options))
    with (
        scratch() as directory,
        godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit") as flock,
    ):
        running = open_loop.Running(operator_frame(spark, flock, settings, options), f"{directory}/spark")
        running.wait_rows(outputs, lambda seen: watch.rows(seen, outputs))
        running.finish()
    return rate_of(running.arrivals.batches(), CAPACITY_WARM_UP) * rows / outputs


# -- one run ---------------------------------------------------------------------------------------------------------


def measure(spark: SparkSession, settings: Settings, rate: int, watch: Watch) -> dict[str, Any]:
    """All figures of one run, with the settings it had."""
    with (
        scratch() as directory,
        godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit") as flock,
    ):
        return _Run(spark, flock, directory, settings, rate, watch).figures()


class _Run:
    def __init__(
        self, spark: SparkSession, flock: godwit.Flock, directory: str, settings: Settings, rate: int, watch: Watch
    ) -> None:
        self._spark, self._flock, self._settings, self._watch = spark, flock, settings, watch
        self._rows = int(rate * (START_S + settings.warm_up_s + settings.steady_s + settings.watched_s))
        options = {"rows_per_second": rate, "rows": self._rows, **shape(settings)}
        self._workload = _workload(options)
        self._computation = computation(settings)
        self._outputs = self._computation.output_count(self._workload)
        watch.phase("filling state")
        self._running = self._started(f"{directory}/spark", options)

    def _started(self, checkpoint: str, options: dict[str, Any]) -> open_loop.Running:
        spark, settings = self._spark, self._settings
        if settings.trigger == REAL_TIME:
            feed = Feed(spark, self._workload)
            return RealTime(operated(spark, self._flock, settings, feed.frame), feed, LANES, checkpoint)
        return open_loop.Running(operator_frame(spark, self._flock, settings, options), checkpoint, settings.trigger_ms)

    def figures(self) -> dict[str, Any]:
        with Memory(self._pids) as memory, CpuTime() as cpu:
            requested_s, ended_s, report = self._go_through()
        rows = self._running.arrivals.rows()
        departures = self._running.departures(rows)
        steady_from_s = requested_s - self._settings.steady_s
        before = departures.between(steady_from_s, requested_s)
        steady = Steady.of(before)
        self._watch.phase("checking")
        return {
            **asdict(self._settings),
            **{f"steady_{name}": _short(value) for name, value in asdict(steady).items()},
            "steady_drift_ms": _short(drift_ms(before)),
            "steady_peak_jitter_p99_ms": _short(peak_p99_ms(before, steady_from_s) - steady.mean_ms),
            **interruption(departures.between(requested_s), steady, requested_s),
            **_stall(report),
            **{ours: report[name] for name, ours in COSTS.items()},
            "extra_memory_bytes_max": memory.peak_bytes(requested_s, ended_s + 1.0)
            - memory.peak_bytes(steady_from_s, requested_s),
            "cpu_s": _short(cpu.used_s(requested_s, ended_s, steady_from_s)),
            "load_outlasted_it": bool(ended_s < open_loop.column(rows, "due").max() / 1e6),
            "rows": self._rows,
            **self._computation.exactness(self._workload, rows, self._flock.state(NAME)),
            "timeline": timeline(departures, requested_s, -SHOWN_BEFORE_S, self._settings.watched_s),
            "spans": spans_of(report),
        }

    def _go_through(self) -> tuple[float, float, dict[str, Any]]:
        """When the migration was asked for, when it had ended, and its report."""
        running, settings = self._running, self._settings
        self._watch.phase("warming up")
        running.wait_rows(1, self._show)
        running.wait_settled(running.started_s() + START_S, self._show)
        steady_s = time.time() + settings.warm_up_s
        if settings.protocol == STANDBY:
            self._flock.standby(NAME, to=self._target(), groups=self._groups(), progress=False)
        running.wait_until(steady_s, self._show)
        self._watch.phase("steady")
        running.wait_until(steady_s + settings.steady_s, self._show)
        self._watch.phase(f"moving ({settings.protocol})")
        requested_s = time.time()
        migration = self._request()
        with suppress(GodwitError):  # that it failed is one of the figures
            migration.wait()
        ended_s = time.time()
        self._watch.phase("after")
        running.wait_rows(self._outputs, self._show)
        running.finish()
        return requested_s, ended_s, migration.report().to_dict()

    def _request(self) -> Migration:
        settings = self._settings
        how: dict[str, Any] = {"protocol": settings.protocol, "order": settings.order, "wait": False}
        if settings.link_bytes_per_s:
            how["rate_bytes_per_s"] = settings.link_bytes_per_s
        if settings.protocol == RESTART:
            how["restart"] = self._running.start
        if settings.target == "scale-out":
            return self._flock.scale(settings.hosts_after, **how)
        return self._flock.move(NAME, groups=self._groups(), to=self._target(), **how)

    def _target(self) -> str:
        return f"host-{self._settings.hosts - 1}"

    def _groups(self) -> list[int]:
        """So many of all groups, from all hosts but the target alike."""
        return sideways(self._settings.fraction, self._settings.hosts, GROUPS)

    def _pids(self) -> list[int]:
        hosts: dict[str, Any] = self._flock.status()["hosts"]
        return [host["pid"] for host in hosts.values() if "pid" in host]

    def _show(self, seen: int) -> None:
        self._watch.rows(seen, self._outputs)


def sideways(fraction: float, hosts: int, groups: int) -> list[int]:
    """Groups to move to the last host: as many of each other one, which begin as contiguous even ranges."""
    from_host = [[group for group in range(groups) if group * hosts // groups == host] for host in range(hosts - 1)]
    wanted = round(fraction * groups)
    each = [wanted * (at + 1) // len(from_host) - wanted * at // len(from_host) for at in range(len(from_host))]
    return [group for owned, count in zip(from_host, each, strict=True) for group in owned[:count]]


def _workload(options: dict[str, Any]) -> Workload:
    return Workload.from_options({name: str(value) for name, value in options.items()})


def shape(settings: Settings) -> dict[str, Any]:
    return computation(settings).options()


def operator_frame(spark: SparkSession, flock: godwit.Flock, settings: Settings, options: dict[str, Any]) -> DataFrame:
    return operated(spark, flock, settings, open_loop.source(spark, options))


def operated(spark: SparkSession, flock: godwit.Flock, settings: Settings, rows: DataFrame) -> DataFrame:
    return computation(settings).operated(spark, flock, rows)


def _stall(report: dict[str, Any]) -> dict[str, Any]:
    """Over the rows of moving keys that waited in a host."""
    return {f"stall_{name}": value for name, value in report["stall"].items()}


def _short(value: float) -> float:
    return value if isinstance(value, int) else round(value, 2)
