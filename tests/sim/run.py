"""One schedule: a small flock and a query drawn from a seed, moves, faults, and the end that it must come to."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from godwit import ports
from godwit.errors import InvariantBroken
from godwit.model.routing import Routing
from godwit.runtime.durable import memory
from godwit.runtime.host import host
from godwit.runtime.processor import merging
from godwit.runtime.router import router
from godwit.state import mounts
from godwit.state.ledger import memory_bytes_max
from godwit.state.mounts import Mount
from godwit.state.probing import probe
from godwit.transport import line
from tests.sim.checks import Checks
from tests.sim.faults import Faults
from tests.sim.flock import Flock, Plan
from tests.sim.kernel import Breach, Kernel
from tests.sim.moves import Moves, Order
from tests.sim.network import Network
from tests.sim.operators import BLOCK_ROWS, HOT_ROWS_MIN, operator_of
from tests.sim.query import Committed, Queries, Query, route_hash
from tests.sim.schedule import Happening, Schedule, draw_load
from tests.sim.watching import impossible_events_end, watched

HORIZON_S = 1.2  # about how long an undisturbed run takes: what comes later meets no rows
AFTER_FAULTS_S = 400.0  # by then everything has come to an end
TURNS_MAX = 400_000
LOOK_TURNS = 8
MEMORY = Path("/dev/shm")


class Mounts:
    """The table of mounts, read once, and without those on which no schedule has its files."""

    def __init__(self) -> None:
        self._text = ""

    def read_text(self, errors: str) -> str:
        if not self._text:
            lines = Path("/proc/self/mountinfo").read_text(errors=errors).splitlines()
            self._text = "\n".join(line for line in lines if str(MEMORY).startswith(line.split(" ")[4]))
        return self._text


MOUNTS = Mounts() if MEMORY.is_dir() else Path("/proc/self/mountinfo")


@cache
def _probed() -> Mount:
    place = Path(tempfile.mkdtemp(prefix="godwit-sim-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        return probe(place)
    finally:
        shutil.rmtree(place)


def one_probe(directory: Path) -> Mount:
    """All hosts of all schedules are on one real file system, which is tried out once."""
    return _probed()


@dataclass(slots=True)
class Result:
    seed: int
    faults: Counter[str]
    outcomes: Counter[str]
    turns: int
    breach: str = ""
    invariant: str = ""
    story: list[str] = field(default_factory=list)


class Run:
    """`protocol`: by which all keys move, if it is to be one only. `schedule`: what to run, instead of what the seed says."""

    def __init__(self, seed: int, protocol: str | None = None, schedule: Schedule | None = None) -> None:
        self.seed = seed
        self.dice = dice = Random(seed)
        self.load = load = draw_load(dice) if schedule is None else schedule.load
        self.kernel = Kernel(dice)
        self.kernel.restless, self.kernel.sync_s = load.restless, load.sync_s
        self.network = Network(self.kernel)
        self.happenings: list[Happening] = []  # by chance, as they came
        self.root = Path(tempfile.mkdtemp(prefix="godwit-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        first = Routing.spread(load.names[: load.owners], load.groups)
        operators = tuple(operator_of(name, kind) for name, kind in load.operators.items())
        plan = Plan(load.names, first, operators, load.durability, load.backup, load.silent_s)
        with ports.use(self.kernel), line.use(self.network):
            self.flock = Flock(self.kernel, self.root, plan)
        self.checks = {one.spec.name: Checks(self.flock, one.spec, load.keys) for one in operators}
        self.checks[load.queries[0][0]].begins_with([row for lane in load.initial for rows in lane for row in rows])
        self.queries = Queries([self._query(at) for at in range(len(load.queries))])
        hashes = [route_hash(key) for key in load.keys]
        self.moves = Moves(self.kernel, self.flock, hashes, protocol, self._note)
        self.faults = Faults(self.kernel, self.network, self.flock, self.queries, self._note)
        self.kernel.after_thread = self._check_owners
        self._plan() if schedule is None else self._follow(schedule)

    def _plan(self) -> None:
        for query in self.queries:
            query.began = self.moves.batch_began
        batches = sum(len(query.batches) for query in self.queries)
        self.moves.plan(self.dice.choice((0, 1, 2, 3, 4, 6)), HORIZON_S, batches)
        self.faults.plan(self.dice.choice((0, 1, 2, 3, 4, 6)), HORIZON_S)

    def _follow(self, schedule: Schedule) -> None:
        self.flock.planned = {host: list(some) for host, some in schedule.recoveries.items()}
        for happening in schedule.happenings:
            self.kernel.points.at(happening.at, partial(self._do, happening.action))

    def _do(self, action: Sequence[Any]) -> None:
        kind, *what = action
        if kind == "move":
            self.moves.ask_for(Order.from_dict(*what))
        else:
            self.faults.do(action)

    def _note(self, action: Sequence[Any]) -> None:
        self.happenings.append(Happening(self.kernel.points.now(), action))

    def schedule(self, about: str, hole: str = "") -> Schedule:
        """What has happened, to be done again."""
        return Schedule(about, self.load, self.happenings, self.flock.recoveries, hole, [self.seed])

    def _query(self, at: int) -> Query:
        load = self.load
        query = Query(self.kernel, self.flock, f"query-{at}", load.queries[at], load.batches[at], self._committed)
        query.recut = load.recut
        if load.asynchronous and len(load.queries[at]) == 1:
            query.asynchronous = True
            self.flock.asynchronous.add(query.name)
        query.initial = list(load.initial) if at == 0 else []
        return query

    def _committed(self, operator: str, committed: Committed) -> None:
        self.checks[operator].committed(committed)

    def _check_owners(self) -> None:
        for checks in self.checks.values():
            checks.owners()

    def run(self) -> Result:
        breach: Breach | None = None
        ahead = patch.object(router, "IN_FLIGHT_MAX", router.IN_FLIGHT_MAX if self.load.ahead else 1)
        blocks = patch.object(router, "BLOCK_ROWS", BLOCK_ROWS)
        hot = patch.object(merging, "HOT_ROWS_MIN", HOT_ROWS_MIN)
        small = patch.object(
            memory, "memory_bytes_max", lambda limit: self.load.ledger_bytes or memory_bytes_max(limit)
        )
        disk = ExitStack()
        disk.enter_context(patch.object(host, "probe", one_probe))
        disk.enter_context(patch.object(mounts, "_TABLE", MOUNTS))
        watch = watched(self.kernel, self.faults.effect, self.faults.spill)
        impossible = impossible_events_end(self.kernel)
        with ports.use(self.kernel), line.use(self.network), watch, impossible, ahead, blocks, hot, small, disk:
            try:
                self._to_the_end()
            except Breach as found:
                breach = found
            except InvariantBroken as found:
                breach = Breach("I1", str(found))
            finally:
                self.kernel.end()
                shutil.rmtree(self.root, ignore_errors=True)
        return self._result(breach)

    def _to_the_end(self) -> None:
        if not self.kernel.run(self._over, TURNS_MAX, self.kernel.time_s + AFTER_FAULTS_S):
            raise Breach("I6", f"it does not end: {self._left()}")
        for checks in self.checks.values():
            checks.at_the_end()
        between = sum("migration" in stream.header for stream in self.network.ever)
        if between and not self.moves.asked:
            raise Breach("I7", f"{between} streams between hosts, though nothing was to move")

    def _over(self) -> bool:
        """Looked at now and then: what is left is read from files."""
        if self.kernel.turns % LOOK_TURNS or self.moves.planned:
            return False
        return self.queries.over and not self._left()

    def _left(self) -> list[str]:
        batches = [f"batch {query.batch} of {query.name} is under way" for query in self.queries if not query.over]
        return [*batches, *self.flock.unresolved()]

    def _result(self, breach: Breach | None) -> Result:
        ends = {
            "takeover": self.flock.takeovers,
            "takeover by copies": self.flock.by_copies,
            "silence": self.flock.silent,
        }
        faults = self.faults.happened + Counter(ends)
        result = Result(self.seed, faults, Counter(self.moves.outcomes.values()), self.kernel.turns)
        if breach is not None:
            result.breach, result.invariant = str(breach), breach.invariant
            result.story = self.kernel.told()
        return result


def run_seed(seed: int, protocol: str | None = None) -> Result:
    return Run(seed, protocol).run()
