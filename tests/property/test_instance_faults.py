"""Random processors under random faults, against a model that knows no faults at all.

A real host's loop without its network: instance, state, ledger and changelog on a directory. Lanes are cut into chunks at
random, attempts break off, run beside each other and again, processors throw, the process dies at any point between the
work and the answer, runs replace each other, segments are merged into snapshots. Whatever happens, what the lanes give in
the end and what the state is must be what a plain loop over the rows gives.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
from hypothesis import given, note
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.errors import ProcessorFailed
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OperatorDefinition
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.reading.export import rows_of_state
from godwit.spark.pyspark_api.call_settings import CallSettings
from godwit.spark.pyspark_api.stateful import RowAdapter, describe
from godwit.state.changelog import Changelog
from godwit.state.snapshot import Compactor

INPUT = pa.schema([("key", pa.string()), ("v", pa.int64())])
KEY = pa.schema([INPUT.field("key")])
OUTPUT = pa.schema([("key", pa.string()), ("said", pa.string())])
NAME = "random"
BATCH_MS = 10  # of processing time from one batch to the next

Step = tuple[str, int]


class Tripwire:
    """Where the processor is to throw next; the test's, not the operator's."""

    at: tuple[str, int] | None = None
    at_timers = False


def fold(program: list[Step], v: int, now_ms: int, memory: Any) -> str:  # noqa: C901 one case per step
    """A row against a key's memory. Both sides run this, one on PySpark's state handles and one on plain containers."""
    said = []
    for step, by in program:
        match step:
            case "add":
                memory.value = (memory.value or 0) + v * by
            case "reset":
                if v % 3 == by % 3:
                    memory.value = None
            case "append":
                memory.append(v + by)
            case "cut":
                if v % 4 == by % 4:
                    memory.cut()
            case "put":
                memory.put(v % (by + 1), v)
            case "remove":
                memory.remove((v + by) % 5)
            case "wake":
                memory.wake(now_ms + by * BATCH_MS // 2)
            case "sleep":
                memory.sleep(now_ms + by * BATCH_MS // 2)
            case "say":
                said.append(memory.shown())
    return ";".join([str(v), *said])


class Plain:
    """A key in the model."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.list: list[int] = []
        self.map: dict[int, int] = {}
        self.timers: set[int] = set()

    def append(self, v: int) -> None:
        self.list.append(v)

    def cut(self) -> None:
        self.list = []

    def put(self, at: int, v: int) -> None:
        self.map[at] = v

    def remove(self, at: int) -> None:
        self.map.pop(at, None)

    def wake(self, at_ms: int) -> None:
        self.timers.add(at_ms)

    def sleep(self, at_ms: int) -> None:
        self.timers.discard(at_ms)

    def shown(self) -> str:
        return repr((self.value, self.list, sorted(self.map.items()), sorted(self.timers)))

    def __bool__(self) -> bool:
        return self.value is not None or bool(self.list or self.map or self.timers)


class Random(StatefulProcessor):
    """The same through a PySpark handle."""

    def __init__(self, program: list[Step]) -> None:
        self.program = program

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.number = handle.getValueState("value", "n bigint")
        self.items = handle.getListState("list", "n bigint")
        self.entries = handle.getMapState("map", "k bigint", "n bigint")

    @property
    def value(self) -> int | None:
        return self.number.get()[0] if self.number.exists() else None

    @value.setter
    def value(self, n: int | None) -> None:
        if n is None:
            self.number.clear()
        else:
            self.number.update((n,))

    def append(self, v: int) -> None:
        self.items.appendValue((v,))

    def cut(self) -> None:
        self.items.clear()

    def put(self, at: int, v: int) -> None:
        self.entries.updateValue((at,), (v,))

    def remove(self, at: int) -> None:
        self.entries.removeKey((at,))

    def wake(self, at_ms: int) -> None:
        self.handle.registerTimer(at_ms)

    def sleep(self, at_ms: int) -> None:
        self.handle.deleteTimer(at_ms)

    def shown(self) -> str:
        listed = [row[0] for row in self.items.get()] if self.items.exists() else []
        mapped = sorted((key[0], row[0]) for key, row in self.entries.iterator())
        return repr((self.value, listed, mapped, sorted(self.handle.listTimers())))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(key=key[0], said=fold(self.program, row.v, timerValues.getCurrentProcessingTimeInMs(), self))
            if Tripwire.at == (key[0], row.v):
                raise ValueError("tripped")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        if Tripwire.at_timers:
            raise ValueError("tripped")
        yield Row(key=key[0], said=f"{at_ms}!{self.value}")

    def close(self) -> None:
        pass


def operator_of(program: list[Step]) -> Operator:
    processor = Random(program)
    variables = describe(processor, "processingTime").variables
    adapter = RowAdapter(processor, variables, KEY, OUTPUT, CallSettings(time_mode="processingTime"))
    spec = OperatorSpec(NAME, "Random", "row", KEY, OUTPUT, variables, time_mode="processingTime")
    return Operator(spec, cloudpickle.dumps(adapter))


