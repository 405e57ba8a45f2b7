"""State that is lost while Spark's checkpoint goes on is noticed, whatever the source's offsets look like."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyspark.cloudpickle
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import godwit
from godwit.spark import workload_source as workload
from tests.spark.flocks import wait_until
from tests.spark.side_by_side import Feed

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

EVENTS = pa.schema({"key": pa.int64(), "n": pa.int64()})
ROWS_A_BATCH = 4


class Count(godwit.Processor):
    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)


class Reminder(StatefulProcessor):
    """Answers a row by a timer, so that its batches come one after another without data."""

    OUTPUT = "key bigint, count bigint"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            yield Row(key=key[0], count=-row.n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(key=key[0], count=-1_000)

    def close(self) -> None:
        pass


class Topics(DataSource):
    """Offsets as Kafka has them: JSON with several keys, deeper than one. Four rows at every trigger up to `rows`."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> str:
        return "key bigint, n bigint"

    def streamReader(self, schema: Any) -> TopicsReader:
        return TopicsReader(Path(self.options["rows"]))


class TopicsReader(DataSourceStreamReader):
    def __init__(self, rows: Path) -> None:
        self.rows = rows

    def initialOffset(self) -> dict[str, Any]:
        return {"cars": {"0": 0, "1": 0}, "vans": {"0": 0}}

    def latestOffset(self) -> dict[str, Any]:
        rows = int(self.rows.read_text())
        return {"cars": {"0": rows, "1": 0}, "vans": {"0": 0}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["cars"]["0"], end["cars"]["0"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        for n in range(*partition.value):
            yield n % 2, n

    def commit(self, end: dict[str, Any]) -> None:
        pass


class Inputs:
    """One input of each kind, which grows when it is told to."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        root.mkdir(exist_ok=True)
        self.batches = 0
        self.feed = Feed(root / "feed", EVENTS)
        self.rows = root / "rows"
        spark.dataSource.register(Topics)
        workload.register(spark)

    def grow(self) -> None:
        self.batches += 1
        self.rows.write_text(str(self.batches * ROWS_A_BATCH))
        self.feed.add([(n % 2, n) for n in range(ROWS_A_BATCH)])

    def file(self) -> DataFrame:
        return self.feed.stream(self.spark)

    def topics(self) -> DataFrame:
        return self.spark.readStream.format("topics").option("rows", str(self.rows)).load()

    def rate(self) -> DataFrame:
        stream = self.spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        return stream.select((sf.col("value") % 2).alias("key"), sf.col("value").alias("n"))

    def generated(self) -> DataFrame:
        given = {"workload": "key-count", "keys": 2, "rows_per_second": 200, "lanes": 2}
        stream = self.spark.readStream.format(workload.FORMAT).options(**{k: str(v) for k, v in given.items()}).load()
        return stream.select("key", "n")


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path_factory.mktemp("lost") / "flock") as opened:
        yield opened


@pytest.fixture
def inputs(spark: SparkSession, tmp_path: Path) -> Inputs:
    return Inputs(spark, tmp_path / "inputs")


def run(frame: DataFrame, root: Path, enough: Callable[[list[dict[str, Any]]], bool]) -> str:
    """Until what the query reports of its batches is enough; the error's text if it fails before."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(root / "spark")).start()
    try:
        wait_until(lambda: not query.isActive or enough([json.loads(one.json) for one in query.recentProgress]))
    finally:
        query.stop()
    return str(query.exception() or "")


def rows_came(progress: list[dict[str, Any]]) -> bool:
    return any(one["numInputRows"] for one in progress)


def timers_fired(progress: list[dict[str, Any]]) -> bool:
    """A batch in which nothing came, after a batch with rows."""
    ran = [one["numInputRows"] for one in progress if "addBatch" in one["durationMs"]]
    return any(ran[:-1]) and 0 in ran


def refusal(text: str) -> bool:
    return "GODWIT-CHECKPOINT-MISMATCH" in text and "no Godwit state for the batches before it" in text


KINDS: list[Callable[[Inputs], DataFrame]] = [Inputs.file, Inputs.topics, Inputs.rate, Inputs.generated]


@pytest.mark.parametrize("stream", KINDS, ids=lambda kind: kind.__name__)
def test_a_new_name_on_an_old_checkpoint_of_spark_is_refused(
    stream: Callable[[Inputs], DataFrame], flock: godwit.Flock, inputs: Inputs, tmp_path: Path
) -> None:
    name = f"plain-{stream.__name__}"
    counted = flock.process(stream(inputs), "key", Count(), name=name)
    for _ in range(2):
        inputs.grow()
        assert run(counted, tmp_path, rows_came) == "", "the same state goes on"
    inputs.grow()
    renamed = flock.process(stream(inputs), "key", Count(), name=f"{name}-renamed")
    assert refusal(run(renamed, tmp_path, rows_came))


@pytest.mark.long
@pytest.mark.parametrize("stream", [Inputs.topics, Inputs.file])
def test_beside_an_operator_whose_timers_fire(
    stream: Callable[[Inputs], DataFrame], flock: godwit.Flock, inputs: Inputs, spark: SparkSession, tmp_path: Path
) -> None:
    """Batches that only the other's timers made are rightly skipped; a lost state is noticed all the same."""
    name = f"beside-{stream.__name__}"
    other = Inputs(spark, tmp_path / "others")
    counted = flock.process(stream(inputs), "key", Count(), name=name)
    reminded = flock.transformWithState(
        other.topics(),
        "key",
        Reminder(),
        Reminder.OUTPUT,
        timeMode="processingTime",
        name=f"{name}-timers",
    )
    inputs.grow()
    other.grow()
    assert run(counted.union(reminded), tmp_path, timers_fired) == ""
    inputs.grow()
    other.grow()
    assert run(counted.union(reminded), tmp_path, timers_fired) == "", "only timers fired in the batches between"
    inputs.grow()
    renamed = flock.process(stream(inputs), "key", Count(), name=f"{name}-renamed")
    assert refusal(run(renamed.union(reminded), tmp_path, rows_came))
