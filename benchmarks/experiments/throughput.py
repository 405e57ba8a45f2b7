"""Rows a second at full speed, beside Spark's own operators on the same rows.

Rows are made in the JVM, so that the source costs next to nothing, and thrown away as they leave. The time of a batch is
Spark's own: planning, work, offset and commit files. With `profile`, the parts of this time are measured, too (`stopwatch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import godwit
from benchmarks.experiments.stopwatch import noted, parts_of
from benchmarks.inside.row_timers import Timed, routers_timed
from benchmarks.peers.spark_query import OUTPUT, Counter
from benchmarks.running.measures import wrong_keys
from benchmarks.running.scratch import scratch
from benchmarks.running.session import ROCKSDB_SETTINGS
from benchmarks.running.watch import Watch
from benchmarks.workloads.tally import Tally
from godwit.errors import DefinitionError

NAME: Final = "tally"
LOOK_EVERY_S: Final = 0.1
Way = Literal["native", "sql", "pandas"]


@dataclass(frozen=True, slots=True)
class ThroughputSettings:
    """`native` is ours, `sql` and `pandas` are Spark's own; `lanes` is how many tasks a batch has."""

    way: Way = "native"
    keys: int = 10_000
    state_bytes: int = 0
    hosts: int = 2
    lanes: int = 2
    batch_rows: int = 50_000
    warm_up: int = 6  # batches, before those that count
    batches: int = 20
    profile: bool = False
    seed: int = 0  # all runs have the same rows

    def checked(self) -> ThroughputSettings:
        if self.way not in get_args(Way):
            raise DefinitionError(f"the way must be one of {', '.join(get_args(Way))}")
        if min(self.keys, self.hosts, self.lanes, self.batch_rows, self.warm_up, self.batches) < 1:
            raise DefinitionError("keys, hosts, lanes, rows and batches must be 1 or more")
        if self.profile and (self.way, self.hosts, self.lanes) != ("native", 1, 1):
            raise DefinitionError("only one lane and one host of our own can be profiled: else things overlap")
        return self

    @property
    def slots(self) -> int:
        return self.hosts + self.lanes + 1


def measure(spark: SparkSession, settings: ThroughputSettings, watch: Watch) -> dict[str, Any]:
    with scratch() as directory:
        run = _ours if settings.way == "native" else _theirs
        return {**asdict(settings), **run(spark, settings, Path(directory), watch)}


def _ours(spark: SparkSession, settings: ThroughputSettings, directory: Path, watch: Watch) -> dict[str, Any]:
    timed = {side: str(directory / f"{side}.jsonl") for side in ("router", "host")} if settings.profile else {}
    watch.phase("filling state")
    with godwit.Flock(spark, hosts=settings.hosts, checkpoint=directory / "godwit") as flock:
        with ExitStack() as defining:
            if timed:
                defining.enter_context(routers_timed(timed["router"]))
            processor = Timed(settings.state_bytes, timed["host"]) if timed else Tally(settings.state_bytes)
            initial = spark.range(settings.keys).select(sf.col("id").alias("key"))
            frame = flock.process(rows(spark, settings), "key", processor, initialState=initial, name=NAME)
        batches = timed_batches(frame, "append", settings, directory / "spark", watch)
        watch.phase("checking")
        stored = [(row.key, row.n) for row in flock.state(NAME).select("key", "state.n").collect()]
    wrong = wrong_keys(stored, expected(spark, settings, committed(directory / "spark")))
    costs = {"microseconds_per_row": row_costs(batches, settings.batch_rows, timed)} if timed else {}
    return {**rates(batches, settings.batch_rows), **costs, "wrong_state": wrong}


def _theirs(spark: SparkSession, settings: ThroughputSettings, directory: Path, watch: Watch) -> dict[str, Any]:
    frame = rows(spark, settings)
    with _state_in_rocksdb(spark):
        if settings.way == "sql":
            counts, mode = frame.groupBy("key").count(), "update"
        else:
            given = frame.select("key", sf.lit(1).cast("long").alias("weight"))
            counts = given.groupBy("key").transformWithStateInPandas(Counter(), OUTPUT, "Update", "None")
            mode = "update"
        batches = timed_batches(counts, mode, settings, directory / "spark", watch)
    return rates(batches, settings.batch_rows)


@contextmanager
def _state_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """As Spark's users are advised to have it."""
    for name, value in ROCKSDB_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in ROCKSDB_SETTINGS:
            spark.conf.unset(name)


# -- rows ------------------------------------------------------------------------------------------------------------


def rows(spark: SparkSession, settings: ThroughputSettings) -> DataFrame:
    options = {"rowsPerBatch": settings.batch_rows, "numPartitions": settings.lanes}
    source = spark.readStream.format("rate-micro-batch").options(**options).load()
    return source.select(_key("value", settings), sf.col("timestamp").alias("due"))


def _key(column: str, settings: ThroughputSettings) -> Any:
    return sf.pmod(sf.xxhash64(column), sf.lit(settings.keys)).alias("key")


def expected(spark: SparkSession, settings: ThroughputSettings, batches: int) -> dict[int, int]:
    """Each key's count after so many batches, as Spark's own aggregation has it."""
    counted = spark.range(batches * settings.batch_rows).select(_key("id", settings)).groupBy("key").count()
    return dict.fromkeys(range(settings.keys), 0) | {row.key: row["count"] for row in counted.collect()}


def committed(checkpoint: Path) -> int:
    """How many batches Spark has committed."""
    return 1 + max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())


# -- batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    whole_ms: float
    work_ms: float

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Batch:
        took = progress["durationMs"]
        return cls(progress["batchId"], took["triggerExecution"], took["addBatch"])


def timed_batches(
    frame: DataFrame, mode: str, settings: ThroughputSettings, checkpoint: Path, watch: Watch
) -> Sequence[Batch]:
    """Those after the warm-up."""
    watch.phase("counting")
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.start()
    try:
        return _followed(query, settings, watch)
    finally:
        query.stop()


def _followed(query: StreamingQuery, settings: ThroughputSettings, watch: Watch) -> Sequence[Batch]:
    last = settings.warm_up + settings.batches - 1
    seen: dict[int, Batch] = {}
    while last not in seen:
        query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # raises what it failed with; takes parts of a second
        seen |= {each["batchId"]: Batch.of(each) for each in query.recentProgress if each["numInputRows"]}
        watch.rows(len(seen) * settings.batch_rows, (last + 1) * settings.batch_rows)
    return [seen[number] for number in sorted(seen) if settings.warm_up <= number <= last]


def rates(batches: Sequence[Batch], batch_rows: int) -> dict[str, float]:
    whole_ms = [batch.whole_ms for batch in batches]
    return {
        "rows_per_s": round(len(batches) * batch_rows * 1e3 / sum(whole_ms)),
        "batch_ms": round(float(np.median(whole_ms)), 1),
        "batch_ms_p90": round(float(np.percentile(whole_ms, 90)), 1),
        "work_ms": round(float(np.median([batch.work_ms for batch in batches])), 1),
    }


def row_costs(batches: Sequence[Batch], batch_rows: int, lines: Mapping[str, str]) -> dict[str, float]:
    """Microseconds of a row by part, over these batches; they add up to the time of a batch over its rows."""
    in_router, in_host = noted(lines["router"]), noted(lines["host"])
    parts = [parts_of(b.whole_ms, b.work_ms, in_router[b.number], in_host[b.number]) for b in batches]
    return {name: round(sum(each[name] for each in parts) * 1e3 / (len(batches) * batch_rows), 4) for name in parts[0]}
