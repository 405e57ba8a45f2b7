"""`make demo`: traffic monitoring while hosts come, go, swap keys and are killed, and a table that says whether it was exact.

The running average speed of every vehicle after each of its reports, over the replayable workload source at a steady rate.
Everything that comes out is checked against a Spark batch computation over the same input.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any, Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import godwit
from godwit.demo.outcome import check, steps_table, verdict_table
from godwit.demo.speeds import OUTPUT, AverageSpeed
from godwit.demo.steps import STEPS, Scene, StepResult
from godwit.testing import open_loop

__all__ = ["main"]

RATE: Final = 2_000
SECONDS: Final = 44
CARS: Final = 1_000
SKEW: Final = 0.8  # so that there are hot keys worth moving
NAME: Final = "speed"
WARM_UP_S: Final = 12.0  # at most
GAP_S: Final = 3  # so many seconds' worth of rows leave before each step, or it would have nothing to show


def main() -> int:
    console = Console()
    console.print(f"[bold]Godwit demo[/]: average speed of {CARS:,} vehicles, {RATE:,} reports/s for {SECONDS} s")
    spark = _session()
    try:
        with tempfile.TemporaryDirectory(prefix="godwit-demo-", ignore_cleanup_errors=True) as directory:
            return _run(spark, directory, console)
    finally:
        spark.stop()


def _session() -> SparkSession:
    """Slots for four hosts (three, and one more while hosts change) and for the two lanes of the query."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    return SparkSession.builder.master("local[6]").appName("godwit-demo").config(map=settings).getOrCreate()


def _run(spark: SparkSession, directory: str, console: Console) -> int:
    options: dict[str, Any] = {
        "workload": "traffic",
        "keys": CARS,
        "skew": SKEW,
        "rows": RATE * SECONDS,
        "rows_per_second": RATE,
        "lanes": 2,
    }
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        reports = open_loop.source(spark, options)
        speeds = flock.transformWithState(reports, "car", AverageSpeed(), OUTPUT, name=NAME)
        running = open_loop.Running(speeds, f"{directory}/spark")
        steady_from_s, done = _go_through(Scene(flock, running, NAME), options["rows"], console)
        running.finish()
        cars = flock.state(NAME).count()
    rows = running.arrivals.rows()
    console.print(steps_table(open_loop.departures(rows), steady_from_s, done))
    console.print("checking every row against a Spark batch computation over the same input ...")
    verdict = check(spark, options, rows)
    console.print(verdict_table(rows.num_rows, cars, verdict))
    exact = not any(verdict.values())
    console.print("[bold green]exact[/]" if exact else "[bold red]NOT exact[/]")
    return 0 if exact else 1


def _go_through(scene: Scene, rows: int, console: Console) -> tuple[float, list[StepResult]]:
    """A live line until all rows are out, with one step after another on the way; and when the steady part began."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done: list[StepResult] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("warming up", total=rows)

        def show(seen: int) -> None:
            progress.update(task, completed=seen)

        def say(text: str) -> None:
            progress.update(task, description=text)

        scene.running.wait_rows(1, show)
        scene.running.wait_settled(time.time() + WARM_UP_S, show)
        say("steady")
        steady_from_s = time.time()
        for step in STEPS:
            scene.running.wait_rows(min(rows, scene.running.arrivals.count + GAP_S * RATE), show)
            done.append(step(scene, show, say))
            progress.console.print(f"  {done[-1].summary()}")
        scene.running.wait_rows(rows, show)
    return steady_from_s, done
