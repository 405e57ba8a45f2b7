"""A PySpark processor gives through Godwit what it gives through Spark: state, keys, types, initial state, batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import godwit
from tests.spark import processors
from tests.spark.processors import FLAVOURS_LONG, SCRIPT, Flavour, flavoured
from tests.spark.side_by_side import Case, SideBySide, Table

VALUES = pa.schema({"id": pa.string(), "value": pa.float64(), "word": pa.string()})
BATCHES: list[Table] = [
    [("a", 1.0, "x"), ("b", 150.0, "y"), ("a", 101.5, "x"), ("c", None, "z")],
    [("b", 2.0, "y"), ("b", 300.0, None), ("a", 7.0, "q")],
    [("d", 5.5, "x"), ("a", 200.0, "x"), ("a", 3.0, "y"), ("a", 4.0, "y"), ("b", None, "w"), ("a", 0.5, "z")],
    [("a", 104.0, "last"), ("d", None, "x")],
]
FULL: list[Table] = [[row for row in batch if row[1] is not None] for batch in BATCHES]


@pytest.fixture(scope="module")
def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    root = tmp_path_factory.mktemp("equivalence")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        yield SideBySide(spark, flock, root)


def case(kind: type[processors.Logic], flavour: Flavour, **more: Any) -> Case:
    settings = more.pop("settings", {})
    return Case(flavoured(kind, flavour, **settings), kind.OUTPUT, pandas=flavour == "pandas", **more)


@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
@pytest.mark.parametrize(
    ("kind", "batches", "mode"),
    [
        (processors.RunningCount, FULL, "append"),
        pytest.param(processors.Violations, BATCHES, "update", marks=pytest.mark.long),
        pytest.param(processors.TopThree, FULL, "append", marks=pytest.mark.long),
        (processors.RecentAndWords, FULL, "update"),
    ],
)
def test_documented_processors_give_the_same_rows_in_every_batch(
    engines: SideBySide, kind: type[processors.Logic], batches: list[Table], mode: str, flavour: Flavour
) -> None:
    expected, given = engines.both(case(kind, flavour, mode=mode), VALUES, batches)
    assert expected.by_batch()
    assert given.by_batch() == expected.by_batch()


@pytest.mark.feature("state", "every method of ValueState, ListState and MapState")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_every_state_method_answers_alike(engines: SideBySide, flavour: Flavour) -> None:
    schema = pa.schema({"id": pa.string(), "op": pa.string(), "word": pa.string(), "n": pa.int64()})
    words = ["u", "v", "u", "w", "uv"]
    first = [("a", op, words[i % 5], None if i % 7 == 0 else i) for i, op in enumerate(SCRIPT)]
    second = [("a", op, words[i % 3], i) for i, op in enumerate(SCRIPT)]
    other = [("b", op, words[i % 2], -i) for i, op in enumerate(reversed(SCRIPT))]
    expected, given = engines.both(case(processors.Scripted, flavour), schema, [first, other, [*second, *other[:20]]])
    assert sum(map(len, expected.by_key().values())) == 3 * len(SCRIPT) + 20
    assert given.by_batch() == expected.by_batch()


KEYS = pa.schema(
    {
        "s": pa.string(),
        "i": pa.int32(),
        "l": pa.int64(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "d": pa.decimal128(10, 2),
        "b": pa.bool_(),
        "x": pa.float64(),
        "ntz": pa.timestamp("us"),
        "raw": pa.binary(),
        "small": pa.int16(),
        "tiny": pa.int8(),
        "f": pa.float32(),
    }
)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
OLD = dt.datetime(1960, 1, 1)
FULL_KEY = ("é", 1, 2**40, NOON.date(), NOON, Decimal("12.34"), True, 0.0, NOON, b"\x00\xff", -3, 7, 1.5)
KEY_ROWS: dict[Flavour, list[tuple[Any, ...]]] = {
    "row": [
        FULL_KEY,
        FULL_KEY,
        ("", -1, -1, dt.date(1969, 7, 20), OLD, Decimal("-0.01"), False, float("nan"), OLD, b"", 0, -128, 0.25),
        ("x", None, 3, None, NOON, None, None, float("-inf"), None, None, 9, None, 2.5),
        ("x", None, 3, None, NOON, None, None, float("-inf"), None, None, 9, None, 2.5),
        tuple([None] * len(KEYS)),
    ],
    # In pandas a null makes whole numbers floats and an instant NaT, which Spark itself cannot take as a key.
    "pandas": [
        FULL_KEY,
        FULL_KEY,
        (None, -1, -1, dt.date(1969, 7, 20), OLD, None, False, -1.5, OLD, None, 0, -128, 0.25),
    ],
}


@pytest.mark.feature("keys", "keys of all atomic types, nulls and NaN too")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_keys_of_every_atomic_type_are_the_same_keys(engines: SideBySide, flavour: Flavour) -> None:
    rows = KEY_ROWS[flavour]
    batches: list[Table] = [rows, rows[1:4], rows]
    given_case = case(processors.KeyShown, flavour, keys=tuple(KEYS.names))
    expected, given = engines.both(given_case, KEYS, batches)
    assert len(expected.by_key(len(KEYS))) == len(set(map(repr, rows)))
    assert given.by_batch(len(KEYS)) == expected.by_batch(len(KEYS))


STATE_TYPES = pa.schema(
    {
        "id": pa.string(),
        "i": pa.int32(),
        "x": pa.float64(),
        "s": pa.string(),
        "d": pa.decimal128(12, 3),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "raw": pa.binary(),
        "flag": pa.bool_(),
        "many": pa.list_(pa.int32()),
        "named": pa.map_(pa.string(), pa.int32()),
        "pair": pa.struct({"a": pa.int32(), "b": pa.string()}),
    }
)


def test_every_type_and_null_comes_back_out_of_state(engines: SideBySide) -> None:
    full = (7, 2.5, "ü", Decimal("1.250"), NOON.date(), NOON, b"\x00", True, [1, None, 3], [("k", 1), ("l", None)])
    rows: Table = [
        ("a", *full, {"a": 1, "b": "x"}),
        ("a", *[None] * 11),
        ("b", *full, {"a": None, "b": None}),
        ("a", *full, {"a": 1, "b": "x"}),
    ]
    expected, given = engines.both(case(processors.Before, "row"), STATE_TYPES, [rows, rows])
    assert sum(map(len, expected.by_key().values())) == 6
    assert given.by_batch() == expected.by_batch()


@pytest.mark.feature(
    "initial state", "initial state comes before the first rows: Row by Row, or as a DataFrame for each key"
)
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_initial_state_comes_before_the_first_rows(engines: SideBySide, flavour: Flavour) -> None:
    initial = initial_state(engines.spark)
    batches: list[Table] = [[("a", 1.0, ""), ("c", 1.0, "")], [("a", 1.0, ""), ("z", 1.0, ""), ("z", 2.0, "")]]
    expected, given = engines.both(case(processors.Seeded, flavour, initial=initial), VALUES, batches)
    assert expected.by_key()["('z',)"] == ["('rows', 9, 'i3')"]
    assert given.by_batch() == expected.by_batch()


@pytest.mark.feature("batch DataFrames", "state begins anew with every evaluation")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_batch_frames_are_processed_alike_with_fresh_state_each_time(engines: SideBySide, flavour: Flavour) -> None:
    feed = engines.feed(VALUES, FULL)
    counted = case(processors.RunningCount, flavour)
    with engines.spark_settings():
        expected = sorted(map(tuple, counted.on_spark(feed.batch(engines.spark)).collect()))
    ours = counted.on_flock(engines.flock, feed.batch(engines.spark), engines.name())
    assert [row[:2] for row in expected] == [("a", 8), ("b", 3), ("d", 1)]
    assert sorted(map(tuple, ours.collect())) == expected
    assert sorted(map(tuple, ours.collect())) == expected


@pytest.mark.feature("batch DataFrames", "initial state")
def test_batch_frame_takes_initial_state(engines: SideBySide) -> None:
    feed = engines.feed(VALUES, [[("a", 1.0, ""), ("c", 1.0, "")]])
    seeded = case(processors.Seeded, "row", initial=initial_state(engines.spark))
    with engines.spark_settings():
        expected = sorted(map(tuple, seeded.on_spark(feed.batch(engines.spark)).collect()))
    ours = seeded.on_flock(engines.flock, feed.batch(engines.spark), engines.name())
    assert expected == [("a", "rows", 16, "i1 i2"), ("c", "rows", 1, "")]
    assert sorted(map(tuple, ours.collect())) == expected
    assert sorted(map(tuple, ours.collect())) == expected


def initial_state(spark: SparkSession) -> Any:
    rows = [("a", 10, "i1"), ("a", 5, "i2"), ("z", 7, "i3")]
    return spark.createDataFrame(rows, "id string, start long, note string").coalesce(1)


# -- what Spark has and Godwit has not ---------------------------------------------------------------------------------


class LapsingByNoTime(processors.RunningCount):
    def init(self, handle: Any) -> None:
        handle.getValueState("lapsing", "n long", 1000)


def test_features_that_are_not_there_are_refused_at_definition(engines: SideBySide) -> None:
    frame = engines.feed(VALUES).stream(engines.spark)
    collated = frame.selectExpr("id collate UTF8_LCASE as id", "value", "word")
    mapped = frame.selectExpr("map(id, value) as id", "value", "word")
    counted = flavoured(processors.RunningCount, "row")
    output = processors.RunningCount.OUTPUT
    flock = engines.flock
    for message, given, keys, processor, more in (
        ("TTL", frame, "id", flavoured(LapsingByNoTime, "row"), {}),
        ("collat", collated, "id", counted, {}),
        ("part of a key", mapped, "id", counted, {}),
        ("outputMode", frame, "id", counted, {"outputMode": "complete"}),
        ("timeMode", frame, "id", counted, {"timeMode": "lunar"}),
        ("watermark", frame, "id", counted, {"timeMode": "eventTime"}),
        ("batch DataFrame", frame, "id", counted, {"initialState": frame}),
        ("initialState has no key", frame, "id", counted, {"initialState": frame.sparkSession.range(2).toDF("x")}),
        ("key column 'id' of initialState", frame, "id", counted, {"initialState": frame.sparkSession.range(2)}),
        ("grouped by note", frame, "id", counted, {"initialState": initial_state(engines.spark).groupBy("note")}),
        ("no column 'key'", frame, "key", counted, {}),
        ("collate", frame, "id", counted, {"outputStructType": "id string collate UTF8_LCASE"}),
        ("Interval", frame, "id", counted, {"outputStructType": "id string, v interval year to month"}),
    ):
        arguments = {"outputStructType": output, "name": engines.name()} | more
        with pytest.raises(godwit.errors.DefinitionError, match=message):
            flock.transformWithState(given, keys, processor, **arguments)
