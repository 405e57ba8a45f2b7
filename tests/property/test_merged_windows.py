"""Windows of which rows are merged: the same windows, given out at the same time, and the same rows late, as without."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.merging import Merging
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.ledger import in_row_order
from godwit.transport.wire import HASH, ROW
from godwit.windows import EventSliding

INPUT = pa.schema(
    [("key", pa.int64()), ("at", pa.timestamp("us")), ("ones", pa.int64()), ("amount", pa.int64()), ("x", pa.int32())]
)
SENT = pa.schema([*INPUT, (ROW, pa.int64()), (HASH, pa.int64())])
KEYS = pa.schema([INPUT.field("key")])
AGGREGATES = {"n": ("sum", "ones"), "total": ("sum", "amount"), "low": ("min", "x")}


class Query:
    """Batches through one instance, merged as a router would, or not."""

    def __init__(self, window: EventSliding) -> None:
        adapter = NativeAdapter(window, INPUT, ["key"])
        spec = OperatorSpec(
            "windows",
            "EventSliding",
            "native",
            KEYS,
            adapter.output_schema,
            adapter.variables,
            time_mode="eventTime",
            event_time="at",
            delay_ms=500,
            lateness_ms=window.allowed_lateness_ms,
            merge=adapter.merge,
        )
        codec = KeyCodec(KEYS)
        self.instance = Instance("windows", spec, KeyedState(spec.variables, codec), codec)
        self.instance.attach(spec, adapter)
        self.batch = -1
        self.rows = 0

    def push(self, block: pa.RecordBatch) -> list[dict[str, Any]]:
        self.batch += 1
        request = BatchRef("q", "r", self.batch)
        opened = self.instance.open(request, "0", 1_000 + self.batch, lambda *_: False)
        count = len(block)
        newest = block.column("at").cast(pa.int64()).drop_null().to_numpy().max(initial=0) // 1_000
        if self.instance.batch.merge:
            merging = Merging(self.instance.batch.merge, INPUT, ["key"], "at", opened.begun["late_us"])
            block = merging.merged(block)
        self.rows += len(block)
        numbers, hashes = (block.column(name).to_numpy() for name in (ROW, HASH))
        applied = self.instance.apply(request, "0", Chunk(block.select(INPUT.names), numbers, hashes))
        self.instance.finish(request, "0", count, int(newest) or None)
        return [*outputs(opened), *outputs(applied)]


def outputs(work: Work) -> list[dict[str, Any]]:
    return [] if not work.outputs else in_row_order(work.outputs).to_pylist()


def made(seed: int, batch: int) -> pa.RecordBatch:
    """Rows of some seconds, of which one key has most; some are late, some very late, some have no time."""
    chance = random.Random(f"{seed} {batch}")
    count = 800
    key = [chance.choice([1, 1, 1, 1, 2, 3]) for _ in range(count)]
    late = [chance.choice([0, 0, 0, 0, 2_000, 9_000]) for _ in range(count)]
    at = [max(0, 20_000 + 3_000 * batch + chance.randrange(3_000) - behind) * 1_000 for behind in late]
    columns = [
        pa.array(key, pa.int64()),
        pa.array([None if chance.random() < 0.01 else moment for moment in at], pa.int64()).cast(pa.timestamp("us")),
        pa.array(np.ones(count, np.int64)),
        pa.array([chance.choice([None, *range(-5, 6)]) for _ in range(count)], pa.int64()),
        pa.array([chance.choice([None, *range(9)]) for _ in range(count)], pa.int32()),
        pa.array(np.arange(count)),
        pa.array(key, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SENT)


lengths = st.sampled_from([(2_000, 2_000), (2_000, 1_000), (3_000, 2_000), (5_000, 1_000)])


@given(st.integers(0, 2**32), lengths, st.sampled_from([0, 2_000]), st.sampled_from([0, 700]))
@settings(deadline=None, max_examples=15)
def test_merged_windows_are_those_of_all_rows(seed: int, length: tuple[int, int], lateness: int, start: int) -> None:
    size, slide, late, begin = (f"{each} milliseconds" for each in (*length, lateness, start))
    merged, plain = (
        Query(EventSliding(size, slide, "at", AGGREGATES, late, begin, merge=merge)) for merge in (True, False)
    )
    for batch in range(6):
        block = made(seed, batch)
        assert merged.push(block) == plain.push(block)
    assert merged.instance.counters.late == plain.instance.counters.late > 0
    assert merged.instance.batch.watermark == plain.instance.batch.watermark
    assert merged.rows < 0.8 * plain.rows, "rows were merged"
