"""Which keys have most of the rows, in little memory and with bounds: a heavy-hitter sketch for whole chunks.

Space-Saving (Metwally et al., 2005), as counters that are never too high and one number that bounds how much they are too low.
This form (Misra-Gries) is equivalent, and two sketches add up to a third without losing the bound (Agarwal et al., "Mergeable
Summaries", 2012). So a chunk is summed up first and merged as a whole: no work per row. Of n rows no count is lower than the
truth by more than n / (capacity + 1). Knows hashes and counts, neither time nor state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from godwit.runtime.processor.rows import Index, Rows
from godwit.state.keys import Key

CAPACITY = 256
FOLD_ROWS = 4096  # small chunks are gathered up to this many rows: folding one costs about as much as folding all
TALLIED_MAX = 1 << 16  # a tally of higher counts would be longer than most chunks
NAMED_SHARE = 0.01  # keys with a smaller share of the rows are not named


@dataclass(frozen=True, slots=True)
class Heavy:
    """A key among those that have most, with the bounds of its rows."""

    hash: int
    at_least: int
    at_most: int


class Sketch:
    """Counts of the heaviest routing hashes. `below`: how much a count, or a hash without a counter, may be too low."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity >= 1, "at least one counter"
        self._capacity = capacity
        self._hashes: Index = np.empty(0, np.int64)
        self._counts: Index = np.empty(0, np.int64)
        self.below = 0
        self.total = 0

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, counts: Index, hashes_of: Callable[[Index], Index]) -> None:
        """How often each of some distinct hashes came; asks for the hashes only of those that it takes up."""
        self.total += int(counts.sum())
        positions, counts = self._cut(counts)
        if len(positions):
            self._take(hashes_of(positions), counts)

    def merge(self, other: Sketch) -> None:
        self.total += other.total
        self.below += other.below
        self._take(other._hashes, other._counts)

    def _take(self, hashes: Index, counts: Index) -> None:
        distinct, place = np.unique(np.concatenate([self._hashes, hashes]), return_inverse=True)
        sums = np.bincount(place, np.concatenate([self._counts, counts])).astype(np.int64)
        positions, self._counts = self._cut(sums)
        self._hashes = distinct[positions]

    def _cut(self, counts: Index) -> tuple[Index, Index]:
        """The positions of the counts that stay, and what is left of them: all counts are lowered until enough reach zero."""
        if len(counts) <= self._capacity:
            return np.arange(len(counts)), counts
        least = _ranked(counts, self._capacity)
        self.below += least
        positions = np.flatnonzero(counts > least)
        return positions, counts[positions] - least

    def top(self, count: int) -> list[Heavy]:
        """The heaviest first. A hash with more than `below` rows certainly has a counter."""
        order = np.lexsort((self._hashes, -self._counts))[:count]
        pairs = zip(self._hashes[order].tolist(), self._counts[order].tolist(), strict=True)
        return [Heavy(route_hash, rows, rows + self.below) for route_hash, rows in pairs]


def _ranked(counts: Index, rank: int) -> int:
    """The count at this rank, from the highest down. Most counts of a chunk are small: they are tallied."""
    highest = int(counts.max())
    if highest > TALLIED_MAX:
        return int(np.partition(counts, len(counts) - rank - 1)[len(counts) - rank - 1])
    at_least = np.bincount(counts, minlength=highest + 1)[::-1].cumsum()
    return highest - int(np.searchsorted(at_least, rank, side="right"))


class HotKeys:
    """The heavy keys of an instance lately, by name: of the time since the last but one `turn`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._now, self._before = Sketch(capacity), Sketch(capacity)
        self._waiting: list[tuple[Sequence[Key], Any, Index]] = []  # keys, which of them each row has, hashes
        self._waiting_rows = 0
        self._names: dict[int, Key] = {}

    def add(self, rows: Rows, hashes: Index) -> None:
        """Rows of a chunk with their routing hashes. Copies of small chunks wait until they are enough."""
        if len(rows) >= FOLD_ROWS:
            self._fold_grouped(rows, hashes)
            return
        self._waiting.append((rows.keys, rows.codes, hashes.copy()))
        self._waiting_rows += len(rows)
        if self._waiting_rows >= FOLD_ROWS:
            self._fold_waiting()

    def _fold_grouped(self, rows: Rows, hashes: Index) -> None:
        """A large chunk is grouped by key already, so nothing has to be sorted."""
        counts = rows.counts
        named = np.flatnonzero(counts >= NAMED_SHARE * len(rows))

        def hashes_of(codes: Index) -> Index:
            position = np.empty(len(rows.keys), np.int64)
            position[rows.codes] = np.arange(len(rows))
            for code in named.tolist():
                self._names[int(hashes[position[code]])] = rows.keys[code]
            return hashes[position[codes]]

        self._now.add(counts, hashes_of)

    def _fold_waiting(self) -> None:
        if not self._waiting:
            return
        distinct, first, counts = np.unique(
            np.concatenate([hashes for _, _, hashes in self._waiting]), return_index=True, return_counts=True
        )
        self._now.add(counts, distinct.__getitem__)
        ends = np.cumsum([len(hashes) for *_, hashes in self._waiting])
        for at in np.flatnonzero(counts >= NAMED_SHARE * self._waiting_rows).tolist():
            chunk = int(np.searchsorted(ends, first[at], side="right"))
            keys, codes, _ = self._waiting[chunk]
            self._names[int(distinct[at])] = keys[codes[first[at] - (ends[chunk] - len(codes))]]
        self._waiting, self._waiting_rows = [], 0

    def turn(self) -> None:
        """Drop the rows from before the last turn."""
        self._fold_waiting()
        self._before, self._now = self._now, Sketch(self._capacity)
        counted = {heavy.hash for heavy in self._before.top(self._capacity)}
        self._names = {route_hash: key for route_hash, key in self._names.items() if route_hash in counted}

    def top(self, count: int) -> tuple[int, Sequence[tuple[Key, Heavy]]]:
        """How many rows were counted, and the keys that have most of them."""
        self._fold_waiting()
        both = Sketch(self._capacity)
        both.merge(self._before)
        both.merge(self._now)
        least = NAMED_SHARE * both.total
        named = [(self._names.get(heavy.hash), heavy) for heavy in both.top(count) if heavy.at_least >= least]
        return both.total, [(key, heavy) for key, heavy in named if key is not None]
