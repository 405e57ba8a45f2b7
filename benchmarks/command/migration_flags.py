"""`python -m benchmarks migration` and `rest`: flags into settings, progress to stderr, one JSON object per run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

from benchmarks.campaign.aims import aims, sound
from benchmarks.command.progress_bar import watching
from benchmarks.inside.names import ORDERS
from benchmarks.running.settings import ALL_PROTOCOLS, REAL_TIME_RATE, STANDBY, TARGETS, UNSET, WORKLOADS, Settings
from benchmarks.running.triggers import REAL_TIME, TRIGGERS
from godwit.errors import DefinitionError

DEFAULTS = Settings()
MIGRATION = """
Moves keys of a running query from host to host and measures what happens to its rows. The query counts rows per key (or
computes what --workload says); a value beside the count makes the state of each key as large as wanted. Rows come at a fixed
rate, whatever the query does (open loop). The latency of a row runs from the time at which the row was due until it left the
operator. Each run prints one JSON object with all parameters, versions, the machine, and these figures:

  steady_*             latency before the request: mean, sigma, p50, p99, and its drift from the first half of the steady part
                       to the second. If the drift is larger than sigma, the query did not keep up with the load, and the
                       other figures mean little. steady_peak_jitter_p99_ms is the peak jitter while nothing moves
  disruption_ms        total time in which rows left with a latency of at least the steady mean + 5 sigma
  peak_jitter_p99_ms   the highest p99 of a window of 100 ms after the request, less the steady mean
  peak_jitter_max_ms   the highest latency of a row after the request, less the steady mean
  stabilise_s          from the request until the last of these late rows left; null if latency was not back at the end
  stall_*              how long rows of moving keys waited in a host for state or ownership: p50, p99 and max over all rows of
                       moving keys that came during the move (stall_rows), and over the rows that waited
                       (stall_rows_waited, stall_waited_p50_ms, stall_waited_p99_ms)
  reconfiguration_s    from the request until the target served the last key
  keys_moved, bytes_moved       what moved
  rows_sent_twice, bytes_sent_twice   what went through two hosts because of the move
  extra_memory_bytes_max   the peak resident memory of the hosts during the move, less the peak before the move
  cpu_s                processor time of the application (driver, Spark, tasks, hosts) during the move, less what it uses in an
                       equally long stretch of the steady part
  load_outlasted_it    whether rows still came when the move ended; if false, give --seconds a longer last part
  lost, duplicated, out_of_order, wrong_state   exactness: always 0, or the exit code is 1. An output row with a wrong value
                       (wrong_outputs) counts twice: the right row is lost, and this row is in excess
"""
REST = """
What a query pays for a feature while nothing moves: rows a second of the same query with the feature and without it. Runs with
and without are interleaved, and the ratio is taken pair by pair.

  support   being able to move keys (without it: hosts that do not check who owns a key)
  backup    a backup of every host on another host, Flock(backup=True)
"""
EXAMPLES = """
examples:
  python -m benchmarks migration --quick --json -
  python -m benchmarks migration --protocol all --runs 5 --check --keep
  python -m benchmarks migration --protocol live,push --keys 100000 --target scale-out --rate 20000
  python -m benchmarks migration --workload count-window --window-rows 1000 --keys 1000 --rate 10000
