"""A batch that is read again and cut otherwise, or that holds other values: right after a restart, refused within a run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.cloudpickle
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

EVENTS = pa.schema({"key": pa.int64(), "n": pa.int64()})
KEYS, FILES, ROWS = 40, 6, 200
SHUFFLED = 4
FILE_BYTES_MAX = 64 << 10
BAD = 7  # the key at which the processor throws while there is a reason to
LATER_S = 1.0  # in which the other host has long applied what has come to it


class Count(godwit.Processor):
    """Row k of a key gives k. While the file is there, throws at one key, after a while."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("n", pa.int64())])

    def __init__(self, reason: Path) -> None:
        self.reason = reason

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        if (BAD,) in rows.keys and self.reason.exists():
            time.sleep(LATER_S)
            raise ValueError("not now")
        return self.emit(rows, count=count)


class World:
    """Files, an operator over them, and its query, which can be run again and again."""

    def __init__(self, spark: SparkSession, flock: godwit.Flock, root: Path, name: str) -> None:
        self.spark, self.flock, self.root, self.name = spark, flock, root, name
        self.reason = root / "reason"
        self.files = root / "files"
        self.files.mkdir()
        self.rows: dict[int, list[tuple[int, int, int]]] = {}  # by batch, of its last evaluation
        self.partitions: set[int] = set()  # of which rows of the last evaluation came
        self._added = 0

    def add(self, files: int = FILES) -> None:
        """One batch of so many files."""
        for _ in range(files):
            first = self._added * ROWS
            n = list(range(first, first + ROWS))
            table = pa.table({"key": [i % KEYS for i in n], "n": n}, schema=EVENTS)
            pq.write_table(table, self.files / f"{self._added:04}.parquet")
            self._added += 1

    def truth(self) -> dict[int, int]:
        return dict(Counter(n % KEYS for n in range(self._added * ROWS)))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema("key bigint, n bigint").parquet(str(self.files))

    def define(self, change: Callable[[DataFrame], DataFrame] = lambda frame: frame, **options: Any) -> None:
        self.frame = self.flock.process(change(self.stream()), "key", Count(self.reason), name=self.name, **options)

    def take(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.withColumn("partition", sf.spark_partition_id()).collect()
        self.rows[batch_id] = [tuple(row)[:-1] for row in rows]
        self.partitions = {row.partition for row in rows}

    def run(self, sink: Callable[[DataFrame, int], None] | None = None) -> str:
        writer = self.frame.writeStream.foreachBatch(sink or self.take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.root / "spark")).start()
        try:
            assert query.awaitTermination(120)
        except StreamingQueryException as error:
            return str(error)
        finally:
            query.stop()  # one that hangs would keep the slots of all tests after it
        return ""

    def fail_half_way(self) -> None:
        """Other partitions, and the other host, have applied rows of the batch when one of them throws."""
        self.reason.write_text("")
        assert "not now" in self.run()
        self.reason.unlink()
        assert self.flock.status()["operators"][self.name]["rows"] > 0

    def counted(self) -> dict[int, int]:
        """From what left; every key must have given 1, 2, 3 ... once."""
        given: dict[int, list[int]] = {}
        for rows in self.rows.values():
            for key, count, _ in rows:
                given.setdefault(key, []).append(count)
        for key, counts in given.items():
            assert sorted(counts) == list(range(1, len(counts) + 1)), (key, counts)
        return {key: len(counts) for key, counts in given.items()}


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path_factory.mktemp("replayed") / "flock") as opened:
        yield opened


@pytest.fixture
def world(spark: SparkSession, flock: godwit.Flock, tmp_path: Path, request: Any) -> World:
    return World(spark, flock, tmp_path, request.node.name.replace("[", "-").replace("]", "")[:90])


