"""The workload source under real Spark: exact replay, no gap, no repeat, lanes kept, clear refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id, unix_micros
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.spark.workload_source import FORMAT, WorkloadStreamReader, register
from godwit.workload import Workload

PAST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """The session of the whole run, with the source known to it."""
    register(spark)
    return spark


class Seen(NamedTuple):
    """A row, and the batch and the partition in which it came."""

    batch: int
    lane: int
    values: tuple[Any, ...]


def read(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format(FORMAT).options(**{k: str(v) for k, v in options.items()}).load()


def with_lane(frame: DataFrame) -> DataFrame:
    return frame.withColumn("due", unix_micros("due")).withColumn("lane", spark_partition_id())


def run(spark: SparkSession, checkpoint: Path, **options: object) -> list[Seen]:
    """Every row that is available now, batch by batch, in the order in which Spark delivers it."""
    seen: list[Seen] = []

    def keep(frame: DataFrame, batch: int) -> None:
        seen.extend(Seen(batch, row["lane"], tuple(row)[:-1]) for row in frame.collect())

    stream = spark.readStream.format(FORMAT).options(**{k: str(v) for k, v in options.items()}).load()
    writer = with_lane(stream).writeStream.foreachBatch(keep).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(120)
    return seen


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the query had died after it ran the batch and before it committed it."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink()


def numbers(seen: list[Seen]) -> list[int]:
    return [one.values[2] for one in seen]


def test_a_stream_gives_the_rows_and_lanes_of_a_batch_read(spark: SparkSession, tmp_path: Path) -> None:
    options = {"rows": 5_000, "keys": 40, "skew": 0.9, "payload_bytes": 5, "lanes": 3, "start": PAST_MS}
    seen = run(spark, tmp_path, rows_per_batch=2_000, **options)
    truth = [(row["lane"], tuple(row)[:-1]) for row in with_lane(read(spark, **options)).collect()]
    assert len(truth) == 5_000
    assert sorted((one.lane, one.values) for one in seen) == sorted(truth)
    assert Counter(one.batch for one in seen) == {0: 2_000, 1: 2_000, 2: 1_000}


def test_rows_of_a_lane_come_by_ascending_number(spark: SparkSession, tmp_path: Path) -> None:
    seen = run(spark, tmp_path, rows=3_000, rows_per_second=0, rows_per_batch=1_000, lanes=3)
    for lane in range(3):
        mine = numbers([one for one in seen if one.lane == lane])
        assert len(mine) > 900
        assert mine == sorted(mine)


@pytest.mark.long
def test_a_restart_goes_on_where_the_checkpoint_ends(spark: SparkSession, tmp_path: Path) -> None:
    options = {"workload": "traffic", "rows_per_second": 0, "rows_per_batch": 300}
    before = run(spark, tmp_path, rows=700, **options)
    after = run(spark, tmp_path, rows=1_200, **options)
    assert sorted(numbers(before)) == list(range(700))
    assert sorted(numbers(before + after)) == list(range(1_200))
    assert run(spark, tmp_path, rows=1_200, **options) == []
    # The start time was the first run's clock: the second run took it from the checkpoint.
    assert len({one.values[3] for one in before + after}) == 1


def test_an_uncommitted_batch_replays_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Same rows, same partitions. Batch 0 is the hard one: no log has its start, nor an option here."""
    options = {"rows_per_second": 0, "rows": 900, "keys": 30, "lanes": 2}
    first = run(spark, tmp_path, **options)
    assert {one.batch for one in first} == {0}
    forget_commit(tmp_path, 0)
    assert run(spark, tmp_path, **options) == first
    grown = run(spark, tmp_path, **{**options, "rows": 1_500})
    assert numbers(grown)[0] >= 900
    forget_commit(tmp_path, 1)
    assert run(spark, tmp_path, **{**options, "rows": 1_500}) == grown


def test_other_options_than_the_checkpoints_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, rows=10, keys=5, start=PAST_MS)
    with pytest.raises(StreamingQueryException, match="written with keys=5, the query has 6"):
        run(spark, tmp_path, rows=20, keys=6, start=PAST_MS)


def test_refusals_reach_the_caller_of_load(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"keys must be a whole number from 1 .*value='many'"):
        read(spark, rows=5, keys="many")
    with pytest.raises(AnalysisException, match="rows_per_sec is not an option; the options are workload"):
        read(spark, rows_per_sec=5)


def test_a_batch_read_with_no_end_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="a batch read needs an end"):
        read(spark).collect()


def test_another_schema_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="the rows are struct<key:bigint"):
        spark.read.format(FORMAT).schema("key int").option("rows", "5").load().collect()


def test_registering_again_changes_nothing(spark: SparkSession) -> None:
    register(spark)
    assert read(spark, rows=5).count() == 5


class Clock:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


def stream_reader(clock: Clock, **options: object) -> WorkloadStreamReader:
    return WorkloadStreamReader(Workload.from_options({k: str(v) for k, v in options.items()}), clock)


def test_the_clock_alone_decides_how_many_rows_are_due() -> None:
    clock = Clock(PAST_MS * 1_000)
    reader = stream_reader(clock, rows_per_second=100, rows=250)
    offset = reader.initialOffset()
    taken = []
    for waited_ms in (0, 10, 490, 0, 5_000, 5_000):
        clock.now_us += waited_ms * 1_000
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        taken.append(offset["row"])
    assert taken == [1, 2, 51, 51, 250, 250]
    assert reader.latestOffset(offset, ReadAllAvailable()) is offset


def test_a_cap_holds_back_rows_that_are_due() -> None:
    clock = Clock(PAST_MS * 1_000)
    reader = stream_reader(clock, rows_per_second=1_000, rows_per_batch=30)
    offset = reader.initialOffset()
    clock.now_us += 49_000
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    capped = reader.latestOffset(offset, reader.getDefaultReadLimit())
    rest = reader.latestOffset(capped, reader.getDefaultReadLimit())
    assert [capped["row"], rest["row"]] == [30, 50]
    assert reader.latestOffset(offset, ReadAllAvailable())["row"] == 50


def test_available_now_ends_at_what_was_due_when_it_began() -> None:
    clock = Clock(PAST_MS * 1_000 + 2_000_000)
    reader = stream_reader(clock, rows_per_second=10, start=PAST_MS)
    reader.prepareForTriggerAvailableNow()
    clock.now_us += 60_000_000
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["row"] == 21


def test_endless_rows_at_no_rate_cannot_all_be_read() -> None:
    reader = stream_reader(Clock(0), rows_per_second=0)
    with pytest.raises(DefinitionError, match="availableNow with rows_per_second=0 needs an end"):
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(DefinitionError, match="all that is available with rows_per_second=0 needs an end"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_a_start_that_differs_from_the_checkpoints_is_refused() -> None:
    logged = json.loads(json.dumps(stream_reader(Clock(0), start=5).initialOffset()))
    with pytest.raises(CheckpointMismatch, match="written with start=5, the query has 6"):
        stream_reader(Clock(0), start=6).latestOffset(logged, ReadAllAvailable())
    assert stream_reader(Clock(0)).latestOffset(logged, ReadAllAvailable())["start"] == 5


def test_every_lane_has_a_partition_even_when_it_has_no_rows() -> None:
    reader = stream_reader(Clock(1_000_000), keys=1, lanes=3, start=0)
    begin = reader.initialOffset()
    slices = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
    assert [one.lane for one in slices] == [0, 1, 2]
    assert [sum(batch.num_rows for batch in reader.read(one)) for one in slices] == [1_001, 0, 0]
    assert reader.partitions(begin, begin) == []
