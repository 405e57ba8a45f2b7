"""What measuring costs: gauges and hot keys counted on every host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.experiments.pairs import compared
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch
from godwit.runtime.memory.gauges import SWITCH


def measuring(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    return compared("measuring", "measuring", _without_gauges, settings, runs, batches, batch_rows, watch)


@contextmanager
def _without_gauges(spark: SparkSession) -> Iterator[None]:
    """Spark gives a host the environment that its context names when the host is started.

    It has workers of their own for each environment, so both sides are given one that nobody else uses.
    """
    environment = spark.sparkContext.environment
    environment[SWITCH] = "1"
    try:
        yield
    finally:
        environment[SWITCH] = "0"
