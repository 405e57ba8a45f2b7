"""Conversions: user code sees what Spark shows it, and its output becomes the declared columns or a clear error."""

import datetime as dt
import pickle
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from godwit.errors import OutputMismatch
from godwit.spark.pyspark_api.user_inputs import Frames, in_zone, python_rows, python_values
from godwit.spark.pyspark_api.user_outputs import FrameSink, RowSink

ROME = ZoneInfo("Europe/Rome")
NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 123456)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
DAY = dt.date(2024, 1, 1)

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
MAP = pa.map_(pa.string(), pa.int32())

# An Arrow type and value, and what Spark 4.3's transformWithState puts into the Row for it (session in Rome).
ROW_VALUES = [
    (pa.bool_(), True, True),
    (pa.int8(), 7, 7),
    (pa.int64(), 2**60, 2**60),
    (pa.float32(), 1.5, 1.5),
    (pa.float64(), 2.5, 2.5),
    (pa.string(), "x", "x"),
    (pa.binary(), b"zz", b"zz"),
    (pa.decimal128(10, 2), Decimal("1.20"), Decimal("1.20")),
    (pa.date32(), DAY, DAY),
    (pa.timestamp("us", "UTC"), NOON_UTC, NOON_UTC.astimezone(ROME)),
    (pa.timestamp("us"), NOON, NOON),
    (STRUCT, {"a": 1, "b": "q"}, {"a": 1, "b": "q"}),
    (pa.list_(pa.int32()), [1, 2], [1, 2]),
    (MAP, [("k", 1)], [("k", 1)]),
]


def table(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@pytest.mark.parametrize(("kind", "value", "seen"), ROW_VALUES, ids=lambda v: str(v)[:20])
def test_row_values_are_those_spark_gives(kind, value, seen):
    batch = in_zone(table(c=pa.array([None, value], kind)), "Europe/Rome")
    rows = list(python_rows(batch))
    assert rows == [(None,), (seen,)]
    assert type(rows[1].c) is type(seen)
    if isinstance(seen, dt.datetime):
        assert rows[1].c.tzinfo == seen.tzinfo
        assert rows[1].c.utcoffset() == seen.utcoffset()


@given(st.lists(st.none() | st.integers(-(2**62), 2**62).map(lambda n: n % 253_402_300_799_000_000), max_size=20))
def test_fast_timestamps_are_what_arrow_gives_one_by_one(micros):
    for zone in (None, "UTC", "America/New_York"):
        column = pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone))
        values = python_values(column)
        assert values == column.to_pylist()
        assert [v and v.utcoffset() for v in values] == [v and v.utcoffset() for v in column.to_pylist()]


def test_a_repeated_hour_keeps_its_two_offsets():
    # 00:30 and 01:30 UTC both read 02:30 in Rome on the night when summer time ends.
    instants = [dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC) for hour in (0, 1)]
    batch = in_zone(table(t=pa.array(instants, pa.timestamp("us", "UTC"))), "Europe/Rome")
    assert [row.t.utcoffset() for row in python_rows(batch)] == [dt.timedelta(hours=2), dt.timedelta(hours=1)]


def test_dates_beyond_pythons_years_are_refused_and_not_given_as_numbers():
    with pytest.raises((OverflowError, ValueError)):
        python_values(pa.array([4_000_000], pa.int32()).cast(pa.date32()))


def test_rows_behave_like_pysparks():
    made = next(python_rows(table(key=pa.array(["a"]), n=pa.array([3]), count=pa.array([9]))))
    spark = Row("key", "n", "count")("a", 3, 9)
    assert isinstance(made, Row)
    assert made == spark
    assert repr(made) == repr(spark)
    assert made.asDict() == spark.asDict()
    assert (made.key, made["n"], made[1], "n" in made) == ("a", 3, 3, True)
    assert callable(made.count)  # a method of tuples goes before a field, as with Spark's
    assert type(pickle.loads(pickle.dumps(made))) is Row
    with pytest.raises(AttributeError):
        _ = made.missing


def test_first_of_two_equal_names_wins_as_in_spark():
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    row = next(python_rows(batch))
    assert row.x == Row("x", "x")(1, 2).x == 1


# --- frames