# -- the model -------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """Batch after batch, row after row; what each key says, and what its timers say."""

    program: list[Step]
    keys: dict[str, Plain] = field(default_factory=lambda: defaultdict(Plain))

    def fire(self, now_ms: int) -> list[tuple[str, str]]:
        due = sorted((at_ms, key) for key, memory in self.keys.items() for at_ms in memory.timers if at_ms <= now_ms)
        for at_ms, key in due:
            self.keys[key].timers.discard(at_ms)
        return [(key, f"{at_ms}!{self.keys[key].value}") for at_ms, key in due]

    def apply(self, rows: list[tuple[str, int]], now_ms: int) -> list[tuple[str, str]]:
        return [(key, fold(self.program, v, now_ms, self.keys[key])) for key, v in rows]

    def shown(self) -> dict[str, str]:
        return {key: memory.shown() for key, memory in self.keys.items() if memory}


# -- a host without a network ----------------------------------------------------------------------------------------


class Died(Exception):
    """The process is gone; what it had not written is lost."""


class Shell:
    """A host's own loop, called directly; `die` kills it at the next of the named points."""

    def __init__(self, directory: Path, operator: Operator) -> None:
        self.directory = directory
        self.operator = operator
        self.die: str | None = None
        self.log, self.instances = self._start()

    def _start(self) -> tuple[Changelog, Instances]:
        log, recovered = Changelog.open(self.directory, segment_bytes_max=4096)
        instances = Instances("host-0", HostResources(log, Watch(lambda _: None), lambda: 0, set))
        for part in recovered.parts():
            instances.recover(part.info, memoryview(part.body))
        instances.define(OperatorDefinition.of(self.operator))
        return log, instances

    @property
    def shared(self) -> SharedInstance:
        return self.instances.named(NAME)

    def restart(self) -> None:
        self.log._line.clear()  # what stood in line was never written
        self.log.close()
        self.log, self.instances = self._start()

    def work(self, job: Callable[[Instance], Work]) -> Work:
        """As `LaneExchange.worked`, with a death between any two of its steps."""
        die, self.die = self.die, None
        work = job(self.shared.instance)
        if die == "in line":
            raise Died
        self.log.flush(work.lsn)
        if die == "written":
            raise Died
        return work

    def compact(self) -> None:
        log = self.log
        Compactor(log.generation).compact(log.directory, log.sealed(), self.instances.settled())

    def shown(self) -> dict[str, str]:
        instance = self.shared.instance
        found = {}
        for table in rows_of_state(instance.spec, instance.state.export(committed=False), "host-0", 1):
            for row in table.to_pylist():
                value = row["value"]["n"] if row["value"] else None
                listed = [item["n"] for item in row["list"] or ()]
                mapped = sorted((key["k"], item["n"]) for key, item in row["map"] or ())
                found[row["key"]] = repr((value, listed, mapped, sorted(row["timers"] or ())))
        return found


@dataclass
class Attempt:
    """One task attempt at a lane: opens, sends chunk after chunk, finishes. It may be left unfinished."""

    request: BatchRef
    lane: str
    rows: list[tuple[str, int]]
    cuts: list[int]
    opened: bool = False
    sent: int = 0
    timers: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[tuple[int, str, str]] = field(default_factory=list)
    finished: bool = False

    def step(self, shell: Shell, now_ms: int) -> None:
        if not self.opened:
            work = shell.work(lambda i: i.open(self.request, self.lane, now_ms, _welcome, bool(self.rows)))
            self.timers = [(key, said) for _, key, said in _outputs(work)]
            self.opened = True
        elif self.sent < len(self.rows):
            stop = next((cut for cut in self.cuts if cut > self.sent), len(self.rows))
            batch, index, hashes = _chunk(self.rows, self.sent, stop)
            work = shell.work(lambda i: i.apply(self.request, self.lane, Chunk(batch, index, hashes)))
            self.outputs += _outputs(work)
            self.sent = stop
        else:
            shell.work(lambda i: i.finish(self.request, self.lane, len(self.rows), None))
            self.finished = True

    def reconnect(self) -> None:
        """As a router does: say again what was not answered, beginning with the batch."""
        self.opened = False


def _chunk(rows: list[tuple[str, int]], start: int, stop: int) -> tuple[pa.RecordBatch, Any, Any]:
    keys, values = zip(*rows[start:stop], strict=True)
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), pa.array(values, pa.int64())], schema=INPUT)
    return batch, np.arange(start, stop, dtype=np.int64), np.array([ord(key) for key in keys], np.int64)


def _welcome(*_: Any) -> None:
    """Every run is the newest."""


def _outputs(work: Work) -> list[tuple[int, str, str]]:
    rows = [
        row for batch in work.outputs for row in zip(*[column.to_pylist() for column in batch.columns], strict=True)
    ]
    return sorted(rows, key=lambda row: row[0])


