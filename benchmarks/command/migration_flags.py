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
Moves keys of a running query from host to host and measures what its rows suffer. The query counts rows per key (or does what
--workload says), beside a value that makes each key's state as large as wanted; its input comes at a fixed rate, whatever the
query does (open loop). A row's latency runs from the time it was due until it left the operator. One JSON object per run is
printed, with all parameters, versions, machine, and these figures:

  steady_*             latency in the part before the request: mean, sigma, p50, p99, and its drift from the first
                       half to the second: beyond sigma, the query did not keep up and the rest means little;
                       steady_peak_jitter_p99_ms is what the peak jitter comes to when nothing moves
  disruption_ms        total time in which rows left with a latency of at least the steady mean + 5 sigma
  peak_jitter_p99_ms   the highest p99 of a 100 ms window after the request, less the steady mean
  peak_jitter_max_ms   the highest latency of a row after the request, less the steady mean
  stabilise_s          from the request until the last such late row left; null if latency was not back at the end
  stall_*              how long rows of moving keys waited in a host for state or ownership: p50, p99 and max over all
                       of them that came during the move (stall_rows), and over those that had to wait
                       (stall_rows_waited, stall_waited_p50_ms, stall_waited_p99_ms)
  reconfiguration_s    from the request until the last key served at its target
  keys_moved, bytes_moved, and what went through two hosts on that account: rows_sent_twice, bytes_sent_twice
  extra_memory_bytes_max   the hosts' peak resident memory during the move, less the peak before it
  cpu_s                processor time that the application (driver, Spark, tasks, hosts) used during the move, beyond what
                       it uses in so long a time of the steady part
  load_outlasted_it    whether rows were still coming when the move ended; if not, give --seconds a longer last part
  lost, duplicated, out_of_order, wrong_state   exactness: always 0, or the exit code is 1; an output row with a wrong
                       value (wrong_outputs) is not the one that should have come, so it is both lost and in excess
"""
REST = """
What is paid while nothing happens: rows a second of the same query with something, and without it. Runs of the two are
interleaved; the ratio is taken pair by pair.

  support   being able to move keys (without it: hosts that do not check who owns a key)
  backup    a backup of every host on another one, Flock(backup=True)
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
    flags.add_argument("--workload", default=DEFAULTS.workload, choices=WORKLOADS, help=f"what is computed: {WORKLOAD}")
    flags.add_argument(
        "--window-rows", type=int, default=DEFAULTS.window_rows, help="rows of a window by count (%(default)s)"
    )
    flags.add_argument(
        "--window-s", type=float, default=DEFAULTS.window_s, help="seconds of a window of event time (%(default)s)"
    )
    flags.add_argument("--order", default=DEFAULTS.order, choices=ORDERS, help="in which order keys go (%(default)s)")
    flags.add_argument("--fraction", type=float, default=DEFAULTS.fraction, help="of the keys that move (%(default)s)")
    flags.add_argument(
        "--rate",
        type=int,
        help=f"rows a second; unless given, --load of the measured capacity, or {REAL_TIME_RATE} in real time",
    )
    flags.add_argument(
        "--skew", type=float, default=UNSET, help="Zipf's exponent; 0: all alike (1 for words, 0 for all others)"
    )
    flags.add_argument("--load", type=float, default=DEFAULTS.load, help="share of the capacity (%(default)s)")
    flags.add_argument(
        "--target",
        default=DEFAULTS.target,
        choices=TARGETS,
        help="sideways: to the last of the hosts; scale-out: to new ones, as many as take that fraction (%(default)s)",
    )
    flags.add_argument(
        "--seconds",
        default=f"{DEFAULTS.warm_up_s:g}/{DEFAULTS.steady_s:g}/{DEFAULTS.after_s:g}",
        metavar="W/S/A",
        help="of load: warm-up, steady part, and after the request; a restart is watched 15 s longer (%(default)s)",
    )
    flags.add_argument(
        "--trigger",
        default=DEFAULTS.trigger,
        choices=TRIGGERS,
        help="micro-batch; real-time: rows pass a few at a time, so that latency shows what is shorter than a micro-batch. "
        "One batch then lasts as long as the load; a restart replays it from its beginning (%(default)s)",
    )
    flags.add_argument(
        "--trigger-ms",
        type=int,
        default=DEFAULTS.trigger_ms,
        help="between micro-batches; 0: as soon as possible (%(default)s)",
    )
    flags.add_argument("--quick", action="store_true", help="small and short: to see that all works")
    flags.add_argument("--check", action="store_true", help="compare with the aims; exit code 1 if one is missed")
    _add_shared(flags, runs=1)
    flags.set_defaults(run=_migration)


def _add_rest(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "of", nargs="?", default="support", choices=("support", "backup"), help="what is paid for (%(default)s)"
    )
    flags.add_argument("--batches", type=int, default=40, help="measured in each run (%(default)s)")
    flags.add_argument("--batch-rows", type=int, default=50_000, help="rows of a batch (%(default)s)")
    _add_shared(flags, runs=5)
    flags.set_defaults(run=_rest)


def _add_shared(flags: argparse.ArgumentParser, runs: int) -> None:
    flags.add_argument("--keys", type=int, default=DEFAULTS.keys, help="how many there are (%(default)s)")
    flags.add_argument(
        "--state-bytes",
        type=int,
        default=UNSET,
        help=f"of each key, beside what is computed ({DEFAULTS.state_bytes} for counts per key, 0 for all others)",
    )
    flags.add_argument("--hosts", type=int, default=DEFAULTS.hosts, help="at the beginning (%(default)s)")
    flags.add_argument("--runs", type=int, default=runs, help="of each kind (%(default)s)")
    flags.add_argument("--seed", type=int, default=DEFAULTS.seed, help="of the rows; each run adds one (%(default)s)")
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

    kept = []
    with _output(given.json) as file:
        for line in lines:
            print(json.dumps(line), file=file, flush=True)
            if given.keep:
                keep(name, line)
            kept.append(line)
            print(summary(line), file=sys.stderr)
    return kept


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
    found = aims(lines)
    for aim in found:
        word = {True: "met", False: "MISSED", None: "open"}[aim.met]
        print(f"{word:<7} {aim.text}: {aim.measured}", file=sys.stderr)
    return any(aim.met is False for aim in found)