def frames(batch: pa.RecordBatch, *sizes: int, tz: str = "UTC") -> list[pd.DataFrame]:
    bounds = [0, *np.cumsum(sizes).tolist()]
    made = Frames(batch, bounds, tz)
    return [made[key] for key in range(len(sizes))]


def test_frames_have_their_own_rows_and_an_index_from_zero():
    one, two = frames(table(k=pa.array(["a", "b", "b"]), n=pa.array([1, 2, 3])), 1, 2)
    pd.testing.assert_frame_equal(one, pd.DataFrame({"k": ["a"], "n": [1]}))
    pd.testing.assert_frame_equal(two, pd.DataFrame({"k": ["b", "b"], "n": [2, 3]}))
    assert isinstance(two.index, pd.RangeIndex)


# An Arrow type, its values, and the dtype that Spark 4.3's transformWithStateInPandas gives.
DTYPES = [
    (pa.int8(), [1, 2], "int64"),
    (pa.int32(), [1, 2], "int64"),
    (pa.int64(), [2**60, 2], "int64"),
    (pa.float32(), [1.5, None], "float64"),
    (pa.float64(), [1.5, 2.5], "float64"),
    (pa.bool_(), [True, False], "bool"),
    (pa.string(), ["x", None], "object"),
    (pa.binary(), [b"x", None], "object"),
    (pa.date32(), [DAY, None], "object"),
    (pa.decimal128(10, 2), [Decimal("1.20"), None], "object"),
    (pa.timestamp("us", "UTC"), [NOON_UTC, None], "datetime64[ns]"),
    (pa.timestamp("us"), [NOON, None], "datetime64[ns]"),
    (STRUCT, [{"a": 1, "b": "q"}, None], "object"),
    (MAP, [[("k", 1)], None], "object"),
]


@pytest.mark.parametrize(("kind", "values", "dtype"), DTYPES, ids=lambda v: str(v)[:20])
def test_frame_dtypes_are_those_spark_gives(kind, values, dtype):
    (frame,) = frames(table(c=pa.array(values, kind)), 2)
    assert str(frame["c"].dtype) == dtype


def test_frame_values_are_those_spark_gives():
    batch = table(
        t=pa.array([NOON_UTC], pa.timestamp("us", "UTC")),
        d=pa.array([DAY]),
        s=pa.array([{"a": 1, "b": "q"}], STRUCT),
        m=pa.array([[("k", 1)]], MAP),
        a=pa.array([[1, 2]], pa.list_(pa.int32())),
    )
    (frame,) = frames(in_zone(batch, "Europe/Rome"), 1, tz="Europe/Rome")
    assert frame["t"][0] == pd.Timestamp(NOON + dt.timedelta(hours=2))
    assert frame["d"][0] == DAY
    assert type(frame["d"][0]) is dt.date
    assert frame["s"][0] == {"a": 1, "b": "q"}
    assert frame["m"][0] == {"k": 1}
    assert frame["a"][0].tolist() == [1, 2]


def test_nulls_change_the_types_of_their_own_key_only():
    batch = table(n=pa.array([2**60 + 1, None, 5]), b=pa.array([True, False, None]), s=pa.array(["x", "y", "z"]))
    clean, number, flag = frames(batch, 1, 1, 1)
    assert clean["n"].tolist() == [2**60 + 1]
    assert [str(t) for t in clean.dtypes] == ["int64", "bool", "object"]
    assert [str(t) for t in number.dtypes] == ["float64", "bool", "object"]
    assert [str(t) for t in flag.dtypes] == ["int64", "object", "object"]
    assert np.isnan(number["n"][0])
    assert flag["b"][0] is None


def test_changing_a_frame_does_not_change_another():
    one, two = frames(table(n=pa.array([1, 2, 3, 4])), 2, 2)
    one.loc[0, "n"] = 99
    one["m"] = one["n"] * 2
    assert two.to_dict("list") == {"n": [3, 4]}


def test_years_that_nanoseconds_cannot_hold_stay_readable():
    far = dt.datetime(9000, 1, 1, tzinfo=dt.UTC)
    (frame,) = frames(table(t=pa.array([far], pa.timestamp("us", "UTC"))), 1)
    assert frame["t"][0].year == 9000


