"""Change rows: what a batch of them holds, and which of them still matter."""

from decimal import Decimal

import pyarrow as pa
import pytest

from godwit.errors import StateTooLarge
from godwit.state import changes as changes_module
from godwit.state.changes import (
    CLEAR,
    PUT,
    REMOVE,
    Changes,
    changes_schema,
    latest,
    position_sub,
    timer_ms,
    timer_sub,
)
from godwit.state.keys import KeyCodec

CODEC = KeyCodec(pa.schema([("k", pa.string())]))


def table_of(*rows, codec=CODEC):
    """Rows of (key, var, op, sub, value)."""
    made = Changes()
    for key, var, op, sub, value in rows:
        key = key if isinstance(key, tuple) else (key,)
        made.add(var, op, [key], None if sub is None else [sub], None if value is None else [value])
    return pa.Table.from_batches([made.to_batch(codec)])


def rows_of(table):
    return list(zip(*[column.to_pylist() for column in table.columns], strict=True))


def kept(*rows, **options):
    return rows_of(latest(table_of(*rows), ["k"], **options))


def test_a_batch_holds_the_blocks_in_order():
    made = Changes()
    made.add(0, PUT, [("a",), ("b",)], None, [b"1", b""])
    made.add(1, CLEAR, [("a",)])
    made.add(1, PUT, [("a",)], [b"s"], [b"v"])
    made.add(-1, REMOVE, [("b",)], [b"t"])
    made.add(2, PUT, [], [], [])
    batch = made.to_batch(CODEC)
    assert batch.schema == changes_schema(CODEC)
    assert rows_of(pa.Table.from_batches([batch])) == [
        ("a", 0, PUT, None, b"1"),
        ("b", 0, PUT, None, b""),
        ("a", 1, CLEAR, None, None),
        ("a", 1, PUT, b"s", b"v"),
        ("b", -1, REMOVE, b"t", None),
    ]
    batch.validate(full=True)
    assert len(made) == 5


def test_no_changes_make_an_empty_batch():
    batch = Changes().to_batch(CODEC)
    assert (batch.num_rows, batch.schema) == (0, changes_schema(CODEC))


def test_a_batch_survives_serialisation_without_its_schema():
    made = Changes()
    made.add(0, PUT, [("a",)], None, [b"1"])
    batch = made.to_batch(CODEC)
    assert pa.ipc.read_record_batch(batch.serialize(), changes_schema(CODEC)).equals(batch)


@pytest.mark.parametrize("count", [1, 1_000])
def test_values_of_any_number_and_length_are_in_the_batch(count):
    values = [bytes([i % 256]) * (i % 7) for i in range(count)]
    made = Changes()
    made.add(0, PUT, [(f"k{i}",) for i in range(count)], values, values[::-1])
    batch = made.to_batch(CODEC)
    batch.validate(full=True)
    assert batch.column(3).to_pylist() == values
    assert batch.column(4).to_pylist() == values[::-1]


@pytest.mark.parametrize("blocks", [[[b"123456"]], [[b"123"], [b"456"]], [[b"", b"1"] * 500]])
def test_more_bytes_than_an_arrow_column_holds_are_refused(monkeypatch, blocks):
    monkeypatch.setattr(changes_module, "_BATCH_BYTES_MAX", 5)
    made = Changes()
    for values in blocks:
        made.add(0, PUT, [("a",)] * len(values), None, values)
    with pytest.raises(StateTooLarge):
        made.to_batch(CODEC)


def test_subs_sort_as_what_they_stand_for():
    times = [-(2**63), -5, 0, 7, 2**63 - 1]
    assert [timer_ms(timer_sub(t)) for t in times] == times
    assert sorted(map(timer_sub, reversed(times))) == [timer_sub(t) for t in times]
    assert sorted(map(position_sub, [300, 2, 1])) == [position_sub(p) for p in (1, 2, 300)]


def test_latest_keeps_the_last_put_of_each_key_and_variable():
    assert kept(
        ("a", 0, PUT, None, b"1"),
        ("b", 0, PUT, None, b"2"),
        ("a", 1, PUT, None, b"3"),
        ("a", 0, PUT, None, b"4"),
    ) == [("a", 0, PUT, None, b"4"), ("b", 0, PUT, None, b"2"), ("a", 1, PUT, None, b"3")]


