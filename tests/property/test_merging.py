"""Merging: the same blocks however Spark cuts its batches, and the same state as without."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import godwit
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.merging import Merging, by_key, checked_merge, fold
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import rows_of_state
from godwit.runtime.router.lanes import row_slices
from godwit.runtime.router.route import Route
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.transport.wire import HASH, ROW

INPUT = pa.schema([("key", pa.int64()), ("amount", pa.int64()), ("high", pa.int64()), ("word", pa.string())])
KEYS = pa.schema([INPUT.field("key")])
BLOCK = 200


class Totals(godwit.Processor):
    """Of each column what its way of merging keeps."""

    state = {"total": pa.int64(), "high": pa.int64(), "word": pa.string()}
    output_schema = pa.schema([("key", pa.int64()), ("total", pa.int64())])
    merge = {"amount": "sum", "high": "max", "word": "last"}

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        words = state["word"]
        for code, row in zip(rows.codes.tolist(), rows.batch.to_pylist(), strict=True):
            state["total"][code] += row["amount"] or 0
            state["high"][code] = max(state["high"][code], row["high"] or 0)
            words[code] = words[code] if row["word"] is None else row["word"]
        return self.emit_at(rows, rows.last, total=state["total"])


MERGE = checked_merge(Totals.merge, INPUT, ["key"])


def made(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Enough rows for keys to be hot: lists that are drawn element by element are short."""
    chance = random.Random(seed)
    keys, words = [*[1] * 10, *[2] * 7, 3, 4, None], ["a", "b", None]
    amounts, highs = [*range(-9, 10), None], [2**62, *range(9), None]
    return [tuple(map(chance.choice, (keys, amounts, highs, words))) for _ in range(count)]


rows_given = st.builds(made, st.integers(0, 2**32), st.integers(0, 600))


def table(rows: Sequence[tuple[Any, ...]], collide: bool) -> pa.RecordBatch:
    """As Spark hands rows over: the user's columns and the routing hash, which all keys may share."""
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(INPUT)]
    hashes = pa.array([42 if collide else (row[0] or 0) * 7 for row in rows], pa.int64())
    return pa.RecordBatch.from_arrays([*columns, hashes], schema=pa.schema([*INPUT, (HASH, pa.int64())]))


def blocks(whole: pa.RecordBatch, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    """What a router sends if Spark cuts the batch there."""
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole.slice(low, high - low) for low, high in pairwise(places)]
    route = Route("totals", "/ck", Routing.spread(["a"], 4), pa.schema([]), ("key",), token="t", gather=False)
    merging = Merging(MERGE, INPUT, ["key"])
    sent = pa.schema([*INPUT, (ROW, pa.int64()), (HASH, pa.int64())])
    found = []
    for row_slice in row_slices(pieces, route, "0", BLOCK):
        columns = [*row_slice.batch.columns, pa.array(row_slice.rows), pa.array(row_slice.hashes)]
        found.append(merging.merged(pa.RecordBatch.from_arrays(columns, schema=sent)))
    return found


@given(rows_given, st.lists(st.integers(0, 600), max_size=8), st.booleans())
@settings(deadline=None)
def test_any_cut_gives_the_same_blocks(rows: list[tuple[Any, ...]], cuts: list[int], collide: bool) -> None:
    whole = table(rows, collide)
    expected = [block.to_pylist() for block in blocks(whole, [])]
    assert [block.to_pylist() for block in blocks(whole, cuts)] == expected
    if len(rows) >= 2 * BLOCK:
        assert sum(map(len, expected)) < len(rows), "keys are hot"


def state_after(batches: Sequence[pa.RecordBatch]) -> dict[Any, Any]:
    adapter = NativeAdapter(Totals(), INPUT, ["key"])
    codec = KeyCodec(KEYS)
    spec = OperatorSpec("totals", "Totals", "native", KEYS, adapter.output_schema, adapter.variables)
    instance = Instance("totals", spec, KeyedState(spec.variables, codec), codec)
    instance.attach(spec, adapter)
    request = BatchRef("q", "r", 0)
    instance.open(request, "0", 0, lambda *_: False)
    for batch in batches:
        numbers, hashes = (batch.column(name).to_numpy() for name in (ROW, HASH))
        instance.apply(request, "0", Chunk(batch.select(INPUT.names), numbers, hashes))
    changes = list(instance.state.export(committed=False))
    found = [row for part in rows_of_state(spec, changes, "a", 1) for row in part.to_pylist()]
    return {row["key"]: row["state"] for row in found}


@given(rows_given, st.booleans())
@settings(deadline=None, max_examples=15)
def test_merged_rows_leave_the_state_of_the_rows_one_by_one(rows: list[tuple[Any, ...]], collide: bool) -> None:
    whole = table(rows, collide)
    numbers = pa.array(np.arange(len(whole)))
    columns = [*whole.columns[:-1], numbers, whole.columns[-1]]
    numbered = pa.RecordBatch.from_arrays(columns, names=[*INPUT.names, ROW, HASH])
    assert state_after(blocks(whole, [])) == state_after([numbered.slice(at, 1) for at in range(len(numbered))])


@given(rows_given.filter(len))
@settings(deadline=None, max_examples=50)
def test_folding_keeps_a_row_for_each_key_in_order_of_their_last(rows: list[tuple[Any, ...]]) -> None:
    whole = table(rows, collide=False)
    found = fold(whole, by_key(whole, np.arange(len(whole)), KeyCodec(KEYS)), MERGE)
    assert found.column("key").to_pylist() == list(dict.fromkeys(row[0] for row in reversed(rows)))[::-1]
