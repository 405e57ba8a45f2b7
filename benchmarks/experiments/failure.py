"""One host is killed under load: a steady part to compare with, SIGKILL, and what happened to rows after it.

`storage`: the host starts again and reads its snapshots and changelog. The larger a file of the changelog may grow
(`segment_bytes`), the more there is to replay; other systems set this by the checkpoint interval. `standby`: copies of the
host's keys stand on another host. `parallel`: the two other hosts restore half of the keys each. `backup`: the host's directory
is lost with it, and the host starts again from the backup on another host.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

import godwit
from benchmarks.experiments.migration import SHOWN_BEFORE_S
from benchmarks.inside.names import group_of, groups_in
from benchmarks.running.scratch import scratch
from benchmarks.running.settings import GROUPS, START_S, Settings
from benchmarks.running.timeline import timeline
from benchmarks.running.watch import Watch
from benchmarks.workloads import LANES, NAME, computation
from godwit.errors import DefinitionError, HostUnavailable
from godwit.testing import open_loop
from godwit.testing.latency import Departures, Steady, drift_ms, interruption
from godwit.workload import WORDS, Workload

Way = Literal["storage", "standby", "parallel", "backup"]
Mask = npt.NDArray[np.bool_]
KILLED: Final = "host-0"
STANDS_ON: Final = "host-1"


@dataclass(frozen=True, slots=True)
class FailureSettings:
    """`rate` counts rows of the source, which for words are lines."""

    way: Way = "storage"
    workload: str = WORDS
    keys: int = 10_000
    state_bytes: int = 10_000
    rate: int = 1_000
    segment_bytes: int = 64 << 20
    warm_up_s: float = 8.0
    steady_s: float = 10.0
    after_s: float = 12.0
    seed: int = 0

    def checked(self) -> FailureSettings:
        if self.way not in get_args(Way):
            raise DefinitionError(f"the way must be one of {', '.join(get_args(Way))}")
        if min(self.keys, self.rate, self.segment_bytes, self.warm_up_s, self.steady_s, self.after_s) <= 0:
            raise DefinitionError("keys, rate, bytes of a segment and seconds must be over 0")
        self.query().checked()
        return self

    @property
    def hosts(self) -> int:
        return 3 if self.way == "parallel" else 2

    @property
    def slots(self) -> int:
        return self.hosts + LANES + 1

    @property
    def rows(self) -> int:
        return int(self.rate * (START_S + self.warm_up_s + self.steady_s + self.after_s))

    def query(self) -> Settings:
        """The same query as is measured when keys move."""
        return Settings(
            self.workload,
            keys=self.keys,
            state_bytes=self.state_bytes,
            hosts=self.hosts,
            rate=self.rate,
            seed=self.seed,
        )


def measure(spark: SparkSession, settings: FailureSettings, watch: Watch) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {"parallel": {"recovery": "parallel"}, "backup": {"backup": True}}
    how = options.get(settings.way, {})
    with (
        scratch() as directory,
        godwit.Flock(
            spark,
            hosts=settings.hosts,
            checkpoint=f"{directory}/godwit",
            segment_bytes_max=settings.segment_bytes,
            **how,
        ) as flock,
    ):
        return _Run(spark, flock, directory, settings, watch).figures()


class _Run:
    def __init__(
        self, spark: SparkSession, flock: godwit.Flock, directory: str, settings: FailureSettings, watch: Watch
    ) -> None:
        self._flock, self._settings, self._watch = flock, settings, watch
        self._killed_directory = Path(directory) / "godwit" / "hosts" / KILLED
        self._computation = computation(settings.query())
        options = {"rows_per_second": settings.rate, "rows": settings.rows, **self._computation.options()}
        self._workload = Workload.from_options({name: str(value) for name, value in options.items()})
        self._outputs = self._computation.output_count(self._workload)
        watch.phase("filling state")
        frame = self._computation.operated(spark, flock, open_loop.source(spark, options))
        self._running = open_loop.Running(frame, f"{directory}/spark")

    def figures(self) -> dict[str, Any]:
        settings = self._settings
        killed_s, groups = self._go_through()
        rows = self._running.arrivals.rows()
        departures = self._running.departures(rows)
        before = departures.between(killed_s - settings.steady_s, killed_s)
        steady = Steady.of(before)
        back_s = recovery_s(rows, owned(rows.column(0), groups), killed_s)
        self._watch.phase("checking")
        return {
            **asdict(settings),
            "hosts": settings.hosts,
            "state_total_bytes": settings.keys * settings.state_bytes,
            **{f"steady_{name}": round(value, 2) for name, value in asdict(steady).items()},
            "steady_drift_ms": round(drift_ms(before), 2),
            **interruption(departures.between(killed_s), steady, killed_s),
            "recovery_s": back_s,
            **self._recovered(),
            "load_s": self._flock.status()["hosts"].get(KILLED, {}).get("load_s"),
            "spans": [] if back_s is None else [["recovery", 0.0, back_s]],
            "timeline": timeline(departures, killed_s, -SHOWN_BEFORE_S, settings.after_s),
            "rows": settings.rows,
            **self._computation.exactness(self._workload, rows, self._flock.state(NAME)),
        }

    def _go_through(self) -> tuple[float, frozenset[int]]:
        """When the host was killed, and which groups it owned."""
        settings, running = self._settings, self._running
        self._watch.phase("warming up")
        running.wait_rows(1, self._show)
        running.wait_settled(running.started_s() + START_S, self._show)
        steady_s = time.time() + settings.warm_up_s
        groups = groups_in(next(row["groups"] for row in self._flock.routing(NAME) if row["host"] == KILLED))
        if settings.way == "standby":
            self._flock.standby(NAME, to=STANDS_ON, groups=sorted(groups), progress=False)
        running.wait_until(steady_s, self._show)
        self._watch.phase("steady")
        running.wait_until(steady_s + settings.steady_s, self._show)
        host = self._flock.status()["hosts"][KILLED]
        self._watch.phase("a host killed")
        killed_s = time.time()
        os.kill(host["pid"], signal.SIGKILL)
        if settings.way == "backup":
            if host["backup"]["state"] != "stands":
                raise HostUnavailable("the backup did not stand in time", todo="Give a longer warm-up", host=KILLED)
            shutil.rmtree(self._killed_directory)
        running.wait_rows(self._outputs, self._show)
        running.finish()
        return killed_s, groups

    def _recovered(self) -> dict[str, Any]:
        """By which way it really was: where others cannot take over, the host is started again."""
        losses = [line for line in self._flock.history() if line["event"] == "lost"]
        taken = [line for line in losses if "heirs" in line]
        by_copies = [heir["by_copies"] for line in taken for heir in line["heirs"].values()]
        return {
            "taken_over": bool(taken),
            "by_copies": bool(by_copies) and all(by_copies),
            "takeover_s": next((line["took_s"] for line in taken), None),
            "reason": next((line.get("reason") for line in losses), None),
            "restored": any(line["event"] == "restored" for line in self._flock.history()),
        }

    def _show(self, seen: int) -> None:
        self._watch.rows(seen, self._outputs)


def owned(keys: pa.ChunkedArray[Any], groups: frozenset[int]) -> Mask:
    """Which rows have a key, the first of their columns, in these groups."""
    encoded = keys.combine_chunks().dictionary_encode()
    group = group_of(keys.type, GROUPS)
    inside = [group(key) in groups for key in encoded.dictionary.to_pylist()]
    of_groups: Mask = np.array(inside, np.bool_)[encoded.indices.to_numpy()]
    return of_groups


def recovery_s(rows: pa.Table, of_killed: Mask, killed_s: float) -> float | None:
    """From the kill until the first row left that came after it, of a key whose host was killed; None if none did.

    A row that came before the kill may have been answered before it, too, and says nothing.
    """
    departures: Departures = open_loop.departures(rows.filter(pa.array(of_killed)))
    created_s = departures.left_s - departures.latency_ms / 1000
    after = departures.left_s[created_s >= killed_s]
    return round(float(after[0] - killed_s), 3) if len(after) else None
