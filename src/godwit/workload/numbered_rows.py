"""Rows as a pure function of their number: row n is the same in any chunk, lane, process or run.

Decides the key, the values and the due time of row n by hashing (seed, column, n) with splitmix64's
finaliser (Steele, Lea and Flood, OOPSLA 2014), so that no generator has a state to lose. Works on whole
arrays of numbers. It must not know the clock: the start time and the present are arguments.

Zipf draws use floating-point powers, whose last bit may differ between machines that give numpy other
vector instructions: there a draw that falls on the very border between two ranks may pick the other one.
All else is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.workload import LINE_WORDS, SPEEDS, WORDS, Workload

__all__ = ["due_count", "due_us", "keys_of", "lane_batches", "rows_batch", "schema_of", "speeds_of", "words_of"]

Numbers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
Reals = npt.NDArray[np.float64]
Column: TypeAlias = "pa.Array[Any]"
RecordBatches: TypeAlias = Iterator[pa.RecordBatch]

_GAMMA: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1
# One word per column: draws of different columns of the same row must not be related.
_KEY, _SPEED, _PAYLOAD = 1, 2, 3
# Enough to hide numpy's cost per call, small enough for the second-level cache and for payloads of any size.
_CHUNK_ROWS: Final = 32_768
_CHUNK_BYTES: Final = 8 * 2**20
# Ranks below this have exact Zipf weights, in a table that fits the first-level cache. Above it a weight is
# taken as the integral around it: off by skew * (skew + 1) / (24 * rank**2), 5 parts in 10**9 at skew 1.
_HEAD_RANKS: Final = 4_096

_DUE: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final[Mapping[str, Sequence[tuple[str, pa.DataType]]]] = {
    "key-count": [("key", pa.int64()), ("payload", pa.binary()), ("n", pa.int64()), ("due", _DUE)],
    "word-count": [("line", pa.string()), ("n", pa.int64()), ("due", _DUE)],
    "traffic": [("car", pa.string()), ("speed", pa.float64()), ("n", pa.int64()), ("due", _DUE)],
}


def schema_of(workload: Workload) -> pa.Schema:
    """The columns of a row. They depend on the shape alone: with no payload bytes the payload is null."""
    return pa.schema(_FIELDS[workload.shape])


def due_count(workload: Workload, start_ms: int, now_us: int) -> int:
    """How many rows are due by now (and exist): exactly those whose `due` column is not after `now_us`."""
    if workload.rows_per_second == 0:
        return workload.end
    elapsed_us = now_us - start_ms * 1_000
    if elapsed_us < 0:
        return 0
    return min(workload.end, -(-(elapsed_us + 1) * workload.rows_per_second // 1_000_000))


def lane_batches(workload: Workload, lane: int, first: int, stop: int, start_ms: int) -> RecordBatches:
    """The rows of [first, stop) that come on the lane, by ascending number."""
    step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // (workload.payload_bytes or 1)))
    for numbers, keys in _lane_numbers(workload, lane, first, stop):
        for at in range(0, len(numbers), step):
            part = slice(at, at + step)
            yield rows_batch(workload, numbers[part], keys[part], start_ms)


def _lane_numbers(workload: Workload, lane: int, first: int, stop: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Chunks of the lane's row numbers and their keys.

    By key, every lane draws the keys of all rows and keeps its own: a draw costs little, and so a row's key
    does not depend on how many lanes there are.
    """
    span = _CHUNK_ROWS * workload.lanes
    for at in range(first, stop, span):
        end = min(at + span, stop)
        if workload.lane_by == "row":
            numbers = np.arange(at + (lane - at) % workload.lanes, end, workload.lanes, dtype=np.int64)
            yield numbers, keys_of(workload, numbers)
        else:
            numbers = np.arange(at, end, dtype=np.int64)
            keys = keys_of(workload, numbers)
            if workload.lanes > 1:
                mine = np.flatnonzero(keys % workload.lanes == lane)
                numbers, keys = numbers[mine], keys[mine]
            yield numbers, keys


def rows_batch(workload: Workload, numbers: Numbers, keys: Numbers, start_ms: int) -> pa.RecordBatch:
    """The rows of these numbers; `keys` are their keys, as `keys_of` gives them."""
    shared: list[Column] = [pa.array(numbers), pa.array(due_us(workload, numbers, start_ms)).cast(_DUE)]
    if workload.shape == SPEEDS:
        own = [_named("C", keys), pa.array(speeds_of(workload, numbers))]
    elif workload.shape == WORDS:
        own = [_lines(workload, numbers)]
    else:
        own = [pa.array(keys), _payloads(workload, numbers)]
    return pa.RecordBatch.from_arrays(own + shared, schema=schema_of(workload))