@contextmanager
def conf(spark: SparkSession, **settings: Any) -> Iterator[None]:
    """Names with dots for underscores twice, as `spark__sql__x`."""
    given = {name.replace("__", "."): str(value) for name, value in settings.items()}
    before = {name: spark.conf.get(name, None) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def many(spark: SparkSession) -> Any:
    """A partition for every file: a file fits into one, and opening it costs as much as one holds."""
    given = {"maxPartitionBytes": FILE_BYTES_MAX, "openCostInBytes": FILE_BYTES_MAX}
    return conf(spark, **{f"spark__sql__files__{name}": value for name, value in given.items()})


def few(spark: SparkSession) -> Any:
    given = {"maxPartitionBytes": 128 << 20, "openCostInBytes": 0, "minPartitionNum": 1}
    return conf(spark, **{f"spark__sql__files__{name}": value for name, value in given.items()})


@pytest.mark.parametrize("first", ["many", "few"])
def test_files_that_are_cut_otherwise_after_a_run_that_died_half_way(first: str, world: World) -> None:
    """Before: rows of partitions that had been applied were counted again under their new places."""
    cuts = [many, few] if first == "many" else [few, many]
    world.define()
    world.add(1)
    assert world.run() == ""
    world.add()
    with cuts[0](world.spark):
        world.fail_half_way()
    with cuts[1](world.spark):
        assert world.run() == ""
    assert world.counted() == world.truth()
    world.add(1)
    assert world.run() == ""
    assert world.counted() == world.truth()


def adaptive(spark: SparkSession, enabled: bool) -> Any:
    """Spark takes an operator for stateless, so adaptive execution may join the partitions of a shuffle before it."""
    given = {
        "enabled": enabled,
        "streaming__stateless__enabled": enabled,
        "coalescePartitions__parallelismFirst": False,
    }
    settings = {f"spark__sql__adaptive__{name}": str(value).lower() for name, value in given.items()}
    return conf(spark, spark__sql__shuffle__partitions=SHUFFLED, **settings)


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_shuffle_whose_partitions_are_joined_otherwise_after_a_run_that_died_half_way(
    first: bool, world: World
) -> None:
    world.define(lambda frame: frame.repartition("n"))
    world.add()
    with adaptive(world.spark, first):
        world.fail_half_way()
    with adaptive(world.spark, not first):
        assert world.run() == ""
    assert world.partitions == (set(range(SHUFFLED)) if first else {0})
    assert world.counted() == world.truth()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_batch_that_is_evaluated_twice_gives_the_same_twice(world: World, shuffled: bool) -> None:
    world.define((lambda frame: frame.repartition("n")) if shuffled else (lambda frame: frame))
    world.add()
    both: list[list[Any]] = []

    def twice(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            world.take(batch, batch_id)
            both.append(sorted(world.rows[batch_id]))

    with adaptive(world.spark, True), many(world.spark):
        assert world.run(twice) == ""
    assert shuffled or len(world.partitions) == FILES
    assert both[0] == both[1]
    assert world.counted() == world.truth()


def define_moody(world: World) -> Path:
    """An input whose values follow what a file says whenever they are read."""
    mood = world.root / "mood"
    mood.write_text("0")
    moody = sf.udf(lambda n: n + int(mood.read_text()), "bigint", useArrow=False).asNondeterministic()
    world.define(lambda frame: frame.withColumn("n", moody("n")))
    return mood


def test_other_values_within_a_run_are_refused_and_the_next_run_is_right(world: World) -> None:
    """Before: the second evaluation was answered as if it were the first."""
    mood = define_moody(world)
    world.add(1)

    def twice(batch: DataFrame, batch_id: int) -> None:
        world.take(batch, batch_id)
        mood.write_text("1000000")
        world.take(batch, batch_id)

    text = world.run(twice)
    assert "GODWIT-NOT-REPLAYABLE" in text
    assert "came again with other values" in text
    assert f"operator={world.name}" in text
    assert world.run() == ""
    assert world.counted() == world.truth()
    assert min(n for rows in world.rows.values() for _, _, n in rows) == 1_000_000, "the values of the run that counts"


def test_a_refusal_that_is_swallowed_ends_the_query_at_the_next_batch(world: World) -> None:
    mood = define_moody(world)
    world.add(1)
    assert world.run() == ""
    world.add(1)
    swallowed: list[str] = []

    def careless(batch: DataFrame, batch_id: int) -> None:
        world.take(batch, batch_id)
        mood.write_text("1000000")
        try:
            world.take(batch, batch_id)
        except Exception as error:  # noqa: BLE001 as users do
            swallowed.append(str(error))

    assert world.run(careless) == ""
    assert "GODWIT-NOT-REPLAYABLE" in swallowed[0]
    world.add(1)
    text = world.run()
    assert "GODWIT-CHECKPOINT-MISMATCH" in text
    assert "Spark has committed batch 1, but rows of it were refused" in text
    assert "on_gap='accept'" in text
