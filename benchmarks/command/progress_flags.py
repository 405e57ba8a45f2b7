"""`python -m benchmarks progress-tracking`: a small batch with and without asynchronous progress tracking."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

PROGRESS = """
The milliseconds of a small batch with Spark's asyncProgressTrackingEnabled and without it: the same rows, processor, session.
Both ways are interleaved and repeated, and the order changes from pair to pair. batch_ms is the median time of a trigger,
between_ms the mean time from the beginning of one batch to that of the next, work_ms the median time in which the batch itself
runs, hosts_ms the time in which all hosts together worked for a batch. Each line is a JSON object.
"""
EXAMPLES = """
examples:
  python -m benchmarks progress-tracking --pairs 1 --batches 20      a minute, to see that all works
"""


def add(kinds: Any, kind: Any) -> None:
    flags = kind(kinds, "progress-tracking", "a small batch with asynchronous progress", PROGRESS, EXAMPLES)
    flags.add_argument("--pairs", type=int, default=4, help="how often both ways are measured (%(default)s)")
    flags.add_argument("--batches", type=int, default=60, help="measured each time, after a warm-up (%(default)s)")
    flags.add_argument("--rows", type=int, default=500, help="rows of a batch (%(default)s)")
    flags.add_argument("--interval-ms", type=int, default=1_000, help="between entries of Spark's log (%(default)s)")
    flags.add_argument("--hosts", type=int, default=2, help="hosts (%(default)s)")
    flags.add_argument("--keep", action="store_true", help="append to benchmarks/results/progress-tracking.jsonl")
    flags.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    from benchmarks.running.record import keep, say
    from benchmarks.spark_settings.progress_tracking import WAYS, TrackingSettings, series

    settings = TrackingSettings(given.rows, given.batches, given.interval_ms, given.hosts).checked()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for line in series(settings, given.pairs):
        print(json.dumps(line), flush=True)
        times[line["way"]].append(line["between_ms"])
        if given.keep:
            keep("progress-tracking", line)
    without, with_it = (times[way] for way in WAYS)
    ratios = [after / before for before, after in zip(without, with_it, strict=True)]
    if ratios:
        say(f"asynchronous / synchronous: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    return 0