# --- rows to columns

OUT = pa.schema([("key", pa.string()), ("n", pa.int64())])


def collect(schema: pa.Schema, *calls: object) -> pa.RecordBatch:
    sink = RowSink(schema)
    for call in calls:
        sink.consume(call)
    return sink.finish()


def one_column(kind: pa.DataType, value: object, nullable: bool = True) -> object:
    schema = pa.schema([pa.field("c", kind, nullable)])
    return collect(schema, [Row(c=value)]).column(0).to_pylist()[0]


def test_rows_of_all_calls_become_one_batch_with_a_count_for_each():
    sink = RowSink(OUT)
    sink.consume(iter([Row(key="a", n=1), Row(key="a", n=2)]))
    sink.consume([])
    sink.consume(iter([Row(key="b", n=3)]))
    assert sink.finish().to_pydict() == {"key": ["a", "a", "b"], "n": [1, 2, 3]}
    assert sink.counts.tolist() == [2, 0, 1]


def test_no_output_is_an_empty_batch_of_the_schema():
    assert collect(OUT).schema == OUT
    assert collect(OUT, [], []).num_rows == 0


def test_rows_go_by_name_and_tuples_by_position():
    rows = [Row(n=1, key="a"), Row("n", "key")(2, "b"), ("c", 3), Row("d", 4)]
    assert collect(OUT, rows).to_pydict() == {"key": ["a", "b", "c", "d"], "n": [1, 2, 3, 4]}


def test_as_in_spark_unnamed_columns_are_null_and_undeclared_fields_are_dropped():
    rows = [Row(key="a"), Row(key="b", n=2, more=3)]
    assert collect(OUT, rows).to_pydict() == {"key": ["a", "b"], "n": [None, 2]}


def test_a_misspelt_field_is_refused_with_the_column_it_leaves_empty():
    with pytest.raises(OutputMismatch) as caught:
        collect(OUT, [Row(key="a", num=1)])
    assert caught.value.fields["column"] == "n"
    assert "num" in caught.value.fields["given"]


@pytest.mark.parametrize("row", [{"key": "a", "n": 1}, "ab", None, 5, ("a",), Row("a", 1, 2), ["a", 1]], ids=repr)
def test_what_is_no_row_of_the_schema_is_refused(row):
    with pytest.raises(OutputMismatch, match="must yield Rows"):
        collect(OUT, [row])


@pytest.mark.parametrize("result", [None, 7])
def test_a_handler_that_returns_no_iterator_is_refused_as_in_spark(result):
    with pytest.raises(OutputMismatch, match="return an iterator"):
        collect(OUT, result)
    with pytest.raises(OutputMismatch, match="return an iterator"):
        FrameSink(OUT, "UTC").consume(result)


# Declared type, what the processor gave.
MISFITS = [
    (pa.string(), 5),
    (pa.int64(), "5"),
    (pa.int64(), 1.5),
    (pa.int64(), float("nan")),
    (pa.int64(), np.float64(2.5)),
    (pa.int32(), 2**40),
    (pa.int64(), True),
    (pa.bool_(), 1),
    (pa.float64(), "x"),
    (pa.timestamp("us", "UTC"), "2024-01-01"),
    (pa.decimal128(10, 2), Decimal("1.234")),
    (STRUCT, 5),
    (STRUCT, (1, 2, 3)),
    (pa.list_(pa.int32()), 5),
    (pa.list_(pa.int32()), ["x"]),
    (MAP, 5),
]


@pytest.mark.parametrize(("kind", "value"), MISFITS, ids=repr)
def test_an_output_of_the_wrong_type_names_column_declared_type_and_value(kind, value):
    with pytest.raises(OutputMismatch) as caught:
        one_column(kind, value)
    fields = caught.value.fields
    assert (fields["column"], fields["declared"]) == ("c", str(kind))
    assert type(value).__name__ in fields["given"]
    assert "'c'" in str(caught.value)


def test_null_in_a_column_declared_not_null_is_refused():
    with pytest.raises(OutputMismatch, match="not null"):
        one_column(pa.int64(), None, nullable=False)


