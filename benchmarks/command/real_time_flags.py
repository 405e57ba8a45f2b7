"""`python -m benchmarks real-time`: rows from Kafka to Kafka with Spark's real-time trigger, beside a copy in the JVM."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.command.progress_bar import watching

REAL_TIME = """
The latency of rows from one Kafka topic to another, with Spark's real-time trigger, while nothing moves: from the time at which
a row was due until a reader of the second topic had its result. The broker, the load and the reader run on this machine too.

  copy        Spark alone: no Python, no state
  native      Godwit, a native processor that counts the rows of each key
  unchanged   Godwit, a StatefulProcessor of PySpark that does the same

All ways get the same rows, one way after another, and are repeated. A first run of each way is not counted: JVMs compile what
runs often, and take cores for it. Each run prints one JSON object: p50, p99, p99.9 and the maximum after a warm-up, rows
that came out in a second, and the cores that Spark and the hosts used.
"""
EXAMPLES = """
examples:
  python -m benchmarks real-time --rates 2000 --runs 1
  python -m benchmarks real-time --rates 30000 --ways native --seconds 60
  python -m benchmarks real-time --rates 500 --silence-s 60 --runs 1          one row after a minute of silence
  python -m benchmarks real-time --rates 2000 --batch-s 10 --seconds 40       what the change from batch to batch costs
"""


def add(kinds: Any, kind: Any) -> None:
    flags = kind(kinds, "real-time", "Kafka to Kafka in real time, beside a copy in the JVM", REAL_TIME, EXAMPLES)
    flags.add_argument("--rates", default="500,2000,8000", metavar="N[,N...]", help="rows a second (%(default)s)")
    flags.add_argument("--ways", default="copy,native", metavar="WAY[,WAY...]", help="what is measured (%(default)s)")
    flags.add_argument("--runs", type=int, default=3, help="how often each way is measured (%(default)s)")
    flags.add_argument("--seconds", type=float, default=15.0, help="that are measured, after the warm-up (%(default)s)")
    flags.add_argument("--keys", type=int, default=10_000, help="keys (%(default)s)")
    flags.add_argument("--hosts", type=int, default=2, help="hosts (%(default)s)")
    flags.add_argument("--batch-s", type=float, default=0.0, help="seconds of a batch; 0: as long as the load (0)")
    flags.add_argument("--silence-s", type=float, default=0.0, help="one more row after so long a silence (0: none)")
    flags.add_argument("--keep", action="store_true", help="append the lines to benchmarks/results/real-time.jsonl")
    flags.set_defaults(run=_real_time)


def _real_time(given: argparse.Namespace) -> int:
    from benchmarks.experiments.passing import PassingSettings, series
    from benchmarks.running.record import keep

    settings = [
        PassingSettings(
            way=way,
            rate=rate,
            keys=given.keys,
            hosts=given.hosts,
            steady_s=given.seconds,
            batch_s=given.batch_s,
            silence_s=given.silence_s,
        ).checked()
        for rate in map(int, given.rates.split(","))
        for way in given.ways.split(",")
    ]
    lost = 0
    with watching() as watch:
        for line in series(settings, given.runs, watch):
            print(json.dumps(line), flush=True)
            print(summary(line), file=sys.stderr)
            lost += line["lost"]
            if given.keep:
                keep("real-time", line)
    return int(lost != 0)


def summary(line: dict[str, Any]) -> str:
    more = "".join(
        f", {what} {line[name]} ms"
        for name, what in (("after_silence_ms", "after silence"), ("boundary_max_ms", "at batch ends"))
        if line[name] is not None
    )
    return (
        f"{line['way']}, {line['rate']:,} rows/s: p50 {line['p50_ms']} ms, p99 {line['p99_ms']} ms, max {line['max_ms']} ms, "
        f"{line['rows_out_per_s']:,} rows/s out, {line['cores_used']} cores{more}, {line['lost']} lost"
    )
