"""One run of Spark's own state, in this process: keys that count, by SQL aggregation or by transformWithStateInPandas.

The parallelism changes as Spark offers it: stop the query, repartition its state in the checkpoint, start the query again.
State is in RocksDB, with changelog checkpoints. Rows are stamped as they leave the operator, as in our own runs
(`godwit.testing.open_loop`). A batch that comes again is stored as well, since it may be cut in another way.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peers import prepare
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.peer_figures import Answers, Load, Outputs, ballasts, batch_by_batch, row_by_row
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.peers.run import Spans, begin_now, go_through, plan, wait_for
from benchmarks.running.measures import wrong_keys
from benchmarks.running.session import ROCKSDB_SETTINGS
from benchmarks.workloads.tally import digest
from godwit.testing.open_loop import Arrivals, column, left_column

SOURCE: Final = "godwit.peers.PlanProvider"
FIRST_BATCH_S_MAX: Final = 120.0
POLL_S: Final = 0.02
OUTPUT: Final = "key long, count long"


def session(settings: PeerSettings, directory: Path) -> SparkSession:
    """As the session of our own runs where both have a setting; a task slot for each partition of the state."""
    slots = max(2, settings.parallelism, settings.parallelism_after)
    builder = SparkSession.builder.master(f"local[{slots}]").appName("godwit-peers")
    for name, value in {
        "spark.driver.extraClassPath": str(prepare.jar("spark")),
        "spark.driver.memory": "4g",
        # A query that is stopped inside foreachBatch has its error matched against a pattern that needs a deep stack.
        "spark.driver.extraJavaOptions": "-Xss16m",
        "spark.local.dir": str(directory / "tmp"),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(settings.parallelism),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        **ROCKSDB_SETTINGS,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Counter(StatefulProcessor):
    """A key's count, and beside it what fills its state, written once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")
        self._ballast = handle.getValueState("ballast", "bytes binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        known = self._count.get()
        count = 0 if known is None else known[0]
        for part in rows:
            weights = part["weight"].to_numpy()
            if weights[0] == 0:  # the row that fills the key's state is its first
                self._ballast.update((part["ballast"].iloc[0],))
            counts = count + weights.cumsum()
            count = int(counts[-1])
            yield pd.DataFrame({"key": part["key"], "count": counts})
        self._count.update((count,))

    def close(self) -> None:
        pass


class _Query:
    def __init__(self, spark: SparkSession, settings: PeerSettings, directory: Path) -> None:
        self._spark, self._settings = spark, settings
        self._checkpoint = str(directory / "checkpoint")
        self._start_file = directory / "start"
        self._arrivals = Arrivals()
        self._calls = itertools.count()
        rows = spark.readStream.format(SOURCE).options(**plan(settings, self._start_file, looks=0)).load()
        self._frame = (self._sql(rows) if settings.way == "sql" else self._pandas(rows)).withColumn(
            "left", left_column()
        )
        self._query = self._start()

    def _sql(self, rows: DataFrame) -> DataFrame:
        counted = rows.groupBy("key").agg(sf.sum("weight").alias("count"), sf.max("ballast").alias("ballast"))
        # What no output needs is not kept either: without its length the ballast would never be in the state.
        return counted.select("key", "count", sf.length("ballast").alias("ballast_bytes"))

    def _pandas(self, rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").transformWithStateInPandas(
            statefulProcessor=Counter(), outputStructType=OUTPUT, outputMode="Update", timeMode="None"
        )

    def _start(self) -> StreamingQuery:
        writer = self._frame.writeStream.outputMode("update").option("checkpointLocation", self._checkpoint)
        return writer.foreachBatch(self._keep).start()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        del batch
        self._arrivals(frame, next(self._calls))

    # -- what a run asks of a peer -----------------------------------------------------------------------------------

    def begin(self) -> int:
        return begin_now(self._start_file)

    def arrived(self) -> int:
        failure = self._query.exception()
        if failure is not None:
            raise PeerFailed(f"Spark's query failed: {failure}")
        return self._arrivals.count

    def answers(self) -> Answers:
        rows = self._arrivals.rows()
        outputs = Outputs(column(rows, "key"), column(rows, "count"), column(rows, "left") * 1_000).of_load()
        return batch_by_batch(outputs) if self._settings.way == "sql" else row_by_row(outputs)

    def rescale(self) -> Spans:
        """It serves again when a batch has come out of it."""
        asked_s = time.time()
        self._query.stop()
        stopped_s = time.time()
        # A query that is stopped leaves a batch that is not committed, which the default refuses to do again.
        self._spark._streamingCheckpointManager.repartition(
            self._checkpoint, self._settings.parallelism_after, enforce_exactly_once_sink=False
        )
        repartitioned_s = time.time()
        seen = self._arrivals.count
        self._query = self._start()
        wait_for(lambda: self.arrived() > seen, FIRST_BATCH_S_MAX, "a batch has come", POLL_S)
        return [
            ("stop", asked_s, stopped_s),
            ("repartition", stopped_s, repartitioned_s),
            ("start", repartitioned_s, time.time()),
        ]

    def finish(self, limit_s: float) -> None:
        """The load has ended, so what is available is all there is."""
        wait_for(self._read_to_the_end, limit_s, "all rows are read")
        self._query.processAllAvailable()
        self._query.stop()

    def _read_to_the_end(self) -> bool:
        self.arrived()  # raises when the query has failed: it would never come to the end
        progress = self._query.lastProgress
        return progress is not None and int(progress["sources"][0]["endOffset"]) >= self._settings.rows

    def wrong_state(self, load: Load) -> int:
        expected = {key: (int(load.by_key[key]), digest(data)) for key, data in ballasts(self._settings)}
        return wrong_keys(self._state(), expected)

    def _state(self) -> list[tuple[int, tuple[int, int]]]:
        reader = self._spark.read.format("statestore")
        if self._settings.way == "sql":
            state = reader.load(self._checkpoint).select("key.key", "value.*")
            state = state.toDF("key", "count", "ballast")
        else:
            counts = reader.option("stateVarName", "count").load(self._checkpoint)
            filled = reader.option("stateVarName", "ballast").load(self._checkpoint)
            state = counts.select("key.key", sf.col("value.n").alias("count")).join(
                filled.select("key.key", sf.col("value.bytes").alias("ballast")), "key"
            )
        rows = state.select("key", "count", sf.xxhash64("ballast").alias("digest")).collect()
        return [(row["key"], (row["count"], row["digest"])) for row in rows]


class _ProgressLines:
    """Progress, a line each, for the process that listens."""

    def phase(self, text: str) -> None:
        tell({"phase": text})

    def rows(self, seen: int, total: int) -> None:
        tell({"rows": [seen, total]})


def tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(settings: PeerSettings, directory: Path) -> None:
    query = _Query(session(settings, directory), settings, directory)
    tell({"figures": go_through(query, settings, _ProgressLines())})


if __name__ == "__main__":
    main(PeerSettings(**json.loads(sys.argv[1])), Path(sys.argv[2]))
