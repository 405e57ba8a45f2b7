"""Keys as a user has them, and the routing hash that Spark gives the same key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from godwit.errors import DefinitionError
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.change.chosen_units import groups_of, hashes_of
from godwit.spark.change.move_options import CheckedOptions, checked_options
from godwit.state.keys import KeyCodec


def spec(null_keys: Any = "error", tz: str = "UTC", **columns: pa.DataType) -> OperatorSpec:
    return OperatorSpec("speed", "P", "row", pa.schema(columns), pa.schema({}), (), null_keys=null_keys, tz=tz)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (pa.string(), "C1"),
        (pa.int64(), 7),
        (pa.int32(), 7.0),
        (pa.float64(), 7),
        (pa.float64(), -0.0),
        (pa.bool_(), True),
        (pa.binary(), b"x"),
        (pa.date32(), dt.date(2024, 5, 1)),
        (pa.decimal128(10, 2), Decimal("1.50")),
        (pa.timestamp("us"), dt.datetime(2024, 5, 1, 12)),
    ],
)
def test_a_key_has_the_hash_of_its_column(kind: pa.DataType, key: Any) -> None:
    codec = KeyCodec(pa.schema({"k": kind}))
    (stored,) = codec.from_arrow([pa.array([key], kind)])
    assert hashes_of(spec(k=kind), [key]) == {codec.route_hash(stored)}


def test_a_naive_time_is_of_the_sessions_zone() -> None:
    kind = pa.timestamp("us", "UTC")
    there = hashes_of(spec(tz="Asia/Tokyo", at=kind), [dt.datetime(2024, 5, 1, 9)])
    assert there == hashes_of(spec(at=kind), [dt.datetime(2024, 5, 1, 0)])


def test_a_key_of_several_columns_is_a_tuple() -> None:
    two = spec(car=pa.string(), lane=pa.int32())
    assert len(hashes_of(two, [("C1", 1), ("C1", 2), ("C1", 1)])) == 2
    with pytest.raises(DefinitionError, match=r"has 1 values, and the key columns of 'speed' are \(car, lane\).*tuple"):
        hashes_of(two, ["C1"])


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (pa.string(), 1),
        (pa.string(), b"C1"),
        (pa.binary(), "x"),
        (pa.int64(), "1"),
        (pa.int64(), 1.5),
        (pa.int64(), True),
        (pa.int8(), 300),
        (pa.date32(), "yesterday"),
        (pa.string(), None),
    ],
)
def test_a_key_of_another_type_is_refused(kind: pa.DataType, key: Any) -> None:
    with pytest.raises(DefinitionError, match="cannot be a value of key column 'k'"):
        hashes_of(spec(k=kind), [key])


def test_a_null_key_is_a_key_where_the_operator_has_a_bucket_for_it() -> None:
    assert len(hashes_of(spec(null_keys="bucket", k=pa.string()), [None])) == 1


@pytest.mark.parametrize("groups", [[-1], [8], [True], ["1"], [1.0], 3, [], None])
def test_what_is_no_group_is_refused(groups: Any) -> None:
    with pytest.raises(DefinitionError, match="group"):
        groups_of(groups, 8)


def test_groups_may_be_a_range() -> None:
    assert groups_of(range(3), 8) == {0, 1, 2}


def test_history_has_only_what_was_asked_for() -> None:
    assert checked_options({}).for_history() == {"protocol": "live", "order": "batched"}
    asked = checked_options({"protocol": "pause", "gap_ms": 5, "source": "backup"})
    assert asked.for_history() == {"protocol": "pause", "order": "batched", "gap_ms": 5, "source": "backup"}
    assert CheckedOptions().for_host() == {"gap_ms": 0.0, "source": "live", "check": False}
