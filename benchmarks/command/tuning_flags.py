"""`python -m benchmarks tuning`: what each setting of `godwit.tune` brings."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.command.progress_bar import watching
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, TRIGGERS
from godwit.errors import DefinitionError

TUNING = """
What each setting of godwit.tune brings: a native processor that counts rows per key, with all settings, and with one setting
after another left out. Every measurement has a session of its own, because these settings count when a session starts.

  micro-batch   milliseconds of a batch of few rows: most of it is Spark's own work, where settings show most
  real-time     Kafka to Kafka: p50 and p99 of rows, where the query runs without the setting; also without the Java class

Each run prints one JSON object; ratio is that to the run with all settings in the same round (above 1: the setting helps).
"""
EXAMPLES = """
examples:
  python -m benchmarks tuning --runs 3 --keep
  python -m benchmarks tuning --trigger real-time --runs 2 --keep
"""


def add(kinds: Any, kind: Any) -> None:
    flags = kind(kinds, "tuning", "what each setting of godwit.tune brings", TUNING, EXAMPLES)
    flags.add_argument("--trigger", default=MICRO_BATCH, choices=TRIGGERS, help="Spark's trigger (%(default)s)")
    flags.add_argument("--runs", type=int, default=3, help="rounds (%(default)s)")
    flags.add_argument("--batches", type=int, default=30, help="batches measured each time (%(default)s)")
    flags.add_argument("--batch-rows", type=int, default=500, help="rows of a batch (%(default)s)")
    flags.add_argument("--rate", type=int, default=500, help="rows a second in real time (%(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="measured each time in real time (%(default)s)")
    flags.add_argument("--keep", action="store_true", help="append the lines to benchmarks/results/tuning.jsonl")
    flags.set_defaults(run=_tuning)


def _tuning(given: argparse.Namespace) -> int:
    if given.runs < 1:
        raise DefinitionError("--runs must be 1 or more")
    from benchmarks.running.record import keep
    from benchmarks.spark_settings.tuning import TuningSettings, series

    settings = TuningSettings(given.batches, given.batch_rows, given.rate, given.seconds).checked()
    with watching() as watch:
        for line in series(given.trigger, settings, given.runs, watch):
            print(json.dumps(line), flush=True)
            print(summary(line), file=sys.stderr)
            if given.keep:
                keep("tuning", line)
    return 0


def summary(line: dict[str, Any]) -> str:
    if line["trigger"] == REAL_TIME:
        took = f"p50 {line['p50_ms']} ms, p99 {line['p99_ms']} ms"
    else:
        took = f"{line['batch_ms']:.0f} ms a batch"
    return f"left out: {line['left_out']}: {took}, {line['ratio']:.2f} of that with all settings"
