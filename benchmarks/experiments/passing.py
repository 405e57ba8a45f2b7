"""Rows that pass through a query with the real-time trigger, from Kafka to Kafka, while nothing moves: their latency.

`copy` is what Spark itself takes: the query has no Python and no state. The other ways are Godwit's. All ways get the same rows
at the same rate, one way after another, again and again, so that a disturbance of the machine hits all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import godwit
from benchmarks.inside.names import as_they_come
from benchmarks.running.measures import counted, wrong_keys
from benchmarks.running.realtime import Feed, RealTime
from benchmarks.running.record import circumstances, run_id
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session
from benchmarks.running.triggers import REAL_TIME
from benchmarks.running.watch import Watch
from benchmarks.workloads.computation import LANES, NAME, rows_by_key
from benchmarks.workloads.tally import Tally
from godwit.errors import DefinitionError
from godwit.testing.latency import Departures, Reals
from godwit.testing.open_loop import column
from godwit.workload import Workload

WARM_UP_S: Final = 6.0
FIRST_RATE: Final = 2_000
FIRST_S: Final = 25.0  # after so long the compilers of both JVMs had hardly anything left to do
BOUNDARY_S: Final = 1.0  # rows so long after the end of a batch belong to the change from batch to batch
COMMITTED_WITHIN_S: Final = 30.0  # a longer batch is not waited for at the end: rows are checked, and state is not
KEPT_UP: Final = 0.99  # of the rate comes out, or the rate is not sustained
NOT_OURS: Final = ("kafka.Kafka", "godwit.testing.kafka_load", "benchmarks.running.reader")  # broker, load and reader


class Counting(StatefulProcessor):
    """As `Tally`, in plain PySpark."""

    OUTPUT: Final = "key long, count long, due timestamp"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self._n.get() or (0,))[0]
        for row in rows:
            n += 1
            yield Row(key=key[0], count=n, due=row.due)
        self._n.update((n,))

    def close(self) -> None:
        pass


def _native(flock: godwit.Flock, rows: DataFrame, settings: PassingSettings) -> DataFrame:
    return flock.process(rows, "key", Tally(0), name=NAME)


def _unchanged(flock: godwit.Flock, rows: DataFrame, settings: PassingSettings) -> DataFrame:
    return flock.transformWithState(rows, "key", Counting(), Counting.OUTPUT, name=NAME)


def _copied(rows: DataFrame) -> DataFrame:
    return rows.select("key", sf.lit(0).cast("long").alias("count"), "due")


def _python(flock: godwit.Flock, rows: DataFrame, settings: PassingSettings) -> DataFrame:
    return as_they_come(_copied(rows)).mapInArrow(lambda batches: batches, _copied(rows).schema)


WAYS: Final[Mapping[str, Callable[..., DataFrame] | None]] = {
    "copy": None,
    "python": _python,
    "native": _native,
    "unchanged": _unchanged,
}
COUNTING: Final = ("native", "unchanged")  # their rows tell how many of their key there were


@dataclass(frozen=True, slots=True)
class PassingSettings:
    """`silence_s`: the last row comes after so long a silence. `batch_s`: how long a batch lasts; 0: as long as the load."""

    way: str = "native"
    rate: int = 2_000
    keys: int = 10_000
    hosts: int = 2
    steady_s: float = 15.0
    batch_s: float = 0.0
    silence_s: float = 0.0
    seed: int = 0

    def checked(self) -> PassingSettings:
        if self.way not in WAYS:
            raise DefinitionError(f"--ways must be some of {', '.join(WAYS)}")
        if min(self.rate, self.keys, self.hosts) < 1 or self.steady_s <= 0:
            raise DefinitionError("rates, keys, hosts and seconds must be over 0")
        if self.batch_s and self.batch_s < 5:
            raise DefinitionError("--batch-s must be 5 or more: Spark refuses shorter batches")
        return self

    @property
    def slots(self) -> int:
        return self.hosts + LANES + 1

    @property
    def ends_soon(self) -> bool:
        """Whether the batch with the last row ends soon after it."""
        return self.batch_s <= COMMITTED_WITHIN_S

    @property
    def workload(self) -> Workload:
        rows = int(self.rate * (WARM_UP_S + self.steady_s))
        return Workload(rows_per_second=self.rate, keys=self.keys, lanes=LANES, rows=rows, seed=self.seed)


def series(settings: Sequence[PassingSettings], runs: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """A line of figures for each run."""
    run = run_id()
    spark = session(max(each.slots for each in settings), REAL_TIME)
    try:
        for way in dict.fromkeys(each.way for each in settings):
            watch.phase(f"{way}, not counted")
            measure(spark, first(way), watch)
        for repeat in range(runs):
            for each in settings:
                watch.phase(f"{each.way}, {each.rate:,} rows/s, run {repeat + 1} of {runs}")
                yield circumstances("real-time", run) | {"repeat": repeat} | measure(spark, each, watch)
    finally:
        spark.stop()


def first(way: str) -> PassingSettings:
    """A run that is not counted: Spark's JVM and the broker's compile what runs often, and take cores for it meanwhile."""
    return PassingSettings(way=way, rate=FIRST_RATE, steady_s=FIRST_S)


def measure(spark: SparkSession, settings: PassingSettings, watch: Watch) -> dict[str, Any]:
    with scratch() as directory:
        feed = Feed(spark, settings.workload, settings.silence_s)
        make = WAYS[settings.way]
        if make is None:
            return {**asdict(settings), **_figures(_copied(feed.frame), feed, settings, directory, watch)}
        with godwit.Flock(spark, hosts=settings.hosts, checkpoint=f"{directory}/godwit") as flock:
            figures = _figures(make(flock, feed.frame, settings), feed, settings, directory, watch)
            wrong = wrong_state(flock, settings) if settings.way == "native" and settings.ends_soon else None
            return {**asdict(settings), **figures, "wrong_state": wrong}


def _figures(frame: DataFrame, feed: Feed, settings: PassingSettings, directory: str, watch: Watch) -> dict[str, Any]:
    workload = settings.workload
    assert workload.rows is not None, "a load that ends"
    running = RealTime(frame, feed, LANES, f"{directory}/spark", settings.batch_s or None)
    show = lambda seen: watch.rows(seen, workload.end)  # noqa: E731
    running.wait_until(feed.start_s + WARM_UP_S, show)
    before_s, began_s = cpu_s(), time.time()
    running.wait_until(feed.start_s + WARM_UP_S + settings.steady_s, show)
    used_s = (cpu_s() - before_s) / (time.time() - began_s)
    running.wait_rows(workload.end, show)
    ends_s = running.batch_ends_s()
    rows = running.arrivals.rows()
    if settings.ends_soon:
        running.finish()
    else:
        running.stop()
    departures = running.departures(rows)
    steady_s = feed.start_s + WARM_UP_S
    steady = departures.between(steady_s, steady_s + settings.steady_s)
    last = departures.latency_ms[-1]
    out_per_s = round(len(steady) / settings.steady_s)
    return {
        **latencies(steady.latency_ms),
        "rows_out_per_s": out_per_s,
        "sustained": out_per_s >= KEPT_UP * settings.rate,
        "cores_used": round(used_s, 2),
        "rows": workload.end,
        **exactness(rows, workload, settings.way),
        "after_silence_ms": round(float(last), 1) if settings.silence_s else None,
        "boundary_max_ms": boundaries(departures, ends_s) if settings.batch_s else None,
        "boundary_p99_ms": around_boundaries(steady, ends_s) if settings.batch_s else None,
    }


def exactness(rows: pa.Table, workload: Workload, way: str) -> dict[str, int]:
    """As for other runs. A copy does not count rows, so all that can be said of it is how many are missing or too many."""
    if way in COUNTING:
        return counted(column(rows, "key"), column(rows, "count"), rows_by_key(workload))
    missing = workload.end - len(rows)
    return {"lost": max(missing, 0), "duplicated": max(-missing, 0)}


def wrong_state(flock: godwit.Flock, settings: PassingSettings) -> int:
    """Keys whose count is wrong at the end; a key that no row had has no state."""
    counts = rows_by_key(settings.workload)
    expected = {key: n for key, n in enumerate(counts.tolist()) if n}
    stored = flock.state(NAME).select("key", "state.n").collect()
    return wrong_keys([(row.key, row.n) for row in stored], expected)


def latencies(waits: Reals) -> dict[str, float | None]:
    names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    if not len(waits):
        return dict.fromkeys(names)
    values = np.percentile(waits, (50, 99, 99.9, 100))
    figures: dict[str, float | None] = {"mean_ms": round(float(waits.mean()), 2)}
    return figures | {name: round(float(value), 2) for name, value in zip(names, values, strict=True)}


def boundaries(rows: Departures, ends_s: Sequence[float]) -> list[float]:
    """The greatest latency of a row that left soon after the end of each batch."""
    parts = [rows.between(end_s, end_s + BOUNDARY_S).latency_ms for end_s in ends_s]
    return [round(float(part.max()), 1) for part in parts if len(part)]


def around_boundaries(rows: Departures, ends_s: Sequence[float]) -> float | None:
    """The highest p99 of the rows that left about the end of a batch, over all batches that ended while rows were measured."""
    parts = [rows.between(end_s - BOUNDARY_S, end_s + BOUNDARY_S).latency_ms for end_s in ends_s]
    highest = [float(np.percentile(part, 99)) for part in parts if len(part)]
    return round(max(highest), 2) if highest else None


def cpu_s() -> float:
    """Of this process and all that it has started, and is still there: Spark, workers, hosts; not the broker, nor the load."""
    total = 0.0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if not any(word in " ".join(process.cmdline()) for word in NOT_OURS):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total
