"""Rows per key, counted: the k-th row of a key gives k, so the output itself shows what was lost, repeated or misplaced."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.running.measures import counted
from benchmarks.workloads.computation import NAME, Computation, rows_by_key
from benchmarks.workloads.tally import Tally
from godwit.testing.open_loop import column
from godwit.workload import KEY_COUNT, Workload


class Counts(Computation):
    shape = KEY_COUNT

    def operated(self, spark: SparkSession, flock: godwit.Flock, rows: DataFrame) -> DataFrame:
        initial = self.initial(spark, sf.col("id"), "key")
        return flock.process(rows, "key", Tally(self.settings.state_bytes), initialState=initial, name=NAME)

    def output_count(self, workload: Workload) -> int:
        return workload.end

    def judged(self, workload: Workload, outputs: pa.Table) -> dict[str, int]:
        judged = counted(column(outputs, "key"), column(outputs, "count"), rows_by_key(workload))
        return {**judged, "wrong_outputs": 0}  # they have nothing but the count

    def expected(self, workload: Workload, outputs: pa.Table) -> dict[int, Any]:
        return {key: (n, self.digest_of(key)) for key, n in enumerate(rows_by_key(workload).tolist())}

    def stored(self, state: DataFrame) -> list[tuple[int, Any]]:
        stored = state.select("key", "state.n", self.digests()).collect()
        return [(row.key, (row.n, row.digest)) for row in stored]
