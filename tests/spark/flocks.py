"""What the tests of exactly-once share: the key-count workload, processors that count, and a checker.

Every key must emit 1, 2, 3 ... n, once and in order, so lost, repeated and misplaced rows all show in the output
itself. The truth is computed from the workload's definition in this process, without Spark and without hosts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyspark.cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import godwit
from benchmarks.workloads.tally import BALLAST, ballast
from godwit.spark import workload_source as workload
from godwit.spark.change.migration_handle import Migration
from godwit.state.codec import compile_codec
from godwit.state.variables import Variable
from godwit.workload import Workload
from godwit.workload.numbered_rows import keys_of

# Hosts and Python workers have no `tests` on their path: what is defined here travels whole.
for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

OPERATOR = "count"


class Count(godwit.Processor):
    """Row k of a key gives k."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("n", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)


class HeavyCount(Count):
    """The same beside a value that is written once, with a key's first row, and makes its state take time to send."""

    def __init__(self, ballast_bytes: int) -> None:
        self._ballast_bytes = ballast_bytes
        self.more_variables = (Variable("ballast", "value", BALLAST),)

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        new = [key for key, n in zip(rows.keys, state["n"].tolist(), strict=True) if not n]
        encode = compile_codec(BALLAST).encode
        state.keyed.value_put_many(1, new, [encode((ballast(key[0], self._ballast_bytes),)) for key in new])
        return super().process(rows, state, times)


class RowCount(StatefulProcessor):
    """The same as a StatefulProcessor of PySpark."""

    output = "key bigint, count bigint, n bigint"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self.n.get()[0] if self.n.exists() else 0
        for row in rows:
            n += 1
            yield Row(key=key[0], count=n, n=row.n)
        self.n.update((n,))

    def close(self) -> None:
        pass


@dataclass
class KeyCount:
    """A workload of so many rows over so many keys; each key's rows come on one lane, in the order of `n`."""

    rows: int
    keys: int = 40
    per_batch: int = 500
    lanes: int = 2
    lane_by: str = "key"
    per_second: int = 0  # 0: all rows are there from the start

    def options(self) -> dict[str, str]:
        given: dict[str, Any] = {"keys": self.keys, "rows": self.rows, "rows_per_batch": self.per_batch}
        given |= {"lanes": self.lanes, "lane_by": self.lane_by, "rows_per_second": self.per_second}
        return {"workload": "key-count", **{name: str(value) for name, value in given.items()}}

    def stream(self, spark: SparkSession) -> DataFrame:
        workload.register(spark)
        return spark.readStream.format(workload.FORMAT).options(**self.options()).load()

    def batch(self, spark: SparkSession) -> DataFrame:
        workload.register(spark)
        return spark.read.format(workload.FORMAT).options(**self.options()).load()

    def truth(self) -> dict[int, int]:
        """How many rows each key has."""
        keys = keys_of(Workload.from_options(self.options()), np.arange(self.rows, dtype=np.int64))
        return dict(Counter(keys.tolist()))


@dataclass
class Verdict:
    """What is wrong with an output; all zero when nothing is."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    seen: dict[int, int] = field(default_factory=dict)


def judge(rows: Iterable[tuple[int, int, int]], truth: dict[int, int]) -> Verdict:
    """Walk (key, count, n) in sink order."""
    counts: dict[int, list[int]] = {}
    numbers: dict[int, list[int]] = {}
    for key, count, n in rows:
        counts.setdefault(key, []).append(count)
        numbers.setdefault(key, []).append(n)
    verdict = Verdict(seen={key: max(found) for key, found in counts.items()})
    for key in truth.keys() | counts.keys():
        found, wanted = counts.get(key, []), range(1, truth.get(key, 0) + 1)
        verdict.lost += len(set(wanted) - set(found))
        verdict.duplicated += len(found) - len(set(found)) + len(set(found) - set(wanted))
        verdict.out_of_order += int(found != sorted(found)) + int(numbers.get(key, []) != sorted(numbers.get(key, [])))
    return verdict


def assert_exact(rows: Iterable[tuple[int, int, int]], truth: dict[int, int]) -> None:
    verdict = judge(rows, truth)
    assert (verdict.lost, verdict.duplicated, verdict.out_of_order) == (0, 0, 0), verdict
    assert verdict.seen == truth


def by_key(rows: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Each key's output, in order: all that two runs of a workload have in common, however they cut it into batches."""
    found: dict[int, list[tuple[int, int]]] = {}
    for key, count, n in rows:
        found.setdefault(key, []).append((count, n))
    return found


class Files:
    """A sink that is exact by batch id: one file per batch, replaced when the batch is replayed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, batch: int, rows: Iterable[Row]) -> None:
        partial = self.directory / f"{batch}.partial"
        partial.write_text(json.dumps([[row["key"], row["count"], row["n"]] for row in rows]))
        partial.replace(self.directory / f"{batch}.json")

    def batches(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("*.json"))

    def rows(self) -> list[tuple[int, int, int]]:
        return [
            tuple(row) for batch in self.batches() for row in json.loads((self.directory / f"{batch}.json").read_text())
        ]


class Kept:
    """A sink in memory: rows by batch id, in the order in which Spark gives them."""

    def __init__(self) -> None:
        self.by_batch: dict[int, list[tuple[int, int, int]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.by_batch[batch] = [(row["key"], row["count"], row["n"]) for row in frame.collect()]

    def rows(self) -> list[tuple[int, int, int]]:
        return [row for batch in sorted(self.by_batch) for row in self.by_batch[batch]]

    @property
    def row_count(self) -> int:
        return sum(map(len, list(self.by_batch.values())))


def start(frame: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path, **options: str) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.options(**options).start()


def drain(query: StreamingQuery, timeout_s: float = 200.0) -> None:
    """Until all input is processed; a query that failed raises its error here."""
    wait_until(lambda: query.exception() is not None or _idle(query), timeout_s)
    query.processAllAvailable()


def under_way(migration: Migration) -> bool:
    """Whether a part has been handed over and the rest has not, so that whatever is hit now is hit between two steps."""
    seen = migration.progress()
    steps = [name for move in seen["moves"] for name, _ in move["phases"]]
    return "released" in steps and seen["units_moved"] < seen["units"] and not migration.report()["ended"]


def reach(query: StreamingQuery, sink: Kept, done: int) -> None:
    """Until so many batches are in the sink."""
    wait_until(lambda: query.exception() or len(sink.by_batch) >= done, 200, f"{done} batches")


def _idle(query: StreamingQuery) -> bool:
    status = query.status
    return not status["isDataAvailable"] and not status["isTriggerActive"]


def state_of(flock: godwit.Flock, name: str = OPERATOR) -> dict[int, int]:
    """Committed state as key -> n."""
    column = "state" if "state" in (columns := flock.state(name).columns) else "n"
    assert column in columns
    return {row["key"]: row[column]["n"] for row in flock.state(name).collect()}


def wait_until(predicate: Callable[[], Any], timeout_s: float = 60.0, what: str = "") -> Any:
    """Poll until it is true; what it gave."""
    deadline = time.monotonic() + timeout_s
    while not (found := predicate()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or predicate}"
        time.sleep(0.02)
    return found


def pid_of(flock: godwit.Flock, host: str) -> int | None:
    pid: int | None = flock.status()["hosts"][host].get("pid")
    return pid


def kill_host(flock: godwit.Flock, host: str) -> int:
    """SIGKILL, as soon as the host serves; gives the pid that is no more."""
    pid: int = wait_until(lambda: pid_of(flock, host), what=f"{host} serves")
    os.kill(pid, signal.SIGKILL)
    return pid
