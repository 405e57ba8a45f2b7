"""What a protocol costs in real time while nothing moves: processor time, bytes between hosts, memory, latency.

The ways are those of `costs`. There the query goes at full speed and rows a second are compared. Here all ways get the same
rows at the same rate, from Kafka to Kafka, and what they take for these rows is compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

import psutil
from pyspark.sql import SparkSession

import godwit
from benchmarks.experiments.costs import Copies, Way, streams_between
from benchmarks.experiments.passing import cpu_s, latencies
from benchmarks.inside.switched_off import without_ownership
from benchmarks.running.realtime import Feed, RealTime
from benchmarks.running.scratch import scratch
from benchmarks.running.settings import START_S, Settings
from benchmarks.running.triggers import REAL_TIME
from benchmarks.running.watch import Watch
from benchmarks.workloads import LANES, NAME, computation
from godwit.errors import DefinitionError
from godwit.workload import Workload

WARM_UP_S: Final = 4.0
MORE_S: Final = 3.0  # of rows, so that the load outlasts what is measured though copies take time to be made


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    way: Way = "at-rest"
    keys: int = 10_000
    state_bytes: int = 1_024
    hosts: int = 2
    rate: int = 4_000
    steady_s: float = 15.0
    seed: int = 0

    def checked(self) -> LoadedSettings:
        if self.way not in get_args(Way):
            raise DefinitionError(f"the way must be one of {', '.join(get_args(Way))}")
        if min(self.rate, self.steady_s) <= 0 or self.hosts < 2:
            raise DefinitionError("rate and seconds must be over 0, hosts 2 or more")
        self.query().checked()
        return self

    @property
    def slots(self) -> int:
        return self.hosts + LANES + 1

    @property
    def rows(self) -> int:
        return int(self.rate * (START_S + WARM_UP_S + self.steady_s + MORE_S))

    def query(self) -> Settings:
        return Settings(
            keys=self.keys,
            state_bytes=self.state_bytes,
            hosts=self.hosts,
            rate=self.rate,
            trigger=REAL_TIME,
            seed=self.seed,
        )


def measure(spark: SparkSession, settings: LoadedSettings, watch: Watch) -> dict[str, Any]:
    with ExitStack() as stack:
        if settings.way == "no-support":
            stack.enter_context(without_ownership())
        directory = stack.enter_context(scratch())
        flock = stack.enter_context(godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit"))
        return {**asdict(settings), **_figures(spark, flock, settings, f"{directory}/spark", watch)}


def _figures(
    spark: SparkSession, flock: godwit.Flock, settings: LoadedSettings, checkpoint: str, watch: Watch
) -> dict[str, Any]:
    work = computation(settings.query())
    options = {"rows_per_second": settings.rate, "rows": settings.rows, **work.options()}
    workload = Workload.from_options({name: str(value) for name, value in options.items()})
    watch.phase("filling state")
    feed = Feed(spark, workload)
    running = RealTime(work.operated(spark, flock, feed.frame), feed, LANES, checkpoint)
    show = lambda seen: watch.rows(seen, workload.end)  # noqa: E731
    watch.phase("warming up")
    running.wait_rows(1, show)
    running.wait_settled(running.started_s() + START_S, show)
    copies = Copies(flock, settings.hosts) if settings.way == "standby" else None
    stood_s = time.time()
    running.wait_until(stood_s + WARM_UP_S, show)
    watch.phase("steady")
    hosts: dict[str, Any] = flock.status()["hosts"]
    from_s, before_s = time.time(), cpu_s()
    running.wait_until(from_s + settings.steady_s, show)
    to_s, after_s = time.time(), cpu_s()
    rest = {
        "cores_used": round((after_s - before_s) / (to_s - from_s), 3),
        "rest_bytes_per_s": sent_per_s(copies, hosts, stood_s),
        "rest_memory_bytes": _resident(host["pid"] for host in hosts.values()),
    }
    running.wait_rows(workload.end, show)
    rows = running.arrivals.rows()
    running.finish()
    watch.phase("checking")
    return {
        **latencies(running.departures(rows).between(from_s, to_s).latency_ms),
        **rest,
        "rows": workload.end,
        **work.exactness(workload, rows, flock.state(NAME)),
    }


def sent_per_s(copies: Copies | None, hosts: dict[str, Any], stood_s: float) -> int | None:
    """From host to host. The copies are given up, so that what they have sent is known to the last byte."""
    if copies is None:
        return None if streams_between(hosts) else 0
    return round(copies.sent_bytes() / (time.time() - stood_s))


def _resident(pids: Iterable[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)
