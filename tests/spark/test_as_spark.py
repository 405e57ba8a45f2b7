"""What a processor is given, and what it may give: the same through Godwit as through Spark's own transformWithState.

Every test with a `feature` mark is a row of docs/compatibility.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from tests.spark import api_processors as processors
from tests.spark import journeys
from tests.spark import processors as api
from tests.spark.processors import FLAVOURS_LONG, Flavour, flavoured
from tests.spark.side_by_side import Case, Feed, SideBySide, Table
from tests.spark.test_equivalence import case

NUMBERED = pa.schema({"id": pa.string(), "n": pa.int64()})
NOON = dt.datetime(2024, 5, 1, 12)


@pytest.fixture(scope="module")
def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    root = tmp_path_factory.mktemp("as-spark")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        yield SideBySide(spark, flock, root)


@contextmanager
def settings(spark: SparkSession, **given: str) -> Iterator[None]:
    """Settings of Spark, with underscores for dots, while both engines define their queries."""
    names = {name.replace("__", "."): value for name, value in given.items()}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.feature(
    "state", "values as tuples, lists, Rows, dicts, objects, arrays and numpy or pandas values, nested too"
)
@pytest.mark.feature("state", "`get()` gives a tuple with Rows, lists and dicts in it; None if there is no value")
@pytest.mark.feature("state", "naive datetimes in state are in the time zone of the process, not of the session")
@pytest.mark.feature("state", "numbers in a string field become text, text in a binary field bytes, NaN in others null")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_values_are_taken_and_given_back_alike(engines: SideBySide, flavour: Flavour) -> None:
    rows: list[Table] = [[(f"k{i}", i) for i in range(len(processors.Values.CASES))]]
    with settings(engines.spark, spark__sql__session__timeZone="America/New_York"):
        expected, given = engines.both(case(processors.Values, flavour), NUMBERED, rows)
    assert len(expected.rows) > 60
    assert given.by_key(2) == expected.by_key(2)


@pytest.mark.feature("state", "`deleteIfExists` of a variable that the same `init` declares, and of one that never was")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_a_variable_deleted_by_the_init_that_declares_it_is_refused_alike(
    engines: SideBySide, flavour: Flavour
) -> None:
    schema = pa.schema({"id": pa.string(), "value": pa.float64()})
    expected, given = engines.both(case(processors.Temporary, flavour), schema, [[("a", 1.0)], [("a", 2.0)]])
    assert expected.by_key()["('a',)"] == [
        "('1 Error checking value state exists []',)",
        "('Error updating value state',)",
        "('2 Error checking value state exists []',)",
        "('Error updating value state',)",
    ]
    assert given.by_batch() == expected.by_batch()


# -- keys --------------------------------------------------------------------------------------------------------------

PARTS = pa.schema(
    {
        "id": pa.string(),
        "st": pa.struct({"p": pa.int32(), "q": pa.string(), "at": pa.timestamp("us", tz="UTC")}),
        "at": pa.timestamp("us", tz="UTC"),
    }
)
PART_ROWS: Table = [
    ("x", {"p": 1, "q": "u", "at": NOON}, NOON),
    ("x", {"p": 1, "q": "u", "at": NOON}, NOON),
    (None, {"p": 2, "q": None, "at": None}, NOON),
    (None, None, NOON),
]


@pytest.mark.feature("keys", "null keys: a null is a value like any other")
@pytest.mark.feature("keys", "structs as keys: a dict with rows, a Row with a timer")
@pytest.mark.feature("keys", "fields of structs as keys (`groupBy('st.q')`)")
@pytest.mark.feature("keys", "Columns as keys (`groupBy(df.id)`)")
@pytest.mark.feature("keys", "the key is a tuple with rows, a Row with a timer")
@pytest.mark.feature("timers", "`listTimers` names the timer that fires")
@pytest.mark.parametrize(
    "keys", ["id", *(pytest.param(k, marks=pytest.mark.long) for k in ("st", "st.q id", "Column"))]
)
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_keys_are_shown_alike(engines: SideBySide, flavour: Flavour, keys: str) -> None:
    columns: Any = keys.split() if keys != "Column" else (sf.col("at"), sf.col("id"))
    told = case(processors.KeyText, flavour, keys=tuple(columns), time="eventTime", watermark=("at", "0 seconds"))
    with settings(engines.spark, spark__sql__session__timeZone="America/New_York"):
        expected, given = engines.both(told, PARTS, [PART_ROWS])
    assert sorted(row for _, row in given.rows) == sorted(row for _, row in expected.rows)
    assert {row[1] for _, row in expected.rows} > {"rows"}


@pytest.mark.feature(
    "keys", "expressions as keys", spark="refused", godwit="a further column, first in Rows, not in DataFrames"
)
@pytest.mark.feature("keys", "arrays as keys", spark="fails", godwit="taken, shown as lists")
def test_keys_that_spark_does_not_take(engines: SideBySide) -> None:
    feed = engines.feed(NUMBERED, [[("a", 1), ("b", 2), ("c", 3)]])
    even = Case(flavoured(processors.KeyText, "row"), processors.KeyText.OUTPUT, (sf.col("n") % 2,))
    with engines.spark_settings(), pytest.raises(AnalysisException):
        even.on_spark(feed.batch(engines.spark))
    counted = case(processors.Counted, "row", keys=(sf.array((sf.col("n") % 2).alias("odd")),))
    rows = counted.on_flock(engines.flock, feed.batch(engines.spark), engines.name()).collect()
    assert sorted(map(tuple, rows)) == [("([0],)", 1), ("([1],)", 2)]


@pytest.mark.feature("keys", "maps as keys", spark="refused", godwit="refused, when the operator is defined")
def test_maps_are_no_keys(engines: SideBySide) -> None:
    frame = engines.feed(NUMBERED).stream(engines.spark).select(sf.create_map("id", "n").alias("m"))
    with pytest.raises(godwit.errors.DefinitionError, match="'m' of type map<string, int64> cannot be part of a key"):
        case(processors.KeyText, "row", keys=("m",)).on_flock(engines.flock, frame, engines.name())


@pytest.mark.feature(
    "keys",
    "0.0 and -0.0 as keys",
    spark="one state in a batch, two if they come in different batches",
    godwit="one key",
)
def test_plus_and_minus_zero_are_one_key(engines: SideBySide) -> None:
    schema, rows = pa.schema({"x": pa.float64()}), [[(0.0,), (-0.0,)], [(-0.0,)], [(0.0,)]]
    expected, given = engines.both(case(journeys.Total, "row", keys=("x",)), schema, rows)
    assert [row for _, row in expected.rows] == [("(0.0,)", 2), ("(-0.0,)", 1), ("(0.0,)", 3)]
    assert [row for _, row in given.rows] == [("(0.0,)", 2), ("(0.0,)", 3), ("(0.0,)", 4)]


@pytest.mark.feature(
    "keys",
    "several rows with NaN as the key in a batch",
    spark="one call for each row",
    godwit="one call for the key",
)
def test_rows_of_nan_come_in_one_call(engines: SideBySide) -> None:
    schema, nan = pa.schema({"x": pa.float64()}), float("nan")
    expected, given = engines.both(case(journeys.Calls, "row", keys=("x",)), schema, [[(nan,), (1.0,), (nan,), (1.0,)]])
    assert sorted(row for _, row in expected.rows) == [("(1.0,)", 2, 1), ("(nan,)", 1, 1), ("(nan,)", 2, 2)]
    assert sorted(row for _, row in given.rows) == [("(1.0,)", 2, 1), ("(nan,)", 2, 1)]


@pytest.mark.feature(
    "state", "maps in a field whose keys are no strings", spark="refused, when the query starts", godwit="taken"
)
def test_maps_with_keys_that_are_no_strings(engines: SideBySide) -> None:
    rows: list[Table] = [[("a", 1)], [("a", 1)]]
    numbered = case(journeys.Numbered, "row")
    with engines.spark_settings(), pytest.raises(PySparkException, match="Unexpected type MapType"):
        engines.run(numbered.on_spark(engines.feed(NUMBERED, rows).stream(engines.spark)))
    given = engines.run(
        numbered.on_flock(engines.flock, engines.feed(NUMBERED, rows).stream(engines.spark), engines.name())
    )
    assert [row for _, row in given.rows] == [("a", "{1: 'one'}"), ("a", "{1: 'one'}")]


# -- DataFrames of pandas ----------------------------------------------------------------------------------------------


@pytest.mark.feature(
    "pandas", "`spark.sql.execution.arrow.maxRecordsPerBatch` and `maxBytesPerBatch` limit a DataFrame"
)
@pytest.mark.parametrize(
    "limit",
    [pytest.param({name: "2"}, marks=pytest.mark.long) for name in ("maxRecordsPerBatch", "maxBytesPerBatch")],
    ids=str,
)
def test_the_rows_of_a_key_come_in_dataframes_of_limited_size(engines: SideBySide, limit: dict[str, str]) -> None:
    named = {f"spark__sql__execution__arrow__{name}": value for name, value in limit.items()}
    rows: Table = [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 5), ("a", 6)]
    with settings(engines.spark, **named):
        expected, given = engines.both(case(processors.FrameSizes, "pandas"), NUMBERED, [rows])
    assert len(expected.rows) == 2
    assert given.by_batch() == expected.by_batch()


NAMES = pa.schema({"_n": pa.int64(), "id": pa.string(), "a b": pa.bool_(), "class": pa.int32()})


@pytest.mark.feature(
    "pandas",
    "a null among whole numbers makes floats of them",
    spark="for all keys that share an Arrow batch",
    godwit="for its own key",
)
@pytest.mark.feature("pandas", "columns whose names are no identifiers are `_0`, `_1` and so on, by their place")
def test_nulls_and_names_change_the_columns_of_a_dataframe(engines: SideBySide) -> None:
    rows: Table = [(1, "a", True, 5), (None, "b", None, 6)]
    expected, given = engines.both(case(processors.FrameTypes, "pandas"), NAMES, [rows])
    of_b = ["(\"{'_0': 'float64', 'id': 'object', '_2': 'object', '_3': 'int64'}\", \"[[nan, 'b', None, 6]]\")"]
    assert given.by_key()["('b',)"] == expected.by_key()["('b',)"] == of_b
    ((whole,), (parted,)) = (seen.by_key()["('a',)"] for seen in (expected, given))
    assert "'_0': 'float64'" in whole
    assert "'_0': 'int64'" in parted
    assert "[[1, 'a', True, 5]]" in parted


@pytest.mark.long
@pytest.mark.feature(
    "pandas", "`convertToArrowArraySafely` of the session: whether a fraction in a column of whole numbers is refused"
)
@pytest.mark.parametrize("safely", ["true", "false"])
def test_fractions_are_cut_off_where_the_session_says_so(engines: SideBySide, safely: str) -> None:
    halves = case(processors.Given, "pandas", settings={"n": 1.5})
    with settings(engines.spark, spark__sql__execution__pandas__convertToArrowArraySafely=safely):
        if safely == "false":
            expected, given = engines.both(halves, NUMBERED, [[("a", 1)]])
            assert given.rows == expected.rows == [(0, ("a", 1))]
            return
        feed = engines.feed(NUMBERED, [[("a", 1)]])
        with engines.spark_settings(), pytest.raises(PySparkException, match="Failed to convert the value"):
            engines.run(halves.on_spark(feed.stream(engines.spark)))
        with pytest.raises(PySparkException, match="Failed to convert the value"):
            engines.run(halves.on_flock(engines.flock, feed.stream(engines.spark), engines.name()))


# -- outputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature(
    "outputs",
    "a fraction in a column of whole numbers, in a Row",
    spark="cut off",
    godwit="refused (`GODWIT-OUTPUT-MISMATCH`), with column and value",
)
@pytest.mark.feature(
    "outputs",
    "a Row that lacks a column and has a field that is no column",
    spark="null",
    godwit="refused: the name may be misspelt",
)
@pytest.mark.parametrize(
    ("record", "value", "said"),
    [({"n": 1.5}, 1, "column 'n' is declared as int32"), ({"m": 1}, None, "no field for output column 'n'")],
)
def test_rows_that_do_not_fit_the_output_schema(
    engines: SideBySide, record: dict[str, Any], value: int | None, said: str
) -> None:
    odd, feed = case(processors.Given, "row", settings=record), engines.feed(NUMBERED, [[("a", 1)]])
    with engines.spark_settings():
        assert engines.run(odd.on_spark(feed.stream(engines.spark))).rows == [(0, ("a", value))]
    with pytest.raises(PySparkException, match=said):
        engines.run(odd.on_flock(engines.flock, feed.stream(engines.spark), engines.name()))


@pytest.mark.feature(
    "outputs", "a plain tuple, or a Row without names", spark="fails", godwit="taken, by the places of its values"
)
@pytest.mark.parametrize("is_row", [False, pytest.param(True, marks=pytest.mark.long)])
def test_output_rows_without_names(engines: SideBySide, is_row: bool) -> None:
    nameless = case(processors.Nameless, "row", settings={"row": is_row})
    feed = engines.feed(NUMBERED, [[("a", 1)]])
    with engines.spark_settings(), pytest.raises(PySparkException, match="asDict"):
        engines.run(nameless.on_spark(feed.stream(engines.spark)))
    given = engines.run(nameless.on_flock(engines.flock, feed.stream(engines.spark), engines.name()))
    assert given.rows == [(0, ("a", 1))]


@pytest.mark.feature(
    "state", "intervals (`interval day to second`)", spark="refused, when the query starts", godwit="taken"
)
def test_intervals_in_state(engines: SideBySide) -> None:
    timed, feed = case(processors.Interval, "row"), engines.feed(NUMBERED, [[("a", 1)]])
    with engines.spark_settings(), pytest.raises(PySparkException, match="Unexpected type DayTimeIntervalType"):
        engines.run(timed.on_spark(feed.stream(engines.spark)))
    given = engines.run(timed.on_flock(engines.flock, feed.stream(engines.spark), engines.name()))
    assert given.rows == [(0, ("a", 500_000))]


# -- initial state -----------------------------------------------------------------------------------------------------


@pytest.mark.feature(
    "initial state", "a call for each Row, or one with a DataFrame for each key, whatever the partitions"
)
@pytest.mark.parametrize("flavour", ["pandas", pytest.param("row", marks=pytest.mark.long)])
def test_initial_rows_of_a_key_come_together(engines: SideBySide, flavour: Flavour) -> None:
    rows = [(key, n, {"n": n}) for key in "abc" for n in range(7)]
    initial = engines.spark.createDataFrame(rows, "id string, n int, m map<string,int>").repartition(3)
    calls = case(processors.InitialCalls, flavour, initial=initial)
    expected, given = engines.both(calls, NUMBERED, [[("a", 1), ("b", 1), ("d", 1)]])
    assert expected.by_key()["('a',)"] == ["(1, 7)" if flavour == "pandas" else "(7, 7)"]
    assert given.by_batch() == expected.by_batch()


def restarted(engines: SideBySide, made: Callable[[DataFrame | None], DataFrame], feed: Feed, root: Path) -> list[Any]:
    """Two runs of a query on one checkpoint, the second with initial state."""
    rows: list[Any] = []
    initial = engines.spark.createDataFrame([("a", 100, "late")], "id string, start long, note string")
    for batch, start in (([("a", 1.0)], None), ([("a", 2.0), ("b", 3.0)], initial)):
        feed.add(batch)
        writer = made(start).writeStream.foreachBatch(lambda frame, _: rows.extend(map(tuple, frame.collect())))
        query = writer.option("checkpointLocation", str(root)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    return rows


@pytest.mark.long
@pytest.mark.feature("initial state", "initial state given to an operator that has processed batches is ignored")
def test_initial_state_that_comes_too_late_is_ignored(
    engines: SideBySide, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = pa.schema({"id": pa.string(), "value": pa.float64()})
    seeded = partial(case, api.Seeded, "row")
    feed, name = engines.feed(schema), engines.name()
    with engines.spark_settings():
        expected = restarted(
            engines, lambda start: seeded(initial=start).on_spark(feed.stream(engines.spark)), feed, tmp_path / "spark"
        )
    feed = engines.feed(schema)
    given = restarted(
        engines,
        lambda start: seeded(initial=start).on_flock(engines.flock, feed.stream(engines.spark), name),
        feed,
        tmp_path / "flock",
    )
    assert sorted(given) == sorted(expected) == [("a", "rows", 1, ""), ("a", "rows", 2, ""), ("b", "rows", 1, "")]
    assert "initialState of operator" in caplog.text
