"""`make demo`: traffic monitoring on a running stream, a host killed on the way, and a table that says whether it was exact.

The running average speed of every vehicle after each of its reports, over the replayable workload source at a steady rate.
Everything that comes out is checked against a Spark batch computation over the same input.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.window import Window
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import godwit
from godwit.spark import workload

RATE = 4_000
SECONDS = 20
WARM_UP_S = 8  # the first batches pay for compiling the query; their rows are left out of the latencies
CARS = 1_000
OUTPUT = "car string, mean double, n long, due timestamp"


class AverageSpeed(StatefulProcessor):
    """A plain PySpark StatefulProcessor: nothing in it knows of Godwit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._average = handle.getValueState("average", "mean double, n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        mean, n = self._average.get() or (0.0, 0)
        for row in rows:
            mean, n = (mean * n + row.speed) / (n + 1), n + 1
            yield Row(car=key[0], mean=mean, n=n, due=row.due)
        self._average.update((mean, n))

    def close(self) -> None:
        pass


@dataclass
class Arrivals:
    """A sink that keeps a batch's rows and when they came; a batch that is sent again replaces itself."""

    batches: dict[int, tuple[pa.Table, float]] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.toArrow()
        self.batches[batch] = (rows, time.time())

    @property
    def count(self) -> int:
        return sum(rows.num_rows for rows, _ in list(self.batches.values()))

    def in_order(self) -> pa.Table:
        return pa.concat_tables([self.batches[batch][0] for batch in sorted(self.batches)])

    def latencies_ms(self, since_s: float) -> np.ndarray[Any, Any]:
        """From when a row was due, if that is after the given time, until it came."""
        waits = []
        for rows, at in self.batches.values():
            due = rows.column("due").cast(pa.int64()).to_numpy() / 1e6
            waits.append((at - due[due > since_s]) * 1000)
        return np.concatenate(waits)


def main() -> int:
    console = Console()
    console.print(
        f"[bold]Godwit demo[/]: average speed of {CARS:,} vehicles, {RATE:,} reports/s for {SECONDS} s, 2 hosts"
    )
    spark = _session()
    try:
        with tempfile.TemporaryDirectory(prefix="godwit-demo-") as directory:
            return _run(spark, directory, console)
    finally:
        spark.stop()


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[4]")
        .appName("godwit-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    workload.register(spark)
    return spark


def _run(spark: SparkSession, directory: str, console: Console) -> int:
    arrivals = Arrivals()
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        options = _options()
        cars = spark.readStream.format(workload.FORMAT).options(**options).load()
        speeds = flock.transformWithState(cars, "car", AverageSpeed(), OUTPUT, name="speed")
        query = speeds.writeStream.foreachBatch(arrivals).option("checkpointLocation", f"{directory}/spark").start()
        recovery_s = _watch(flock, query, arrivals, options["rows"], console)
        query.processAllAvailable()
        query.stop()
        keys = flock.state("speed").count()
    console.print("checking every row against a Spark batch computation over the same input ...")
    verdict = _check(spark, options, arrivals.in_order())
    console.print(_table(arrivals, options, recovery_s, keys, verdict))
    exact = not any(verdict.values())
    console.print("[bold green]exact[/]" if exact else "[bold red]NOT exact[/]")
    return 0 if exact else 1


def _options() -> dict[str, Any]:
    return {
        "workload": "traffic",
        "keys": CARS,
        "rows": RATE * SECONDS,
        "rows_per_second": RATE,
        "rows_per_batch": 4 * RATE,  # so that there is a middle of the run to kill a host in, however slow the machine
        "lanes": 2,
        "start": int(time.time() * 1000) + 3_000,
    }


def _watch(flock: godwit.Flock, query: StreamingQuery, arrivals: Arrivals, rows: int, console: Console) -> float:
    """A live line until all rows are out; half-way, host-0 is killed. Gives the time it was away."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    killed_at, recovery_s = 0.0, 0.0
    victim: dict[str, Any] = flock.status()["hosts"]["host-0"]
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("rows", total=rows, note="")
        while arrivals.count < rows:
            _raise_failure(query)
            if not killed_at and arrivals.count > rows // 2:
                os.kill(victim["pid"], signal.SIGKILL)
                killed_at = time.time()
            if killed_at and not recovery_s:
                host = flock.status()["hosts"]["host-0"]
                if host["state"] == "serving" and host["generation"] > victim["generation"]:
                    recovery_s = time.time() - killed_at
            note = "" if not killed_at else "host-0 killed" if not recovery_s else f"host-0 back in {recovery_s:.2f} s"
            progress.update(task, completed=arrivals.count, note=note)
            time.sleep(0.05)
    return recovery_s


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure


def _check(spark: SparkSession, options: dict[str, Any], got: pa.Table) -> dict[str, int]:
    """Lost, duplicated, out of order and wrong rows, against the same rows read as a batch."""
    order = Window.partitionBy("car").orderBy("n")
    expected = (
        spark.read.format(workload.FORMAT)
        .options(**options)
        .load()
        .select("car", sf.row_number().over(order).alias("k"), sf.avg("speed").over(order).alias("mean"))
        .toArrow()
    )
    truth: dict[tuple[Any, Any], Any] = dict(
        zip(_pairs(expected, "k"), expected.column("mean").to_pylist(), strict=True)
    )
    pairs = _pairs(got, "n")
    seen = Counter(pairs)
    last: dict[str, int] = {}
    disordered = 0
    for car, n in pairs:
        disordered += n < last.get(car, 0)
        last[car] = n
    means: list[Any] = got.column("mean").to_pylist()
    return {
        "lost": sum(pair not in seen for pair in truth),
        "duplicated": sum(count - 1 for count in seen.values()),
        "out of order": disordered,
        "wrong averages": sum(
            pair not in truth or abs(truth[pair] - mean) > 1e-9 * abs(truth[pair])
            for pair, mean in zip(pairs, means, strict=True)
        ),
    }


def _pairs(table: pa.Table, count: str) -> list[tuple[Any, Any]]:
    return list(zip(table.column("car").to_pylist(), table.column(count).to_pylist(), strict=True))


def _table(arrivals: Arrivals, options: dict[str, Any], recovery_s: float, keys: int, verdict: dict[str, int]) -> Table:
    latencies = arrivals.latencies_ms(options["start"] / 1000 + WARM_UP_S)
    ends = [at for _, at in arrivals.batches.values()]
    seconds = max(ends) - options["start"] / 1000
    table = Table("what", "figure", title="traffic monitoring with one host killed")
    table.columns[1].justify = "right"
    table.add_row("rows out", f"{arrivals.count:,}")
    table.add_row("vehicles with state", f"{keys:,}")
    table.add_row("rate", f"{arrivals.count / seconds:,.0f} rows/s")
    for name, share in (("p50", 50), ("p99", 99)):
        table.add_row(f"latency {name} (after {WARM_UP_S} s)", f"{np.percentile(latencies, share):,.0f} ms")
    table.add_row("latency max (the host was away)", f"{latencies.max():,.0f} ms")
    table.add_row("killed host serving again after", f"{recovery_s:.2f} s")
    for name, count in verdict.items():
        table.add_row(name, str(count))
    return table


if __name__ == "__main__":
    sys.exit(main())
