"""What a protocol costs while nothing moves: rows a second, bytes between hosts and memory of one query at full speed.

`no-support`: hosts do not check who owns a key (`inside.switched_off`). `at-rest`: hosts check, and nothing moves; this is
every protocol but standby. `standby`: copies of half of the keys stand on another host. The bytes sent come from the report of
the standby request. Without such a request they are 0 if no host has a connection to another host, and the benchmark looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import psutil
from pyspark.sql import SparkSession

import godwit
from benchmarks.experiments.migration import sideways
from benchmarks.inside.switched_off import without_ownership
from benchmarks.running.measures import rate_of
from benchmarks.running.scratch import scratch
from benchmarks.running.settings import GROUPS, Settings
from benchmarks.running.watch import Watch
from benchmarks.workloads import LANES, NAME, computation
from godwit.errors import DefinitionError
from godwit.testing import open_loop
from godwit.workload import Workload

Way = Literal["no-support", "at-rest", "standby"]
WARM_UP_BATCHES: Final = 6
HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class RestSettings:
    way: Way = "at-rest"
    keys: int = 10_000
    state_bytes: int = 1_024
    hosts: int = 2
    batch_rows: int = 20_000
    batches: int = 20
    seed: int = 0

    def checked(self) -> RestSettings:
        if self.way not in get_args(Way):
            raise DefinitionError(f"the way must be one of {', '.join(get_args(Way))}")
        if min(self.keys, self.batch_rows, self.batches) < 1 or self.hosts < 2:
            raise DefinitionError("keys, rows and batches must be 1 or more, hosts 2 or more")
        return self

    @property
    def slots(self) -> int:
        return self.hosts + LANES + 1

    @property
    def rows(self) -> int:
        return (WARM_UP_BATCHES + self.batches) * self.batch_rows

    def query(self) -> Settings:
        return Settings(keys=self.keys, state_bytes=self.state_bytes, hosts=self.hosts, seed=self.seed)


def measure(spark: SparkSession, settings: RestSettings, watch: Watch) -> dict[str, Any]:
    with ExitStack() as stack:
        if settings.way == "no-support":
            stack.enter_context(without_ownership())
        directory = stack.enter_context(scratch())
        flock = stack.enter_context(godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit"))
        return {**asdict(settings), **_figures(spark, flock, settings, f"{directory}/spark", watch)}


def _figures(
    spark: SparkSession, flock: godwit.Flock, settings: RestSettings, checkpoint: str, watch: Watch
) -> dict[str, Any]:
    rows, work = settings.rows, computation(settings.query())
    options = {"rows_per_second": 0, "rows_per_batch": settings.batch_rows, "rows": rows, **work.options()}
    watch.phase("filling state")
    frame = work.operated(spark, flock, open_loop.source(spark, options))
    copies = Copies(flock, settings.hosts) if settings.way == "standby" else None
    watch.phase("counting")
    running = open_loop.Running(frame, checkpoint)
    running.wait_rows(rows, lambda seen: watch.rows(seen, rows))
    hosts: dict[str, Any] = flock.status()["hosts"]
    rows_per_s = rate_of(running.arrivals.batches(), WARM_UP_BATCHES)
    memory_bytes = sum(psutil.Process(host["pid"]).memory_info().rss for host in hosts.values())
    sent_bytes = (None if streams_between(hosts) else 0) if copies is None else copies.sent_bytes()
    running.finish()
    workload = Workload.from_options({name: str(value) for name, value in options.items()})
    return {
        "rows_per_s": round(rows_per_s),
        "rest_bytes_per_s": None if sent_bytes is None else round(sent_bytes / rows * rows_per_s),
        "rest_memory_bytes": memory_bytes,
        "rows": rows,
        **work.exactness(workload, running.arrivals.rows(), flock.state(NAME)),
    }


class Copies:
    """Of half of the keys, on the last host, kept up to date until the question what they cost."""

    def __init__(self, flock: godwit.Flock, hosts: int) -> None:
        groups = sideways(HALF, hosts, GROUPS)
        self._standing = flock.standby(NAME, to=f"host-{hosts - 1}", groups=groups, progress=False)
        # What is told later may be seconds old, until all is over; that they stand has been heard just now.
        self._to_begin_with_bytes = self._sent()

    def sent_bytes(self) -> int:
        """Since they stand. They are given up."""
        self._standing.abort("all has been measured")
        self._standing.wait()
        return self._sent() - self._to_begin_with_bytes

    def _sent(self) -> int:
        report = self._standing.report()
        return int(report["bytes"]) + int(report["bytes_sent_twice"])


def streams_between(hosts: Mapping[str, Mapping[str, Any]]) -> int:
    """How many connections hosts have opened to one another."""
    ports = ports_of(hosts)
    opened = [connection for host in hosts.values() for connection in psutil.Process(host["pid"]).net_connections()]
    return sum(bool(each.raddr) and each.raddr.port in ports for each in opened)


def ports_of(hosts: Mapping[str, Mapping[str, Any]]) -> set[int]:
    """On which hosts listen; an address is machine:requests/streams."""
    both = (host["address"].rpartition(":")[2] for host in hosts.values())
    return {int(port) for ports in both for port in ports.split("/")}
