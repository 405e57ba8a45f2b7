"""One schedule: a small flock and a query drawn from a seed, moves, faults, and the end that it must come to."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

from godwit import ports
from godwit.errors import InvariantBroken
from godwit.model.routing import Routing
from godwit.runtime.router import router
from godwit.transport import line
from tests.sim.checks import Checks
from tests.sim.faults import Faults
from tests.sim.flock import Flock, Plan
from tests.sim.kernel import Breach, Kernel
from tests.sim.moves import Moves
from tests.sim.network import Network
from tests.sim.operators import BATCH_MS, draw_operator
from tests.sim.query import Batches, Committed, Queries, Query, Row, route_hash
from tests.sim.watching import watched

QUERIES = ((("a",),), (("a",),), (("a", "b"),), (("a",), ("b",)))  # the operators of each
HORIZON_S = 1.2  # about how long an undisturbed run takes: what comes later meets no rows
AFTER_FAULTS_S = 400.0  # by then everything has come to an end
TURNS_MAX = 400_000
MEMORY = Path("/dev/shm")


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
    """`protocol`: by which all keys move, if it is to be one only."""

    def __init__(self, seed: int, protocol: str | None = None) -> None:
        self.seed = seed
        self.dice = dice = Random(seed)
        self.kernel = Kernel(dice)
        self.network = Network(self.kernel)
        self.root = Path(tempfile.mkdtemp(prefix="godwit-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        names = tuple(f"host-{at}" for at in range(dice.randint(2, 4)))
        first = Routing.spread(names[: dice.randint(1, len(names))], dice.choice((4, 8, 12)))
        keys = sorted(dice.sample(range(1, 10_000), dice.randint(4, 14)))
        by_query = dice.choice(QUERIES)
        operators = tuple(draw_operator(dice, name) for names in by_query for name in names)
        plan = Plan(names, first, operators, dice.choice(("process", "disk")), dice.random() < 0.3)
        with ports.use(self.kernel), line.use(self.network):
            self.flock = Flock(self.kernel, self.root, plan)
        self.checks = {operator.spec.name: Checks(self.flock, operator.spec, keys) for operator in operators}
        self.queries = Queries(
            [self._query(f"query-{at}", names, keys, len(operators)) for at, names in enumerate(by_query)]
        )
        self.moves = Moves(self.kernel, self.flock, [route_hash(key) for key in keys], protocol)
        self.faults = Faults(self.kernel, self.network, self.flock, self.queries)
        self.kernel.after_turn = self._check_owners
        for query in self.queries:
            query.began = self.moves.batch_began
        # The windows of these lanes are small: a router would answer each before it reads the next, and never be ahead.
        self.small_rows_max = Random(f"windows {seed}").choice((0, router.SMALL_ROWS_MAX))
        batches = sum(len(query.batches) for query in self.queries)
        self.moves.plan(dice.choice((0, 1, 2, 3, 4, 6)), HORIZON_S, batches)
        self.faults.plan(dice.choice((0, 1, 2, 3, 4, 6)), HORIZON_S)

    def _query(self, name: str, operators: Sequence[str], keys: list[int], among: int) -> Query:
        batches = _batches(self.dice, keys, among)
        return Query(self.kernel, self.flock, name, operators, batches, self._committed)

    def _committed(self, operator: str, committed: Committed) -> None:
        self.checks[operator].committed(committed, int(self.kernel.time_s * 1000))

    def _check_owners(self) -> None:
        for checks in self.checks.values():
            checks.owners()

    def run(self) -> Result:
        breach: Breach | None = None
        ahead = patch.object(router, "SMALL_ROWS_MAX", self.small_rows_max)
        with ports.use(self.kernel), line.use(self.network), watched(self.faults.effect), ahead:
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
        return not self.moves.planned and self.queries.over and not self._left()

    def _left(self) -> list[str]:
        batches = [f"batch {query.batch} of {query.name} is under way" for query in self.queries if not query.over]
        return [*batches, *self.flock.unresolved()]

    def _result(self, breach: Breach | None) -> Result:
        faults = self.faults.happened + Counter({"takeover": self.flock.takeovers})
        result = Result(self.seed, faults, Counter(self.moves.outcomes.values()), self.kernel.turns)
        if breach is not None:
            result.breach, result.invariant = str(breach), breach.invariant
            result.story = self.kernel.told()
        return result


def run_seed(seed: int, protocol: str | None = None) -> Result:
    return Run(seed, protocol).run()


def _batches(dice: Random, keys: list[int], among: int) -> Batches:
    """Some keys far more often than others, some rows late. The more operators there are, the less each has to do."""
    numbers = iter(range(1_000_000))

    def row(batch: int) -> Row:
        behind_ms = dice.choice((0, BATCH_MS, 2 * BATCH_MS, 4 * BATCH_MS)) if dice.random() < 0.3 else 0
        at_ms = max(1, batch * BATCH_MS + dice.randrange(BATCH_MS) - behind_ms)
        return keys[int(len(keys) * dice.random() ** 2)], next(numbers), at_ms

    def lane(batch: int, chunks: int) -> list[list[Row]]:
        return [[row(batch) for _ in range(dice.randint(1, 10 // among))] for _ in range(chunks)]

    def lanes(batch: int) -> list[list[list[Row]]]:
        """The first has rows."""
        return [lane(batch, dice.randint(1 if at == 0 else 0, 4)) for at in range(count)]

    count = dice.randint(1, 3)
    return [lanes(batch) for batch in range(dice.randint(2, 5))]