# -- the test --------------------------------------------------------------------------------------------------------

steps = st.tuples(
    st.sampled_from(["add", "reset", "append", "cut", "put", "remove", "wake", "sleep", "say"]), st.integers(1, 4)
)
programs = st.lists(steps, min_size=1, max_size=6).map(lambda made: [*made, ("say", 1)])
# A key comes on one lane only, as no engine says how lanes interleave.
lanes = st.tuples(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=8),
    st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 9)), max_size=8),
)


FAULTS = ["none", "none", "die", "throw", "again", "break", "run", "compact", "restart"]


class Play:
    """One batch, with faults, until an attempt at each lane has finished."""

    def __init__(
        self, shell: Shell, batch: int, rows: dict[str, list[tuple[str, int]]], draw: Callable[..., Any]
    ) -> None:
        self.shell = shell
        self.batch = batch
        self.rows = rows
        self.draw = draw
        self.run = 0
        self.faults_left = 12
        self.live: list[Attempt] = []
        self.done: dict[str, list[Attempt]] = {lane: [] for lane in rows}

    def to_end(self) -> dict[str, Attempt]:
        """What each lane gave in the end; all attempts that finished gave the same."""
        while not all(self.done.values()) or self.live:
            self._move(self._fault())
        for attempts in self.done.values():
            assert all((a.outputs, a.timers) == (attempts[0].outputs, attempts[0].timers) for a in attempts)
        return {lane: attempts[0] for lane, attempts in self.done.items()}

    def _fault(self) -> str:
        fault = self.draw(st.sampled_from(FAULTS)) if self.faults_left else "none"
        self.faults_left -= fault != "none"
        return fault

    def _move(self, fault: str) -> None:
        busy = {attempt.lane for attempt in self.live}
        waiting = [lane for lane in self.rows if not self.done[lane] and lane not in busy]
        if waiting or fault == "again":
            self._begin(waiting[0] if waiting else self.draw(st.sampled_from(sorted(self.rows))))
        elif fault == "run" and not any(self.done.values()):
            self.run, self.live = self.run + 1, []  # the query is started again: all tasks of the run before are gone
        elif fault == "compact":
            self.shell.compact()
        elif fault == "restart":
            self._restart()
        elif self.live:
            attempt = self.live[self.draw(st.integers(0, len(self.live) - 1))]
            if fault == "break":
                self.live.remove(attempt)
            else:
                self._step(attempt, fault)

    def _begin(self, lane: str) -> None:
        rows = self.rows[lane]
        cuts = self.draw(st.lists(st.integers(1, max(len(rows), 1)), max_size=3).map(sorted))
        request = BatchRef("query", f"run-{self.batch}-{self.run}", self.batch)
        self.live.append(Attempt(request, lane, rows, cuts))

    def _step(self, attempt: Attempt, fault: str) -> None:
        self.shell.die = self.draw(st.sampled_from(["in line", "written"])) if fault == "die" else None
        if fault == "throw" and attempt.rows:
            Tripwire.at, Tripwire.at_timers = self.draw(st.sampled_from(attempt.rows)), self.draw(st.booleans())
        try:
            attempt.step(self.shell, (self.batch + 1) * BATCH_MS)
        except ProcessorFailed:
            self.live.remove(attempt)
        except Died:
            note(f"died in batch {self.batch}, lane {attempt.lane}")
            self._restart()
        finally:
            Tripwire.at, Tripwire.at_timers, self.shell.die = None, False, None
        if attempt.finished:
            self.live.remove(attempt)
            self.done[attempt.lane].append(attempt)

    def _restart(self) -> None:
        self.shell.restart()
        for attempt in self.live:
            attempt.reconnect()


def by_key(said: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, text in said:
        found.setdefault(key, []).append(text)
    return found


@given(program=programs, batches=st.lists(lanes, min_size=1, max_size=4), data=st.data())
def test_random_processors_are_exact_under_random_faults(
    program: list[Step], batches: list[tuple[list[tuple[str, int]], ...]], data: st.DataObject
) -> None:
    model = Model(program)
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder), operator_of(program))
        for batch, lists in enumerate(batches):
            rows = {str(lane): found for lane, found in enumerate(lists)}
            now_ms = (batch + 1) * BATCH_MS
            finished = Play(shell, batch, rows, data.draw).to_end()
            # The first batch fires none, and a batch without any row leaves them to the next.
            fired = model.fire(now_ms) if batch and any(rows.values()) else []
            got = [timer for attempt in finished.values() for timer in attempt.timers]
            assert sorted(got) == sorted(fired)
            for lane, found in rows.items():
                attempt = finished[lane]
                assert by_key([(key, said) for _, key, said in attempt.outputs]) == by_key(model.apply(found, now_ms))
                assert [row for row, _, _ in attempt.outputs] == sorted(row for row, _, _ in attempt.outputs)
            assert shell.shown() == model.shown()
        shell.restart()
        assert shell.shown() == model.shown()
        shell.log.close()
