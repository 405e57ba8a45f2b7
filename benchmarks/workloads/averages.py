"""The average speed of each car after every report of it, as Falcon's traffic monitoring has it.

State is [average, count] and a report makes the average (average * count + speed) / (count + 1), in that order of operations:
an average that is right to the last bit has seen its reports in order, each once.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.inside.names import column as column_of
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
from benchmarks.workloads.tally import Ballasted
from godwit import Outputs, Rows, Times
from godwit.testing.latency import Numbers, Reals
from godwit.testing.open_loop import column
from godwit.workload import SPEEDS, Workload
from godwit.workload.numbered_rows import speeds_of

OUTPUT: Final[dict[str, pa.DataType]] = {
    "car": pa.string(),
    "average": pa.float64(),
    "count": pa.int64(),
    "due": pa.timestamp("us", tz="UTC"),
}


class AverageSpeed(Ballasted):
    state = MappingProxyType({"average": pa.float64(), "n": pa.int64()})
    output_schema = pa.schema(OUTPUT)

    def initialise(self, rows: Rows, state: Any, times: Times) -> None:
        state["n"] = 0
        self.load_up(rows, state)

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        """Row by row: each average needs the one before, and a hot key may have all rows of a chunk."""
        averages, counts = state["average"].tolist(), state["n"].tolist()
        given = []
        for code, speed in zip(rows.codes.tolist(), column_of(rows.batch, "speed").tolist(), strict=True):
            n = counts[code]
            averages[code] = (averages[code] * n + speed) / (n + 1)
            counts[code] = n + 1
            given.append(averages[code])
        count = state["n"][rows.codes] + rows.rank + 1
        state["average"], state["n"] = np.array(averages), np.array(counts)
        return self.emit(rows, average=np.array(given), count=count)


class Averages(Computation):
    shape = SPEEDS

    def operated(self, spark: SparkSession, flock: godwit.Flock, rows: DataFrame) -> DataFrame:
        initial = self.initial(spark, car(), "car")
        return flock.process(rows, "car", AverageSpeed(self.settings.state_bytes), initialState=initial, name=NAME)

    def output_count(self, workload: Workload) -> int:
        return workload.end

    def judged(self, workload: Workload, outputs: pa.Table) -> dict[str, int]:
        by_key = rows_by_key(workload)
        keys, counts = numbers_in(outputs.column("car")), column(outputs, "count")
        right = _right(keys, counts, outputs.column("average").to_numpy(), by_key, _averages(workload))
        return valued(keys, counts, right, by_key)

    def expected(self, workload: Workload, outputs: pa.Table) -> dict[int, Any]:
        by_key = rows_by_key(workload)
        last = _last(_averages(workload), by_key)
        return {key: (last[key], n, self.digest_of(key)) for key, n in enumerate(by_key.tolist())}

    def stored(self, state: DataFrame) -> list[tuple[int, Any]]:
        stored = state.select("car", "state.average", "state.n", self.digests()).collect()
        return [(int(row.car[1:]), (row.average, row.n, row.digest)) for row in stored]


def car() -> Column:
    """The name of the car of each number."""
    return sf.concat(sf.lit("C"), sf.col("id").cast("string"))


def _averages(workload: Workload) -> Reals:
    speeds = speeds_of(workload, all_numbers(workload))
    return running_averages(drawn_keys(workload), speeds, rows_by_key(workload))


def running_averages(keys: Numbers, speeds: Reals, by_key: Numbers) -> Reals:
    """The averages after each report, key after key: all first reports of all keys at once, then all second ones."""
    ordered = speeds[np.argsort(keys, kind="stable")]
    first = np.cumsum(by_key) - by_key
    often = np.argsort(
        -by_key, kind="stable"
    )  # keys with most reports first: those that have a k-th are the first so many
    have = np.searchsorted(-by_key[often], -np.arange(by_key.max(initial=0)), side="left")
    averages = np.empty(len(ordered))
    average = np.zeros(len(by_key))
    for n, members in enumerate(have.tolist()):
        at = first[often[:members]] + n
        average[:members] = (average[:members] * n + ordered[at]) / (n + 1)
        averages[at] = average[:members]
    return averages


def _right(keys: Numbers, counts: Numbers, given: Reals, by_key: Numbers, averages: Reals) -> Mask:
    """Which output rows have the average that belongs to their key and count."""
    exists = (keys >= 0) & (keys < len(by_key)) & (counts >= 1)
    exists[exists] = counts[exists] <= by_key[keys[exists]]
    at = (np.cumsum(by_key) - by_key)[keys[exists]] + counts[exists] - 1
    right: Mask = exists.copy()
    right[exists] = given[exists] == averages[at]
    return right


def _last(averages: Reals, by_key: Numbers) -> list[float]:
    ends = np.cumsum(by_key)
    return [float(averages[end - 1]) if n else 0.0 for end, n in zip(ends.tolist(), by_key.tolist(), strict=True)]
