"""A tester for processors: the real operator instance, fed by hand, with no Spark session, host or file.

Batches go in as lists of dicts; outputs come back as dicts. Time is what the test says it is, so timers, windows and time to
live can be tested without waiting.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.merging import Merge, by_key, check_event_time, fold
from godwit.runtime.processor.native import NativeAdapter, Processor
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import rows_of_state
from godwit.spark.pyspark_api.call_settings import CallSettings
from godwit.spark.pyspark_api.schemas import parse_ddl
from godwit.spark.pyspark_api.stateful import PandasAdapter, RowAdapter, describe
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.ledger import in_row_order
from godwit.testing.states import check_same
from godwit.windows.window import Window

Record = Mapping[str, Any]


class Tester:
    """Runs one processor.

    processor: a PySpark StatefulProcessor (flavour "row" or "pandas") or a native Processor.
    schema: of the input rows, as DDL or StructType; keys: the key columns.
    output: the output schema of a StatefulProcessor; a native one has its own.
    timeMode "eventTime" takes the event time from `eventTime`, a column, and `delay_ms` behind it.
    """

    __test__ = False  # pytest takes classes of such a name for tests

    def __init__(
        self,
        processor: StatefulProcessor | Processor,
        schema: str | StructType,
        keys: str | Sequence[str],
        output: str | StructType | None = None,
        *,
        flavour: str = "row",
        timeMode: str = "none",
        eventTime: str | None = None,
        delay_ms: int = 0,
        now_ms: int = 0,
    ) -> None:
        self._schema = _arrow(schema)
        self._is_window = isinstance(processor, Window)
        as_given = copy.copy(processor)
        options: dict[str, Any] = {"flavour": flavour, "timeMode": timeMode, "eventTime": eventTime}
        options |= {"delay_ms": delay_ms, "now_ms": now_ms}
        self._another: Callable[[], Tester] = lambda: Tester(copy.copy(as_given), schema, keys, output, **options)
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        self._check_columns(names, "keys=")
        key_schema = pa.schema([self._schema.field(name) for name in names])
        adapter: RowAdapter | PandasAdapter | NativeAdapter
        self._merge: Merge = ()
        if isinstance(processor, Processor):
            native = NativeAdapter(processor, self._schema, names)
            flavour, adapter, self._merge = "native", native, native.merge
            check_event_time(self._merge, eventTime, processor.allowed_lateness_ms)
        else:
            if output is None:
                raise DefinitionError("the output schema of a StatefulProcessor must be given")
            make = RowAdapter if flavour == "row" else PandasAdapter
            variables = describe(processor, timeMode).variables
            adapter = make(processor, variables, key_schema, _arrow(output), CallSettings(time_mode=timeMode))
        self._spec = OperatorSpec.from_dict(
            OperatorSpec(
                name="tested",
                processor=type(processor).__qualname__,
                flavour="row",
                key_schema=key_schema,
                output_schema=adapter.output_schema,
                variables=adapter.variables,
                event_time=eventTime,
                delay_ms=delay_ms,
                lateness_ms=getattr(processor, "allowed_lateness_ms", 0),
            ).to_dict()
            | {"flavour": flavour, "time_mode": timeMode}
        )
        key_codec = KeyCodec(key_schema)
        self._instance = Instance("tested", self._spec, KeyedState(adapter.variables, key_codec), key_codec)
        self._instance.attach(self._spec, adapter)
        self._batch = -1
        self._runs = 0
        self.now_ms = now_ms

    def process(self, rows: Sequence[Record] = ()) -> list[dict[str, Any]]:
        """One micro-batch: what was due from before fires first, then the rows are processed; all outputs, in order."""
        return self._run([self._table(rows)] if rows else [])

    def check_merge(self, rows: Sequence[Record]) -> None:
        """Assert that the processor's declared merge does with these rows what it promises: the same state as one by one.

        They are tried on copies of the processor, from no state; floats may differ in their last digits.
        """
        if not self._merge:
            raise DefinitionError("the processor declares no merge", todo="Set `merge` on a godwit.Processor")
        if self._is_window:
            raise DefinitionError("how a window merges rows is not for its user to promise", todo="Leave the check out")
        batch = self._table(rows)
        names = self._instance.key_codec.schema.names
        expected = self._again([batch.slice(at, 1) for at in range(len(batch))])
        for count in (1, 2, 3):  # of the rows of a key, some may be merged in one block and some in the next
            cuts = np.linspace(0, len(batch), count + 1).astype(int).tolist()
            pieces = [batch.slice(low, high - low) for low, high in pairwise(cuts)]
            check_same(expected, self._again([self._merged(piece) for piece in pieces]), names)

    def _merged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        every = np.arange(len(batch), dtype=np.int64)
        return fold(batch, by_key(batch, every, self._instance.key_codec), self._merge)

    def _again(self, chunks: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
        """The state that these chunks leave with a copy of the processor."""
        tester = self._another()
        try:
            tester._run([chunk for chunk in chunks if len(chunk)])
            return tester.state()
        finally:
            tester.close()

    def _check_columns(self, names: Iterable[str], where: str) -> None:
        unknown = [name for name in names if name not in self._schema.names]
        if unknown:
            raise DefinitionError(
                f"{where} names {unknown[0]!r}, which is not in the schema of the input rows",
                todo=f"The columns of the input are {', '.join(self._schema.names)}",
            )

    def _table(self, rows: Sequence[Record]) -> pa.RecordBatch:
        for row in rows:
            self._check_columns(row, "a row")
        return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=self._schema)

    def _run(self, chunks: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
        """A batch that fails is reverted when the next one comes, as by the next run of a query."""
        request = BatchRef("query", f"run-{self._runs}", self._batch + 1)
        self._runs += 1
        outputs = self._batch_of(request, chunks)
        self._runs -= 1
        self._batch += 1
        return outputs

    def _batch_of(self, request: BatchRef, chunks: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
        works = [self._instance.open(request, "0", self.now_ms, lambda *_: False)]
        codec, count = self._instance.key_codec, 0
        for chunk in chunks:
            numbers = np.arange(count, count + len(chunk), dtype=np.int64)
            count += len(chunk)
            keys = codec.from_arrow([chunk.column(name) for name in codec.schema.names])
            hashes = np.array([codec.route_hash(key) for key in keys], np.int64)
            works.append(self._instance.apply(request, "0", Chunk(chunk, numbers, hashes)))
        newest = [moment for chunk in chunks if (moment := self._newest(chunk)) is not None]
        self._instance.finish(request, "0", count, max(newest, default=None))
        return [record for work in works for record in _records(work)]

    def _newest(self, batch: pa.RecordBatch) -> int | None:
        if self._spec.event_time is None:
            return None
        column = batch.column(self._spec.event_time)
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).drop_null().to_numpy()
        return int(micros.max()) // 1000 if len(micros) else None

    def settle(self) -> list[dict[str, Any]]:
        """Empty batches until nothing is due any more, as Spark's batches without data do."""
        outputs = self.process()
        while self._instance.timers.due(self.now_ms):
            outputs += self.process()
        return outputs

    def state(self) -> list[dict[str, Any]]:
        """A record per key: the key columns, a field per state variable, and timers."""
        changes = list(self._instance.state.export(committed=False))
        keys = len(self._spec.key_schema)
        batches = rows_of_state(self._spec, changes, "tested", 1)
        shown = [
            batch.select([at for at in range(batch.num_columns) if not keys <= at < keys + 2]) for batch in batches
        ]
        return [row for batch in shown for row in batch.to_pylist()]

    @property
    def late(self) -> int:
        """Rows that came too late."""
        return self._instance.counters.late

    def close(self) -> None:
        self._instance.close()
        self._instance.state.close()


def _arrow(schema: str | StructType) -> pa.Schema:
    parsed = parse_ddl(schema) if isinstance(schema, str) else schema
    return to_arrow_schema(parsed, timezone="UTC")


def _records(work: Work) -> list[dict[str, Any]]:
    if not work.outputs:
        return []
    outputs = in_row_order(work.outputs)
    return outputs.select(outputs.schema.names[1:]).to_pylist()
