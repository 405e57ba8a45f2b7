"""Keeps a schedule that has failed: `python -m tests.sim.recording release-before-durable --seed 17`.

The seed is run with the hole put back; what happened is written down by the names of points, and what the failure does not need
is taken out. Without a hole (`--about`), the schedule of a seed that fails now is kept, for when it is mended.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

from tests.sim import run
from tests.sim.__main__ import HASH, alike
from tests.sim.holes import HOLES
from tests.sim.run import Result, Run
from tests.sim.schedule import RECORDED, Schedule

TRIES = 8  # dice that are thrown before a schedule counts as harmless
PATIENCE_S = 25.0  # simulated: what has not come to its end by then never does


def replayed(schedule: Schedule, dice: int, hole: str = "") -> Result:
    """With what was wrong, if it is named."""
    put_back = HOLES[hole].put_back() if hole else nullcontext()
    with put_back, patch.object(run, "AFTER_FAULTS_S", PATIENCE_S):
        return Run(dice, schedule=schedule).run()


def breaking(schedule: Schedule, tries: int = TRIES) -> Iterator[Result]:
    """What comes of dice with which the hole is found: those that have found it first, and then others."""
    for dice in dict.fromkeys((*schedule.dice, *range(tries))):
        result = replayed(schedule, dice, schedule.hole)
        if result.breach and (not schedule.hole or result.invariant in HOLES[schedule.hole].found_by):
            yield result


def shrunk(schedule: Schedule) -> Schedule:
    """Without what the failure does not need."""
    smaller = True
    while smaller:
        smaller = False
        for less in _less(schedule):
            result = next(breaking(less), None)
            if result is not None:
                schedule, smaller = replace(less, dice=[result.seed]), True
                break
    return schedule


def _less(schedule: Schedule) -> Iterator[Schedule]:
    """First what takes away most."""
    load = schedule.load
    longest = max(map(len, load.batches))
    if longest > 1:
        yield replace(schedule, load=replace(load, batches=[some[: longest - 1] for some in load.batches]))
    for at in reversed(range(len(schedule.happenings))):
        yield schedule.without(at)
    for host, some in schedule.recoveries.items():
        if len(some) > 1:
            yield replace(schedule, recoveries={**schedule.recoveries, host: some[:-1]})
        elif some:
            yield replace(schedule, recoveries={name: of for name, of in schedule.recoveries.items() if name != host})
    if load.backup:
        yield replace(schedule, load=replace(load, backup=False))


def record(name: str, hole: str, about: str, seed: int, protocol: str | None) -> int:
    one = Run(seed, protocol)
    put_back = HOLES[hole].put_back() if hole else nullcontext()
    with put_back, patch.object(run, "AFTER_FAULTS_S", PATIENCE_S):
        result = one.run()
    if not result.breach:
        print(f"seed {seed} holds")
        return 1
    schedule = one.schedule(about, hole)
    again = next(breaking(schedule, 4 * TRIES), None)
    if again is None:
        print(f"seed {seed} breaks {result.breach}, but not when it is done again by the names of points")
        return 1
    schedule = shrunk(replace(schedule, dice=[again.seed]))
    RECORDED.mkdir(exist_ok=True)
    schedule.write(RECORDED / f"{name}.json")
    print(f"{name}: {len(schedule.happenings)} happenings, {replayed(schedule, schedule.dice[0], hole).breach}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the file, and of the hole unless --about is given")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--protocol", help="all migrations by this protocol")
    parser.add_argument("--about", help="what went wrong, where no hole is put back")
    options = parser.parse_args()
    if os.environ.get(HASH) != "0":
        with alike():
            return subprocess.run([sys.executable, "-m", "tests.sim.recording", *sys.argv[1:]], check=False).returncode
    hole = "" if options.about else options.name
    return record(options.name, hole, options.about or HOLES[hole].about, options.seed, options.protocol)


if __name__ == "__main__":
    sys.exit(main())
