"""`python -m benchmarks run`, `report` and `peers`: the papers' experiments on this machine, and a page of the figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.campaign.cases import EXPERIMENTS, Case, cases
from benchmarks.command.progress_bar import watching
from godwit.errors import DefinitionError

RUN = """
Runs the experiments of the papers that the protocols are from: all protocols under the same load, beside Apache Flink and
Spark's own state (`make peers` installs what they need). Repeats are interleaved. Each result is written as soon as it is
there; a command that was interrupted goes on where it stopped, on the same commit and machine.

  E1  protocols side by side: half of the keys move; micro-batch and real-time trigger
  E2  sweeps: state per key, keys moved, rate, rows a window, skew, hosts; also in real time
  E3  where the time of a migration goes, phase by phase, and what protocols cost while nothing moves;
      also in real time
  E4  the order in which keys go, under even and skewed load; also in real time
  E5  a host is killed: how soon its keys are back, by state, by how much changelog there is to replay, and by rate
  E6  rows a second by hosts, rows a batch and state, beside Spark's own operators; where the time of a row goes;
      in real time, the latency of rows by rate, after a silence, and when one batch follows another

--runs repeats E1 and the plain runs of E5. The other experiments and all sweeps run once, unless --only chooses them: then they
are repeated, too. --list says how long the chosen runs take.
"""
REPORT = "Writes the results of `run` as one HTML page that needs no other file."
EXAMPLES = """
examples:
  python -m benchmarks run --quick                      a few short runs, to see that all works (under 5 minutes)
  python -m benchmarks run E1 --runs 5
  python -m benchmarks run E2 --only state_bytes,live   the runs with both texts in their names; add -real-time
                                                        for those between micro-batches only
  python -m benchmarks run E1 --only key-count,-flink   the runs without Flink
  python -m benchmarks run E2 E3 E4 E6 --only real-time/ --runs 1   from Kafka to Kafka, with the real-time trigger
  python -m benchmarks run --list
"""
RESULTS = Path("benchmarks/results/evaluation.jsonl")
PAGE = Path("docs/evaluation.html")


PEERS = """
Installs Apache Flink with its Kafka connector into a virtual environment of its own, and compiles the Java parts that drive
the peers, all in .peers. A second call does only what is missing. Needs a JDK (javac).
"""


def add(kinds: Any, kind: Any) -> None:
    kind(kinds, "peers", "set up the systems to compare with", PEERS, "").set_defaults(run=_peers)
    _add_run(kind(kinds, "run", "the papers' experiments, one after another", RUN, EXAMPLES))
    _add_report(kind(kinds, "report", "a page of what was measured", REPORT, ""))


def _add_run(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("experiments", nargs="*", metavar="E", help=f"experiments, of {', '.join(EXPERIMENTS)} (all)")
    flags.add_argument(
        "--only",
        default="",
        metavar="TEXT[,TEXT]",
        help="only runs with these texts in their names; -TEXT: without this text",
    )
    flags.add_argument("--runs", type=int, default=3, help="repeats of each run (%(default)s)")
    flags.add_argument(
        "--quick", action="store_true", help="a few short runs, to see that all works; the figures mean little"
    )
    flags.add_argument("--list", action="store_true", help="print the names of the runs, and run none")
    flags.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FILE",
        help="file that the results are appended to (%(default)s)",
    )
    flags.set_defaults(run=_run)


def _add_report(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="results to read (%(default)s)")
    flags.add_argument("--html", type=Path, default=PAGE, metavar="FILE", help="page to write (%(default)s)")
    flags.set_defaults(run=_report)


def _peers(_: argparse.Namespace) -> int:
    from benchmarks.peers.prepare import prepare

    with watching() as watch:
        prepare(watch)
    return 0


def _run(given: argparse.Namespace) -> int:
    chosen = cases(given.experiments, given.only, given.quick)
    if given.list:
        print("\n".join(f"{case.experiment} {case.name}" for case in chosen))
        print(_planned(chosen, given.runs), file=sys.stderr)
        return 0
    if given.runs < 1:
        raise DefinitionError("--runs must be 1 or more")
    from benchmarks.campaign.aims import EXACTNESS
    from benchmarks.campaign.campaign import campaign

    given.results.parent.mkdir(parents=True, exist_ok=True)
    wrong = 0
    broken: list[str] = []

    def failed(name: str, error: Exception) -> None:
        broken.append(name)
        print(f"{name}: not measured: {(str(error).splitlines() or ['?'])[0][:300]}", file=sys.stderr)

    with watching() as watch, given.results.open("a") as file:
        for line in campaign(chosen, given.runs, given.results, watch, failed):
            print(json.dumps(line), file=file, flush=True)
            print(_summary(line), file=sys.stderr)
            wrong += sum(line.get(name) or 0 for name in EXACTNESS)
    print(f"results are in {given.results}; `python -m benchmarks report` makes a page of it", file=sys.stderr)
    if broken:
        print(f"not measured: {', '.join(broken)}", file=sys.stderr)
    return int(wrong > 0 or bool(broken))


def _planned(chosen: Sequence[Case], runs: int) -> str:
    """A line for each experiment and trigger, then one for all."""
    parts: dict[str, list[Case]] = {}
    for case in chosen:
        parts.setdefault(f"{case.experiment}, {'peers' if case.kind == 'peer' else case.trigger}", []).append(case)
    lines = [f"{part}: {_lasting(mine, runs)}" for part, mine in parts.items()]
    return "\n".join([*(lines if len(lines) > 1 else ()), _lasting(chosen, runs)])


def _lasting(chosen: Sequence[Case], runs: int) -> str:
    count = sum(case.runs(runs) for case in chosen)
    seconds = sum(case.runs(runs) * case.about_s for case in chosen)
    return f"{count} runs, about {seconds / 60:.0f} minutes"


def _summary(line: dict[str, Any]) -> str:
    jitter, disruption = line.get("peak_jitter_p99_ms"), line.get("disruption_ms")
    suffered = "" if jitter is None else f": peak jitter {jitter:.0f} ms, disruption {disruption:.0f} ms"
    return f"{line['experiment']} {line['case']}, run {line['repeat'] + 1}{suffered} ({line['took_s']:.0f} s)"


def _report(given: argparse.Namespace) -> int:
    from benchmarks.report import html, read

    if not given.results.exists():
        raise DefinitionError(f"there are no results in {given.results}", todo="Run `python -m benchmarks run` first")
    evaluation = read(given.results.read_text().splitlines())
    given.html.parent.mkdir(parents=True, exist_ok=True)
    given.html.write_text(html(evaluation), encoding="utf-8")
    print(f"written: {given.html}", file=sys.stderr)
    return 0
