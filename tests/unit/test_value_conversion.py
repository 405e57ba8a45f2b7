"""Which changes of a value's schema are allowed, how values come out, and what is said about the others."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from godwit.runtime.processor.state_columns import Packer
from godwit.state.codec import compile_codec
from godwit.state.value_conversion import conversion, obstacles

INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])


def schema(*fields: Any) -> pa.Schema:
    return pa.schema([field if isinstance(field, pa.Field) else pa.field(*field) for field in fields])


def converted(old: pa.Schema, new: pa.Schema, values: tuple[Any, ...]) -> tuple[Any, ...]:
    assert obstacles(old, new) == []
    return compile_codec(new, "Europe/Vienna").decode(
        conversion(old, new)(compile_codec(old, "Europe/Vienna").encode(values))
    )


ID = ("id", pa.int32())
NAME = ("name", pa.string())


@pytest.mark.parametrize(
    ("old", "new", "values", "after"),
    [
        pytest.param(schema(ID), schema(ID, ("n", pa.int64())), (1,), (1, None), id="a field is added"),
        pytest.param(schema(ID), schema(ID, NAME), (1,), (1, None), id="a field is added, and all is stored otherwise"),
        pytest.param(schema(ID, NAME), schema(ID), (1, "a"), (1,), id="a field is removed"),
        pytest.param(schema(ID, NAME), schema(NAME, ID), (1, "a"), ("a", 1), id="fields are moved"),
        pytest.param(schema(NAME), schema(("title", pa.string())), ("a",), (None,), id="a field is renamed"),
        pytest.param(schema(ID, NAME), schema(NAME, ID), (None, None), (None, None), id="nulls stay null"),
        pytest.param(schema(ID), schema(("id", pa.int64())), (-7,), (-7,), id="int to long"),
        pytest.param(schema(("id", pa.int8())), schema(("id", pa.int16())), (-7,), (-7,), id="byte to short"),
        pytest.param(schema(ID), schema(("id", pa.float32())), (16_777_217,), (16_777_216.0,), id="int to float"),
        pytest.param(schema(ID), schema(("id", pa.float64())), (16_777_217,), (16_777_217.0,), id="int to double"),
        pytest.param(schema(("a", pa.int64())), schema(("a", pa.float64())), (5,), (5.0,), id="long to double"),
        pytest.param(schema(("a", pa.float32())), schema(("a", pa.float64())), (0.5,), (0.5,), id="float to double"),
        pytest.param(
            schema(("a", pa.string())), schema(("a", pa.binary())), ("ä",), ("ä".encode(),), id="text to bytes"
        ),
        pytest.param(schema(("a", pa.null())), schema(("a", pa.date32())), (None,), (None,), id="null to anything"),
        pytest.param(
            schema(("a", pa.decimal128(10, 2))),
            schema(("a", pa.decimal128(30, 2))),
            (Decimal("-1.25"),),
            (Decimal("-1.25"),),
            id="a decimal with more digits",
        ),
        pytest.param(
            schema(("s", INNER)),
            schema(("s", pa.struct([("y", pa.string()), ("z", pa.int8()), ("x", pa.int64())]))),
            ((1, "a"),),
            (("a", None, 1),),
            id="inside a struct",
        ),
        pytest.param(
            schema(("s", pa.list_(INNER))),
            schema(("s", pa.list_(pa.struct([("x", pa.float64())])))),
            ([(1, "a"), None],),
            ([(1.0,), None],),
            id="inside an array",
        ),
        pytest.param(
            schema(("s", pa.map_(pa.string(), pa.int32()))),
            schema(("s", pa.map_(pa.string(), pa.int64()))),
            ({"a": 1, "b": None},),
            ({"a": 1, "b": None},),
            id="the values of a map",
        ),
        pytest.param(
            schema(pa.field("a", pa.int32(), nullable=False)),
            schema(("a", pa.int32())),
            (1,),
            (1,),
            id="may be null now",
        ),
    ],
)
def test_a_value_comes_out_as_avro_reads_it(
    old: pa.Schema, new: pa.Schema, values: tuple[Any, ...], after: tuple[Any, ...]
) -> None:
    assert converted(old, new, values) == after


def test_a_new_field_of_a_native_processor_is_zero() -> None:
    old, new = schema(ID), schema(("share", pa.float64()), ("id", pa.int64()))
    payload = conversion(old, new)(compile_codec(old).encode((7,)))
    columns = Packer(new).unpack([payload])
    assert (columns["share"].tolist(), columns["id"].tolist()) == ([0.0], [7])


def test_an_instant_within_the_hour_that_comes_twice_stays_that_instant() -> None:
    old, new = schema(("at", pa.timestamp("us", "UTC"))), schema(ID, ("at", pa.timestamp("us", "UTC")))
    second = dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC)  # 2:30 in Vienna, for the second time that night
    payload = compile_codec(old, "Europe/Vienna").encode((second,))
    unpacked = compile_codec(new).unpack(conversion(old, new)(payload))
    assert unpacked[1] == int(second.timestamp() * 1e6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            schema(("a", pa.int64())),
            schema(("a", pa.int32())),
            "field 'a' is int64 in the checkpoint and int32 now: values may not fit",
            id="long to int",
        ),
        pytest.param(
            schema(("a", pa.float64())),
            schema(("a", pa.float32())),
            "field 'a' is double in the checkpoint and float now: values may not fit",
            id="double to float",
        ),
        pytest.param(
            schema(("a", pa.int32())),
            schema(("a", pa.string())),
            "field 'a' is int32 in the checkpoint and string now: the one cannot be read as the other",
            id="a number to text",
        ),
        pytest.param(
            schema(("a", pa.binary())),
            schema(("a", pa.string())),
            "field 'a' is binary in the checkpoint and string now: values may not fit",
            id="bytes to text",
        ),
        pytest.param(
            schema(("a", pa.date32())),
            schema(("a", pa.int32())),
            "field 'a' is date32[day] in the checkpoint and int32 now: the one cannot be read as the other",
            id="a date to a number",
        ),
        pytest.param(
            schema(("a", pa.decimal128(10, 2))),
            schema(("a", pa.decimal128(10, 3))),
            "field 'a' is decimal128(10, 2) in the checkpoint and decimal128(10, 3) now: the one cannot be read as the other",
            id="a decimal of another scale",
        ),
        pytest.param(
            schema(ID),
            schema(ID, pa.field("n", pa.int64(), nullable=False)),
            "field 'n' is absent in the checkpoint and int64 not null now: state that exists has no value for it",
            id="a new field that must not be null",
        ),
        pytest.param(
            schema(ID),
            schema(pa.field("id", pa.int32(), nullable=False)),
            "field 'id' is int32 in the checkpoint and int32 not null now: it may be null in state that exists",
            id="a field that must not be null any more",
        ),
        pytest.param(
            schema(("s", pa.list_(INNER))),
            schema(("s", pa.list_(pa.struct([("x", pa.int8())])))),
            "field 's.element.x' is int32 in the checkpoint and int8 now: values may not fit",
            id="inside an array",
        ),
        pytest.param(
            schema(("s", pa.map_(pa.int32(), pa.int32()))),
            schema(("s", pa.map_(pa.int64(), pa.int32()))),
            "field 's.key' is int32 in the checkpoint and int64 now: the keys of a map cannot change",
            id="the keys of a map",
        ),
        pytest.param(
            schema(("s", INNER)),
            schema(("s", pa.int32())),
            "field 's' is struct<x: int32, y: string> in the checkpoint and int32 now: the one cannot be read as the other",
            id="a struct to a number",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(old: pa.Schema, new: pa.Schema, message: str) -> None:
    assert [str(obstacle) for obstacle in obstacles(old, new)] == [message]


def test_all_obstacles_are_named_at_once() -> None:
    old, new = schema(("a", pa.int64()), ("b", pa.string())), schema(("a", pa.int32()), ("b", pa.int32()))
    assert [obstacle.field for obstacle in obstacles(old, new)] == ["a", "b"]


def test_fields_of_the_same_name_cannot_be_matched() -> None:
    twice = schema(("a", pa.int32()), ("a", pa.int32()))
    assert obstacles(twice, twice) == []
    assert [obstacle.field for obstacle in obstacles(twice, schema(("a", pa.int32())))] == ["a"]
