"""The mean speed of every so many reports of a car: tumbling windows by count, whose rows are the state until they close.

Storing rows in place of their sum makes state as large as the window, so that the size of state can be varied. Before the first
report the windows of cars are already filled, each a little more than the one before it, as after a long time: otherwise all
windows would close together.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import godwit
from benchmarks.inside.names import Packer, Variable
from benchmarks.inside.names import column as column_of
from benchmarks.workloads.averages import car
from benchmarks.workloads.computation import (
    NAME,
    Computation,
    Mask,
    all_numbers,
    drawn_keys,
    numbers_in,
    rows_by_key,
    valued,
)
from benchmarks.workloads.tally import Ballasted, numbers_of
from godwit import Outputs, Rows, Times
from godwit.testing.latency import Numbers, Reals
from godwit.testing.open_loop import column
from godwit.workload import SPEEDS, Workload
from godwit.workload.numbered_rows import speeds_of

FILLED_WITH: Final = 50.0  # the speed of reports that were there before the first
REPORTS: Final = pa.schema([("speed", pa.float64())])
VAR: Final = 1
OUTPUT: Final[dict[str, pa.DataType]] = {
    "car": pa.string(),
    "window": pa.int64(),
    "mean": pa.float64(),
    "due": pa.timestamp("us", tz="UTC"),
}


class CountWindows(Ballasted):
    """`window` is its number, from 0; a window leaves with the report that fills it."""

    state = MappingProxyType({"n": pa.int64(), "window": pa.int64()})
    own_variables = (Variable("reports", "list", REPORTS),)
    output_schema = pa.schema(OUTPUT)

    def __init__(self, state_bytes: int, rows: int, keys: int) -> None:
        super().__init__(state_bytes)
        self._rows, self._keys = rows, keys

    def open(self) -> None:
        self._packer = Packer(REPORTS)

    def initialise(self, rows: Rows, state: Any, times: Times) -> None:
        filled = [filled_before(number, self._rows, self._keys) for number in numbers_of(rows.keys)]
        state["n"] = np.array(filled, np.int64)
        for key, n in zip(rows.keys, filled, strict=True):
            state.keyed.list_put(VAR, key, self._packer.pack({"speed": np.full(n, FILLED_WITH)}, n))
        self.load_up(rows, state)

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        speeds = column_of(rows.batch, "speed")[rows.order]
        packed = self._packer.pack({"speed": speeds}, len(speeds))
        positions: list[int] = []
        windows: list[int] = []
        means: list[float] = []
        for code, (key, n) in enumerate(zip(rows.keys, state["n"].tolist(), strict=True)):
            begin, end = rows.bounds[code], rows.bounds[code + 1]
            if n + end - begin < self._rows:
                state.keyed.list_append(VAR, key, packed[begin:end])
                continue
            open_rows = self._packer.unpack(state.keyed.list_get(VAR, key))["speed"]
            closed = [*_means(np.concatenate([open_rows, speeds[begin:end]]), self._rows)]
            means += closed
            windows += range(state["window"][code], state["window"][code] + len(closed))
            positions += rows.order[begin + self._rows - n - 1 : end : self._rows].tolist()
            state["window"][code] += len(closed)
            state.keyed.list_put(VAR, key, packed[end - (n + end - begin) % self._rows : end])
        state["n"] = (state["n"] + rows.counts) % self._rows
        return self.emit_at(rows, np.array(positions, np.int64), window=windows, mean=means)


class Windows(Computation):
    shape = SPEEDS

    def operated(self, spark: SparkSession, flock: godwit.Flock, rows: DataFrame) -> DataFrame:
        settings = self.settings
        processor = CountWindows(settings.state_bytes, settings.window_rows, settings.keys)
        return flock.process(rows, "car", processor, initialState=self.initial(spark, car(), "car"), name=NAME)

    def output_count(self, workload: Workload) -> int:
        return int(((rows_by_key(workload) + self._filled()) // self.settings.window_rows).sum())

    def judged(self, workload: Workload, outputs: pa.Table) -> dict[str, int]:
        means = [list(_means(each, self.settings.window_rows)) for each in self._reports(workload)]
        closed = np.array([len(each) for each in means], np.int64)
        keys, counts = numbers_in(outputs.column("car")), column(outputs, "window") + 1
        right = _right(keys, counts, outputs.column("mean").to_numpy(), means)
        return valued(keys, counts, right, closed)

    def expected(self, workload: Workload, outputs: pa.Table) -> dict[int, Any]:
        size = self.settings.window_rows
        return {
            key: (len(each) % size, len(each) // size, each[len(each) // size * size :].tobytes(), self.digest_of(key))
            for key, each in enumerate(self._reports(workload))
        }

    def _filled(self) -> Numbers:
        keys = self.settings.keys
        return np.array([filled_before(key, self.settings.window_rows, keys) for key in range(keys)], np.int64)

    def _reports(self, workload: Workload) -> list[Reals]:
        """All that each car has reported, with what was there before."""
        drawn, speeds = drawn_keys(workload), speeds_of(workload, all_numbers(workload))
        parts = np.split(speeds[np.argsort(drawn, kind="stable")], np.cumsum(rows_by_key(workload))[:-1])
        pairs = zip(self._filled().tolist(), parts, strict=True)
        return [np.concatenate([np.full(filled, FILLED_WITH), part]) for filled, part in pairs]

    def stored(self, state: DataFrame) -> list[tuple[int, Any]]:
        table = state.select("car", "state.n", "state.window", "reports.speed", self.digests()).toArrow()
        # The whole column at once: as Python numbers, long windows of many cars would take longer than the run.
        states = []
        for batch in table.to_batches():
            lists: Any = batch.column("speed")
            speeds = lists.flatten().to_numpy(zero_copy_only=False)
            lengths = np.array([length or 0 for length in lists.value_lengths().to_pylist()], np.int64)
            parts = np.split(speeds, np.cumsum(lengths)[:-1])
            columns = [batch.column(name).to_pylist() for name in ("car", "n", "window", "digest")]
            states += [(int(c[1:]), (n, w, p.tobytes(), d)) for c, n, w, d, p in zip(*columns, parts, strict=True)]
        return states


def filled_before(key: int, rows: int, keys: int) -> int:
    """How many reports of its window a car begins with."""
    return rows * key // keys


def _means(speeds: Reals, size: int) -> Iterator[float]:
    """Of each full window. Sums are exact, so no way of adding up is wrong in the last bit."""
    for end in range(size, len(speeds) + 1, size):
        yield fsum(speeds[end - size : end].tolist()) / size


def _right(keys: Numbers, counts: Numbers, given: Reals, means: list[list[float]]) -> Mask:
    """Which output rows have the mean that belongs to their key and window."""
    rows = zip(keys.tolist(), counts.tolist(), given.tolist(), strict=True)
    return np.array(
        [0 <= key < len(means) and 1 <= n <= len(means[key]) and means[key][n - 1] == mean for key, n, mean in rows],
        np.bool_,
    )
