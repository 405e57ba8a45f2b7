"""What is paid while nothing happens: for the support for moving keys (I7), and for backups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.experiments.pairs import compared
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch

SWITCH: Final = "GODWIT_TEST_NO_OWNERSHIP"


def rest(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    return compared("rest", "support", without_support, settings, runs, batches, batch_rows, watch)


def backup(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    given = {"backup": True}
    return compared("backup", "backups", lambda _: nullcontext(), settings, runs, batches, batch_rows, watch, given)


@contextmanager
def without_support(_: SparkSession) -> Iterator[None]:
    """Hosts are given their settings when they start, so the switch is set as long as the flock lives."""
    os.environ[SWITCH] = "1"
    try:
        yield
    finally:
        del os.environ[SWITCH]
