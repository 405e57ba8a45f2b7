"""A host without its network, and a processor that uses every kind of state: for faults inside a single request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OperatorDefinition
from godwit.runtime.processor.native import NativeAdapter, Processor
from godwit.runtime.processor.rows import Outputs, Rows, Times
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.processor.states_of_keys import States
from godwit.runtime.processor.watchdog import Watch
from godwit.spark.pyspark_api.call_settings import CallSettings
from godwit.spark.pyspark_api.stateful import RowAdapter, describe
from godwit.state.changelog import Changelog
from godwit.state.keys import KeyCodec

NAME = "everything"
INPUT = pa.schema([("key", pa.string()), ("v", pa.int64())])
KEY = pa.schema([INPUT.field("key")])
OUTPUT = pa.schema([("key", pa.string()), ("said", pa.string())])
NUMBERED = pa.schema([("key", pa.int64()), ("v", pa.int64())])
NUMBERED_KEY = pa.schema([NUMBERED.field("key")])
TTL_MS = 1_000
_CODEC = KeyCodec(KEY)


class Everything(StatefulProcessor):
    """Counts rows, remembers them in a list and a map, sets timers, lets entries expire, clears what it has had enough of."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")
        self.recent = handle.getValueState("recent", "n bigint", ttlDurationMs=TTL_MS)
        self.items = handle.getListState("items", "n bigint")
        self.seen = handle.getMapState("seen", "k bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = 1 + (self.count.get()[0] if self.count.exists() else 0)
            self.count.update((n,))
            self.recent.update((row.v,))
            self._remember(row.v)
            now_ms = timerValues.getCurrentProcessingTimeInMs()
            if row.v % 2:
                self.handle.registerTimer(now_ms + row.v % 3)
            for at_ms in list(self.handle.listTimers())[2:]:
                self.handle.deleteTimer(at_ms)
            yield Row(key=key[0], said=f"{row.v}: {n}")

    def _remember(self, v: int) -> None:
        self.items.appendValue((v,))
        if v % 5 == 0:
            self.items.clear()
        self.seen.updateValue((v % 3,), (v,))
        if v % 4 == 0:
            self.seen.removeKey((1,))
        if v % 7 == 0:
            self.seen.clear()
            self.recent.clear()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.items.appendValue((expiredTimerInfo.getExpiryTimeInMs(),))
        yield Row(key=key[0], said=f"{expiredTimerInfo.getExpiryTimeInMs()}!")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.count.update((initialState.v,))
        self.items.appendValue((initialState.v,))

    def close(self) -> None:
        pass


def operator_of(processor: StatefulProcessor | None = None) -> Operator:
    processor = processor or Everything()
    variables = describe(processor, "processingTime").variables
    adapter = RowAdapter(processor, variables, KEY, OUTPUT, CallSettings(time_mode="processingTime"))
    spec = OperatorSpec(NAME, type(processor).__name__, "row", KEY, OUTPUT, variables, time_mode="processingTime")
    return Operator(spec, cloudpickle.dumps(adapter))


class Columns(Processor):
    """Counts rows, and forgets a key from time to time: its state is in columns."""

    state = MappingProxyType({"n": pa.int64(), "last": pa.int32()})
    output_schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])

    def process(self, rows: Rows, state: States, times: Times) -> Outputs:
        counts = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        state["last"] = rows.batch.column("v").to_numpy()[rows.last]
        state.remove(state["last"] % 7 == 0)
        return self.emit(rows, n=counts)


def columns_operator() -> Operator:
    adapter = NativeAdapter(Columns(), NUMBERED, ["key"])
    spec = OperatorSpec(NAME, "Columns", "native", NUMBERED_KEY, adapter.output_schema, adapter.variables)
    return Operator(spec, cloudpickle.dumps(adapter))