def keys_of(workload: Workload, numbers: Numbers) -> Numbers:
    """The key of each row: 0 .. keys-1; under Zipf's law key 0 is the most frequent, key 1 the next."""
    draw = _unit(_bits(workload.seed, _KEY, numbers))
    if workload.skew:
        return _zipf(workload.keys, workload.skew).ranks(draw)
    draw *= workload.keys
    return draw.astype(np.int64)


def words_of(workload: Workload, numbers: Numbers) -> Numbers:
    """The words of each line, as keys: a row of `LINE_WORDS` for each number."""
    places = numbers[:, None] * LINE_WORDS + np.arange(LINE_WORDS)
    return keys_of(workload, places.reshape(-1)).reshape(places.shape)


def due_us(workload: Workload, numbers: Numbers, start_ms: int) -> Numbers:
    """Row n is due n/rate after the start; with no rate every row is due at the start. In microseconds."""
    if workload.rows_per_second:
        return numbers * 1_000_000 // workload.rows_per_second + start_ms * 1_000
    return np.full(len(numbers), start_ms * 1_000, np.int64)


def speeds_of(workload: Workload, numbers: Numbers) -> Reals:
    """Uniform over [20, 80). 40 bits of chance: with 53 the sum could round up to 80."""
    draw = (_bits(workload.seed, _SPEED, numbers) >> np.uint64(24)).astype(np.float64)
    return draw * (60.0 * 2.0**-40) + 20.0


def _named(letter: str, keys: Numbers) -> Column:
    """A letter and the key's number."""
    digits = pa.array(keys).cast(pa.string())
    joined: Column = pc.call_function("binary_join_element_wise", [pa.scalar(letter), digits, pa.scalar("")])
    return joined


def _lines(workload: Workload, numbers: Numbers) -> Column:
    words = words_of(workload, numbers)
    named = [_named("w", words[:, at]) for at in range(LINE_WORDS)]
    joined: Column = pc.call_function("binary_join_element_wise", [*named, pa.scalar(" ")])
    return joined


def _payloads(workload: Workload, numbers: Numbers) -> Column:
    size = workload.payload_bytes
    if not size:
        return pa.nulls(len(numbers), pa.binary())
    steps = np.arange(1, -(-size // 8) + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    words = _mixed(_bits(workload.seed, _PAYLOAD, numbers)[:, None] + steps)
    data = np.ascontiguousarray(words.astype("<u8", copy=False).view(np.uint8)[:, :size])
    offsets = np.arange(0, (len(numbers) + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)


def _bits(seed: int, column: int, numbers: Numbers) -> Bits:
    """64 bits of chance per row number."""
    origin = int(_mixed(np.array([(seed * 4 + column) * _GAMMA & _MASK], np.uint64))[0])
    return _mixed(numbers.astype(np.uint64) * np.uint64(_GAMMA) + np.uint64(origin))


def _mixed(words: Bits) -> Bits:
    """splitmix64's finaliser, in place: each input bit flips each output bit with probability one half."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _unit(words: Bits) -> Reals:
    """Reals in [0, 1) with all the bits that a double holds."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class _Zipf:
    """Inverse of the distribution P(rank) ~ (rank + 1)**-skew: a table for the head, then a formula."""

    keys: int
    skew: float
    head: Reals  # cumulated weights of the first ranks
    tail: float  # weight of all ranks after them

    def ranks(self, draw: Reals) -> Numbers:
        target = draw * (self.head[-1] + self.tail)
        ranks: Numbers = np.searchsorted(self.head, target, side="right").astype(np.int64)
        beyond = np.flatnonzero(ranks == len(self.head))
        if len(beyond):
            ranks[beyond] = self._tail_ranks(target[beyond] - self.head[-1])
        return ranks

    def _tail_ranks(self, weight: Reals) -> Numbers:
        """The rank at which the integral of x**-skew from the head's edge reaches the weight."""
        edge, power = len(self.head) + 0.5, 1.0 - self.skew
        scaled = weight * edge**-power
        ratio = np.exp(np.log1p(power * scaled) / power) if power else np.exp(scaled)
        ranks: Numbers = np.floor(edge * ratio - 0.5).astype(np.int64)
        return np.clip(ranks, min(len(self.head), self.keys - 1), self.keys - 1)


@lru_cache(maxsize=8)
def _zipf(keys: int, skew: float) -> _Zipf:
    ranks = min(keys, _HEAD_RANKS)
    head = np.cumsum(np.arange(1, ranks + 1, dtype=np.float64) ** -skew)
    return _Zipf(keys, skew, head, _integral(ranks + 0.5, keys + 0.5, skew))


def _integral(low: float, high: float, skew: float) -> float:
    """Integral of x**-skew, written so that exponents near 1 lose no digits."""
    power, span = 1.0 - skew, float(np.log(high / low))
    return float(low**power * np.expm1(power * span) / power) if power else span
