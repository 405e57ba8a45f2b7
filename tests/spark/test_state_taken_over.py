"""Whose state a flock takes over from plain Spark: keys as Spark stores them, and maps as keys of state."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from godwit.errors import CheckpointMismatch
from tests.spark import journeys
from tests.spark.journeys import NOON, Journey
from tests.spark.processors import FLAVOURS_LONG, Flavour, Logic
from tests.spark.test_state_goes_back import ZONE, setting
from tests.spark.test_taking_over import settings

__all__ = ["settings"]  # the fixture of the settings that Spark's state needs

TIMED = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC")})
DOUBLES = pa.schema({"x": pa.float64(), "id": pa.string()})
AUTUMN = [dt.datetime(2024, 11, 3, hour, 30) for hour in (5, 6)]  # in New York it is half past one both times


@pytest.fixture
def journey(spark: SparkSession, tmp_path: Path) -> Any:
    def begun(kind: type[Logic], schema: pa.Schema, **more: Any) -> Journey:
        return Journey(spark, tmp_path, kind, schema, **more)

    return begun


def in_both(job: Journey, rows: list[Any]) -> list[list[tuple[Any, ...]]]:
    """The same rows in a batch of Spark and, with its state, in one of a flock."""
    job.feed.add(rows)
    there = job.run(job.in_spark(), "old")
    with godwit.Flock(job.spark, hosts=1, checkpoint=job.root / "flock") as flock:
        frame = job.taken_over(flock)
        job.feed.add(rows)
        return [sorted(there), sorted(job.run(frame, "new"))]


def with_parts(stream: DataFrame) -> DataFrame:
    """A struct as a key, in which two fields are never null."""
    part = sf.struct("id", sf.coalesce("id", sf.lit("")).alias("q"), sf.lit(1).alias("one"))
    return stream.withColumn("k", sf.struct(part.alias("part"), "at"))


def test_a_struct_whose_fields_are_never_null_is_the_same_key(journey: Any) -> None:
    job = journey(journeys.Total, TIMED, keys=("k",), shaped=with_parts)
    there, here = in_both(job, [("a", NOON), ("b", NOON)])
    assert here == [(key, n + 1) for key, n in there]


@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
@pytest.mark.parametrize("keys", [("at", "id"), pytest.param(("k",), marks=pytest.mark.long)], ids=str)
def test_instants_are_the_same_keys_in_any_time_zone(
    spark: SparkSession, journey: Any, flavour: Flavour, keys: tuple[str, ...]
) -> None:
    job = journey(journeys.Total, TIMED, keys=keys, flavour=flavour, shaped=with_parts)
    with setting(spark, ZONE, "America/New_York"):
        there, here = in_both(job, [("a", NOON), ("b", dt.datetime(2024, 1, 1, 12)), ("c", dt.datetime(1960, 1, 1))])
        assert here == [(key, n + 1) for key, n in there]


def test_instants_that_pandas_does_not_tell_apart_are_refused(spark: SparkSession, journey: Any) -> None:
    job = journey(journeys.Total, TIMED, keys=("at",), flavour="pandas")
    said = r"the key \('2024-11-03 01:30:00',\) may be two instants in the zone America/New_York"
    with setting(spark, ZONE, "America/New_York"), pytest.raises(CheckpointMismatch, match=said):
        in_both(job, [("a", at) for at in AUTUMN])


@pytest.mark.parametrize("keys", [("x",), pytest.param(("k",), marks=pytest.mark.long)], ids=str)
def test_states_of_plus_and_minus_zero_are_refused(journey: Any, keys: tuple[str, ...]) -> None:
    shaped = lambda stream: stream.withColumn("k", sf.struct("x", "id"))  # noqa: E731
    job = journey(journeys.Total, DOUBLES, keys=keys, shaped=shaped)
    job.feed.add([(0.0, "a"), (1.0, "a")])
    job.run(job.in_spark(), "old")
    job.feed.add([(-0.0, "a")])
    job.run(job.in_spark(), "old")
    with (
        godwit.Flock(job.spark, hosts=1, checkpoint=job.root / "flock") as flock,
        pytest.raises(CheckpointMismatch, match=r"one state for the key \{.*-0.0.*\} and another one for \{.* ?0.0"),
    ):
        job.taken_over(flock)


def test_the_state_of_minus_zero_alone_is_that_of_zero(journey: Any) -> None:
    job = journey(journeys.Total, DOUBLES, keys=("x",))
    there, here = in_both(job, [(-0.0, "a"), (float("nan"), "a")])
    assert there == [("(-0.0,)", 1), ("(nan,)", 1)]
    assert here == [("(0.0,)", 2), ("(nan,)", 2)]