def test_the_call_that_gave_the_misfit_is_blamed():
    sink = RowSink(OUT)
    for n in (1, 2, "three", 4):
        sink.consume([Row(key="a", n=0), Row(key="a", n=n)])
    with pytest.raises(OutputMismatch):
        sink.finish()
    assert sink.failed_call == 2


# Declared type, what the processor gave, what comes out.
FITS = [
    (pa.int64(), 5.0, 5),
    (pa.int64(), np.int32(5), 5),
    (pa.float64(), 5, 5.0),
    (pa.float64(), np.float32(0.5), 0.5),
    (pa.bool_(), np.bool_(True), True),
    (pa.decimal128(10, 2), Decimal("1.2"), Decimal("1.20")),
    (pa.date32(), DAY, DAY),
    (pa.timestamp("us", "UTC"), NOON_UTC, NOON_UTC),
    (pa.timestamp("us", "UTC"), NOON, NOON_UTC),  # naive is taken as UTC, as Spark does in this flavour
    (pa.timestamp("us", "Europe/Rome"), NOON, NOON_UTC),
    (pa.timestamp("us"), NOON, NOON),
    (pa.timestamp("us", "UTC"), pd.Timestamp(NOON_UTC), NOON_UTC),
    (STRUCT, Row(b="q", a=1), {"a": 1, "b": "q"}),
    (STRUCT, (1, "q"), {"a": 1, "b": "q"}),
    (STRUCT, {"a": 1}, {"a": 1, "b": None}),
    (pa.list_(STRUCT), [Row(a=1, b="q"), None], [{"a": 1, "b": "q"}, None]),
    (pa.list_(pa.int32()), np.array([1, 2]), [1, 2]),
    (MAP, {"k": 1}, [("k", 1)]),
    (MAP, [("k", 1)], [("k", 1)]),
    (pa.map_(pa.string(), STRUCT), {"k": Row(a=1, b="q")}, [("k", {"a": 1, "b": "q"})]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), FITS, ids=lambda v: str(v)[:25])
def test_outputs_that_spark_takes_are_taken(kind, value, expected):
    assert one_column(kind, value) == expected
    assert one_column(kind, None) is None


def test_a_list_changed_after_it_was_yielded_keeps_what_it_held():
    def run():
        seen: list[int] = []
        for n in range(3):
            seen.append(n)
            yield Row(c=seen)

    schema = pa.schema([("c", pa.list_(pa.int64()))])
    assert collect(schema, run()).to_pydict() == {"c": [[0], [0, 1], [0, 1, 2]]}


# --- frames to columns


def gather(schema: pa.Schema, *yielded: object, tz: str = "UTC") -> pa.RecordBatch:
    sink = FrameSink(schema, tz)
    for frame in yielded:
        sink.consume(iter([frame]))
    return sink.finish()


def test_frames_of_all_calls_become_one_batch_with_a_count_for_each():
    sink = FrameSink(OUT, "UTC")
    sink.consume(iter([pd.DataFrame({"n": [1, 2], "key": ["a", "a"]}), pd.DataFrame({"key": ["a"], "n": [3]})]))
    sink.consume(iter([pd.DataFrame()]))
    sink.consume(iter([pd.DataFrame({"key": ["b"], "n": [4], "more": [0]}, index=[17])]))
    assert sink.finish().to_pydict() == {"key": ["a", "a", "a", "b"], "n": [1, 2, 3, 4]}
    assert sink.counts.tolist() == [3, 0, 1]


def test_frames_without_names_go_by_position():
    assert gather(OUT, pd.DataFrame([["a", 1]])).to_pydict() == {"key": ["a"], "n": [1]}


@pytest.mark.parametrize("frame", [pd.DataFrame({"key": ["a"]}), pd.DataFrame([["a"]])], ids=["named", "positional"])
def test_a_missing_column_is_refused_by_name(frame):
    with pytest.raises(OutputMismatch, match="has no column") as caught:
        gather(OUT, frame)
    assert caught.value.fields["column"] == "n"


@pytest.mark.parametrize(
    "given", [Row(key="a", n=1), {"key": ["a"]}, None, pd.Series([1])], ids=lambda v: type(v).__name__
)
def test_what_is_no_frame_is_refused(given):
    with pytest.raises(OutputMismatch, match="must yield pandas DataFrames"):
        gather(OUT, given)


