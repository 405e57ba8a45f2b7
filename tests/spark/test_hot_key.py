"""One key with nearly all of the rows, merged where they are read: exact results, little work for its owner; and refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyspark.cloudpickle
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from godwit.errors import DefinitionError
from tests.spark.flocks import KeyCount, RowCount, drain, start
from tests.spark.one_by_one import in_real_time, numbers

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])


class Total(godwit.Processor):
    """The sum of a key's rows, and the newest of them."""

    state = {"n": pa.int64(), "newest": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("total", pa.int64()), ("n", pa.int64())])
    merge = {"n": "max", "amount": "sum"}

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        np.add.at(state["n"], rows.codes, rows.batch.column("amount").to_numpy())
        np.maximum.at(state["newest"], rows.codes, rows.batch.column("n").to_numpy())
        return self.emit_at(rows, rows.last, total=state["n"])


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path_factory.mktemp("hot") / "godwit") as flock:
        yield flock


def hot(rows: DataFrame) -> DataFrame:
    """Nine rows in ten have key 0; more columns than one, so that they must be told apart."""
    key = sf.when(sf.col("n") % 10 < 9, sf.lit(0).cast("long")).otherwise(sf.col("key"))
    return rows.select(key.alias("key"), "n", (sf.col("n") % 7).alias("amount"))


def totals(frame: DataFrame) -> dict[int, tuple[int, int]]:
    counted = frame.groupBy("key").agg(sf.sum("amount").alias("total"), sf.max("n").alias("newest"))
    return {row["key"]: (row["total"], row["newest"]) for row in counted.collect()}


class FailingOnce:
    """A sink that takes all of a batch and then fails, once."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.taken: dict[int, list[list[Any]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.taken.setdefault(batch, []).append([tuple(row) for row in frame.collect()])
        if batch == self.at and len(self.taken[batch]) == 1:
            raise RuntimeError("the sink has no room")


@pytest.mark.long
def test_hot_key_is_exact_and_its_owner_applies_few_rows(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    work = KeyCount(16_000, keys=50, per_batch=8_000)
    frame = flock.process(hot(work.stream(spark)), "key", Total(), name="total")
    sink = FailingOnce(at=1)
    query = start(frame, sink, tmp_path / "spark")
    with pytest.raises(StreamingQueryException, match="no room"):
        drain(query)
    # Arrow batches of another size: the same rows have to be merged all the same.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "777")
    try:
        query = start(frame, sink, tmp_path / "spark")
        drain(query)
        query.stop()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    first, again = sink.taken[1]
    assert len(first) == len(again), "read again, the batch is merged alike"
    # How the two lanes of key 0 take turns is another matter: each total but the last depends on it.
    assert {key: total for key, total, _ in sorted(first)} == {key: total for key, total, _ in sorted(again)}
    found = {row["key"]: (row["state"]["n"], row["state"]["newest"]) for row in flock.state("total").collect()}
    assert found == totals(hot(work.batch(spark)))
    status = flock.status()["operators"]["total"]
    assert status["rows"] < 0.18 * 24_000, "a tenth are of other keys; a batch of 8,000 rows came twice"


@pytest.mark.long
def test_real_time_trigger_is_refused(spark: SparkSession, flock: godwit.Flock, tmp_path: Path) -> None:
    """Its rows would wait for a block to be full, which may be never."""
    rows = numbers(spark).selectExpr("value AS key", "value AS n", "1L AS amount")
    frame = flock.process(rows, "key", Total(), name="real-time")
    with in_real_time(frame, tmp_path / "spark") as query:
        with pytest.raises(StreamingQueryException, match="declares a merge, which collects rows"):
            query.awaitTermination(60)


def test_merge_is_refused_where_it_cannot_be(spark: SparkSession, flock: godwit.Flock) -> None:
    rows = spark.range(3).selectExpr("id AS key", "id AS n", "id AS amount")
    with pytest.raises(DefinitionError, match="a merge cannot have lane= and sequence= columns"):
        flock.process(rows, "key", Total(), name="lanes", lane="key", sequence="n")

    class Declaring(RowCount):
        merge = {"n": "sum"}

    with pytest.raises(DefinitionError, match="a StatefulProcessor cannot declare a merge"):
        flock.transformWithState(rows, "key", Declaring(), RowCount.output, name="rows")
    with pytest.raises(DefinitionError, match="merge does not say what becomes of column 'more'"):
        flock.process(rows.withColumn("more", sf.lit(1)), "key", Total(), name="more")


class Timed(godwit.Processor):
    """The sum of the rows that are not late, with or without a merge."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("total", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])

    def __init__(self, merges: bool) -> None:
        self.merge = {"at": "max", "amount": "sum"} if merges else {}

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        np.add.at(state["n"], rows.codes, rows.batch.column("amount").to_numpy())
        return self.emit_at(rows, rows.last, total=state["n"])


@pytest.mark.long
def test_late_rows_and_watermark_are_those_of_rows_that_are_not_merged(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    """One row in fifty comes an hour late, of the hot key too."""
    found = {}
    for merges in (True, False):
        name = f"timed-{merges}"
        work = KeyCount(60_000, keys=50, per_batch=12_000)
        at = sf.timestamp_seconds(
            sf.lit(1_700_000_000) + sf.col("n") / 1000 - (sf.col("n") % 49 == 0).cast("int") * 3600
        )
        timed = hot(work.stream(spark)).select("key", at.alias("at"), "amount").withWatermark("at", "5 seconds")
        frame = flock.process(timed, "key", Timed(merges), timeMode="eventTime", name=name)
        query = start(frame, lambda frame, _: frame.collect(), tmp_path / name)
        drain(query)
        query.stop()
        status = flock.status()["operators"][name]
        watermarks = {instance["watermark_ms"] for instance in status["instances"].values()}
        state = {row["key"]: row["state"]["n"] for row in flock.state(name).collect()}
        found[merges] = (state, status["late"], watermarks)
        assert (status["rows"] < 30_000) is merges
    assert found[True] == found[False]
    assert found[True][1] > 400, "rows were late"


@pytest.mark.long
def test_windows_of_a_hot_key_are_those_of_rows_that_are_not_merged(
    spark: SparkSession, flock: godwit.Flock, tmp_path: Path
) -> None:
    found = {}
    for merges in (True, False):
        name = f"windows-{merges}"
        at = sf.timestamp_seconds(sf.lit(1_700_000_000) + sf.col("n") / 1000)
        rows = hot(KeyCount(30_000, keys=50, per_batch=6_000).stream(spark)).select("key", at.alias("at"), "amount")
        window = godwit.windows.EventSliding("4 seconds", "2 seconds", "at", {"t": ("sum", "amount")}, merge=merges)
        timed = rows.withWatermark("at", "1 second")
        frame = flock.process(timed, "key", window, timeMode="eventTime", name=name)
        given: list[Any] = []
        query = start(frame, lambda frame, _, given=given: given.extend(map(tuple, frame.collect())), tmp_path / name)
        drain(query)
        query.stop()
        found[merges] = sorted(given)
        assert (flock.status()["operators"][name]["rows"] < 10_000) is merges
    assert found[True] == found[False]
    assert len(found[True]) > 400
