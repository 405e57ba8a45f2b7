"""A flock that follows a changing load by rules: how soon an overload is over, and what a day costs in host-seconds.

Each row takes a fixed time to apply, so that a host has the same capacity on every machine: the benchmark measures how the
flock follows, not how fast it is. Rows are made at the highest rate and thinned out by the second at which they are due, so
that every run has the same rows.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.elasticity import curves
from benchmarks.running.measures import counted
from benchmarks.running.record import circumstances, run_id
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from benchmarks.running.watch import Watch
from benchmarks.workloads.tally import Tally
from godwit.testing import open_loop
from godwit.testing.latency import Departures

NAME: Final = "slow-tally"
KEYS: Final = 400
LANES: Final = 2
LEAD_S: Final = 8.0  # until hosts and query are up: the first row is due then
WARM_UP_S: Final = 20  # as in the first second, and not counted: Python starts with the first batch
CALM_S: Final = 20
USEFUL_MAX: Final = 0.8  # more of its time a host of a micro-batch query does not get to work: batches begin and end


@dataclass(frozen=True, slots=True)
class Elastic:
    """One run: `row_us` of work for a row, `rate` at the highest, and the rules' limits."""

    row_us: float = 250.0
    rate: int = 10_000
    hosts: int = 1
    maximum: int = 4
    warm: int = 0
    target_s: float = 4.0
    seed: int = 0

    @property
    def true_rate(self) -> float:
        return 1e6 / self.row_us


class SlowTally(Tally):
    """Counts, and takes its time for each row."""

    def __init__(self, row_us: float) -> None:
        super().__init__(0)
        self._row_us = row_us

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        time.sleep(len(rows) * self._row_us / 1e6)
        return super().process(rows, state, times)


