"""State of a flock, read with the options and columns of Spark's own state reader, beside Spark's reader on the same rows.

Spark's tests of `transformWithState` that read Spark's store have their counterparts here.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import godwit
from tests.spark.side_by_side import Case, SideBySide
from tests.spark.taking_over import HOUR_MS, Expiring, Remembering, Seeded
from tests.spark.test_data_source import pushdown

EVENTS = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "word": pa.string()})
DAY = dt.datetime(2024, 5, 1)
KEYS = [f"k{n}" for n in range(12)]
KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}


@dataclass(frozen=True)
class Checkpoints:
    """The same rows, once through Spark and once through a flock that is open."""

    spark: SparkSession
    theirs: Path
    ours: Path

    def both(self, operator: str, **options: Any) -> tuple[DataFrame, DataFrame]:
        read = self.spark.read
        theirs = read.format("statestore").options(**options).load(str(self.theirs / operator))
        ours = self.spark.read.format("godwit").option("operator", operator).options(**options).load(str(self.ours))
        return theirs, ours


@pytest.fixture(scope="module")
def checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    root = tmp_path_factory.mktemp("readers")
    cases = {
        "all": Case(Remembering(), Remembering.OUTPUT, mode="update", time="eventTime", watermark=("at", "1 hour")),
        "ttl": Case(Expiring(HOUR_MS), Expiring.OUTPUT, mode="update", time="processingTime"),
    }
    batches = [[(key, DAY + dt.timedelta(minutes=at), f"w{at % 3}") for key in KEYS for at in range(5)]] * 2
    batches.append([(key, DAY, "write") for key in KEYS])
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        engines = SideBySide(spark, flock, root)
        with engines.spark_settings():
            for name, case in cases.items():
                run(case.on_spark(engines.feed(EVENTS, batches).stream(spark)), root / "theirs" / name)
                run(case.on_flock(flock, engines.feed(EVENTS, batches).stream(spark), name), root / "spark" / name)
        yield Checkpoints(spark, root / "theirs", root / "flock")


def run(frame: DataFrame, checkpoint: Path) -> None:
    """All that is there, in one batch: by processing time Spark has no end of batches."""
    writer = frame.writeStream.format("noop").outputMode("update").trigger(once=True)
    assert writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(120)


def types(frame: DataFrame) -> list[tuple[str, str]]:
    return [(column.name, column.dataType.simpleString()) for column in frame.schema]


def shown(frame: DataFrame) -> list[str]:
    """All but the partition, sorted; maps by their entries."""
    rows = frame.drop("partition_id").collect()
    return sorted(repr([sorted(each.items()) if isinstance(each, dict) else each for each in row]) for row in rows)


@pytest.mark.feature("reading state", "`stateVarName`, `flattenCollectionTypes`: the columns of Spark's state reader")
@pytest.mark.feature("reading state", "`readRegisteredTimers`: a row for each timer")
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"stateVarName": "total"}, 12),
        ({"stateVarName": "words"}, 12 * 11),
        ({"stateVarName": "words", "flattenCollectionTypes": False}, 12),
        ({"stateVarName": "counts"}, 12 * 4),
        ({"stateVarName": "counts", "flattenCollectionTypes": False}, 12),
        ({"readRegisteredTimers": True}, 12 * 5),
    ],
    ids=str,
)
def test_the_same_rows_as_sparks_reader(checkpoints: Checkpoints, options: dict[str, Any], rows: int) -> None:
    theirs, ours = checkpoints.both("all", **options)
    assert types(ours) == types(theirs)
    assert shown(ours) == shown(theirs)
    assert ours.count() == rows


@pytest.mark.feature("reading state", "state with a TTL has the end of each value, element and entry")
@pytest.mark.parametrize("variable", ["total", "words", "counts"])
def test_the_end_of_a_ttl(checkpoints: Checkpoints, variable: str) -> None:
    theirs, ours = checkpoints.both("ttl", stateVarName=variable)
    assert types(ours) == types(theirs)
    value = next(name for name in ("value", "list_element", "user_map_value") if name in ours.columns)
    assert shown(ours.select("key", f"{value}.value")) == shown(theirs.select("key", f"{value}.value"))
    now_ms = dt.datetime.now(dt.UTC).timestamp() * 1000
    ends = [row[0] for row in ours.select(f"{value}.ttlExpirationMs").collect()]
    assert len(ends) == len(KEYS)
    assert all(now_ms < end < now_ms + HOUR_MS for end in ends)


@pytest.mark.feature(
    "reading state",
    "what variables there are, of which kind",
    spark="`state-metadata`, as JSON",
    godwit='`format("godwit")` without an operator, a row for each',
)
def test_the_variables_and_their_kinds(checkpoints: Checkpoints) -> None:
    spark = checkpoints.spark
    for operator in ("all", "ttl"):
        (told,) = spark.read.format("state-metadata").load(str(checkpoints.theirs / operator)).collect()
        variables = json.loads(told["operatorProperties"])["stateVariables"]
        theirs = {
            (each["stateName"], KINDS[each["stateVariableType"]]) for each in variables if "$" not in each["stateName"]
        }
        rows = spark.read.format("godwit").load(str(checkpoints.ours)).where(f"operator = '{operator}'").collect()
        assert {(row["variable"], row["kind"]) for row in rows} == theirs
        assert len(theirs) == 3


def test_a_filter_on_the_key_is_pushed_down(checkpoints: Checkpoints) -> None:
    with pushdown(checkpoints.spark):
        _, ours = checkpoints.both("all", stateVarName="total")
        one = ours.where("key.id = 'k3'")
        assert [row["key"] for row in one.collect()] == [Row(id="k3")]
        assert one.rdd.getNumPartitions() == 1


def test_what_cannot_be_read_is_named(checkpoints: Checkpoints) -> None:
    for options, said in (
        ({"stateVarName": "other"}, "Its state variables are: total, words, counts"),
        ({"stateVarName": "total", "readRegisteredTimers": True}, "only one of them can be shown"),
        ({"stateVarName": "total", "flattenCollectionTypes": "maybe"}, "flattenCollectionTypes='maybe'"),
    ):
        with pytest.raises(AnalysisException, match=said):
            checkpoints.spark.read.format("godwit").options(operator="all", **options).load(str(checkpoints.ours))


@pytest.mark.feature("reading state", "state of one query as `initialState` of another, several rows for a key")
def test_state_that_was_read_is_initial_state(spark: SparkSession, checkpoints: Checkpoints, tmp_path: Path) -> None:
    processor: StatefulProcessor = Seeded()
    frames = [
        frame.selectExpr("key.id AS id", "list_element.word AS word")
        for frame in checkpoints.both("all", stateVarName="words")
    ]
    rows = [[(key, DAY, "new") for key in [*KEYS[:3], "none"]]]
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "flock") as flock:
        engines = SideBySide(spark, flock, tmp_path)
        cases = [Case(processor, Seeded.OUTPUT, mode="update", initial=frame) for frame in frames]
        with engines.spark_settings():
            theirs = engines.run(cases[0].on_spark(engines.feed(EVENTS, rows).stream(spark)), "update")
        ours = engines.run(cases[1].on_flock(flock, engines.feed(EVENTS, rows).stream(spark), "seeded"), "update")
        reader = spark.read.format("godwit").options(operator="seeded", stateVarName="words")
        assert reader.load(str(tmp_path / "flock")).count() == 12 * 11 + 4
    assert ours.by_key() == theirs.by_key()
    assert ours.by_key()["('none',)"] == ["('new',)"]
