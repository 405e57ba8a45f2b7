"""What a schedule is made of: a load, and faults and moves at named points. Drawn from a seed, or read from a file.

A file in `tests/sim/recorded` keeps a schedule in which something once went wrong. It says nothing of turns: which thread runs
next, and how long a message takes, is the dice's to say, and the file names dice that have shown the failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from godwit.model.watermark import Policy
from godwit.state.segments import Durability
from tests.sim.operators import BATCH_MS, Kind, draw_kind
from tests.sim.points import Point
from tests.sim.query import Batches, Lanes, Row

QUERIES = ((("a",),), (("a",),), (("a", "b"),), (("a",), ("b",)))  # the operators of each
INITIALLY = 0.15  # of the loads begin with initial state
HEARTBEATS = 0.4  # of the loads have heartbeats
BY_KEY = 0.4  # of the queries have lanes by key
BY_KEY_POLICY: dict[Policy, Policy] = {
    "max": "max",
    "query": "query",
    "min": "query",
}  # such lanes have no slowest partition
ASYNCHRONOUS = 0.2  # of the loads have queries with asynchronous progress
RECORDED = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True)
class Load:
    """`owners`: so many of the hosts own something at first. `batches`: of each query. `sync_s`: how slow disks may be.

    `ahead`: routers send chunks before earlier ones are answered. `recut`: a run that is started again cuts the batch
    in progress otherwise. `initial`: rows that the first operator gets before the first batch. `restless`: how often a
    thread gives way where it need not. `ledger_bytes`: beyond these a ledger goes to disk. `silent_s`: a host whose
    heartbeats do not come for so long counts as lost; without it there are no heartbeats. `asynchronous`: Spark tracks the
    progress of queries with one operator asynchronously.
    """

    hosts: int
    owners: int
    groups: int
    keys: Sequence[int]
    queries: Sequence[Sequence[str]]
    operators: Mapping[str, Kind]
    batches: Sequence[Batches]
    durability: Durability = "process"
    backup: bool = False
    ahead: bool = True
    recut: bool = False
    restless: float = 0.1
    sync_s: float = 0.0
    initial: Lanes = field(default_factory=list)
    ledger_bytes: int | None = None
    silent_s: float | None = None
    asynchronous: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"host-{at}" for at in range(self.hosts))


@dataclass(frozen=True, slots=True)
class Happening:
    """A fault or a move, as `faults.Faults.do` takes it."""

    at: Point
    action: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """`recoveries`: by host, for each time it ends: after how long it is recovered, and whether others take over.

    `hole`: the name of what was wrong (`holes.py`). `dice`: with these the schedule has failed when that was put back.
    """

    about: str
    load: Load
    happenings: Sequence[Happening] = ()
    recoveries: Mapping[str, Sequence[tuple[float, bool]]] = field(default_factory=dict)
    hole: str = ""
    dice: Sequence[int] = (0, 1, 2)

    def write(self, path: Path) -> None:
        """A line for each batch and each happening."""
        whole = asdict(self)
        load = whole.pop("load")
        batches = [[_line(batch) for batch in batches] for batches in load.pop("batches")]
        happenings = [_line([*h.at, list(h.action)]) for h in self.happenings]
        del whole["happenings"]
        parts = [f'"{name}": {_line(value)}' for name, value in whole.items()]
        parts.append(f'"load": {_line(load)}')
        parts.append('"batches": [' + ",\n".join("[\n" + ",\n".join(some) + "\n]" for some in batches) + "]")
        parts.append('"happenings": [\n' + ",\n".join(happenings) + "\n]")
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Schedule:
        whole = json.loads(path.read_text())
        kinds = {name: Kind(**kind) for name, kind in whole["load"].pop("operators").items()}
        load = Load(**whole.pop("load"), operators=kinds, batches=_rows(whole.pop("batches")))
        happenings = [
            Happening(Point(name, nth, after_s), action) for name, nth, after_s, action in whole.pop("happenings")
        ]
        return cls(load=load, happenings=happenings, **whole)

    def without(self, at: int) -> Schedule:
        """All happenings but one."""
        return replace(self, happenings=[*self.happenings[:at], *self.happenings[at + 1 :]])


def _line(value: Any) -> str:
    return json.dumps(value, separators=(", ", ": "))


def _rows(queries: Any) -> list[Batches]:
    return [
        [[[[tuple(row) for row in chunk] for chunk in lane] for lane in batch] for batch in some] for some in queries
    ]


# -- by chance -------------------------------------------------------------------------------------------------------


def draw_load(dice: Random) -> Load:
    hosts = dice.randint(2, 4)
    queries = dice.choice(QUERIES)
    keys = sorted(dice.sample(range(1, 10_000), dice.randint(4, 14)))
    operators = {name: draw_kind(dice) for names in queries for name in names}
    batches = [draw_batches(dice, keys, len(operators)) for _ in queries]
    for (first, *_), some in zip(queries, batches, strict=True):
        if dice.random() < BY_KEY:
            operators[first] = replace(
                operators[first], partitions=len(some[0]), policy=BY_KEY_POLICY[operators[first].policy]
            )
    load = Load(
        hosts=hosts,
        owners=dice.randint(1, hosts),
        groups=dice.choice((4, 8, 12)),
        keys=keys,
        queries=queries,
        operators=operators,
        batches=batches,
        durability=dice.choice(("process", "disk")),
        backup=dice.random() < 0.3,
        # The windows of these lanes are small: a router would answer each before it reads the next, and never be ahead.
        ahead=dice.random() < 0.5,
        recut=dice.random() < 0.5,
        restless=dice.choice((0.0, 0.02, 0.1, 0.3)),
        sync_s=dice.choice((0.0, 0.002, 0.05)),
        initial=draw_batches(dice, keys, 2)[0] if dice.random() < INITIALLY else [],
        silent_s=1.0 if dice.random() < HEARTBEATS else None,
    )
    return tracked_asynchronously(load) if dice.random() < ASYNCHRONOUS else load


def tracked_asynchronously(load: Load) -> Load:
    """Rows are known by lane and sequence, and no timers fire. A key has one lane, so batches may be cut anywhere."""
    alone = [at for at, names in enumerate(load.queries) if len(names) == 1]
    operators = dict(load.operators) | {load.queries[at][0]: Kind() for at in alone}
    batches = list(load.batches)
    for at in alone:
        batches[at] = [_by_key(lanes) for lanes in batches[at]]
    return replace(load, operators=operators, batches=batches, asynchronous=True)


def _by_key(lanes: Lanes) -> Lanes:
    rows = [row for chunks in lanes for chunk in chunks for row in chunk]
    apart = [[row for row in rows if row[0] % len(lanes) == lane] for lane in range(len(lanes))]
    return [[some[at : at + 5] for at in range(0, len(some), 5)] for some in apart]


def draw_batches(dice: Random, keys: Sequence[int], among: int) -> Batches:
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
