"""An instance by itself: what throws, what is counted, what is remembered across a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import GodwitError, ProcessorFailed, StaleRun
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import RowsApplied
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.rows import Outputs
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.transport import typed

FORM = {"in_columns": False}
INPUT = pa.schema([("key", pa.int64()), ("at", pa.timestamp("ms")), ("v", pa.int64())])


@pytest.fixture(params=[False, True], ids=["by-key", "in-columns"], autouse=True)
def in_columns(request: pytest.FixtureRequest) -> None:
    """Every test is run with both forms of a table in memory."""
    FORM["in_columns"] = request.param


class Sum(godwit.Processor):
    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("total", pa.int64())])
    fault: Exception | None = None
    short_index = False

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> Outputs:
        state["n"] += np.bincount(rows.codes, rows.batch.column("v").to_numpy(), len(rows.keys)).astype(np.int64)
        outputs = self.emit(rows, total=state["n"][rows.codes])
        if self.fault is not None:
            raise self.fault
        return Outputs(outputs.batch, outputs.row_index[:-1]) if self.short_index else outputs


def instance_of(processor: godwit.Processor, **spec: Any) -> Instance:
    adapter = NativeAdapter(processor, INPUT, ["key"])
    key_schema = pa.schema([INPUT.field("key")])
    made = OperatorSpec("sum", "Sum", "native", key_schema, adapter.output_schema, adapter.variables, **spec)
    codec = KeyCodec(key_schema, "UTC")
    instance = Instance("sum", made, KeyedState(made.variables, codec, **FORM), codec)
    instance.attach(made, adapter)
    return instance


def rows(*values: tuple[int, int, int], first: int = 0) -> tuple[pa.RecordBatch, Any, Any]:
    """(key, event ms, value) each."""
    columns = list(zip(*values, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INPUT, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=INPUT)
    return batch, np.arange(first, first + len(values), dtype=np.int64), np.array(columns[0], np.int64)


def welcome(*_: Any) -> bool:
    """Every run is the newest, and its progress is not asynchronous."""
    return False


def totals(work: Work) -> list[int]:
    return [total for batch in work.outputs for total in batch.column(2).to_pylist()]


def test_a_chunk_that_throws_leaves_nothing_for_the_next_one() -> None:
    processor = Sum()
    instance = instance_of(processor)
    request = BatchRef("q", "r", 0)
    instance.open(request, "0", 0, welcome)
    processor.fault = ValueError("no")
    with pytest.raises(ProcessorFailed, match=r"ValueError: no.*operator=sum.*batch=0"):
        instance.apply(request, "0", Chunk(*rows((1, 0, 5))))
    processor.fault = None
    assert totals(instance.apply(request, "0", Chunk(*rows((1, 0, 5))))) == [5]


def test_outputs_that_do_not_fit_their_rows_leave_nothing_for_the_next_chunk() -> None:
    processor = Sum()
    instance = instance_of(processor)
    request = BatchRef("q", "r", 0)
    instance.open(request, "0", 0, welcome)
    processor.short_index = True
    with pytest.raises(GodwitError):
        instance.apply(request, "0", Chunk(*rows((1, 0, 5), (1, 0, 6))))
    processor.short_index = False
    assert totals(instance.apply(request, "0", Chunk(*rows((1, 0, 5), (1, 0, 6))))) == [11, 11]


def test_late_rows_of_a_chunk_that_throws_are_counted_when_it_is_applied() -> None:
    processor = Sum()
    instance = instance_of(processor, time_mode="eventTime", event_time="at", delay_ms=0)
    for batch in range(3):
        request = BatchRef("q", "r", batch)
        instance.open(request, "0", batch, welcome)
        if batch < 2:
            instance.apply(request, "0", Chunk(*rows((1, 1000 + batch, 1))))
            instance.finish(request, "0", 1, 1000 + batch)
    processor.fault = ValueError("no")
    with pytest.raises(ProcessorFailed):
        instance.apply(request, "0", Chunk(*rows((1, 10, 5), (1, 5000, 5))))
    assert instance.counters.late == 0
    processor.fault = None
    instance.apply(request, "0", Chunk(*rows((1, 10, 5), (1, 5000, 5))))
    assert instance.counters.late == 1


def test_a_run_taken_up_within_a_batch_is_durable() -> None:
    instance = instance_of(Sum())
    parts = instance.open(BatchRef("q", "older", 0), "0", 0, welcome).parts
    instance.apply(BatchRef("q", "older", 0), "0", Chunk(*rows((1, 0, 5))))
    parts += instance.open(BatchRef("q", "newer", 0), "0", 0, welcome).parts
    restarted = instance_of(Sum())
    for info, _ in parts:
        if info["kind"] == "mark":
            restarted.recovery.mark(info)
    with pytest.raises(StaleRun, match="older was replaced by run newer"):
        restarted.open(BatchRef("q", "older", 0), "0", 0, welcome)


def test_an_answer_names_only_work_that_is_written() -> None:
    """Else a host that dies right then comes back without it, and a lane that lost nothing must be repeated."""

    class Log:
        lsn = 0

        def draft(self, parts: Any) -> Any:
            return parts

        def append(self, draft: Any) -> int:
            self.lsn += 1
            return self.lsn

        def flush(self, lsn: int) -> None:
            shared.instance.durable.lsn = self.append([])  # another lane gets in line and is not written yet

    class Writer:
        def write_metadata(self, note: bytes) -> None:
            self.applied = typed.unpack(note, RowsApplied)

    log: Any = Log()
    exchange = LaneExchange(HostServices("host-0", "/nowhere", "", "", log, lambda: 0, lambda: False), welcome)
    shared, writer = SharedInstance(instance_of(Sum())), Writer()
    shared.instance.durable.journal = log
    work = exchange.worked(shared, lambda instance: instance.open(BatchRef("q", "r", 0), "0", 0, welcome))
    exchange.answer(writer, RowsApplied(work.lsn), None)
    assert writer.applied.lsn == 1
