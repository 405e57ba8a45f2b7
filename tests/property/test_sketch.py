"""The heavy-hitter sketch against exact counts: whatever comes, in whatever cuts and merges, its bounds hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.runtime.load import sketch as sketches
from godwit.runtime.load.sketch import FOLD_ROWS, HotKeys, Sketch
from godwit.runtime.processor.grouping import group_by_key
from godwit.state.keys import KeyCodec

SCHEMA = pa.schema([("key", pa.int64())])
CODEC = KeyCodec(SCHEMA, "UTC")
# Few keys often and many keys rarely, so that some are heavy and there are more than there is room for.
HASHES = st.one_of(st.integers(0, 5), st.integers(0, 5), st.integers(-(2**63), 2**63 - 1), st.integers(0, 200))
CHUNKS = st.lists(st.lists(HASHES, max_size=60), max_size=12)


def add(sketch: Sketch, chunk: list[int]) -> None:
    found, counts = np.unique(np.array(chunk, np.int64), return_counts=True)
    sketch.add(counts, found.__getitem__)


def check(sketch: Sketch, exact: Counter[int], capacity: int) -> None:
    rows = exact.total()
    top = sketch.top(capacity)
    assert sketch.total == rows
    assert len(sketch) <= capacity
    assert sketch.below * (capacity + 1) <= rows
    for heavy in top:
        assert heavy.at_least <= exact[heavy.hash] <= heavy.at_most
        assert heavy.at_most - heavy.at_least <= rows / (capacity + 1)
    held = {heavy.hash for heavy in top}
    assert all(count <= sketch.below for found, count in exact.items() if found not in held)
    assert [heavy.at_least for heavy in top] == sorted((heavy.at_least for heavy in top), reverse=True)


@given(CHUNKS, st.integers(1, 12))
def test_bounds_hold_for_any_chunks(chunks: list[list[int]], capacity: int) -> None:
    sketch, exact = Sketch(capacity), Counter[int]()
    for chunk in chunks:
        add(sketch, chunk)
        exact.update(chunk)
        check(sketch, exact, capacity)


def test_bounds_hold_for_counts_too_high_to_be_tallied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "TALLIED_MAX", 3)
    test_bounds_hold_for_any_chunks()


@given(CHUNKS, CHUNKS, st.integers(1, 12))
def test_bounds_hold_for_merged_sketches(one: list[list[int]], other: list[list[int]], capacity: int) -> None:
    left, right = Sketch(capacity), Sketch(capacity)
    for sketch, chunks in ((left, one), (right, other)):
        for chunk in chunks:
            add(sketch, chunk)
    left.merge(right)
    check(left, Counter(found for chunk in (*one, *other) for found in chunk), capacity)


@given(CHUNKS)
def test_with_room_for_all_counts_are_exact(chunks: list[list[int]]) -> None:
    sketch, exact = Sketch(1000), Counter[int]()
    for chunk in chunks:
        add(sketch, chunk)
        exact.update(chunk)
    assert {heavy.hash: heavy.at_least for heavy in sketch.top(1000)} == exact
    assert sketch.below == 0


# -- keys by name ----------------------------------------------------------------------------------------------------


def feed(hot: HotKeys, keys: list[int]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], schema=SCHEMA)
    hashes = np.array([CODEC.route_hash((key,)) for key in keys], np.int64)
    hot.add(group_by_key(batch, np.arange(len(keys)), CODEC), hashes)


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=80), min_size=1, max_size=10))
def test_keys_are_told_by_their_own_names(chunks: list[list[int]]) -> None:
    hot, exact = HotKeys(), Counter[int]()
    for chunk in chunks:
        feed(hot, chunk)
        exact.update(chunk)
    rows, found = hot.top(1000)
    assert rows == exact.total()
    wanted = {key: count for key, count in exact.items() if count >= 0.01 * rows}
    assert {key[0]: heavy.at_least for key, heavy in found} == wanted
    assert all(CODEC.route_hash(key) == heavy.hash for key, heavy in found)


def test_large_and_small_chunks_are_counted_alike() -> None:
    rng = np.random.default_rng(1)
    keys = np.where(rng.random(3 * FOLD_ROWS) < 0.2, 7, rng.integers(100, 100_000, 3 * FOLD_ROWS)).tolist()
    whole, cut = HotKeys(), HotKeys()
    feed(whole, keys)
    for first in range(0, len(keys), 100):
        feed(cut, keys[first : first + 100])
    for hot in (whole, cut):
        rows, (((key,), heavy), *others) = hot.top(8)
        assert (rows, key, others) == (len(keys), 7, [])
        assert heavy.at_least <= keys.count(7) <= heavy.at_most


def test_what_was_before_the_last_turn_but_one_is_forgotten() -> None:
    hot = HotKeys()
    feed(hot, [1] * 100)
    hot.turn()
    feed(hot, [2] * 50)
    assert [key for key, _ in hot.top(8)[1]] == [(1,), (2,)]
    hot.turn()
    assert [key for key, _ in hot.top(8)[1]] == [(2,)]
    hot.turn()
    assert hot.top(8) == (0, [])
