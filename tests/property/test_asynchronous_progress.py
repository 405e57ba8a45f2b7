"""Spark's log names only some of the batches, and a run that starts again cuts batches in other places: every row counts once.

Two hosts with real logs. What Spark does is modelled here: its offset log, its commit log, and where a later run begins.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.model.progress import BatchRef
from godwit.runtime.chunk.ownership_columns import MINE
from godwit.state.ledger import COLUMN_LANE
from tests.property.reruns import GROUPS, Flock, Row, chunk_of, sequential

LANES = ("a", "b")
Offsets = dict[str, int]  # by lane, up to which row a batch has read


class Crash(Exception):
    """The application ends."""


@dataclass
class Query:
    """A query over a source with an endless row sequence per lane; a key comes on one lane only."""

    flock: Flock
    dice: Random
    offsets: dict[int, Offsets] = field(default_factory=dict)  # Spark's offset log on disk
    commits: list[int] = field(default_factory=list)  # Spark's commit log on disk
    said: dict[tuple[str, int], int] = field(default_factory=dict)  # the output of each row
    applied: Offsets = field(default_factory=lambda: dict.fromkeys(LANES, 0))  # how far any run has read
    runs: int = 0
    disturb: bool = True

    def row(self, lane: str, number: int) -> Row:
        return LANES.index(lane) + 2 * (number * number % 5), number

    def start(self, asynchronous: bool) -> None:
        """As MicroBatchExecution does: from the newest entry of the offset log."""
        self.runs += 1
        self.asynchronous, self.first = asynchronous, True
        self.end: Offsets | None = None  # of a batch that is in the offset log and is not committed
        if not self.offsets:
            self.batch, self.begin = 0, dict.fromkeys(LANES, 0)
            return
        newest = max(self.offsets)
        before = max((number for number in self.offsets if number < newest), default=None)
        self.batch, self.begin = newest, dict.fromkeys(LANES, 0) if before is None else self.offsets[before]
        self.end = self.offsets[newest]
        if newest == max(self.commits, default=-1):
            self.batch, self.begin, self.end = newest + 1, self.end, None

    def run_batch(self, writes: bool, ends_after: int | None = None) -> None:
        """One batch. `writes`: Spark's log gets it. `ends_after`: the application ends after so many chunks."""
        request = BatchRef("q", f"run-{self.runs}", self.batch)
        writes = writes or self.first or not self.asynchronous
        end = self.end or {lane: at + self.dice.randint(0, 5) for lane, at in self.begin.items()}
        if writes:
            self.offsets[self.batch] = end
        chunks = 0
        for host in self.flock.hosts:
            for task in ("0", "1"):
                host.opened(request, task, lambda *_: self.asynchronous)
        for task, lane in enumerate(LANES):
            at = self.begin[lane]
            while at < end[lane]:
                self._happens()
                upto = min(end[lane], at + self.dice.randint(1, 4))
                self._apply(request, str(task), lane, at, upto)
                at, chunks = upto, chunks + 1
                if chunks == ends_after:
                    raise Crash
            self._finish(request, str(task))
        if ends_after is not None:
            raise Crash
        if writes:
            self.commits.append(self.batch)
        self.batch, self.begin, self.end, self.first = self.batch + 1, end, None, False

    def _apply(self, request: BatchRef, task: str, lane: str, begin: int, end: int) -> None:
        """A task that finds its host restarted opens its lane again."""
        chunk = chunk_of([(number, self.row(lane, number)) for number in range(begin, end)])
        said: dict[int, int] = {}
        for host in self.flock.hosts:
            mine = host.instance.stands(chunk.hashes) == MINE
            if mine.any():
                host.opened(request, task, lambda *_: self.asynchronous)
                work = host.apply(request, f"{COLUMN_LANE}{lane}", chunk.filter(mine))
                for batch in work.outputs:
                    rows = zip(*(column.to_pylist() for column in (batch.column(0), batch.column(2))), strict=True)
                    for number, counted in rows:
                        assert number not in said, "an output left twice"
                        said[number] = counted
        assert sorted(said) == list(range(begin, end)), "every row gives its output"
        for number, counted in said.items():
            assert self.said.setdefault((lane, number), counted) == counted, "a repeat says what was said before"
        self.applied[lane] = max(self.applied[lane], end)

    def _finish(self, request: BatchRef, task: str) -> None:
        for host in self.flock.hosts:
            host.opened(request, task, lambda *_: self.asynchronous)
            host.finish(request, task, 0)

    def _happens(self) -> None:
        if not self.disturb:
            return
        match self.dice.randrange(12):
            case 0:
                self.flock.move(self.dice.randrange(GROUPS))
            case 1:
                self.dice.choice(self.flock.hosts).restart(compact=self.dice.random() < 0.5)
            case 2 | 3:
                self.note_committed(self.dice.choice(self.flock.hosts).name)

    def note_committed(self, host: str) -> None:
        committed = max(self.commits, default=-1)
        for each in self.flock.hosts:
            if each.name == host:
                each.instance.batches.know_committed(f"run-{self.runs}", committed)

    def check(self) -> None:
        rows = [self.row(lane, number) for lane in LANES for number in range(self.applied[lane])]
        assert self.flock.state() == sequential(rows)


def story(root: Path, seed: int, loses: bool = False) -> None:
    dice = Random(seed)
    flock = Flock(root)
    query = Query(flock, dice)
    for run in count():
        query.start(asynchronous=dice.random() < 0.8)
        try:
            for _ in range(dice.randint(1, 5)):
                query.run_batch(writes=dice.random() < 0.3)
            query.run_batch(writes=dice.random() < 0.3, ends_after=dice.randint(0, 3))
        except Crash:
            pass
        if dice.random() < 0.5:  # keys move, and a host restarts, while no query runs
            flock.move(dice.randrange(GROUPS))
            dice.choice(flock.hosts).restart(compact=dice.random() < 0.5)
        if loses and len(flock.hosts) > 1 and dice.random() < 0.3:
            flock.lose(dice.randrange(2))
            query.disturb = False
            break
        query.check()
        if run == 4:
            break
    query.start(asynchronous=True)
    for _ in range(6):
        query.run_batch(writes=True)
    query.check()
    flock.close()


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_every_row_counts_once_and_says_the_same_however_batches_are_cut(seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        story(Path(root), seed)


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32))
def test_an_heir_knows_the_rows_that_a_lost_host_may_be_asked_for(seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        story(Path(root), seed, loses=True)
