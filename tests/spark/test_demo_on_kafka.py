"""The demo on Kafka as a whole: a broker, a query in real time, all steps, and what it prints in the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from godwit.demo.latency_line import BARS, LEGEND
from godwit.demo.steps import STEPS
from godwit.spark.supported_pyspark import has_real_time

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not has_real_time(), reason="this PySpark has no real time with Python in the path")
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_on_kafka_is_exact() -> None:
    command = [sys.executable, "-m", "godwit.cli", "demo", "--kafka"]
    environment = os.environ | {"COLUMNS": "100"}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout[-4_000:] + shown.stderr[-4_000:]
    counts = {
        name: int(count.replace(",", "")) for name, count in re.findall(r"^ +(\w.*?)  +([\d,]+) *$", shown.stdout, re.M)
    }
    wrong = {name: counts[name] for name in ("lost", "doubled", "out of order", "wrong")}
    assert wrong == dict.fromkeys(wrong, 0)
    assert counts["records in the topic"] > 50_000
    for letter in "ABCDE"[: len(STEPS)]:
        assert re.search(rf"^  {letter} \w.*: .*\d\.\d\d s$", shown.stdout, re.M), (
            f"step {letter} has a line of its own"
        )
    strips = re.findall(rf"^ +\d+ s  [{BARS}·]+$", shown.stdout, re.M)
    assert len(strips) >= 3, "the whole time is drawn in the end"
    assert LEGEND in shown.stdout
    assert "Traceback" not in shown.stderr, "what a killed worker complains about does not reach the terminal"