def relief(settings: Sequence[Elastic], after_s: int, runs: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """A line for each run: the load steps from what one host can do to all of it, and how long that takes to be dealt with."""
    yield from _lines("relief", settings, curves.step(CALM_S, after_s, 0.2), runs, watch, _relief)


def day(settings: Sequence[Elastic], seconds: int, runs: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """A line for each run: windows of a second in which the target was held, and host-seconds beside an oracle's."""
    yield from _lines("day", settings, curves.day(seconds), runs, watch, _day)


def _lines(
    name: str, settings: Sequence[Elastic], curve: list[float], runs: int, watch: Watch, figures: Any
) -> Iterator[dict[str, Any]]:
    run = run_id()
    spark = session(max(each.maximum for each in settings) + LANES + 1)
    try:
        for repeat in range(runs):
            for each in settings:
                watch.phase(f"{name}, warm {each.warm}, run {repeat + 1} of {runs}")
                followed = Followed(spark, each, curve, watch)
                asked = {field: getattr(each, field) for field in Elastic.__slots__}
                yield circumstances(name, run) | {"repeat": repeat} | asked | followed.figures() | figures(followed)
    finally:
        spark.stop()


# -- one run ---------------------------------------------------------------------------------------------------------


class Followed:
    """A query under such a load, followed by rules from its first second to its last; and what was seen of it."""

    def __init__(self, spark: SparkSession, settings: Elastic, curve: list[float], watch: Watch) -> None:
        self.settings, self.curve = settings, curve
        self._levels = [curve[0]] * WARM_UP_S + curve
        self._first_s = round(time.time() + LEAD_S, 3)
        self.start_s = self._first_s + WARM_UP_S
        self._rows = settings.rate * len(self._levels)
        with (
            scratch() as directory,
            godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit") as flock,
        ):
            frame = flock.process(
                self._thinned(open_loop.source(spark, self._options())), "key", SlowTally(settings.row_us), name=NAME
            )
            running = open_loop.Running(frame, f"{directory}/spark")
            flock.autoscale(godwit.rules.sizing(), maximum=settings.maximum, warm=settings.warm, every_s=0.5)
            running.wait_until(self.start_s + len(curve), lambda seen: watch.rows(seen, self._rows))
            running.finish()
            self.history = flock.history()
            outputs = running.arrivals.rows()
            self.left: Departures = open_loop.departures(outputs)
            self.wrong = self._wrong(spark, open_loop.column(outputs, "key"), open_loop.column(outputs, "count"))

    def _options(self) -> dict[str, Any]:
        return {
            "workload": "key-count",
            "keys": KEYS,
            "lanes": LANES,
            "rows": self._rows,
            "rows_per_second": self.settings.rate,
            "seed": self.settings.seed,
            "start": int(self._first_s * 1000),
        }

    def _thinned(self, rows: DataFrame) -> DataFrame:
        return rows.where(self._passes()).select("key", "due")

    def _passes(self) -> Column:
        """Of the rows of a second as many as the curve says, whichever they are."""
        second = sf.unix_micros("due") / 1e6 - sf.lit(self._first_s)
        place = sf.least(sf.floor(second).cast("int"), sf.lit(len(self._levels) - 1))
        share = sf.get(sf.array(*[sf.lit(level) for level in self._levels]), place)
        return sf.pmod(sf.xxhash64("n"), sf.lit(10_000)) < share * 10_000

    def _wrong(self, spark: SparkSession, keys: Any, counts: Any) -> dict[str, int]:
        """Against the same rows read once more, without hosts."""
        by_key = np.zeros(KEYS, np.int64)
        for row in self._thinned(open_loop.replay(spark, self._options())).groupBy("key").count().collect():
            by_key[row["key"]] = row["count"]
        return counted(keys, counts, by_key)

    # -- what was seen -----------------------------------------------------------------------------------------------

    def since_start_s(self, at: str) -> float:
        return dt.datetime.fromisoformat(at).timestamp() - self.start_s

    def decisions(self) -> list[dict[str, Any]]:
        return [line for line in self.history if line["event"] == "decided"]

    def sizes(self, started: bool) -> list[tuple[float, int]]:
        """(second, hosts from then on): those that own keys, or all that are started."""
        sizes, hosts = [(0.0, self.settings.hosts)], self.settings.hosts
        ends = {line["migration"]: line for line in self.history if line["event"] == "ended"}
        for line in self.history:
            if started and line["event"] in ("joined", "left"):
                hosts += len(line["hosts"]) * (1 if line["event"] == "joined" else -1)
                sizes.append((max(0.0, self.since_start_s(line["at"])), hosts))
            elif not started and line["event"] == "requested" and line["kind"] == "scale" and line["migration"] in ends:
                at = line["at"] if line["hosts"] > sizes[-1][1] else ends[line["migration"]]["at"]
                sizes.append((max(0.0, self.since_start_s(at)), line["hosts"]))
        return sizes

    def windows_ms(self) -> dict[int, float]:
        """p99 of the latency of the rows that were due in each second."""
        created_s = self.left.left_s - self.left.latency_ms / 1000 - self.start_s
        second = np.floor(created_s).astype(np.int64)
        seconds = [int(at) for at in np.unique(second) if at >= 0]
        return {at: float(np.percentile(self.left.latency_ms[second == at], 99)) for at in seconds}

    def figures(self) -> dict[str, Any]:
        decided = [[round(self.since_start_s(line["at"]), 2), line["hosts"], line["rule"]] for line in self.decisions()]
        windows = self.windows_ms()
        seen = [round(windows[at]) if at in windows else None for at in range(len(self.curve))]
        return {
            "seconds": len(self.curve),
            "decisions": decided,
            "actions": len(decided),
            "sizes": [[round(at_s, 2), hosts] for at_s, hosts in self.sizes(started=False)],
            "windows_p99_ms": seen,
            **self.wrong,
        }


def _relief(run: Followed) -> dict[str, Any]:
    windows = run.windows_ms()
    target_ms = 1000 * run.settings.target_s
    late = [second for second, p99_ms in windows.items() if second >= CALM_S and p99_ms > target_ms]
    first = next((at for at in (run.since_start_s(line["at"]) for line in run.decisions()) if at > CALM_S), None)
    scaled = {line["migration"] for line in run.history if line["event"] == "requested" and line["kind"] == "scale"}
    ends = [line["at"] for line in run.history if line["event"] == "ended" and line["migration"] in scaled]
    ended = next((at_s for at_s in map(run.since_start_s, ends) if at_s > CALM_S), None)
    return {
        "decided_s": _after(first),
        "served_s": _after(ended),
        "late_windows": len(late),
        "relieved_s": 0 if not late else max(late) + 1 - CALM_S,
        "peak_p99_ms": round(max(p99 for second, p99 in windows.items() if second >= CALM_S)),
    }


def _after(at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s - CALM_S, 2)


def _day(run: Followed) -> dict[str, Any]:
    windows = run.windows_ms()
    share_in_time = sum(p99_ms <= 1000 * run.settings.target_s for p99_ms in windows.values()) / len(windows)
    rates = [run.settings.rate * level for level in run.curve]
    best = sum(curves.oracle(rates, run.settings.true_rate, USEFUL_MAX))
    used, started = (curves.host_seconds(run.sizes(way), len(run.curve)) for way in (False, True))
    return {
        "target_held": round(share_in_time, 4),
        "windows": len(windows),
        "host_seconds": round(used),
        "host_seconds_started": round(started),
        "host_seconds_oracle": best,
        "cost_ratio": round(used / best, 3),
    }
