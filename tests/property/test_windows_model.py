"""Windows against a plain model: any rows, cut into chunks anyhow, give the windows that the definition says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.rows import Outputs, Rows, Times
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.windows import CountSliding, EventSliding
from godwit.windows.window import Window

SCHEMA = pa.schema({"key": pa.int64(), "ts": pa.timestamp("us"), "x": pa.float64()})
# State that is all of fixed width, and state that is not: they are kept in different ways.
FIXED = ("count", "sum", "avg", "min", "max", "first", "last")
VARYING = ("first", "collect", "max")

Row = tuple[int, int, float | None]  # key, milliseconds, value
Batch = tuple[list[Row], list[int], int]
Functions = tuple[str, ...]

# Whole numbers, so that the model may add them in any order; and numbers for which the order shows in the sum.
WHOLE = st.none() | st.integers(-5, 5).map(float)
TOUCHY = st.none() | st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16, 3.0, -7.25])


def rows_of(values: st.SearchStrategy[float | None]) -> st.SearchStrategy[list[Row]]:
    return st.lists(st.tuples(st.integers(0, 3), st.integers(-30, 120), values), max_size=16)


some_functions = st.sampled_from([FIXED, VARYING])
cuts = st.lists(st.integers(0, 16), max_size=4)
lengths = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: (max(pair), min(pair)))  # size, slide


def batches_of(values: st.SearchStrategy[float | None]) -> st.SearchStrategy[list[Batch]]:
    """Rows, where they are cut, and how far the watermark is ahead of the batch before."""
    return st.lists(st.tuples(rows_of(values), cuts, st.integers(0, 60)), max_size=5)


class Instance:
    def __init__(self, window: Window) -> None:
        self.adapter = NativeAdapter(window, SCHEMA, ["key"])
        self.state = KeyedState(self.adapter.variables, KeyCodec(pa.schema([SCHEMA.field("key")])), None, None)
        self.adapter.open(self.state)

    def push(self, chunk: Sequence[Row], times: Times) -> list[tuple[Any, ...]]:
        if not chunk:
            return []
        place: dict[Any, int] = {}
        codes = np.array([place.setdefault((row[0],), len(place)) for row in chunk], np.int32)
        columns = [
            pa.array([row[0] for row in chunk]),
            pa.array([row[1] * 1000 for row in chunk], pa.timestamp("us")),
            pa.array([row[2] for row in chunk], pa.float64()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        outputs = self.adapter.process(Rows(batch, np.arange(len(chunk)), list(place), codes), times)
        self.state.commit()
        return plain(outputs)

    def advance(self, mark_ms: int) -> list[tuple[Any, ...]]:
        due = self.state.due(mark_ms)
        outputs = self.adapter.expire(due, Times(0, mark_ms)) if due else None
        self.state.commit()
        return [] if outputs is None else plain(outputs)


def plain(outputs: Outputs) -> list[tuple[Any, ...]]:
    columns = outputs.batch.columns
    if pa.types.is_struct(columns[1].type):
        columns[1] = columns[1].field("end").cast(pa.int64())
    return list(zip(*[column.to_pylist() for column in columns], strict=True))


def aggregated(cells: Sequence[float | None], functions: Functions) -> tuple[Any, ...]:
    known = [cell for cell in cells if cell is not None]
    results = {
        "count": len(known),
        "sum": sum(known) if known else None,
        "avg": sum(known) / len(known) if known else None,
        "min": min(known, default=None),
        "max": max(known, default=None),
        "first": cells[0],
        "last": cells[-1],
        "collect": known,
    }
    return tuple(results[function] for function in functions)


def aggregates(functions: Functions) -> dict[str, tuple[str, str]]:
    return {function: (function, "x") for function in functions}


def cut(items: Sequence[Row], at: Sequence[int]) -> Iterator[Sequence[Row]]:
    bounds = [0, *sorted(min(position, len(items)) for position in at), len(items)]
    return (items[low:high] for low, high in pairwise(bounds))


def count_windows(rows: Sequence[Row], size: int, slide: int, functions: Functions) -> list[tuple[Any, ...]]:
    seen: dict[int, list[float | None]] = {}
    windows = []
    for key, _, value in rows:
        cells = seen.setdefault(key, [])
        cells.append(value)
        if len(cells) >= size and (len(cells) - size) % slide == 0:
            windows.append((key, (len(cells) - size) // slide, *aggregated(cells[-size:], functions)))
    return windows


class EventModel:
    """Every window with all its rows, by key and end in milliseconds."""

    def __init__(self, size: int, slide: int, lateness: int, offset: int, functions: Functions) -> None:
        self.functions = functions
        self.size, self.slide, self.lateness, self.offset = size, slide, lateness, offset
        self.piece = math.gcd(size, slide)
        self.windows: dict[tuple[int, int], list[tuple[int, float | None]]] = {}
        self.changed: set[tuple[int, int]] = set()
        self.late_rows = 0

    def batch(self, rows: Sequence[Row], late_ms: int, mark_ms: int) -> list[tuple[Any, ...]]:
        for key, ms, value in rows:
            start = ms - (ms - self.offset) % self.slide
            ends = [start - back + self.size for back in range(0, self.size, self.slide)]
            taken = [end for end in ends if end > ms and end + self.lateness > late_ms]
            self.late_rows += not taken
            for end in taken:
                self.windows.setdefault((key, end), []).append(((ms - self.offset) // self.piece, value))
                self.changed.add((key, end))
        closed = sorted(window for window in self.changed if window[1] <= mark_ms)
        self.changed.difference_update(closed)
        return [(key, end * 1000, *aggregated(self.cells(key, end), self.functions)) for key, end in closed]

    def cells(self, key: int, end: int) -> list[float | None]:
        """Piece by piece, in order of arrival within each."""
        return [value for _, value in sorted(self.windows[key, end], key=lambda cell: cell[0])]


@given(rows_of(WHOLE), cuts, lengths, some_functions)
def test_count_windows_are_those_of_the_model(
    rows: list[Row], at: list[int], length: tuple[int, int], functions: Functions
) -> None:
    instance = Instance(CountSliding(*length, aggregates(functions)))
    windows = [window for chunk in cut(rows, at) for window in instance.push(chunk, Times(0, 0))]
    assert windows == count_windows(rows, *length, functions)


@given(rows_of(TOUCHY), cuts, lengths, some_functions)
def test_count_windows_are_the_same_to_the_last_bit_however_rows_are_cut(
    rows: list[Row], at: list[int], length: tuple[int, int], functions: Functions
) -> None:
    one_by_one, instance = (Instance(CountSliding(*length, aggregates(functions))) for _ in range(2))
    expected = [window for row in rows for window in one_by_one.push([row], Times(0, 0))]
    assert [window for chunk in cut(rows, at) for window in instance.push(chunk, Times(0, 0))] == expected


def event_instance(length: tuple[int, int], lateness: int, offset: int, functions: Functions) -> Instance:
    size, slide, late, start = (timedelta(milliseconds=ms) for ms in (*length, lateness, offset))
    return Instance(EventSliding(size, slide, "ts", aggregates(functions), late, start))


@given(batches_of(WHOLE), lengths, st.integers(0, 30), st.integers(0, 9), some_functions)
def test_event_windows_are_those_of_the_model(
    batches: list[Batch], length: tuple[int, int], lateness: int, offset: int, functions: Functions
) -> None:
    instance = event_instance(length, lateness, offset, functions)
    model = EventModel(*length, lateness, offset, functions)
    late_ms = mark_ms = -40
    for rows, at, step in batches:
        late_ms, mark_ms = mark_ms, mark_ms + step
        for chunk in cut(rows, at):
            assert instance.push(chunk, Times(0, mark_ms, late_ms)) == []
        assert sorted(instance.advance(mark_ms), key=repr) == sorted(model.batch(rows, late_ms, mark_ms), key=repr)
    assert sorted(instance.advance(10_000), key=repr) == sorted(model.batch([], 0, 10_000), key=repr)
    instance.advance(20_000)
    assert instance.state.key_count == 0
    assert instance.adapter.late_rows == model.late_rows


@given(batches_of(TOUCHY), lengths, st.integers(0, 30), some_functions)
def test_event_windows_are_the_same_to_the_last_bit_however_rows_are_cut(
    batches: list[Batch], length: tuple[int, int], lateness: int, functions: Functions
) -> None:
    one_by_one, instance = (event_instance(length, lateness, 0, functions) for _ in range(2))
    late_ms = mark_ms = -40
    for rows, at, step in [*batches, ([], [], 10_000)]:
        late_ms, mark_ms = mark_ms, mark_ms + step
        for row in rows:
            one_by_one.push([row], Times(0, mark_ms, late_ms))
        for chunk in cut(rows, at):
            instance.push(chunk, Times(0, mark_ms, late_ms))
        assert instance.advance(mark_ms) == one_by_one.advance(mark_ms)
