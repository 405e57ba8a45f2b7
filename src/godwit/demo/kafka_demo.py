"""`make demo-kafka`: the scenario of `make demo` from Kafka to Kafka, with Spark's real-time trigger, and latency beside it.

Reports leave a topic and averages reach another one while the batch runs. Keys move, hosts come and go, and one is killed; the
line of latency shows what a reader of the averages sees meanwhile. In the end every record in the topic is checked.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import godwit
from godwit.demo import kafka_outcome
from godwit.demo.kafka_query import LANES, OUTPUT, REPORTS, SPEEDS, AverageOfReports, KafkaRunning, reports
from godwit.demo.latency_line import LEGEND, MARGIN, WINDOW_S
from godwit.demo.latency_view import View, view
from godwit.demo.outcome import steps_table
from godwit.demo.steps import STEPS, Scene, StepResult
from godwit.testing import open_loop
from godwit.testing.kafka import KafkaBroker, connector_jars
from godwit.workload import Workload

RATE: Final = 1_000
SECONDS: Final = 50
WARM_UP_RATE: Final = 300
CARS: Final = 1_000
SKEW: Final = 0.8
HOSTS: Final = 2
BATCH_S: Final = 15.0
WARM_UP_S: Final = 8
SETTLE_S: Final = 15.0  # at most, until p99 is below SETTLED_MS for a second
SETTLED_MS: Final = 80.0
STEADY_S: Final = 5.0  # before the first step, to compare with
GAP_S: Final = 3.0  # between two steps
NAME: Final = "speed"
LAST_WORDS: Final = 2_000  # characters of Spark's log that are shown after an error


def main() -> int:
    console = Console()
    console.print(f"[bold]Godwit demo on Kafka[/]: average speed of {CARS:,} cars, {RATE:,} reports/s for {SECONDS} s,")
    console.print("from one topic to another with Spark's real-time trigger", highlight=False)
    with tempfile.TemporaryDirectory(prefix="godwit-demo-", ignore_cleanup_errors=True) as directory:
        console.print("starting Kafka and Spark (the first time, their jars are fetched) ...", highlight=False)
        with KafkaBroker(f"{directory}/kafka") as broker:
            for topic in (REPORTS, SPEEDS):
                broker.create(topic, LANES)
            return _with_spark(broker, directory, console)


def _with_spark(broker: KafkaBroker, directory: str, console: Console) -> int:
    log = Path(directory, "spark.log")
    try:
        with _complaints_into(log):
            spark = _session()
        try:
            return _run(spark, broker, directory, console)
        finally:
            spark.stop()
    except Exception:
        words = log.read_text(errors="replace")[-LAST_WORDS:]
        console.print(f"Spark's last words are:\n{words}", highlight=False, markup=False)
        raise


@contextmanager
def _complaints_into(log: Path) -> Iterator[None]:
    """A JVM that starts meanwhile, and its workers, write into this file what they write to standard error otherwise.

    A worker that is killed complains, which would stand in the middle of the line of latency.
    """
    own = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _session() -> SparkSession:
    """Slots for four hosts (three, and one more while hosts change) and for the two lanes of the query."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, connector_jars())),
    }
    builder = SparkSession.builder.master("local[6]").appName("godwit-demo").config(map=settings)
    return godwit.tune(builder, real_time=True).getOrCreate()


def _workload(rate: int, seconds: int, seed: int) -> Workload:
    rows = rate * seconds
    return Workload(
        "traffic", rows_per_second=rate, keys=CARS, skew=SKEW, lanes=LANES, rows=rows, seed=seed, lane_by="key"
    )


def _run(spark: SparkSession, broker: KafkaBroker, directory: str, console: Console) -> int:
    with godwit.Flock(spark, hosts=HOSTS, checkpoint=f"{directory}/godwit") as flock:
        speeds = flock.transformWithState(reports(spark, broker), "car", AverageOfReports(), OUTPUT, name=NAME)
        running = KafkaRunning(speeds, broker, f"{directory}/spark", BATCH_S)
        try:
            with view(console, running.arrivals.came, running.batch_ends_s) as shown:
                steady_from_s, done = _go_through(Scene(flock, running, NAME), running, shown)
            cars, batches = flock.state(NAME).count(), len(running.batch_ends_s())
        finally:
            running.close()
    rows = running.arrivals.rows()
    _print_latency(console, shown, open_loop.departures(rows), steady_from_s, done)
    console.print("checking every record against a Spark batch computation over the reports ...")
    found = kafka_outcome.verdict(rows.to_pylist(), kafka_outcome.truth(reports(spark, broker, streaming=False)))
    return _print_verdict(console, {"records in the topic": rows.num_rows, "cars with state": cars, **found}, batches)


def _go_through(scene: Scene, running: KafkaRunning, shown: View) -> tuple[float, list[StepResult]]:
    """One step after another until all results are out and committed; and when the steady part began."""
    shown.say("warming up")
    running.send(_workload(WARM_UP_RATE, WARM_UP_S, seed=1))
    running.wait_rows(running.reports, shown.show)
    running.send(_workload(RATE, SECONDS, seed=0))
    running.wait_rows(running.arrivals.count + 1, shown.show)
    shown.restart()
    _settle(running, shown)
    shown.say("steady")
    steady_from_s = time.time()
    running.wait_until(steady_from_s + STEADY_S, shown.show)
    done: list[StepResult] = []
    for step in STEPS:
        shown.begin()
        done.append(step(scene, shown.show, shown.say))
        shown.end(done[-1])
        running.wait_until(time.time() + GAP_S, shown.show)
    running.wait_rows(running.reports, shown.show)
    shown.say(f"waiting for Spark to commit the last batch: a batch lasts {running.batch_s:.0f} s")
    running.wait_committed(shown.show)
    return steady_from_s, done


def _settle(running: KafkaRunning, shown: View) -> None:
    windows = round(1 / WINDOW_S)
    until_s = time.time() + SETTLE_S
    while time.time() < until_s:
        running.wait_until(time.time() + 1 / 2, shown.show)
        newest = shown.line.p99_ms[-windows:]
        if len(newest) == windows and all(p99_ms is not None and p99_ms < SETTLED_MS for p99_ms in newest):
            return


def _print_latency(
    console: Console, shown: View, departures: Any, steady_from_s: float, done: list[StepResult]
) -> None:
    console.print("\nlatency of a report until a reader has its result: p99 of each 200 ms", highlight=False)
    for text in shown.line.strips(shown.marks, console.width, departures.left_s[-1]):
        console.print(text, highlight=False, no_wrap=True)
    console.print(f"{' ' * MARGIN}{LEGEND}\n", highlight=False)
    console.print(steps_table(departures, steady_from_s, done))


def _print_verdict(console: Console, counts: dict[str, int], batches: int) -> int:
    table = Table("exactness, by car and by report", "", box=SIMPLE)
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    repeats = counts[kafka_outcome.REPEATED]
    if repeats:
        console.print(
            f"Spark had to repeat a batch: {repeats:,} results are in the topic twice. They are equal, and a reader skips them "
            "by partition and offset of the report.",
            highlight=False,
        )
    else:
        console.print(
            f"Spark repeated none of its {batches} batches: reports for the killed host waited until it was back, in the same "
            "batch.",
            highlight=False,
        )
    exact = kafka_outcome.exact({name: counts[name] for name in ("lost", "doubled", "out of order", "wrong")})
    console.print("[bold green]exact[/]" if exact else "[bold red]NOT exact[/]")
    return 0 if exact else 1
