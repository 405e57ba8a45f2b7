"""The real-time trigger on Kafka: rows, timers and windows leave while the batch runs, exactly once and in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from godwit.spark.supported_pyspark import has_real_time

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not has_real_time(), reason="this PySpark has no real time with Python in the path")
@pytest.mark.spark
@pytest.mark.parametrize(
    "scenario",
    ["exact", *(pytest.param(name, marks=pytest.mark.long) for name in ("timers", "windows", "without-java"))],
)
def test_what_leaves_does_not_wait_for_the_end_of_the_batch(scenario: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.real_time_program", str(tmp_path), scenario]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"{scenario}: as it should be" in shown.stdout, shown.stderr[-4_000:]
