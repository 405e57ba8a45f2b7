"""The codec: what goes in comes back as PySpark shows it, what does not fit is refused by name."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from godwit.errors import DefinitionError, StateTypeError
from godwit.state.codec import compile_codec

MOMENT = dt.datetime(2024, 3, 10, 7, 30, 15, 123456)
DAY = dt.date(1899, 12, 31)

ROUND_TRIPS = [
    (pa.bool_(), True),
    (pa.int8(), -128),
    (pa.int16(), 32767),
    (pa.int32(), -(2**31)),
    (pa.int64(), 2**63 - 1),
    (pa.float32(), 0.5),
    (pa.float64(), 0.1),
    (pa.float64(), -math.inf),
    (pa.date32(), DAY),
    (pa.timestamp("us", "UTC"), MOMENT),
    (pa.timestamp("us"), MOMENT),
    (pa.duration("us"), dt.timedelta(days=-1, microseconds=5)),
    (pa.string(), "grüße"),
    (pa.large_string(), ""),
    (pa.binary(), b"\x00\xff"),
    (pa.large_binary(), b""),
    (pa.decimal128(10, 2), Decimal("-12.50")),
    (pa.decimal128(38, 18), Decimal("12345678901234567890.123456789012345678")),
    (pa.decimal128(20, 0), Decimal("-99999999999999999999")),
    (pa.list_(pa.int64()), [1, None, 3]),
    (pa.list_(pa.date32()), [DAY, None]),
    (pa.list_(pa.list_(pa.string())), [["a"], [], None]),
    (pa.map_(pa.string(), pa.int64()), {"b": 1, "a": None}),
    (pa.map_(pa.date32(), pa.list_(pa.float64())), {DAY: [1.5]}),
    (pa.struct([("x", pa.int64()), ("y", pa.timestamp("us", "UTC"))]), (1, MOMENT)),
    (pa.map_(pa.struct([("x", pa.int64())]), pa.string()), {(1,): "one"}),
]


def codec_of(*types, **options):
    return compile_codec(pa.schema([(f"f{i}", t) for i, t in enumerate(types)]), **options)


@pytest.mark.parametrize(("of_type", "value"), ROUND_TRIPS)
def test_values_come_back(of_type, value):
    codec = codec_of(of_type)
    [back] = codec.decode(codec.encode((value,)))
    assert back == value
    assert str(back) == str(value)


@pytest.mark.parametrize(("of_type", "value"), ROUND_TRIPS)
def test_nulls_come_back_beside_values(of_type, value):
    codec = codec_of(of_type, of_type, pa.int64())
    assert codec.decode(codec.encode((None, value, 1))) == (None, value, 1)
    assert codec.decode(codec.encode((value, None, None))) == (value, None, None)


def test_nan_comes_back():
    for codec in (codec_of(pa.float64()), codec_of(pa.float64(), pa.string())):
        assert math.isnan(codec.decode(codec.encode((math.nan, "x")[: len(codec.schema)]))[0])


def test_a_float_field_rounds_to_single_precision_in_both_layouts():
    packed, other = codec_of(pa.float32()), codec_of(pa.float32(), pa.string())
    assert packed.decode(packed.encode((0.1,)))[0] == float(np.float32(0.1))
    assert other.decode(other.encode((0.1, "")))[0] == float(np.float32(0.1))


def test_decimals_take_the_declared_scale_rounding_half_up():
    codec = codec_of(pa.decimal128(4, 2))
    assert str(codec.decode(codec.encode((Decimal("1.005"),)))[0]) == "1.01"
    assert str(codec.decode(codec.encode((Decimal("-1.005"),)))[0]) == "-1.01"
    assert str(codec.decode(codec.encode((7,)))[0]) == "7.00"
    with pytest.raises(StateTypeError):
        codec.encode((Decimal("99.995"),))


@pytest.mark.parametrize("nulls", [0, 1, 0b1000_0000, 0b1_0000_0001])
def test_packed_bytes_can_be_viewed_as_a_numpy_array(nulls):
    types = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32()]
    types.append(pa.timestamp("us", "UTC"))
    codec = codec_of(*types)
    full = (True, 1, 2, 3, 4, 5.5, 6.5, dt.date(1970, 1, 8), dt.datetime(1970, 1, 1, 0, 0, 0, 8))
    values = tuple(None if nulls >> i & 1 else v for i, v in enumerate(full))
    payloads = [codec.encode(values)] * 3
    view = np.frombuffer(b"".join(payloads), codec.dtype)
    assert view.shape == (3,)
    assert int.from_bytes(view["_nulls"][2].tobytes(), "little") == nulls
    stored = (True, 1, 2, 3, 4, 5.5, 6.5, 7, 8)
    expected = [0 if nulls >> i & 1 else v for i, v in enumerate(stored)]
    assert [view[f"f{i}"][2] for i in range(9)] == expected


def test_a_view_written_by_numpy_decodes():
    codec = codec_of(pa.int64(), pa.float64())
    array = np.zeros(2, codec.dtype)
    array["f0"], array["f1"] = [1, 2], [0.5, 1.5]
    array["_nulls"][1] = 0b10
    size = codec.dtype.itemsize
    data = array.tobytes()
    assert codec.decode(data[:size]) == (1, 0.5)
    assert codec.decode(data[size:]) == (2, None)


def test_layout_is_a_null_bitmap_and_little_endian_fields():
    codec = codec_of(pa.int16(), pa.int8())
    assert codec.encode((258, None)) == b"\x02\x02\x01\x00"


def test_variable_width_has_no_numpy_view():
    assert codec_of(pa.int64(), pa.string()).dtype is None


def test_numpy_and_pandas_scalars_are_taken():
    codec = codec_of(
        pa.bool_(), pa.int32(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.list_(pa.int64())
    )
    given = (
        np.bool_(True),
        np.int16(5),
        np.float32(0.5),
        np.str_("x"),
        np.datetime64("1899-12-31"),
        pd.Timestamp(MOMENT),
        np.array([1, 2]),
    )
    back = codec.decode(codec.encode(given))
    assert back == (True, 5, 0.5, "x", DAY, MOMENT, [1, 2])
    assert [type(v) for v in back] == [bool, int, float, str, dt.date, dt.datetime, list]
    only = codec_of(pa.timestamp("us", "UTC"), pa.int64(), pa.duration("us"))
    nanos = (np.datetime64("2024-03-10T07:30:15.123456789"), np.int64(3), np.timedelta64(1, "s"))
    assert only.decode(only.encode(nanos)) == (MOMENT, 3, dt.timedelta(seconds=1))


def test_bytearray_comes_back_as_bytes():
    codec = codec_of(pa.binary())
    assert codec.decode(codec.encode((bytearray(b"ab"),))) == (b"ab",)


def test_aware_datetimes_become_naive_ones_of_the_session_time_zone():
    codec = codec_of(pa.timestamp("us", "UTC"), tz="Europe/Berlin")
    aware = dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC)
    assert codec.decode(codec.encode((aware,))) == (dt.datetime(2024, 7, 1, 12),)


def test_both_of_two_equal_clock_readings_come_back():
    codec = codec_of(pa.timestamp("us", "UTC"), tz="Europe/Berlin")
    first = dt.datetime(2024, 10, 27, 2, 30)
    second = first.replace(fold=1)
    assert codec.encode((first,)) != codec.encode((second,))
    assert [codec.decode(codec.encode((t,)))[0].fold for t in (first, second)] == [0, 1]


def test_nested_structs_go_by_position_and_name():
    codec = codec_of(pa.struct([("x", pa.int64()), ("inner", pa.struct([("y", pa.string())]))]))
    [back] = codec.decode(codec.encode(((1, ("a",)),)))
    assert back == (1, ("a",))
    assert (back.x, back["x"], back[0], back.inner.y) == (1, 1, 1, "a")
    with pytest.raises(AttributeError):
        _ = back.z
    assert codec.encode(({"x": 1, "inner": {"y": "a"}},)) == codec.encode(((1, ("a",)),))


def test_nested_structs_can_be_of_the_callers_row_type():
    def as_dict(names):
        return lambda values: dict(zip(names, values, strict=True))

    codec = codec_of(pa.struct([("x", pa.int64())]), make_struct=as_dict)
    assert codec.decode(codec.encode(((1,),))) == ({"x": 1},)


REFUSED = [
    (pa.int64(), 1.0, "float"),
    (pa.int64(), True, "bool"),
    (pa.int64(), 2**63, "int"),
    (pa.int8(), 128, "int"),
    (pa.int32(), -(2**31) - 1, "int"),
    (pa.int64(), "1", "str"),
    (pa.bool_(), 1, "int"),
    (pa.float64(), "x", "str"),
    (pa.float64(), True, "bool"),
    (pa.float64(), 10**400, "int"),
    (pa.float32(), 1e300, "float"),
    (pa.string(), b"x", "bytes"),
    (pa.string(), "\ud800", "str"),
    (pa.date32(), "2024-01-01", "str"),
    (pa.date32(), pd.NaT, "NaTType"),
    (pa.timestamp("us", "UTC"), DAY, "date"),
    (pa.timestamp("us", "UTC"), pd.NaT, "NaTType"),
    (pa.timestamp("us"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "datetime"),
    (pa.decimal128(4, 2), 1.5, "float"),
    (pa.decimal128(4, 2), Decimal("NaN"), "Decimal"),
    (pa.decimal128(4, 2), Decimal("1e999999"), "Decimal"),
    (pa.decimal128(4, 2), 100, "int"),
    (pa.duration("us"), 5, "int"),
    (pa.list_(pa.int64()), "ab", "str"),
    (pa.map_(pa.string(), pa.int64()), [1], "list"),
    (pa.struct([("x", pa.int64())]), (1, 2), "tuple"),
    (pa.struct([("x", pa.int64())]), {"z": 2}, "dict"),
    (pa.null(), 1, "int"),
]


@pytest.mark.feature(
    "state",
    "a value that does not fit the type of its field",
    spark="in many cases stored as null",
    godwit="refused (`GODWIT-STATE-TYPE`), with the field and both types",
)
@pytest.mark.parametrize(("of_type", "value", "got"), REFUSED)
@pytest.mark.parametrize("beside", [pa.int64(), pa.string()])
def test_what_does_not_fit_is_refused_with_field_and_types(of_type, value, got, beside):
    codec = codec_of(beside, of_type)
    with pytest.raises(StateTypeError, match="'f1'") as caught:
        codec.encode((None, value))
    assert caught.value.fields == {"field": "f1", "expected": str(of_type), "got": got}


@pytest.mark.parametrize(
    "of_type",
    [pa.int64(), pa.bool_(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.decimal128(4, 2), pa.list_(pa.int8())],
)
def test_nan_of_pandas_is_null_as_in_spark(of_type):
    codec = codec_of(of_type, pa.string())
    assert codec.decode(codec.encode((math.nan, "x"))) == (None, "x")
    required = compile_codec(pa.schema([pa.field("f0", of_type, nullable=False), pa.field("f1", pa.string())]))
    with pytest.raises(StateTypeError, match="'f0'"):
        required.encode((math.nan, "x"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (True, "true"),
        (Decimal("1.50"), "1.50"),
        (5.0, "5.0"),
        (0.001, "0.001"),
        (-1234567.5, "-1234567.5"),
        (1e7, "1.0E7"),
        (-1.25e-5, "-1.25E-5"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (np.int64(7), "7"),
    ],
)
def test_numbers_in_a_string_field_are_what_java_writes_as_in_spark(value, text):
    codec = codec_of(pa.string())
    assert codec.decode(codec.encode((value,))) == (text,)


def test_text_in_a_binary_field_is_utf_8_as_in_spark():
    codec = codec_of(pa.binary())
    assert codec.decode(codec.encode(("é",))) == ("é".encode(),)


class Named:
    def __init__(self) -> None:
        self.x, self.z = 1, "not a field"


def test_a_struct_is_taken_by_name_from_dicts_and_objects_as_in_spark():
    codec = codec_of(pa.struct([("x", pa.int64()), ("y", pa.string())]))
    for given in ({"x": 1}, {"x": 1, "y": None, "z": 3}, Named()):
        assert codec.decode(codec.encode((given,))) == ((1, None),)


def test_an_error_inside_a_nested_value_names_the_path():
    codec = codec_of(pa.list_(pa.struct([("x", pa.int64())])))
    with pytest.raises(StateTypeError) as caught:
        codec.encode(([(1,), ("a",)],))
    assert caught.value.fields["field"] == "f0.item.x"


@pytest.mark.parametrize("of_type", [pa.int64(), pa.string()])
def test_null_in_a_required_field_is_refused(of_type):
    codec = compile_codec(pa.schema([pa.field("a", of_type), pa.field("b", of_type, nullable=False)]))
    with pytest.raises(StateTypeError, match=r"'b' takes .*, not null"):
        codec.encode((None, None))


@pytest.mark.parametrize("of_type", [pa.int64(), pa.string()])
@pytest.mark.parametrize("values", [(), (None,), (None, None, None), {"a": 1, "b": 2}, "ab", None])
def test_wrong_arity_is_refused(of_type, values):
    with pytest.raises(StateTypeError, match="2 values"):
        codec_of(of_type, of_type).encode(values)


def test_an_encoder_works_on_after_a_refusal():
    codec = codec_of(pa.string(), pa.int64())
    with pytest.raises(StateTypeError):
        codec.encode(("x", "y"))
    assert codec.decode(codec.encode(("x", 1))) == ("x", 1)


@pytest.mark.parametrize("of_type", [pa.uint8(), pa.float16(), pa.time64("us"), pa.dictionary(pa.int8(), pa.string())])
def test_a_type_that_spark_does_not_have_is_refused_when_declared(of_type):
    with pytest.raises(DefinitionError, match="'f0'"):
        codec_of(of_type)