def test_latest_drops_what_was_removed_or_cleared_later():
    assert kept(
        ("a", 0, PUT, None, b"1"),
        ("a", 1, PUT, b"x", b"2"),
        ("a", 1, PUT, b"y", b"3"),
        ("a", 2, PUT, b"x", b"4"),
        ("b", 1, PUT, b"x", b"5"),
        ("a", 0, CLEAR, None, None),
        ("a", 1, REMOVE, b"x", None),
        ("a", 2, CLEAR, None, None),
        ("a", 2, PUT, b"z", b"6"),
    ) == [("a", 1, PUT, b"y", b"3"), ("b", 1, PUT, b"x", b"5"), ("a", 2, PUT, b"z", b"6")]


def test_latest_keeps_what_came_back_after_a_removal_where_it_came_back():
    assert kept(
        ("a", 1, PUT, b"x", b"1"),
        ("a", 1, PUT, b"y", b"2"),
        ("a", 1, PUT, b"x", b"3"),
        ("a", 1, PUT, b"z", b"4"),
        ("a", 1, REMOVE, b"y", None),
        ("a", 1, PUT, b"y", b"5"),
    ) == [("a", 1, PUT, b"x", b"3"), ("a", 1, PUT, b"z", b"4"), ("a", 1, PUT, b"y", b"5")]


def test_latest_keeps_removals_when_older_rows_may_lie_beneath():
    assert kept(
        ("a", 1, PUT, b"x", b"1"),
        ("a", 1, REMOVE, b"x", None),
        ("a", 1, REMOVE, b"y", None),
        ("a", 1, PUT, b"y", b"2"),
        ("a", 2, PUT, b"x", b"3"),
        ("a", 2, REMOVE, b"x", None),
        ("a", 2, CLEAR, None, None),
        ("a", 2, PUT, b"q", b"4"),
        ("b", 0, CLEAR, None, None),
        keep_removals=True,
    ) == [
        ("a", 2, CLEAR, None, None),
        ("b", 0, CLEAR, None, None),
        ("a", 1, REMOVE, b"x", None),
        ("a", 1, REMOVE, b"y", None),
        ("a", 1, PUT, b"y", b"2"),
        ("a", 2, PUT, b"q", b"4"),
    ]


def test_latest_tells_null_from_empty_and_takes_null_as_equal_to_null():
    assert kept(
        (None, 0, PUT, None, b"1"),
        ("", 0, PUT, None, b"2"),
        (None, 0, PUT, None, b"3"),
        ("", 0, PUT, b"", b"4"),
    ) == [(None, 0, PUT, None, b"3"), ("", 0, PUT, None, b"2"), ("", 0, PUT, b"", b"4")]


def test_latest_takes_keys_of_several_columns_named_like_its_own():
    codec = KeyCodec(pa.schema([("value", pa.int64()), ("op", pa.float64())]))
    nan = codec.from_arrow([pa.array([1]), pa.array([float("nan")])])[0]
    table = table_of(
        ((1, 2.0), 0, PUT, None, b"1"),
        (nan, 0, PUT, None, b"2"),
        ((1, 2.0), 0, PUT, None, b"3"),
        ((2, 1.0), 0, PUT, None, b"4"),
        (nan, 0, PUT, None, b"5"),
        codec=codec,
    )
    assert [row[-1] for row in rows_of(latest(table, ["value", "op"]))] == [b"3", b"5", b"4"]


@pytest.mark.parametrize(
    ("of_type", "one", "other"),
    [
        (pa.bool_(), True, False),
        (pa.int8(), 1, 2),
        (pa.int16(), 1, 2),
        (pa.int32(), 1, 2),
        (pa.int64(), 1, 2),
        (pa.float32(), 1.0, 2.0),
        (pa.binary(), b"", b"x"),
        (pa.decimal128(20, 2), Decimal("1.00"), Decimal("2.00")),
    ],
)
def test_latest_takes_keys_of_every_stored_type(of_type, one, other):
    codec = KeyCodec(pa.schema([("k", of_type)]))
    puts = [((key,), 0, PUT, None, value) for key, value in ((one, b"1"), (other, b"2"), (None, b"3"), (one, b"4"))]
    table = latest(table_of(*puts, codec=codec), ["k"])
    assert [(row[0], row[-1]) for row in rows_of(table)] == [(one, b"4"), (other, b"2"), (None, b"3")]


def test_latest_of_chunked_and_of_empty_tables():
    row = ("a", 0, PUT, None, b"1")
    table = pa.concat_tables(
        [table_of(row), table_of(("b", 0, PUT, None, b"2")), table_of(("a", 0, CLEAR, None, None))]
    )
    assert rows_of(latest(table, ["k"])) == [("b", 0, PUT, None, b"2")]
    assert latest(table.slice(0, 0), ["k"]).num_rows == 0
