"""Keys: one stored form per key, and the hash that Spark SQL gives for the same columns."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from godwit.errors import DefinitionError
from godwit.state.keys import KeyCodec

INSTANT = dt.datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=dt.UTC)
NTZ = INSTANT.replace(tzinfo=None)
EARLY = dt.datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
LEAP_DAY = dt.date(2024, 2, 29)

# type, value, what Spark 4.3 gave for `SELECT xxhash64(value)`
SPARK_HASHES = [
    (pa.bool_(), True, -6698625589789238999),
    (pa.bool_(), False, 3614696996920510707),
    (pa.int8(), 7, 2786828215451145335),
    (pa.int8(), -7, 4987848727247274714),
    (pa.int16(), -300, 2895908635257747121),
    (pa.int32(), 123456, 8591465006815244696),
    (pa.int32(), -1, 2017008487422258757),
    (pa.int64(), 1234567890123, 1687537368341330389),
    (pa.int64(), -5, -5259934538394028452),
    (pa.float32(), 1.5, 6163473420726370430),
    (pa.float32(), math.nan, 2692338816207849720),
    (pa.float32(), -0.0, 3614696996920510707),
    (pa.float64(), 2.25, 8187679590067029592),
    (pa.float64(), math.nan, -3127944061524951246),
    (pa.float64(), -0.0, -5252525462095825812),
    (pa.float64(), -math.inf, 5326262080505358431),
    (pa.string(), "", -7444071767201028348),
    (pa.string(), "C1", -3220996657417140566),
    (pa.string(), "grüße, 世界", -1070575045355343386),
    (pa.large_string(), "long " * 20, -2064815394012927498),
    (pa.binary(), b"", -7444071767201028348),
    (pa.large_binary(), b"\x00\xff\x10", 5415089035989094387),
    (pa.date32(), LEAP_DAY, 4183429117450946631),
    (pa.date32(), dt.date(1960, 1, 1), 5231712984053086986),
    (pa.timestamp("us", "UTC"), INSTANT, -2021281541725647388),
    (pa.timestamp("us", "UTC"), EARLY, -3441894432473594826),
    (pa.timestamp("us"), NTZ, -2021281541725647388),
    (pa.decimal128(10, 2), Decimal("12.50"), 4753477431033244826),
    (pa.decimal128(10, 2), Decimal("-99999999.99"), 8762893120686426508),
    (pa.decimal128(20, 2), Decimal("123456789012345678.01"), 7233436217236126022),
    (pa.decimal128(20, 2), Decimal("-123456789012345678.01"), 5336379847475711762),
    (pa.decimal128(38, 10), Decimal("1.00"), -2853959725596059730),
    (pa.decimal128(20, 2), Decimal("0"), -8959994473701255385),
    (pa.decimal128(20, 2), Decimal("-1.28"), -7898411661632158123),
    (pa.string(), None, 42),
]

SPARK_HASHES_OF_SEVERAL = [
    ([pa.string(), pa.int64()], ["C1", 7], -3424294030912668497),
    ([pa.int32(), pa.string(), pa.string()], [7, None, "x"], -1052246709330219950),
    (
        [pa.date32(), pa.bool_(), pa.decimal128(10, 2), pa.float64()],
        [LEAP_DAY, True, Decimal("12.50"), 2.25],
        1077428287653332721,
    ),
]


def codec_of(*types, tz="UTC"):
    return KeyCodec(pa.schema([(f"k{i}", t) for i, t in enumerate(types)]), tz)


def keys_of(codec, *columns):
    return codec.from_arrow([pa.array(c, t) for c, t in zip(columns, codec.schema.types, strict=True)])


PAIR = pa.struct([("p", pa.int32()), ("q", pa.string())])
NESTED = [
    (PAIR, {"p": 1, "q": "u"}, -2982923577485250818),
    (PAIR, {"p": None, "q": "v"}, -3076866515258309417),
    (PAIR, None, 42),
    (pa.list_(pa.int32()), [1, None, 3], -3383274367486667931),
    (pa.list_(pa.int32()), [], 42),
    (pa.list_(pa.float64()), [-0.0, math.nan], -6976326727811668321),
    (pa.list_(PAIR), [{"p": 1, "q": "u"}, None], -2982923577485250818),
    (
        pa.struct(
            [("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("m", pa.decimal128(10, 2)), ("b", pa.binary())]
        ),
        {"d": LEAP_DAY, "t": INSTANT, "m": Decimal("12.50"), "b": b"\x00"},
        -8569923861071522012,
    ),
]


@pytest.mark.parametrize(("of_type", "value", "expected"), [*SPARK_HASHES, *NESTED])
def test_route_hash_is_that_of_spark(of_type, value, expected):
    codec = codec_of(of_type)
    [key] = keys_of(codec, [value])
    assert codec.route_hash(key) == expected


@pytest.mark.parametrize(("types", "values", "expected"), SPARK_HASHES_OF_SEVERAL)
def test_route_hash_of_several_columns_is_that_of_spark(types, values, expected):
    codec = codec_of(*types)
    [key] = keys_of(codec, *[[v] for v in values])
    assert codec.route_hash(key) == expected


def test_each_type_has_one_stored_form():
    types = [
        pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.large_string(),
        pa.large_binary(),
        pa.int8(),
        pa.decimal128(9, 2),
    ]
    codec = codec_of(*types)
    stored = [pa.int64(), pa.int32(), pa.string(), pa.binary(), pa.int8(), pa.decimal128(9, 2)]
    assert codec.stored_schema.types == stored
    assert codec.stored_schema.names == ["k0", "k1", "k2", "k3", "k4", "k5"]
    [key] = keys_of(codec, [INSTANT], [LEAP_DAY], ["x"], [b"y"], [3], [Decimal("1.50")])
    assert key == (1709210096789012, 19782, "x", b"y", 3, Decimal("1.50"))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_become_microseconds(unit):
    codec = codec_of(pa.timestamp(unit, "UTC"))
    assert keys_of(codec, [dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)]) == [(2_000_000,)]


@pytest.mark.parametrize("of_type", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("with_null", [False, True])
def test_nans_are_one_key_and_so_are_zeros(of_type, with_null):
    codec = codec_of(of_type)
    rows = [math.nan, -math.nan, -0.0, 0.0, 1.5] + [None] * with_null
    keys = keys_of(codec, rows) + keys_of(codec, rows)
    assert len(set(keys)) == 3 + with_null
    assert math.copysign(1, keys[2][0]) == 1.0


def test_null_is_a_key_of_its_own():
    codec = codec_of(pa.string(), pa.int64())
    assert keys_of(codec, [None, ""], [0, None]) == [(None, 0), ("", None)]


@pytest.mark.parametrize(("of_type", "value", "expected"), [*SPARK_HASHES, *NESTED])
def test_keys_come_back_from_arrow_and_from_bytes(of_type, value, expected):
    codec = codec_of(of_type, pa.int64())
    keys = keys_of(codec, [value], [1])
    columns = codec.to_arrow(keys)
    assert [c.type for c in columns] == codec.stored_schema.types
    assert codec.from_arrow(columns) == keys
    assert [codec.unpack(codec.pack(key)) for key in keys] == keys
    assert [str(codec.unpack(codec.pack(key))) for key in keys] == [str(key) for key in keys]


@pytest.mark.parametrize(("of_type", "value", "_"), [case for case in NESTED if case[1] != [-0.0, math.nan]])
def test_structs_and_arrays_are_shown_as_arrow_gives_them(of_type, value, _):
    codec = codec_of(of_type)
    [key] = keys_of(codec, [value])
    assert codec.public(key) == (value,)
    assert [column.to_pylist() for column in codec.shown_columns([key])] == [[value]]


def test_equal_structs_and_arrays_are_one_key():
    codec = codec_of(pa.list_(pa.float64()), PAIR)
    pair = {"p": 1, "q": None}
    one, other, third = keys_of(codec, [[0.0, math.nan], [-0.0, -math.nan], [0.0]], [pair] * 3)
    assert one == other != third


def test_no_keys_make_empty_columns():
    codec = codec_of(pa.string(), pa.int64())
    columns = codec.to_arrow([])
    assert [(len(c), c.type) for c in columns] == [(0, pa.string()), (0, pa.int64())]
    assert codec.from_arrow(columns) == []


def test_packed_form_tells_text_from_bytes_and_columns_from_each_other():
    text, raw, two = codec_of(pa.string()), codec_of(pa.binary()), codec_of(pa.string(), pa.string())
    assert text.pack(("a",)) != raw.pack((b"a",))
    assert two.pack(("a", "b")) != two.pack(("ab", ""))


def test_public_form_is_what_pyspark_shows():
    codec = codec_of(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.string())
    [key, nothing] = keys_of(codec, [INSTANT, None], [NTZ, None], [LEAP_DAY, None], ["x", None])
    assert codec.public(key) == (NTZ, NTZ, LEAP_DAY, "x")
    assert codec.public(nothing) == (None, None, None, None)


def test_public_form_is_in_the_session_time_zone_unless_the_type_has_none():
    codec = codec_of(pa.timestamp("us", "UTC"), pa.timestamp("us"), tz="America/New_York")
    [key] = keys_of(codec, [INSTANT], [NTZ])
    assert codec.public(key) == (dt.datetime(2024, 2, 29, 7, 34, 56, 789012), NTZ)


NO_KEYS = [pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.int64())), pa.uint8(), pa.float16()]


@pytest.mark.parametrize("of_type", NO_KEYS)
def test_a_type_without_equality_in_spark_is_refused(of_type):
    with pytest.raises(DefinitionError, match=r"'k0(\.item)?' of type .* cannot be part of a key"):
        codec_of(of_type)


def test_a_key_without_columns_is_refused():
    with pytest.raises(DefinitionError):
        codec_of()