"""
WORKLOAD = """
counts per key; running averages per key; the means of every --window-rows rows of a key; or words of lines, counted in windows
of event time, where rows are lines (%(default)s)
"""


def add(kinds: Any, kind: Any) -> None:
    _add_migration(kind(kinds, "migration", "keys move while rows come in", MIGRATION, EXAMPLES))
    _add_rest(kind(kinds, "rest", "nothing moves: what the support for it costs", REST, ""))


def _add_migration(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--protocol",
        default=DEFAULTS.protocol,
        metavar="P[,P...]",
        help=f"one, several or all of {', '.join(ALL_PROTOCOLS)} (%(default)s)",
    )
    flags.add_argument(
        "--workload", default=DEFAULTS.workload, choices=WORKLOADS, help=f"what the query computes: {WORKLOAD}"
    )
    flags.add_argument(
        "--window-rows", type=int, default=DEFAULTS.window_rows, help="rows of a window by count (%(default)s)"
    )
    flags.add_argument(
        "--window-s", type=float, default=DEFAULTS.window_s, help="seconds of a window of event time (%(default)s)"
    )
    flags.add_argument(
        "--order", default=DEFAULTS.order, choices=ORDERS, help="the order in which keys move (%(default)s)"
    )
    flags.add_argument(
        "--fraction", type=float, default=DEFAULTS.fraction, help="share of the keys that move (%(default)s)"
    )
    flags.add_argument(
        "--rate",
        type=int,
        help=f"rows a second; unless given, --load of the measured capacity, or {REAL_TIME_RATE} in real time",
    )
    flags.add_argument(
        "--skew",
        type=float,
        default=UNSET,
        help="Zipf's exponent of the keys; 0: all keys alike (1 for words, 0 for all others)",
    )
    flags.add_argument(
        "--load",
        type=float,
        default=DEFAULTS.load,
        help="share of the measured capacity that becomes the rate (%(default)s)",
    )
    flags.add_argument(
        "--target",
        default=DEFAULTS.target,
        choices=TARGETS,
        help="sideways: keys move to the last host; scale-out: to as many new hosts as take that share (%(default)s)",
    )
    flags.add_argument(
        "--seconds",
        default=f"{DEFAULTS.warm_up_s:g}/{DEFAULTS.steady_s:g}/{DEFAULTS.after_s:g}",
        metavar="W/S/A",
        help="seconds of load: warm-up, steady part, after the request; a restart gets 15 s more (%(default)s)",
    )
    flags.add_argument(
        "--trigger",
        default=DEFAULTS.trigger,
        choices=TRIGGERS,
        help="Spark's trigger. With real-time, rows pass a few at a time, so that latency also shows stalls shorter than a "
        "micro-batch; one batch lasts as long as the load, and a restart replays the whole batch (%(default)s)",
    )
    flags.add_argument(
        "--trigger-ms",
        type=int,
        default=DEFAULTS.trigger_ms,
        help="milliseconds between micro-batches; 0: as soon as possible (%(default)s)",
    )
    flags.add_argument(
        "--quick", action="store_true", help="few keys and a short load, to see that all works; the figures mean little"
    )
    flags.add_argument("--check", action="store_true", help="compare with the aims; exit code 1 if one is missed")
    _add_shared(flags, runs=1)
    flags.set_defaults(run=_migration)


def _add_rest(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "of", nargs="?", default="support", choices=("support", "backup"), help="the feature (%(default)s)"
    )
    flags.add_argument("--batches", type=int, default=40, help="batches measured in each run (%(default)s)")
    flags.add_argument("--batch-rows", type=int, default=50_000, help="rows of a batch (%(default)s)")
    _add_shared(flags, runs=5)
    flags.set_defaults(run=_rest)


def _add_shared(flags: argparse.ArgumentParser, runs: int) -> None:
    flags.add_argument("--keys", type=int, default=DEFAULTS.keys, help="number of keys (%(default)s)")
    flags.add_argument(
        "--state-bytes",
        type=int,
        default=UNSET,
        help=f"bytes beside the computed state of a key ({DEFAULTS.state_bytes} for counts per key, 0 for all others)",
    )
    flags.add_argument("--hosts", type=int, default=DEFAULTS.hosts, help="hosts at the beginning (%(default)s)")
    flags.add_argument("--runs", type=int, default=runs, help="repeats (%(default)s)")
    flags.add_argument(
        "--seed", type=int, default=DEFAULTS.seed, help="seed of the rows; each run adds one (%(default)s)"
    )
    flags.add_argument(
        "--json", metavar="FILE", default="-", help="where results go, - for standard output (%(default)s)"
    )
    flags.add_argument("--keep", action="store_true", help="append the results to benchmarks/results/ too")


# -- from flags to settings ------------------------------------------------------------------------------------------


def settings(given: argparse.Namespace) -> list[Settings]:
    """One for each protocol, in the order given."""
    seconds = _seconds(given.seconds)
    base = Settings(
        workload=given.workload,
        order=given.order,
        keys=given.keys,
        state_bytes=given.state_bytes,
        skew=given.skew,
        fraction=given.fraction,
        rate=REAL_TIME_RATE if given.rate is None and given.trigger == REAL_TIME else given.rate,
        load=given.load,
        hosts=given.hosts,
        target=given.target,
        warm_up_s=seconds[0],
        steady_s=seconds[1],
        after_s=seconds[2],
        trigger=given.trigger,
        trigger_ms=given.trigger_ms,
        window_rows=given.window_rows,
        window_s=given.window_s,
        seed=given.seed,
    )
    base = base.quick() if given.quick else base
    return [replace(base, protocol=name).checked() for name in _protocols(given.protocol, given.target)]


def _protocols(text: str, target: str) -> list[str]:
    if text == "all":  # copies on a host that is not there yet are none
        return [name for name in ALL_PROTOCOLS if name != STANDBY or target != "scale-out"]
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _seconds(text: str) -> tuple[float, float, float]:
    try:
        warm_up, steady, after = map(float, text.split("/"))
    except ValueError:
        raise DefinitionError(f"--seconds {text!r} is not three numbers with / between them") from None
    return warm_up, steady, after


def _check_runs(given: argparse.Namespace, *more: str) -> None:
    for name in ("runs", *more):
        if getattr(given, name) < 1:
            raise DefinitionError(f"--{name.replace('_', '-')} must be 1 or more")


# -- running ---------------------------------------------------------------------------------------------------------


def _migration(given: argparse.Namespace) -> int:
    _check_runs(given)
    chosen = settings(given)
    from benchmarks.experiments.series import migrations

    with watching() as watch:
        lines = _written(migrations(chosen, given.runs, watch), given, "migration")
    missed = _say_aims(lines) if given.check else False
    return int(missed or not all(map(sound, lines)))


def _rest(given: argparse.Namespace) -> int:
    _check_runs(given, "batches", "batch_rows")
    base = replace(DEFAULTS, keys=given.keys, state_bytes=given.state_bytes, hosts=given.hosts, seed=given.seed)
    base = replace(base, target="scale-out").checked()  # any number of hosts will do, nothing moves
    from benchmarks.experiments.rest import backup, rest

    paid, name = {"support": (rest, "rest"), "backup": (backup, "backup")}[given.of]
    with watching() as watch:
        _written(paid(base, given.runs, given.batches, given.batch_rows, watch), given, name)
    return 0


def _written(lines: Iterable[dict[str, Any]], given: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Each line as soon as it is there: a long series that is cut short has given what it had."""
    from benchmarks.running.record import keep

    written = []
    with _output(given.json) as file:
        for line in lines:
            print(json.dumps(line), file=file, flush=True)
            if given.keep:
                keep(name, line)
            written.append(line)
            print(summary(line), file=sys.stderr)
    return written


