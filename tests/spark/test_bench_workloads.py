"""The workloads of the benchmarks on a flock: exact whether keys move or not, and as Spark itself computes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.running.settings import WORKLOADS, Settings
from benchmarks.workloads import NAME, Computation, computation
from benchmarks.workloads.words import split
from godwit.spark import workload_source as source
from godwit.testing import open_loop
from godwit.workload import Workload
from tests.spark.held import Move, through

START_MS = 1_700_000_000_000  # long ago: all rows are due, and come as fast as they are read
ROWS, RATE, BATCH = 3_000, 1_000, 250
EXACT = dict.fromkeys(("lost", "duplicated", "out_of_order", "wrong_outputs", "wrong_state"), 0)
SCHEDULE: tuple[Move, ...] = (
    lambda flock: flock.move(NAME, groups=range(300), to="host-1", protocol="live"),
    lambda flock: flock.scale(3, protocol="push"),
    lambda flock: flock.move(NAME, groups=range(512), to="host-0", protocol="fetch"),
)


def given(name: str, state_bytes: int = 50) -> Settings:
    return Settings(workload=name, keys=60, window_rows=7, window_s=0.5, state_bytes=state_bytes, rate=RATE).checked()


def options_of(chosen: Computation, rows_per_batch: int) -> dict[str, str]:
    more = {"rows": ROWS, "rows_per_second": RATE, "rows_per_batch": rows_per_batch, "start": START_MS}
    return {name: str(value) for name, value in {**chosen.options(), **more}.items()}


@contextmanager
def ran(
    spark: SparkSession, root: Path, chosen: Computation, rows_per_batch: int, *moves: Move
) -> Iterator[tuple[godwit.Flock, pa.Table]]:
    """All rows have gone through, with each of the moves made while they did."""
    source.register(spark)
    with godwit.Flock(spark, hosts=2, checkpoint=root / "godwit") as flock:
        frame = chosen.operated(spark, flock, open_loop.source(spark, options_of(chosen, rows_per_batch)))
        yield flock, through(flock, frame, root / "spark", *moves)


# Counts per key are moved in every way by the tests of reconfiguration.
LONG = pytest.mark.long
FEWER = [pytest.param(name, marks=LONG) if name != "word-count" else name for name in WORKLOADS]


@pytest.mark.long
@pytest.mark.parametrize("name", FEWER)
def test_moves_change_nothing_that_comes_out_or_stays(spark: SparkSession, tmp_path: Path, name: str) -> None:
    chosen = computation(given(name))
    workload = Workload.from_options(options_of(chosen, BATCH))
    with ran(spark, tmp_path, chosen, BATCH, *SCHEDULE) as (flock, outputs):
        assert chosen.exactness(workload, outputs, flock.state(NAME)) == EXACT


@pytest.mark.long
@pytest.mark.parametrize("name", FEWER)
def test_with_nothing_moved_it_is_exact_too_and_a_row_more_or_less_is_seen(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    chosen = computation(given(name, state_bytes=0))
    workload = Workload.from_options(options_of(chosen, ROWS))
    with ran(spark, tmp_path, chosen, ROWS // 2) as (flock, outputs):
        state = flock.state(NAME)
        assert chosen.exactness(workload, outputs, state) == EXACT
        fewer = chosen.exactness(replace(workload, rows=ROWS - 1), outputs, state)
        assert fewer["wrong_state"] > 0
        assert name == "count-window" or fewer["duplicated"] > 0, "its last row need not close a window"
        if name == "word-count":
            assert _highest(outputs) == _counted_by_spark(spark, options_of(chosen, ROWS))


def _highest(outputs: pa.Table) -> dict[tuple[str, int], int]:
    """The count that each word comes to in each window."""
    found = outputs.group_by(["word", "window"]).aggregate([("count", "max")])
    starts = found.column("window").cast(pa.int64()).to_pylist()
    pairs = zip(found.column("word").to_pylist(), starts, strict=True)
    return dict(zip(pairs, found.column("count_max").to_pylist(), strict=True))


def _counted_by_spark(spark: SparkSession, options: dict[str, str]) -> dict[tuple[str, int], int]:
    words = split(spark.read.format(source.FORMAT).options(**options).load())
    window = sf.window("due", "500 milliseconds")
    counts = words.groupBy("word", window).count().select("word", sf.unix_micros("window.start").alias("at"), "count")
    return {(row["word"], row["at"]): row["count"] for row in counts.collect()}
