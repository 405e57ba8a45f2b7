"""`spark.read.format("godwit")`: the state of a checkpoint that is open, closed or was left behind by a crash."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.checkpoint.data_source import KeyFilter, newest_commit
from tests.spark.journeys import Journey, Total
from tests.spark.processors import Keeper, flavoured
from tests.spark.side_by_side import Feed

EVENTS = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "word": pa.string()})
DAY = dt.datetime(2024, 5, 1)
KEYS = [f"k{n}" for n in range(40)]


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a flock that has ended, after two batches."""
    root = tmp_path_factory.mktemp("source")
    feed = Feed(root / "feed", EVENTS)
    marked = feed.stream(spark).withWatermark("at", "1 hour")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        frame = flock.transformWithState(
            marked, "id", flavoured(Keeper, "row"), Keeper.OUTPUT, timeMode="eventTime", name="kept"
        )
        query = frame.writeStream.format("noop").option("checkpointLocation", str(root / "spark")).start()
        for word in ("x", "y"):
            feed.add([(key, DAY, word) for key in KEYS])
            query.processAllAvailable()
        assert_same(state(spark, root / "flock"), flock.state("kept"))
        query.stop()
    return root / "flock"


def state(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("godwit").options(operator="kept", **options).load(str(path))


def assert_same(one: DataFrame, other: DataFrame) -> None:
    assert one.schema == other.schema
    assert sorted(map(repr, one.collect())) == sorted(map(repr, other.collect()))


@contextmanager
def pushdown(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def test_it_shows_what_read_state_shows(spark: SparkSession, checkpoint: Path) -> None:
    assert state(spark, checkpoint).count() == len(KEYS)
    assert_same(state(spark, checkpoint), godwit.read_state(spark, checkpoint, "kept"))


def test_a_filter_on_the_key_reads_one_host_only(spark: SparkSession, checkpoint: Path, tmp_path: Path) -> None:
    hosts = {row["id"]: row["host"] for row in state(spark, checkpoint).collect()}
    assert len(set(hosts.values())) == 2
    copy = tmp_path / "flock"
    shutil.copytree(checkpoint, copy)
    shutil.rmtree(copy / "hosts" / hosts["k1"])
    other = next(key for key in KEYS if hosts[key] != hosts["k1"])
    with pushdown(spark):
        found = state(spark, copy).where(f"id = '{other}'")
        assert [row["id"] for row in found.collect()] == [other]
        assert found.rdd.getNumPartitions() == 1


@pytest.mark.parametrize(
    "condition",
    [
        "id = 'k7'",
        "id IN ('k7', 'k8', 'nobody')",
        "id = 'nobody'",
        "host = 'host-0'",
        "id > 'k3' AND id <=> 'k4'",
        "id IS NULL",
    ],
)
def test_filters_give_the_same_rows_pushed_down_or_not(spark: SparkSession, checkpoint: Path, condition: str) -> None:
    without = state(spark, checkpoint).where(condition).collect()
    with pushdown(spark):
        pushed = state(spark, checkpoint).where(condition).collect()
    assert sorted(map(repr, pushed)) == sorted(map(repr, without))
    assert len(without) == {"id = 'k7'": 1, "id IN ('k7', 'k8', 'nobody')": 2}.get(condition, len(without))


def test_without_an_operator_it_shows_what_the_checkpoint_contains(spark: SparkSession, checkpoint: Path) -> None:
    rows = spark.read.format("godwit").load(str(checkpoint)).collect()
    assert {row["operator"] for row in rows} == {"kept"}
    assert [row["variable"] for row in rows] == ["total", "events", "words", "id"]
    assert [row["column"] for row in rows] == [
        name for name in state(spark, checkpoint).columns if name not in ("id", "host", "epoch", "timers")
    ]
    assert {row["key"] for row in rows} == {"id string"}
    assert {row["queryCheckpoint"] for row in rows} == {f"file:{checkpoint.parent}/spark"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "path"),
        ({"path": "{checkpoint}", "operator": "other"}, "The operators are: kept"),
        ({"path": "{checkpoint}", "operater": "kept"}, "unknown option 'operater'"),
        ({"path": "{checkpoint}/hosts"}, "is not the checkpoint of a flock"),
        ({"path": "{checkpoint}", "operator": "kept", "committedBatch": "last"}, "committedBatch='last'"),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, checkpoint: Path, options: dict[str, str], said: str) -> None:
    given = {name: value.format(checkpoint=checkpoint) for name, value in options.items()}
    with pytest.raises(AnalysisException, match=said) as caught:
        spark.read.format("godwit").options(**given).load().collect()
    assert "Traceback" not in str(caught.value)


def test_the_source_cannot_be_streamed_or_written_and_says_so(spark: SparkSession, checkpoint: Path) -> None:
    def stream() -> None:
        frame = spark.readStream.format("godwit").options(operator="kept").load(str(checkpoint))
        frame.writeStream.format("noop").start().awaitTermination()

    def write() -> None:
        spark.range(1).write.format("godwit").mode("append").save(str(checkpoint))

    for use in (stream, write):
        with pytest.raises(
            (AnalysisException, StreamingQueryException), match="it can only be read, as of a batch"
        ) as caught:
            use()
        assert "Traceback" not in str(caught.value)


def test_a_batch_whose_state_is_no_longer_there_is_refused(spark: SparkSession, checkpoint: Path) -> None:
    newest = newest_commit(checkpoint.parent / "spark")
    whole = state(spark, checkpoint, committedBatch=newest)
    assert_same(whole, state(spark, checkpoint))
    assert state(spark, checkpoint, committedBatch=newest - 1).count() == len(KEYS)
    said = f"not have the state as of batch {newest - 2} any more, but as of {newest - 1} or {newest} .operator=kept"
    with pytest.raises(PySparkException, match=said):
        state(spark, checkpoint, committedBatch=newest - 2).collect()


KEY_NAMES = ("value", "var", "op", "sub", "host", "Epoch", "timers", "total")


@pytest.fixture(scope="module")
def named(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a flock whose key columns are named as columns of changes, and as columns that are shown beside them."""
    job = Journey(
        spark, tmp_path_factory.mktemp("named"), Total, pa.schema(dict.fromkeys(KEY_NAMES, pa.string())), KEY_NAMES
    )
    job.feed.add([[letter] * len(KEY_NAMES) for letter in "abc"])
    with godwit.Flock(spark, hosts=1, checkpoint=job.root / "flock") as flock:
        job.run(job.in_flock(flock), "new")
    return job.root / "flock"


@pytest.mark.parametrize("options", [{}, {"stateVarName": "total"}], ids=str)
def test_filters_on_key_columns_of_any_name(spark: SparkSession, named: Path, options: dict[str, str]) -> None:
    for name in KEY_NAMES:
        column = f"key.{name}" if options else name
        with pushdown(spark):
            rows = spark.read.format("godwit").options(operator="op", **options).load(str(named))
            shown = rows.where(f"{column} = 'b'").select(column).collect()
        assert [tuple(row) for row in shown] == [("b",)], name


def test_columns_beside_the_key_get_other_names(spark: SparkSession, named: Path) -> None:
    shown = godwit.read_state(spark, named, "op")
    assert shown.columns == [*KEY_NAMES, "host_godwit", "epoch_godwit", "total_state", "timers_godwit"]
    row = shown.where("value = 'a'").select("host", "host_godwit", "epoch_godwit", "total_state.n").collect()
    assert [tuple(each) for each in row] == [("a", "host-0", 1, 1)]
    (listed,) = spark.read.format("godwit").load(str(named)).select("variable", "column").collect()
    assert tuple(listed) == ("total", "total_state")


def test_a_filter_that_leaves_a_key_column_open_may_need_every_group() -> None:
    spec = OperatorSpec("op", "P", "row", pa.schema({"a": pa.string(), "b": pa.int64()}), EVENTS, ())
    assert KeyFilter({0: ("x",)}).groups(spec, 8) is None
    assert len(KeyFilter({0: ("x", "y"), 1: (1,)}).groups(spec, 1 << 20) or ()) == 2


def test_the_newest_commit_of_a_directory_without_any(tmp_path: Path) -> None:
    assert newest_commit(tmp_path) == -1
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "11").touch()
    (tmp_path / "commits" / "9").touch()
    (tmp_path / "commits" / ".12.crc").touch()
    assert newest_commit(tmp_path) == 11
