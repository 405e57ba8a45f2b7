"""Words counted by windows of event time, as in SEEP's failure tests: Spark SQL splits lines, a keyed operator counts.

So that latency can be measured for every word, each word outputs the count that it has reached in its window; there is no
output when the window closes. State is the counts of open windows; they go when the watermark passes the window's end. A word
comes on all lanes. How lanes interleave is not fixed; the counts of a word in a window are, and so is their order on each lane.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.inside.names import ROWS, Index, PaneStore, Timers
from benchmarks.inside.names import column as column_of
from benchmarks.running.settings import Settings
from benchmarks.workloads.computation import LANES, NAME, Computation, Mask, all_numbers, numbers_in, valued
from benchmarks.workloads.tally import Ballasted
from godwit import Outputs, Rows, Times
from godwit.testing.latency import Numbers
from godwit.testing.open_loop import column
from godwit.workload import LINE_WORDS, WORDS, Workload
from godwit.workload.numbered_rows import due_us, words_of

DELAY_MS: Final = 1_000  # of the watermark
SLOTS: Final = 4  # windows of a word that are quick to reach; more of them are open only after a long stop
COUNT: Final = MappingProxyType({ROWS: pa.int64()})
DUE: Final[pa.DataType] = pa.timestamp("us", tz="UTC")
OUTPUT: Final[dict[str, pa.DataType]] = {
    "word": pa.string(),
    "window": DUE,
    "count": pa.int64(),
    "n": pa.int64(),
    "due": DUE,
}


class WordCount(Ballasted):
    state = MappingProxyType(PaneStore.value_fields(COUNT, SLOTS))
    own_variables = (PaneStore.variable(COUNT),)
    output_schema = pa.schema(OUTPUT)
    time_column = "due"
    keeps_new = False  # a word whose windows are all closed leaves nothing behind

    def __init__(self, state_bytes: int, window_ms: int) -> None:
        super().__init__(state_bytes)
        self._window_us = window_ms * 1_000
        self.allowed_lateness_ms = window_ms

    def open(self) -> None:
        self._store = PaneStore(COUNT, self._window_us, SLOTS, var=1)

    def initialise(self, rows: Rows, state: Any, times: Times) -> None:
        self.load_up(rows, state)

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        start = window_of(column_of(rows.batch, "due"), self._window_us)
        owners, starts, of_row = _pairs(rows.codes.astype(np.int64), start)
        counts = self._store.load(state, owners, starts)
        new = counts[ROWS] == 0
        count = counts[ROWS][of_row] + _rank(of_row) + 1
        counts[ROWS] = counts[ROWS] + np.bincount(of_row, minlength=len(owners))
        self._store.save(state, owners, starts, counts)
        state.set_timer(owners[new], (starts[new] + self._window_us) // 1_000)
        return self.emit(rows, window=pa.array(start).cast(DUE), count=count)

    def on_timer(self, timers: Timers, state: Any, times: Times) -> None:
        owners, starts, _ = self._store.read(state)
        over = starts + self._window_us <= times.watermark_ms * 1_000
        self._store.forget(state, owners[over], starts[over])
        if not self.state_bytes:
            left = np.zeros(len(state.keys), np.bool_)
            left[owners[~over]] = True
            state.remove(~left)


class WordCounts(Computation):
    shape = WORDS

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._window_us = round(settings.window_s * 1_000) * 1_000

    def operated(self, spark: SparkSession, flock: godwit.Flock, rows: DataFrame) -> DataFrame:
        processor = WordCount(self.settings.state_bytes, self._window_us // 1_000)
        initial = self._vocabulary(spark) if self.settings.state_bytes else None
        return flock.process(split(rows), "word", processor, timeMode="eventTime", initialState=initial, name=NAME)

    def _vocabulary(self, spark: SparkSession) -> DataFrame:
        """All words; they are of no time, and must not move the watermark."""
        words = self.initial(spark, sf.concat(sf.lit("w"), sf.col("id").cast("string")), "word")
        return words.withColumn("due", sf.lit(None).cast("timestamp"))

    def output_count(self, workload: Workload) -> int:
        return workload.end * LINE_WORDS

    def judged(self, workload: Workload, outputs: pa.Table) -> dict[str, int]:
        text = self._text(workload, outputs)
        words, lines, counts = numbers_in(outputs.column("word")), column(outputs, "n"), column(outputs, "count")
        pairs = text.pairs(words, column(outputs, "window"))
        right = text.has(words, lines, column(outputs, "due"), column(outputs, "window"))
        judged = valued(pairs, counts, right, text.by_pair)
        return {**judged, "out_of_order": out_of_order(pairs * LANES + lines % LANES, counts, lines)}

    def expected(self, workload: Workload, outputs: pa.Table) -> dict[int, Any]:
        """Words with an open window or, if all have a value beside it, all words."""
        windows = self._text(workload, outputs).open_windows(DELAY_MS)
        every = range(self.settings.keys) if self.settings.state_bytes else windows
        return {word: (windows.get(word, {}), self.digest_of(word)) for word in every}

    def stored(self, state: DataFrame) -> list[tuple[int, Any]]:
        stored = state.select("word", "state", "older", self.digests()).collect()
        return [(int(row.word[1:]), (_windows(row), row.digest)) for row in stored]

    def _text(self, workload: Workload, outputs: pa.Table) -> _Text:
        return _Text(workload, start_ms(workload, outputs), self._window_us)


def split(lines: DataFrame) -> DataFrame:
    """Lines into words, with Spark's own means; they keep their line's number and time."""
    marked = lines.withWatermark("due", f"{DELAY_MS} milliseconds")
    return marked.select(sf.explode(sf.split("line", " ")).alias("word"), "n", "due")


def window_of(moment_us: Index, window_us: int) -> Index:
    """When the window begins that holds this moment."""
    start: Index = moment_us - moment_us % window_us
    return start


def start_ms(workload: Workload, outputs: pa.Table) -> int:
    """When row 0 was due, as most output rows have it: a few wrong ones do not change it."""
    offsets = column(outputs, "due") - due_us(workload, column(outputs, "n"), 0)
    values, often = np.unique(offsets, return_counts=True)
    return int(values[np.argmax(often)]) // 1_000 if len(values) else 0


def out_of_order(keys: Numbers, counts: Numbers, lines: Numbers) -> int:
    """Output rows of a key whose count does not rise, or whose line is before the one of the row before."""
    order = np.argsort(keys, kind="stable")
    keys, counts, lines = keys[order], counts[order], lines[order]
    back = (counts[1:] <= counts[:-1]) | (lines[1:] < lines[:-1])
    return int((back & (keys[1:] == keys[:-1])).sum())


class _Text:
    """All lines, and how often each word is in each window. A pair is a word and a window, as one number."""

    def __init__(self, workload: Workload, start_ms: int, window_us: int) -> None:
        numbers = all_numbers(workload)
        self._words = words_of(workload, numbers)
        self._due = due_us(workload, numbers, start_ms)
        self._window_us, self._keys = window_us, workload.keys
        self._first = int(window_of(self._due[:1], window_us)[0]) if len(numbers) else 0
        self._windows = int((self._due[-1] - self._first) // window_us) + 1 if len(numbers) else 1
        in_text = self.pairs(self._words.reshape(-1), np.repeat(self._due, LINE_WORDS))
        self.by_pair = np.bincount(in_text, minlength=self._keys * self._windows).astype(np.int64)

    def pairs(self, words: Numbers, moments: Numbers) -> Numbers:
        """-1 where there is no such word or window."""
        window = (moments - self._first) // self._window_us
        known = (words >= 0) & (words < self._keys) & (window >= 0) & (window < self._windows)
        return np.where(known, words * self._windows + window, -1)

    def has(self, words: Numbers, lines: Numbers, due: Numbers, window: Numbers) -> Mask:
        """Whether the line has the word, and the output row the line's time and the window of that."""
        exists: Mask = (lines >= 0) & (lines < len(self._due))
        at = np.where(exists, lines, 0)
        exists &= (self._words[at] == words[:, None]).any(axis=1) & (self._due[at] == due)
        exists &= window_of(due, self._window_us) == window
        return exists

    def open_windows(self, delay_ms: int) -> dict[int, dict[int, int]]:
        """By word: the counts of windows that the watermark has not passed when all lines are through."""
        watermark_us = (int(self._due[-1]) // 1_000 - delay_ms) * 1_000
        windows: dict[int, dict[int, int]] = {}
        for pair in np.flatnonzero(self.by_pair).tolist():
            word, window = divmod(pair, self._windows)
            start = self._first + window * self._window_us
            if start + self._window_us > watermark_us:
                windows.setdefault(word, {})[start] = int(self.by_pair[pair])
        return windows


def _windows(row: Row) -> dict[int, int]:
    """The counts in a word's state, by the start of their window."""
    slots = {} if row.state is None else row.state.asDict()
    near = {slots[f"start_us_{at}"]: slots[f"rows_{at}"] for at in range(SLOTS) if slots.get(f"rows_{at}")}
    return near | {start.start_us: count[ROWS] for start, count in (row.older or {}).items()}


def _pairs(codes: Index, start: Index) -> tuple[Index, Index, Index]:
    """The different (key, window) pairs among rows, and which of them each row is."""
    starts, which = np.unique(start, return_inverse=True)
    pairs, of_row = np.unique(codes * len(starts) + which, return_inverse=True)
    return pairs // len(starts), starts[pairs % len(starts)], of_row


def _rank(of_row: Index) -> Index:
    """For each row, how many rows of the same pair are before it."""
    order = np.argsort(of_row, kind="stable")
    counts = np.bincount(of_row)
    rank = np.empty(len(of_row), np.int64)
    rank[order] = np.arange(len(of_row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank
