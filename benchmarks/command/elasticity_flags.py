"""`python -m benchmarks elasticity`: what measuring costs, and how hosts follow a step, a day's load and a hot key."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from benchmarks.command.progress_bar import watching
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch
from godwit.errors import DefinitionError

ABOUT = """
How a flock follows its load by rules, in four parts. Each run prints one JSON object with all parameters, versions and machine.

  measuring   rows a second of a query with measuring on, and off; runs are interleaved, the ratio is taken pair by pair
  relief      the load steps to five times what it was. Seconds after the step until the rules decided to scale (decided_s),
              until the new hosts served their keys (served_s), and until rows were back within the latency target
              (relieved_s); without and with a warm host
  day         a day's load, sine and spikes in a few minutes, followed by the sizing rules: target_held (share of the seconds
              whose p99 is within the target), host_seconds beside those of an oracle that knows the future, cost_ratio
  hot-key     one key with 0, 50, 90 and 99 % of the rows: rows a second with a declared merge, and without it, pair by pair;
              applied_share is the share of the rows that hosts still have to apply

In relief and day each row takes a fixed time to apply, so that the figures show how the flock follows, not how fast the machine
is. lost, duplicated, out_of_order and wrong_state are always 0, or the exit code is 1.
"""
EXAMPLES = """
examples:
  python -m benchmarks elasticity --quick
  python -m benchmarks elasticity day --seconds 600
"""
PARTS: Final = ("measuring", "relief", "day", "hot-key")
EXACTNESS: Final = ("lost", "duplicated", "out_of_order", "wrong_state")


def add(kinds: Any, kind: Any) -> None:
    flags: argparse.ArgumentParser = kind(
        kinds, "elasticity", "a flock that follows its load by rules", ABOUT, EXAMPLES
    )
    flags.add_argument("parts", nargs="*", metavar="PART", help=f"parts, of {', '.join(PARTS)} (all)")
    flags.add_argument("--runs", type=int, default=3, help="repeats of each part (%(default)s)")
    flags.add_argument("--seconds", type=int, default=300, help="length of a day (%(default)s)")
    flags.add_argument(
        "--quick", action="store_true", help="short runs, to see that all works; the figures mean little"
    )
    flags.add_argument("--keep", action="store_true", help="append the results to benchmarks/results/ too")
    flags.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        raise DefinitionError(f"there is no part {unknown[0]!r}", todo=f"There are: {', '.join(PARTS)}")
    if given.runs < 1 or given.seconds < 30:
        raise DefinitionError("--runs must be 1 or more, --seconds 30 or more")
    from benchmarks.running.record import keep

    wrong = 0
    with watching() as watch:
        for line in _lines(given, watch):
            print(json.dumps(line), flush=True)
            print(summary(line), file=sys.stderr)
            wrong += sum(line.get(name, 0) for name in EXACTNESS)
            if given.keep:
                keep("elasticity", line)
    return int(wrong > 0)


def _lines(given: argparse.Namespace, watch: Watch) -> Iterator[dict[str, Any]]:
    runs = 1 if given.quick else given.runs
    makers = {
        "measuring": lambda: _measuring(runs if given.quick else max(runs, 5), 15 if given.quick else 40, watch),
        "relief": lambda: _relief(20 if given.quick else 60, runs, watch),
        "day": lambda: _day(60 if given.quick else given.seconds, runs, watch),
        "hot-key": lambda: _hot_key(given.quick, runs, watch),
    }
    for part in given.parts or PARTS:
        yield from makers[part]()


def _measuring(runs: int, batches: int, watch: Watch) -> Iterable[dict[str, Any]]:
    from benchmarks.experiments.measuring import measuring

    return measuring(replace(Settings(), target="scale-out").checked(), runs, batches, 50_000, watch)


def _relief(after_s: int, runs: int, watch: Watch) -> Iterable[dict[str, Any]]:
    from benchmarks.elasticity.followed_load import Elastic, relief

    return relief([Elastic(), Elastic(warm=1)], after_s, runs, watch)


def _day(seconds: int, runs: int, watch: Watch) -> Iterable[dict[str, Any]]:
    from benchmarks.elasticity.followed_load import Elastic, day

    return day([Elastic(maximum=5)], seconds, runs, watch)


def _hot_key(quick: bool, runs: int, watch: Watch) -> Iterable[dict[str, Any]]:
    from benchmarks.elasticity.hot_key import SHARES, hot_key
    from benchmarks.experiments.throughput import ThroughputSettings

    size = ThroughputSettings(batch_rows=100_000, batches=6 if quick else 20, warm_up=3 if quick else 6)
    return hot_key(size, (0, 90) if quick else SHARES, runs, watch)


def summary(line: Mapping[str, Any]) -> str:
    """The figures that a person looks for first."""
    match line["benchmark"]:
        case "measuring":
            ratio = line["ratio"]
            return (
                f"throughput with measuring / without: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
            )
        case "relief":
            return (
                f"relief with {line['warm']} warm: decided after {line['decided_s']} s, served after {line['served_s']} s, "
                f"within the target after {line['relieved_s']} s"
            )
        case "hot-key":
            merged, plain, ratio = line["merged_rows_per_s"], line["rows_per_s"], line["ratio"]
            return (
                f"{line['share']} % of the rows are of one key, {line['row_us']:g} us a row: {plain['median']:,.0f} rows/s, "
                f"merged {merged['median']:,.0f}, ratio {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
            )
        case _:
            return (
                f"day: target held in {100 * line['target_held']:.1f} % of windows, {line['cost_ratio']:.2f} of an oracle's "
                f"host-seconds, {line['actions']} actions"
            )
