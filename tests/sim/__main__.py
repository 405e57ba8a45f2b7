"""Run seeds: `python -m tests.sim --seeds 500`, or one with its story: `python -m tests.sim --seed 17 --verbose`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context

from tests.sim.controller import PROTOCOLS
from tests.sim.run import Result, Run, run_seed

STORY_LINES = 60


def results(first: int, seeds: int, protocol: str | None, jobs: int) -> Iterator[Result]:
    one = partial(run_seed, protocol=protocol)
    if jobs == 1:
        yield from map(one, range(first, first + seeds))
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(one, range(first, first + seeds), chunksize=50)


def tell_failure(result: Result, protocol: str | None, lines: int) -> None:
    again = f"python -m tests.sim --seed {result.seed} --verbose" + (f" --protocol {protocol}" if protocol else "")
    print(f"\nseed {result.seed} breaks {result.breach}")
    for line in result.story[-lines:]:
        print("  " + line)
    print(f"again: {again}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one seed only")
    parser.add_argument("--verbose", action="store_true", help="tell the whole story, also of a run that holds")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="all migrations by this protocol")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many")
    options = parser.parse_args()
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
        for entry in run.world.story:
            print(*entry)
    print(f"seed {seed} holds: {result.events} events, {dict(result.outcomes)}, faults {dict(result.faults)}")
    return 0


def many(options: argparse.Namespace) -> int:
    began_s = time.perf_counter()
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    ran = events = failed = 0
    for result in results(options.first, options.seeds, options.protocol, options.jobs):
        ran += 1
        events += result.events
        faults += result.faults
        outcomes += result.outcomes
        if result.breach:
            failed += 1
            tell_failure(result, options.protocol, STORY_LINES)
            if failed >= options.failures:
                break
        if ran % 10_000 == 0:
            print(f"{ran:,} seeds, {failed} failed", file=sys.stderr)
    took_s = time.perf_counter() - began_s
    print(f"seeds       {ran:,} from {options.first}, {failed} failed, {ran / took_s:.0f} a second, {events:,} events")
    print(f"migrations  {sum(outcomes.values()):,}: {_listed(outcomes)}")
    print(f"faults      {sum(faults.values()):,}: {_listed(faults)}")
    return 1 if failed else 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