def test_frames_whose_types_differ_are_joined():
    parts = [
        pd.DataFrame({"key": ["a"], "n": [1]}),
        pd.DataFrame({"key": ["b"], "n": [2.0]}),
        pd.DataFrame({"key": [None], "n": [np.nan]}),
        pd.DataFrame({"key": pd.array(["c"], "string"), "n": pd.array([3], "Int64")}),
        pd.DataFrame({"key": pd.Categorical(["d"]), "n": np.array([4], np.int8)}),
    ]
    assert gather(OUT, *parts).to_pydict() == {"key": ["a", "b", None, "c", "d"], "n": [1, 2, None, 3, 4]}


def test_naive_times_are_of_the_session_and_aware_ones_keep_their_instant():
    schema = pa.schema([("t", pa.timestamp("us", "Europe/Rome"))])
    naive = pd.DataFrame({"t": [pd.Timestamp(NOON) + pd.Timedelta(nanoseconds=7), pd.NaT]})
    aware = pd.DataFrame({"t": [pd.Timestamp(NOON_UTC)]})
    made = gather(schema, naive, aware, tz="Europe/Rome").column(0).to_pylist()
    assert made == [NOON.replace(tzinfo=ROME), None, NOON_UTC]


def test_a_naive_time_that_came_twice_is_the_later_one_as_in_spark():
    schema = pa.schema([("t", pa.timestamp("us", "Europe/Rome"))])
    made = gather(schema, pd.DataFrame({"t": [pd.Timestamp("2024-10-27 02:30")]}), tz="Europe/Rome")
    assert made.column(0).cast(pa.timestamp("us", "UTC")).to_pylist() == [
        dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC)
    ]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.date32(), [DAY], [DAY]),
        (pa.date32(), pd.to_datetime(["2024-01-01"]), [DAY]),
        (pa.decimal128(10, 2), [Decimal("1.2")], [Decimal("1.20")]),
        (pa.int64(), ["5"], [5]),  # Spark casts strings of the pandas flavour
        (pa.float64(), [1.5, np.nan], [1.5, None]),  # and takes NaN for null
        (STRUCT, [{"a": 1, "b": "q"}, np.nan], [{"a": 1, "b": "q"}, None]),
        (pa.list_(pa.int64()), [[1], np.array([2, 3])], [[1], [2, 3]]),
        (MAP, [{"k": 1}], [[("k", 1)]]),
    ],
    ids=str,
)
def test_pandas_outputs_that_spark_takes_are_taken(kind, values, expected):
    assert gather(pa.schema([("c", kind)]), pd.DataFrame({"c": values})).column(0).to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), [1]),
        (pa.int64(), [1.5]),
        (pa.int64(), ["x"]),
        (pa.int32(), [2**40]),
        (pa.float64(), ["x"]),
        (pa.timestamp("us", "UTC"), [object()]),
        (STRUCT, [5]),
        (pa.list_(pa.int64()), [5]),
    ],
    ids=lambda v: repr(v).partition(" object at")[0],
)
def test_a_pandas_column_of_the_wrong_type_names_column_declared_type_and_dtype(kind, values):
    frame = pd.DataFrame({"c": values})
    with pytest.raises(OutputMismatch) as caught:
        gather(pa.schema([("c", kind)]), frame)
    fields = caught.value.fields
    assert (fields["column"], fields["declared"]) == ("c", str(kind))
    assert str(frame["c"].dtype) in fields["given"] or pa.types.is_nested(kind)


def test_the_frame_with_the_misfit_is_blamed():
    sink = FrameSink(OUT, "UTC")
    for n in (1, 2, "three", 4):
        sink.consume([pd.DataFrame({"key": ["a", "a"], "n": [0, n]})])
    with pytest.raises(OutputMismatch):
        sink.finish()
    assert sink.failed_call == 2


def test_a_frame_changed_after_it_was_yielded_keeps_what_it_held():
    def run():
        frame = pd.DataFrame({"key": ["a"], "n": [0]})
        for n in range(3):
            frame.loc[0, "n"] = n
            yield frame

    sink = FrameSink(OUT, "UTC")
    sink.consume(run())
    assert sink.finish().to_pydict()["n"] == [0, 1, 2]
