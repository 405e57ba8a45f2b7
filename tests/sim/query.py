"""The simulated query: batches of lanes, each a task with the product's router, killed, tried again or doubled, and commits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
import pyarrow as pa

from godwit.errors import GodwitError, NotReplayable
from godwit.model.progress import BatchRef
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.router import Router
from godwit.state.keys import KeyCodec
from godwit.transport.wire import CHECK
from tests.sim.flock import INCARNATION, TOKEN, Flock
from tests.sim.kernel import Breach, Kernel, Process
from tests.sim.operators import INPUT

HASHED = pa.schema([*INPUT, (CHECK, pa.int32()), ("hash", pa.int64())])
KINDS = (np.int64, np.int64, "datetime64[ms]", np.int32, np.int64)  # of its columns
BY_KEY = HASHED.insert(4, pa.field("came_from", pa.int32()))
BY_COLUMNS = HASHED.insert(4, pa.field("lane", pa.int64())).insert(5, pa.field("sequence", pa.int64()))
NAMED = 0.3  # of the batches of a query with asynchronous progress: those that Spark's log names
INITIAL = -1  # the batch of initial rows
REFUSED_MAX = 4  # attempts of a batch that hosts refuse because rows did not replay; then the application ends
_CODEC = KeyCodec(pa.schema([INPUT.field("key")]))
_hashes: dict[int, int] = {}

Row = tuple[int, int, int]  # key, number, event time in ms
Lanes = list[list[list[Row]]]  # by lane: chunks of rows
Batches = list[Lanes]
Output = dict[str, Any]


def route_hash(key: int) -> int:
    if key not in _hashes:
        _hashes[key] = _CODEC.route_hash((key,))
    return _hashes[key]


def batch_of(rows: list[Row], came_from: int | None = None) -> pa.RecordBatch:
    """`came_from`: the partition in which the rows were, before Spark partitioned them by key."""
    keys, numbers, times_ms = zip(*rows, strict=True)
    checks = [(31 * key + 17 * number + at_ms) & 0x7FFFFFFF for key, number, at_ms in rows]
    columns = [keys, numbers, times_ms, checks, [route_hash(key) for key in keys]]
    arrays = [pa.array(np.array(column, kind)) for column, kind in zip(columns, KINDS, strict=True)]
    if came_from is None:
        return pa.RecordBatch.from_arrays(arrays, schema=HASHED)
    arrays.insert(4, pa.array(np.full(len(rows), came_from, np.int32)))
    return pa.RecordBatch.from_arrays(arrays, schema=BY_KEY)


def numbered(batch: pa.RecordBatch, lane: int, first: int) -> pa.RecordBatch:
    """With the columns by which its rows are known wherever a batch is cut."""
    *columns, hashes = batch.columns
    lanes, sequence = np.full(len(batch), lane), np.arange(first, first + len(batch))
    return pa.RecordBatch.from_arrays([*columns, pa.array(lanes), pa.array(sequence), hashes], schema=BY_COLUMNS)


def rows_of(outputs: Iterable[Output]) -> list[Row]:
    """Outputs of an operator as the input of the next one."""
    return [(row["key"], row["n"], row["at"]) for row in outputs]


@dataclass(frozen=True, slots=True)
class Committed:
    """What an operator was given and what it put out in a batch, by lane. `began_ms`: when Spark first began the batch."""

    batch: int
    began_ms: int
    inputs: dict[int, list[Row]]
    outputs: dict[int, list[Output]]


class Query:
    """`operators`: each takes what the one before puts out. `committed`: is told of each of them, with every batch."""

    def __init__(
        self,
        kernel: Kernel,
        flock: Flock,
        name: str,
        operators: Sequence[str],
        batches: Batches,
        committed: Callable[[str, Committed], None],
    ) -> None:
        self.kernel, self.flock, self.name, self.operators, self.batches = kernel, flock, name, operators, batches
        self.batch, self.run = INITIAL, 1
        self.over = False
        self.tasks: list[tuple[Process, int]] = []
        self.failures = 0
        self._began_ms = 0
        self._done: dict[int, tuple[list[Row], list[list[Output]]]] = {}  # by lane: its rows, and outputs by operator
        self._changing: set[int] = set()  # lanes whose next attempt reads the rows in another order
        self._refused = 0
        self._committed = committed
        self.began: Callable[[], None] = lambda: None  # is told when a batch begins
        self.initial: Lanes = []  # rows that a job of their own brings before the first batch
        self.recut = False  # a run that is started again cuts the batch in progress otherwise
        self.asynchronous = False  # Spark's log names only some of the batches, and the others are cut otherwise, too
        self._named = INITIAL  # the newest batch that Spark's log names
        self._said: dict[int, list[Output]] = {}  # with asynchronous progress: by lane, what has left for each row
        flock.runs |= {self.run_name, self.initial_run}
        kernel.after(0.2, lambda: self._begin(1))

    @property
    def run_name(self) -> str:
        return f"{self.name}-run-{self.run}"

    @property
    def initial_run(self) -> str:
        """The job that loads initial state has runs of its own."""
        return f"{self.name}-initial-{self.run}"

    def _begin(self, run: int) -> None:
        if run != self.run or self.over:
            return
        if self.batch == INITIAL and not self.initial:
            self.batch = 0
        self._done = {}
        self._changing, self._refused = set(), 0
        self._began_ms = self._began_ms or int(self.kernel.time_s * 1000)
        self.flock.batches[self.run_name] = self.batch
        self.kernel.tell(self.name, "begins batch", self.batch, self.run_name)
        self.kernel.points.reach(f"{self.name} begins {self.batch}")
        self.began()
        for lane in range(len(self._lanes())):
            self.attempt(run, self.batch, lane)

    def _lanes(self) -> Lanes:
        """Of the batch in progress."""
        return self.initial if self.batch == INITIAL else self.batches[self.batch]

    def attempt(self, run: int, batch: int, lane: int) -> None:
        if (run, batch) != (self.run, self.batch) or lane in self._done or self.over:
            return
        task = self._task if batch >= 0 else self._initial_task
        process = self.kernel.process(f"{self.name} task {batch}/{lane}", "query", lambda: task(run, batch, lane))
        self.tasks.append((process, lane))
        process.at_end.append(lambda: self._ended(process, run, batch, lane))

    def _task(self, run: int, batch: int, lane: int) -> None:
        request = BatchRef(self.name, f"{self.name}-run-{run}", batch)
        stream, given = self._input(lane)
        outputs: list[list[Output]] = []
        with ExitStack() as streams:  # a task that is killed ends in here, not when its garbage is collected
            for operator in self.operators:
                outputs.append([])
                stream = self._through(operator, request, lane, stream, outputs[-1])
                streams.callback(stream.close)
            for _ in stream:
                pass
        self._finished(run, batch, lane, (given, outputs))

    def _input(self, lane: int) -> tuple[Iterator[pa.RecordBatch], list[Row]]:
        """The lane as Spark gives it to the first operator, and its rows in the order in which they are to be applied."""
        partitions = self.flock.operators[self.operators[0]].spec.partitions
        if not partitions:
            chunks = self._read(lane)
            given = (batch_of(rows) for rows in chunks)
            if self.asynchronous:
                given = self._numbered(lane, given)
            return given, [row for rows in chunks for row in rows]
        changed = lane in self._changing
        self._changing.discard(lane)
        blocks = []
        for came_from, chunks in enumerate(self._lanes()):
            rows = [row for some in chunks for row in some if route_hash(row[0]) % partitions == lane]
            if rows:
                blocks.append((rows[::-1] if changed else rows, came_from))
        in_order = sorted((row for rows, _ in blocks for row in rows), key=lambda row: route_hash(row[0]))
        self.kernel.dice.shuffle(blocks)  # an exchange keeps the order of rows from one partition, and no other
        return (batch_of(*block) for block in blocks), in_order

    def _numbered(self, lane: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = self._rows_before(lane)
        for batch in batches:
            yield numbered(batch, lane, first)
            first += len(batch)

    def _rows_before(self, lane: int) -> int:
        """The rows of the lane in earlier batches."""
        return sum(len(rows) for lanes in self.batches[: self.batch] for rows in lanes[lane])

    def _initial_task(self, run: int, batch: int, lane: int) -> None:
        """As the product's job does that loads initial state: the first operator takes it, and nothing comes out."""
        chunks = self._read(lane)
        task = Task(BatchRef("initial", f"{self.name}-initial-{run}", batch), f"initial-{lane}")
        route = self._route(self.operators[0]).of_initial_rows()
        rows = (batch_of(rows).drop_columns([CHECK]) for rows in chunks)
        with closing(cast("Generator[pa.RecordBatch]", Router(route, task).run(rows, INPUT))) as batches:
            for _ in batches:
                raise Breach("I2", "initial state gives outputs")
        self._finished(run, batch, lane, ([], []))

    def _read(self, lane: int) -> list[list[Row]]:
        chunks = self._lanes()[lane]
        if lane not in self._changing:
            return chunks
        self._changing.discard(lane)
        return [rows[::-1] for rows in chunks[::-1]]

    def _through(
        self, operator: str, request: BatchRef, lane: int, stream: Iterator[pa.RecordBatch], outputs: list[Output]
    ) -> Generator[pa.RecordBatch]:
        """A lane's rows through an operator.

        As with Spark, a lane without rows has another name and carries no timers. Lanes by key have a tick in every batch.
        """
        first = next(stream, None)
        route = self._route(operator)
        named = first is not None or route.partitions
        batch_ms = self._began_ms if self.flock.operators[operator].spec.time_mode == "processingTime" else None
        task = Task(request, str(lane), batch_ms=batch_ms) if named else Task(request, f"empty-{lane}", carries=False)
        given = stream if first is None else chain([first], stream)
        router = Router(route, task)
        with closing(cast("Generator[pa.RecordBatch]", router.run(given, INPUT))) as batches:
            for batch in batches:
                some = batch.set_column(2, "at", batch.column(2).cast(pa.int64())).to_pylist()
                outputs += some
                if some:
                    yield batch_of(rows_of(some))

    def _route(self, operator: str) -> Route:
        spec = self.flock.operators[operator].spec
        old = self.kernel.dice.random() < 0.4
        return Route(
            operator=operator,
            checkpoint=str(self.flock.checkpoint),
            routing=self.flock.plan.first if old else self.flock.tables[operator],
            output_schema=spec.output_schema,
            key_names=tuple(spec.key_schema.names),
            token=TOKEN,
            event_time=spec.event_time,
            gather=False,
            incarnation=INCARNATION,
            timers=spec.time_mode != "none",
            partitions=spec.partitions,
            merge=spec.merge,
            numbering="columns" if self.asynchronous else "position",
            checked=True,
            wait_s=60.0,
        )

    def _finished(self, run: int, batch: int, lane: int, done: tuple[list[Row], list[list[Output]]]) -> None:
        if (run, batch) != (self.run, self.batch) or lane in self._done:
            return
        self._done[lane] = done
        if len(self._done) == len(self._lanes()):
            self.kernel.after(0.001 + self.kernel.dice.random() * 0.02, lambda: self._commit(run, batch))

    def _ended(self, process: Process, run: int, batch: int, lane: int) -> None:
        self.tasks = [(other, of) for other, of in self.tasks if other is not process]
        if process.error is not None:
            if not isinstance(process.error, GodwitError):
                raise Breach("I6", f"a task failed with {process.error!r}") from process.error
            self.failures += 1
            self.kernel.tell(self.name, process.name, "failed:", str(process.error)[:300])
            if isinstance(process.error, NotReplayable) and self._gives_up():
                return
        self.kernel.after(self.kernel.dice.random() * 0.2, lambda: self.attempt_alone(run, batch, lane))

    def _gives_up(self) -> bool:
        """Whether the application ends: in a later run the batch is reverted first, and goes well."""
        self._refused += 1
        if self._refused == REFUSED_MAX:
            self.crash()
        return self._refused >= REFUSED_MAX

    def attempt_alone(self, run: int, batch: int, lane: int) -> None:
        """Again, unless another attempt is under way."""
        if all(of != lane for _, of in self.tasks):
            self.attempt(run, batch, lane)

    def _commit(self, run: int, batch: int) -> None:
        if (run, batch) != (self.run, self.batch) or self.over:
            return
        self.kernel.tell(self.name, "commits batch", batch)
        self.kernel.points.reach(f"{self.name} commits {batch}")
        del self.flock.batches[self.run_name]
        if batch != INITIAL:
            if self.asynchronous:
                self._drop_said()
            self._tell_committed(batch)
            self._name(batch)
        for process, _ in list(self.tasks):
            process.kill()
        self.batch += 1
        self._began_ms = 0
        self.over = self.batch == len(self.batches)
        self.kernel.after(self.kernel.dice.random() * 0.05, lambda: self._begin(run))

    def _drop_said(self) -> None:
        """Of the batch, leave only what has not left before. The rest must be as it was then."""
        for lane, (rows, (outputs,)) in list(self._done.items()):
            said, first = self._said.setdefault(lane, []), self._rows_before(lane)
            known = max(0, len(said) - first)
            if outputs[:known] != said[first : first + len(outputs)][:known]:
                raise Breach("I2", f"lane {lane} gives {outputs[:known]}, and has given {said[first:]} before")
            said += outputs[known:]
            self._done[lane] = rows[known:], [outputs[known:]]

    def _name(self, batch: int) -> None:
        """Spark's log may get the batch, and then the driver tells the hosts."""
        if self.asynchronous and self.kernel.dice.random() < NAMED:
            self._named = batch
            run = self.run_name
            self.flock.by_driver("commits", lambda: self.flock.note_committed(self.operators[0], run, batch))

    def _tell_committed(self, batch: int) -> None:
        inputs = {lane: rows for lane, (rows, _) in sorted(self._done.items())}
        for at, operator in enumerate(self.operators):
            outputs = {lane: done[at] for lane, (_, done) in sorted(self._done.items())}
            self._committed(operator, Committed(batch, self._began_ms, inputs, outputs))
            inputs = {lane: rows_of(some) for lane, some in outputs.items()}

    def crash(self) -> None:
        """The application dies, and is started again: the batch in progress comes again, in another run."""
        self.flock.runs -= {self.run_name, self.initial_run}
        self.run += 1
        self.flock.runs |= {self.run_name, self.initial_run}
        if self.recut and self.batch == INITIAL:
            self.initial = self._cut_anew()
        elif self.asynchronous and not self.over and self.batch != INITIAL:
            self._go_back()
        elif self.recut and not self.asynchronous:
            self.batches = [*self.batches[: self.batch], self._cut_anew(), *self.batches[self.batch + 1 :]]
        for process, _ in list(self.tasks):
            process.kill()
        run = self.run
        self.kernel.after(self.kernel.dice.random() * 0.3, lambda: self._begin(run))

    def _go_back(self) -> None:
        """To the batch after the newest that Spark's log names: the rows from there on come again, in batches cut otherwise."""
        self.batch, self._began_ms, left = self._named + 1, 0, self.batches[self._named + 1 :]
        lanes = [[row for batch in left for rows in batch[lane] for row in rows] for lane in range(len(left[0]))]
        batches: Batches = []
        while any(lanes):
            sizes = [self.kernel.dice.randint(0, 8) for _ in lanes]
            if any(size and rows for size, rows in zip(sizes, lanes, strict=True)):
                batches.append([self._chunks(rows[:size]) for size, rows in zip(sizes, lanes, strict=True)])
                lanes = [rows[size:] for size, rows in zip(sizes, lanes, strict=True)]
        self.batches = [*self.batches[: self.batch], *batches]

    def _chunks(self, rows: list[Row]) -> list[list[Row]]:
        size = self.kernel.dice.randint(1, 6)
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def _cut_anew(self) -> list[list[list[Row]]]:
        """The same rows, in other lanes and chunks; the first lane has some."""
        lanes = self._lanes()
        rows = [row for chunks in lanes for chunk in chunks for row in chunk]
        anew: list[list[list[Row]]] = [[] for _ in lanes]
        while rows:
            size = self.kernel.dice.randint(1, 6)
            anew[self.kernel.dice.randrange(len(anew)) if anew[0] else 0].append(rows[:size])
            rows = rows[size:]
        return anew

    def killing(self, lane: int) -> Callable[[], None] | None:
        """Of a task of the lane; none if there is none."""
        return next((process.kill for process, of in self.tasks if of == lane), None)

    def reordering(self, lane: int) -> Callable[[], None] | None:
        """The task of a lane dies, and the next attempt reads the same rows in another order."""
        kill = self.killing(lane)
        if kill is None or self.asynchronous:  # a source whose sequence descends is refused, and nothing is reverted
            return None

        def reorder() -> None:
            self._changing.add(lane)
            kill()

        return reorder

    def speculation(self, lane: int) -> Callable[[], None] | None:
        if all(of != lane for _, of in self.tasks):
            return None
        return lambda: self.attempt(self.run, self.batch, lane)


class Queries:
    """Those that run on a flock; whatever befalls one of them by chance, befalls any."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._queries = queries

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries)

    @property
    def over(self) -> bool:
        return all(query.over and not query.tasks for query in self)

    def named(self, name: str) -> Query:
        return next(query for query in self if query.name == name)

    def draw(self, kind: str) -> Sequence[tuple[Any, ...]]:
        """Which query is hit by a fault, and which of its lanes."""
        dice = self._queries[0].kernel.dice
        query = dice.choice(self._queries)
        if kind == "restart":
            return [] if query.over else [(query.name,)]
        return [(query.name, dice.choice(query.tasks)[1])] if query.tasks else []
