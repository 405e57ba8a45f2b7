"""Run schedules: `python -m tests.sim --seeds 1000`, or one with its story: `python -m tests.sim --seed 17 --verbose`.

A seed means the same schedule in every process only if sets have the same order in all of them, so this sees to it that
strings hash alike.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

from tests.sim.moves import PROTOCOLS
from tests.sim.run import Result, Run, run_seed

STORY_LINES = 60
HASH = "PYTHONHASHSEED"
logging.getLogger("godwit").addHandler(logging.NullHandler())  # faults are simulated: nobody need be warned of them


def results(first: int, seeds: int, protocol: str | None, jobs: int) -> Iterator[Result]:
    """In processes of their own, in which strings hash alike."""
    with alike(), get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(partial(run_seed, protocol=protocol), range(first, first + seeds), chunksize=5)


@contextmanager
def alike() -> Iterator[None]:
    """Processes that are begun in here hash strings alike."""
    before = os.environ.get(HASH)
    os.environ[HASH] = "0"
    try:
        yield
    finally:
        os.environ.pop(HASH) if before is None else os.environ.update({HASH: before})


def tell_failure(result: Result, protocol: str | None, lines: int) -> None:
    again = f"python -m tests.sim --seed {result.seed} --verbose" + (f" --protocol {protocol}" if protocol else "")
    print(f"\nseed {result.seed} breaks {result.breach}")
    for line in result.story[-lines:]:
        print("  " + line)
    print(f"again: {again}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--verbose", action="store_true", help="tell the whole story, also of a run that holds")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="all migrations by this protocol")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many")
    parser.add_argument("--coverage", action="store_true", help="which lines of the product are executed")
    options = parser.parse_args()
    if options.coverage:
        seeds = ["--seeds", str(options.seeds), "--first", str(options.first)]
        return subprocess.run([sys.executable, "-m", "tests.sim.covered", *seeds], check=False).returncode
    if options.seed is not None and os.environ.get(HASH) != "0":
        with alike():
            return subprocess.run([sys.executable, "-m", "tests.sim", *sys.argv[1:]], check=False).returncode
    if options.seed is not None:
        return one(options.seed, options.protocol, options.verbose)
    return many(options)


def one(seed: int, protocol: str | None, verbose: bool) -> int:
    run = Run(seed, protocol)
    result = run.run()
    if result.breach:
        tell_failure(result, protocol, len(result.story) if verbose else STORY_LINES)
        return 1
    if verbose:
        print(*run.kernel.told(), sep="\n")
    print(f"seed {seed} holds: {result.turns} turns, {dict(result.outcomes)}, faults {dict(result.faults)}")
    return 0


def many(options: argparse.Namespace) -> int:
    began_s = time.perf_counter()
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    ran = turns = failed = 0
    for result in results(options.first, options.seeds, options.protocol, options.jobs):
        ran += 1
        turns += result.turns
        faults += result.faults
        outcomes += result.outcomes
        if result.breach:
            failed += 1
            tell_failure(result, options.protocol, STORY_LINES)
            if failed >= options.failures:
                break
        if ran % 100 == 0:
            print(f"{ran:,} schedules, {failed} failed", file=sys.stderr)
    took_s = time.perf_counter() - began_s
    print(f"schedules   {ran:,} from {options.first}, {failed} failed, {ran / took_s:.0f} a second, {turns:,} turns")
    print(f"migrations  {sum(outcomes.values()):,}: {_listed(outcomes)}")
    print(f"faults      {sum(faults.values()):,}: {_listed(faults)}")
    return 1 if failed else 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