class BenchHost:
    """Log, instances and exchange of one host, on a directory; `restarted` is what its successor makes of that."""

    def __init__(self, directory: Path, operator: Operator, memory_max_bytes: int | None = None) -> None:
        self.directory, self.operator, self.memory_max_bytes = directory, operator, memory_max_bytes
        self.log, recovered = Changelog.open(directory)
        routing = Routing.spread(["host-0"], 8)
        resources = HostResources(self.log, Watch(lambda _: None), lambda: 0, set, memory_max_bytes)
        self.instances = Instances("host-0", resources, routing)
        for part in recovered.parts():
            self.instances.recover(part.info, memoryview(part.body))
        self.instances.define(OperatorDefinition.of(operator))
        self.exchange = LaneExchange(
            HostServices("host-0", str(directory), "", "", self.log, lambda: 0, lambda: False), welcome
        )

    @property
    def shared(self) -> SharedInstance:
        return self.instances.named(NAME)

    @property
    def instance(self) -> Instance:
        return self.shared.instance

    @property
    def ownership(self) -> Ownership:
        assert self.instance.ownership is not None
        return self.instance.ownership

    def do(self, job: Callable[[Instance], Work]) -> Work:
        """What a request does before its answer waits for the disk."""
        with self.shared.lock:
            return self.exchange._do(self.shared, job)

    def settle(self) -> None:
        """As if answers had waited: all that is in line is in the file, unless the log has failed."""
        if self.log.failure is None:
            self.log.flush(self.shared.lsn)

    def restarted(self) -> BenchHost:
        """The process is gone, and with it what stood in line of a log that has failed."""
        self.log.close()
        self.instances.close()
        return BenchHost(self.directory, self.operator, self.memory_max_bytes)

    def close(self) -> None:
        self.log.close()
        self.instances.close()


def request(batch: int) -> BatchRef:
    return BatchRef("query", "run", batch)


def welcome(request: BatchRef, last_batch: int, fresh: bool) -> None:
    return


def chunk_of(rows: Sequence[tuple[str, int]], first: int = 0) -> Chunk:
    keys = [key for key, _ in rows]
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array([v for _, v in rows], pa.int64())], schema=INPUT)
    hashes = np.array([_CODEC.route_hash((key,)) for key in keys], np.int64)
    return Chunk(batch, np.arange(first, first + len(rows), dtype=np.int64), hashes)


def numbered_chunk_of(rows: Sequence[tuple[str, int]], first: int = 0) -> Chunk:
    """The same rows with keys that are numbers."""
    chunk = chunk_of(rows, first)
    numbers = pa.array([int(key[1:]) for key, _ in rows], pa.int64())
    batch = pa.RecordBatch.from_arrays([numbers, chunk.batch.column("v")], schema=NUMBERED)
    return Chunk(batch, chunk.rows, chunk.hashes)


def everything_of(instance: Instance, counted: bool = True) -> dict[str, Any]:
    """All that an instance remembers, in a form that can be compared."""
    state, counters = instance.state, instance.counters
    mark, _ = instance.mark_part()
    assert not any(table.staged for table in state._tables.values()), "a stage was left"
    seen: dict[str, Any] = {
        "state": _rows(state.export(committed=False)),
        "committed": _rows(state.export(committed=True)),
        "keys": (state.key_count, sorted(state.keys())),
        "due": state.due(1 << 50),
        "ledger": {lane: _entries(entries) for lane, entries in instance.ledger.lanes.items() if entries},
        "finished": dict(instance.ledger.finished),
        "held": {
            step: [(lane, _entries([entry])) for lane, entry in of]
            for step, of in instance.batch.pending_outputs.items()
        },
        "mark": mark,
    }
    if counted:
        seen["bytes"] = state.bytes_estimate
        seen["counters"] = (counters.rows, counters.outputs, counters.replayed, counters.late, counters.timers_fired)
    return seen


def _rows(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return sorted(repr(tuple(row.values())) for batch in batches for row in batch.to_pylist())


def _entries(entries: Sequence[Any]) -> list[Any]:
    """Joined as they may be by now: what counts is which rows there are, and what they gave."""
    rows = [pair for entry in entries for pair in zip(entry.rows.tolist(), entry.hashes.tolist(), strict=True)]
    return [sorted(rows), sorted(repr(row) for entry in entries for row in entry.outputs.to_pylist())]