def _stall(line: Mapping[str, Any]) -> str:
    if not line["stall_rows"]:
        return "no stall recorded"
    return f"stall p99 {line['stall_p99_ms']:.1f} ms, max {line['stall_max_ms']:.1f} ms"


def _interruption(line: Mapping[str, Any]) -> str:
    if line["disruption_ms"] is None:
        return "no row left after the request"
    return f"disruption {line['disruption_ms']:.0f} ms, peak jitter {line['peak_jitter_p99_ms']:.0f} ms"


def summary(line: Mapping[str, Any]) -> str:
    """The one or two figures that a person looks for first."""
    if line["benchmark"] in ("rest", "backup"):
        ratio = line["ratio"]
        what = "backups" if line["benchmark"] == "backup" else "support"
        return f"throughput with {what} / without: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
    return (
        f"{line['protocol']}: {line['keys_moved']:,} keys in {line['reconfiguration_s']:.2f} s, "
        f"{_stall(line)}, "
        f"{_interruption(line)} "
        f"on {line['steady_mean_ms']:.0f} ms, {'exact' if sound(line) else 'NOT SOUND'}"
    )


@contextmanager
def _output(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdout
        return
    try:
        file = open(name, "w")  # noqa: PTH123, SIM115 closed below; named as the user named it
    except OSError as error:
        raise DefinitionError(f"--json {name}: {error.strerror}") from error
    with file:
        yield file


def _say_aims(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether one is missed."""
    all_aims = aims(lines)
    for aim in all_aims:
        word = {True: "met", False: "MISSED", None: "open"}[aim.met]
        print(f"{word:<7} {aim.text}: {aim.measured}", file=sys.stderr)
    return any(aim.met is False for aim in all_aims)
