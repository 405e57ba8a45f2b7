"""Inputs and outputs of pandas processors beside PySpark's own conversion: the same types, values, zones and refusals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from godwit.errors import OutputMismatch
from godwit.spark.pyspark_api.call_settings import SparkSettings
from godwit.spark.pyspark_api.schemas import parse_ddl
from godwit.spark.pyspark_api.user_inputs import Frames, in_zone
from godwit.spark.pyspark_api.user_outputs import FrameSink, RowSink

NEW_YORK = "America/New_York"
NOON = dt.datetime(2024, 7, 2, 12, 0, 0, 5)
AWARE = NOON.replace(tzinfo=dt.UTC)
REFUSED = (PySparkException, OutputMismatch, ValueError, TypeError, AttributeError)


def outcome(made: Callable[[], Any]) -> str:
    try:
        return repr(made())
    except REFUSED:
        return "refused"


# -- outputs -----------------------------------------------------------------------------------------------------------

OUTPUTS: list[tuple[str, list[Any]]] = [
    ("timestamp", [NOON, None]),
    ("timestamp", [pd.Timestamp(AWARE), None]),
    ("array<timestamp>", [[NOON, None], []]),
    ("array<timestamp>", [[pd.Timestamp(NOON)], [pd.NaT]]),
    ("array<timestamp>", [np.array([NOON], "datetime64[ns]"), None]),
    ("array<timestamp>", [np.array([NOON], "datetime64[us]"), [AWARE]]),
    ("array<timestamp>", [["2024-07-02 12:00"], [NOON.date()]]),
    ("array<timestamp_ntz>", [[NOON], [pd.Timestamp(NOON)]]),
    ("map<string,timestamp>", [{"k": NOON}, {"k": None}]),
    ("struct<at:timestamp,tags:map<string,int>>", [Row(at=NOON, tags={"q": 1}), {"at": AWARE, "tags": None}]),
    ("array<struct<at:timestamp>>", [[Row(at=NOON)], [(AWARE,), None]]),
    ("binary", [b"x", None]),
    ("binary", [1.5, np.nan]),
    ("int", [1, 2]),
    ("int", [1.0, np.nan]),
    ("int", [1.5, 2.5]),
    ("byte", [2**40, 1]),
    ("long", ["1", "2"]),
    ("decimal(10,2)", [Decimal("1.255"), Decimal(2)]),
    ("decimal(10,2)", [1, 2]),
    ("string", [1, 2]),
    ("boolean", [True, None]),
    ("date", [NOON, None]),
]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("zone", ["UTC", NEW_YORK])
@pytest.mark.parametrize(("kind", "values"), OUTPUTS, ids=str)
def test_a_column_of_outputs_becomes_what_spark_makes_of_it(
    kind: str, values: list[Any], zone: str, safe: bool
) -> None:
    schema = parse_ddl(f"c {kind}")
    wrapped = StructType([StructField("_0", schema)])

    def theirs() -> Any:
        frame = pd.DataFrame({"c": values})
        words = {"timezone": zone, "safecheck": safe, "arrow_cast": True, "assign_cols_by_name": True}
        return PandasToArrowConversion.convert([frame], wrapped, **words).column(0).field(0).to_pylist()

    def ours() -> Any:
        sink = FrameSink(to_arrow_schema(schema, timezone=zone), zone, SparkSettings(safe=safe))
        sink.consume([pd.DataFrame({"c": values})])
        return sink.finish().column(0).to_pylist()

    assert outcome(ours) == outcome(theirs)


def test_columns_go_by_place_where_the_session_says_so() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    for by_name, expected in ((True, {"a": [2], "b": [1]}), (False, {"a": [1], "b": [2]})):
        sink = FrameSink(schema, "UTC", SparkSettings(by_name=by_name))
        sink.consume([pd.DataFrame({"b": [1], "a": [2]})])
        assert sink.finish().to_pydict() == expected


def test_a_row_is_taken_for_a_map_and_numpy_instants_for_datetimes() -> None:
    """As Spark's `Row.asDict(True)` and Arrow do."""
    schema = to_arrow_schema(parse_ddl("tags map<string,int>, times array<timestamp>"), timezone="UTC")
    sink = RowSink(schema)
    sink.consume([Row(tags=Row(x=1, y=None), times=np.array([NOON], "datetime64[us]"))])
    assert sink.finish().to_pylist() == [{"tags": [("x", 1), ("y", None)], "times": [AWARE]}]


# -- inputs ------------------------------------------------------------------------------------------------------------

INPUTS: list[tuple[str, Any]] = [
    ("int", 1),
    ("long", 2**60 + 1),
    ("short", 7),
    ("byte", 3),
    ("float", 0.1),
    ("boolean", True),
    ("string", "x"),
    ("date", NOON.date()),
    ("timestamp", AWARE),
    ("timestamp_ntz", NOON),
    ("decimal(10,2)", Decimal("1.25")),
    ("array<timestamp>", [AWARE, None]),
    ("array<map<string,timestamp>>", [[("k", AWARE)]]),
    ("map<date,struct<at:timestamp_ntz>>", [(NOON.date(), {"at": NOON})]),
    ("struct<f:float,b:binary,n:long>", {"f": 0.1, "b": b"x", "n": None}),
]


def shown(frame: pd.DataFrame) -> list[Any]:
    """Names, types and values; with what a column gives by place and as a list, in which scalars differ."""
    return [
        (
            name,
            str(kind),
            type(frame[name].iloc[0]).__name__,
            [(type(v).__name__, repr(v)) for v in frame[name].tolist()],
        )
        for name, kind in frame.dtypes.items()
    ]


@pytest.mark.parametrize("int_or_na", [False, True])
@pytest.mark.parametrize("zone", ["UTC", NEW_YORK])
@pytest.mark.parametrize(("kind", "value"), INPUTS, ids=str)
def test_a_frame_is_what_spark_makes_of_the_rows(kind: str, value: Any, zone: str, int_or_na: bool) -> None:
    schema = to_arrow_schema(parse_ddl(f"c {kind}"), timezone=zone)
    for values in ([value, None], [value, value], [None, None]):
        batch = pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema)
        theirs = ArrowBatchTransformer.to_pandas(batch, timezone=zone, prefer_int_ext_dtype=int_or_na)
        expected = pd.DataFrame(list(pd.concat(theirs, axis=1).itertuples(index=False)))
        assert shown(Frames(in_zone(batch, zone), [0, 2], zone, int_or_na)[0]) == shown(expected)


def test_columns_whose_names_are_no_identifiers_are_named_by_their_place() -> None:
    """Spark makes the frame of a key of named tuples."""
    names = ["a b", "class", "_x", "plain", "x.y"]
    batch = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(5)], names=names)
    (theirs,) = pd.concat(ArrowBatchTransformer.to_pandas(batch, timezone="UTC"), axis=1).itertuples(index=False)
    assert list(Frames(batch, [0, 1], "UTC")[0].columns) == list(theirs._fields) == ["_0", "_1", "_2", "plain", "_4"]
