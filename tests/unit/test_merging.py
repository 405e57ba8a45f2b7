"""Rows of a hot key become one: what may be declared, which rows are merged, and what comes of them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import DefinitionError, HostUnavailable
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.instance.instance import Instance
from godwit.runtime.messages import LaneOpened
from godwit.runtime.processor.merging import (
    BLOCK_ROWS,
    HOT_ROWS_MIN,
    Merge,
    Merging,
    check_event_time,
    checked_merge,
    pane_way,
)
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.router.route import Route
from godwit.runtime.router.router import merging_of
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.transport.wire import HASH, ROW
from godwit.windows import CountTumbling, EventSliding

INPUT = pa.schema([("key", pa.int64()), ("amount", pa.int64()), ("note", pa.string())])
BOTH: Merge = (("amount", "sum"), ("note", "last"))


# -- what is declared ------------------------------------------------------------------------------------------------


def test_declaration_is_put_in_the_order_of_the_input() -> None:
    assert checked_merge({"note": "last", "amount": "sum"}, INPUT, ["key"]) == BOTH
    assert checked_merge({}, INPUT, ["key"]) == (), "nothing is declared"


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"amount": "sum"}, "merge does not say what becomes of column 'note'"),
        ({"amount": "sum", "note": "last", "price": "sum"}, "column 'price' is not in the input"),
        ({"amount": "sum", "note": "last", "key": "last"}, "column 'key' is a key"),
        ({"amount": "mean", "note": "last"}, "column 'amount' by 'mean'"),
        ({"amount": ["sum"], "note": "last"}, "column 'amount' by \\['sum'\\]"),
        ({"amount": "sum", "note": "sum"}, "column 'note' is string, which has no sum"),
        (["amount", "note"], "merge is \\['amount', 'note'\\]"),
        (lambda: None, "merge is <function"),
    ],
)
def test_bad_declaration_is_refused(declared: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        checked_merge(declared, INPUT, ["key"])


@pytest.mark.parametrize("kind", [pa.bool_(), pa.timestamp("us"), pa.decimal128(38, 2), pa.binary(), pa.uint8()])
def test_type_that_cannot_be_summed_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(DefinitionError, match="has no sum"):
        checked_merge({"x": "sum"}, pa.schema([("key", pa.int64()), ("x", kind)]), ["key"])


def test_type_without_order_has_a_first_and_a_last_only() -> None:
    schema = pa.schema([("key", pa.int64()), ("x", pa.list_(pa.int64()))])
    with pytest.raises(DefinitionError, match="has no max"):
        checked_merge({"x": "max"}, schema, ["key"])
    assert checked_merge({"x": "first"}, schema, ["key"]) == (("x", "first"),)


def test_event_time_is_merged_by_min_or_max() -> None:
    for way in ("min", "max", pane_way(5, 0)):
        check_event_time((("at", way),), "at")
    check_event_time((("n", "sum"),), None)
    check_event_time((("at", pane_way(5, 0)),), "at", lateness_ms=10)
    with pytest.raises(
        DefinitionError, match="rows behind the watermark are not merged, and this processor takes them"
    ):
        check_event_time((("at", "max"),), "at", lateness_ms=10)
    with pytest.raises(DefinitionError, match="the event time 'at' by 'last'"):
        check_event_time((("at", "last"),), "at")


class Total(godwit.Processor):
    state = {"total": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("total", pa.int64())])
    merge = {"amount": "sum", "note": "last"}

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> None:
        np.add.at(state["total"], rows.codes, rows.batch.column("amount").to_numpy())


def test_processor_is_checked_when_it_is_bound() -> None:
    assert NativeAdapter(Total(), INPUT, ["key"]).merge == BOTH
    with pytest.raises(DefinitionError, match="'note' is not in the input"):
        NativeAdapter(Total(), INPUT.remove(2), ["key"])


TIMED = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us")), ("amount", pa.int64()), ("note", pa.string())])


def window_merge(aggregates: dict[str, Any], **options: Any) -> Merge:
    given = {"merge": True, "start_time": "1 second", **options}
    return NativeAdapter(EventSliding("4 seconds", "2 seconds", "at", aggregates, **given), TIMED, ["key"]).merge


def test_window_declares_its_merge_by_itself_if_asked() -> None:
    pane = ("at", "pane of 2000000 us from 1000000")
    assert window_merge({"total": ("sum", "amount")}) == (pane, ("amount", "sum"), ("note", "last"))
    assert window_merge({"high": ("max", "amount"), "top": ("max", "amount")})[1] == ("amount", "max")
    assert window_merge({"total": ("sum", "amount")}, merge=False) == ()


@pytest.mark.parametrize(
    ("aggregates", "said"),
    [
        ({"n": "count"}, "'n': count needs every row"),
        ({"mean": ("avg", "amount")}, "'mean': avg needs every row"),
        ({"all": ("collect", "note")}, "'all': collect needs every row"),
        ({"total": ("sum", "amount"), "high": ("max", "amount")}, "column 'amount' has a sum and a max"),
        ({"first": ("min", "at")}, "'at' is a key or the event time"),
        ({"keys": ("sum", "key")}, "'key' is a key or the event time"),
    ],
)
def test_window_of_which_every_row_counts_cannot_merge(aggregates: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        window_merge(aggregates)


def test_window_takes_no_declaration() -> None:
    class Counted(CountTumbling):
        merge = {"at": "max", "amount": "sum", "note": "last"}

    with pytest.raises(DefinitionError, match="a window does not take `merge`"):
        NativeAdapter(Counted(5, {"n": "count"}), TIMED, ["key"])


# -- which rows ------------------------------------------------------------------------------------------------------


def block(columns: Mapping[str, pa.Array[Any]], hashes: Sequence[int] | None = None) -> pa.RecordBatch:
    """Rows as a router has them, numbered from 100 on; the hash is the key unless given."""
    count = len(next(iter(columns.values())))
    numbers = pa.array(range(100, 100 + count), pa.int64())
    hashed = pa.array(hashes, pa.int64()) if hashes is not None else columns["key"]
    return pa.RecordBatch.from_arrays([*columns.values(), numbers, hashed], names=[*columns, ROW, HASH])


def merging(found: pa.RecordBatch, merge: Merge, **options: Any) -> Merging:
    return Merging(merge, found.schema, ["key"], **options)


def amounts(keys: Sequence[int], hashes: Sequence[int] | None = None) -> pa.RecordBatch:
    return block({"key": pa.array(keys, pa.int64()), "amount": pa.array(range(len(keys)), pa.int64())}, hashes)


SUM: Merge = (("amount", "sum"),)


def test_hot_key_becomes_one_row_where_its_last_one_was() -> None:
    keys = [7] * 100 + [1, 2] + [7] * 100 + [3]
    found = merging(amounts(keys), SUM).merged(amounts(keys))
    assert found.column("key").to_pylist() == [1, 2, 7, 3]
    assert found.column(ROW).to_pylist() == [200, 201, 301, 302], "others keep their numbers"
    assert found.column("amount").to_pylist() == [100, 101, sum(range(202)) - 201, 202]
    assert found.column(HASH).to_pylist() == [1, 2, 7, 3]


def test_few_rows_are_left_alone() -> None:
    few = amounts([7] * (HOT_ROWS_MIN - 1))
    assert merging(few, SUM).merged(few) is few
    assert len(merging(few, SUM).merged(amounts([7] * HOT_ROWS_MIN))) == 1


def test_key_must_have_its_part_of_the_block() -> None:
    cold = amounts([7] * 900 + list(range(1_000, 1_000 + BLOCK_ROWS - 900)))
    assert merging(cold, SUM).merged(cold) is cold
    warm = amounts([7] * 1_100 + list(range(1_000, 1_000 + BLOCK_ROWS - 1_100)))
    assert len(merging(warm, SUM).merged(warm)) == BLOCK_ROWS - 1_099


def test_keys_that_share_a_hash_are_told_apart() -> None:
    keys = [1, 2] * 100 + [3] * 10
    found = merging(amounts(keys), SUM).merged(amounts(keys, [5] * len(keys)))
    assert found.column("key").to_pylist() == [1, 2] + [3] * 10
    assert found.column("amount").to_pylist()[:2] == [sum(range(0, 200, 2)), sum(range(1, 200, 2))]


def test_null_keys_and_both_zeros_are_keys() -> None:
    keys = pa.array([0.0, -0.0] * 50 + [None] * 70, pa.float64())
    given = block({"key": keys, "amount": pa.array([1] * 170)}, [9] * 100 + [42] * 70)
    found = merging(given, SUM).merged(given)
    assert found.column("key").to_pylist() == [0.0, None]
    assert found.column("amount").to_pylist() == [100, 70]


def test_pane_is_of_a_time() -> None:
    with pytest.raises(DefinitionError, match="column 'amount' by 'pane of 5 us from 0'"):
        checked_merge({"amount": pane_way(5, 0)}, INPUT.remove(2), ["key"])


def test_rows_that_may_be_late_are_left_to_the_hosts() -> None:
    moments = [dt.datetime(2026, 1, 1, 0, 0, second % 60) for second in range(300)]
    times = pa.array([*moments[:-1], None], pa.timestamp("us"))
    given = block({"key": pa.array([7] * 300, pa.int64()), "at": times})
    late_us = int(moments[9].replace(tzinfo=dt.UTC).timestamp()) * 1_000_000
    found = merging(given, (("at", "max"),), event_time="at", late_us=late_us).merged(given)
    assert found.column("at").to_pylist() == [moments[second] for _ in range(5) for second in range(10)] + [moments[59]]
    assert len(merging(given, (("at", "max"),)).merged(given)) == 1


def test_rows_of_different_panes_stay_apart() -> None:
    moments = [dt.datetime(2026, 1, 1, 0, 0, at // 100, 10_000 * (at % 100)) for at in range(350)]
    times = pa.array([*moments, None], pa.timestamp("us"))
    given = block({"key": pa.array([7] * 351, pa.int64()), "at": times, "amount": pa.array([1] * 351)})
    found = merging(given, (("at", pane_way(1_000_000, 500_000)), ("amount", "sum"))).merged(given)
    assert found.column("amount").to_pylist() == [*[1] * 50, 100, 100, 100, 1], "fifty are too few to be merged"
    assert found.column("at").to_pylist()[50:] == [moments[149], moments[249], moments[349], None]


# -- what comes of them ----------------------------------------------------------------------------------------------


def one(values: pa.Array[Any], way: str) -> Any:
    given = block({"key": pa.array([7] * len(values), pa.int64()), "x": values})
    found = merging(given, (("x", way),)).merged(given)
    assert len(found) == 1
    assert found.column("x").type == values.type
    return found.column("x")[0].as_py()


@pytest.mark.parametrize(
    ("way", "kind", "values", "expected"),
    [
        ("sum", pa.int32(), [3, None, -5], -2),
        ("sum", pa.float64(), [0.5, None, 0.25], 0.75),
        ("sum", pa.decimal128(10, 2), [decimal.Decimal("1.25"), decimal.Decimal("2.50")], decimal.Decimal("3.75")),
        ("min", pa.int64(), [3, None, -5], -5),
        ("max", pa.string(), ["b", None, "a"], "b"),
        ("max", pa.date32(), [dt.date(2026, 1, 1), dt.date(2025, 1, 1)], dt.date(2026, 1, 1)),
        ("max", pa.bool_(), [False, True], True),
        ("first", pa.string(), [None, "b", "a", None], "b"),
        ("last", pa.list_(pa.int64()), [[1], [2, 3], None], [2, 3]),
        *((way, pa.int64(), [None, None], None) for way in ("sum", "min", "max", "first", "last")),
    ],
)
def test_nulls_are_skipped_and_types_stay(way: str, kind: pa.DataType, values: list[Any], expected: Any) -> None:
    filler = [None] * HOT_ROWS_MIN
    assert one(pa.array([*filler, *values, *filler], kind), way) == expected


def test_nan_is_larger_than_any_number() -> None:
    values = pa.array([1.0, math.nan, 2.0] * 50)
    assert one(values, "min") == 1.0
    assert math.isnan(one(values, "max"))
    assert math.isnan(one(values, "sum"))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int64(), 2**60), (pa.int64(), -(2**63)), (pa.int8(), 100), (pa.decimal128(4, 0), decimal.Decimal(9999))],
)
def test_rows_whose_sum_has_no_room_stay_as_they_are(kind: pa.DataType, value: Any) -> None:
    given = block({"key": pa.array([7] * 200 + [8] * 200), "x": pa.array([value] * 200 + [0] * 200, kind)})
    found = merging(given, (("x", "sum"),)).merged(given)
    assert found.column("key").to_pylist() == [7] * 200 + [8], "only those"
    assert found.column("x").to_pylist() == [value] * 200 + [0]


# -- a batch that was begun otherwise --------------------------------------------------------------------------------


def route(merge: Merge) -> Route:
    return Route("total", "/ck", Routing.spread(["a"], 4), pa.schema([]), ("key",), token="t", merge=merge)


def uses(merge: Merge, *begun: Merge) -> Merge:
    found = merging_of(route(merge), INPUT, [LaneOpened(0, 1, each) for each in begun])
    return () if found is None else found._merge


def test_batch_is_merged_as_it_was_begun() -> None:
    mine, other = (("amount", "sum"), ("note", "last")), (("amount", "max"), ("note", "last"))
    assert uses(BOTH, mine, mine) == BOTH
    assert uses(BOTH, mine, ()) == (), "one host began it before the merge was declared"
    assert uses((), mine) == BOTH, "and one after it was"
    assert uses(BOTH, other, mine) == other
    assert uses((), (), ()) == ()
    with pytest.raises(DefinitionError, match="'gone' is not in the input"):
        uses((), (("gone", "sum"),))


def test_without_a_host_that_tells_the_task_is_tried_again() -> None:
    with pytest.raises(HostUnavailable):
        uses(BOTH)
    assert uses(()) == ()


def instance(merge: Merge) -> Instance:
    adapter = NativeAdapter(Total(), INPUT, ["key"])
    key_schema = pa.schema([INPUT.field("key")])
    spec = OperatorSpec("total", "Total", "native", key_schema, adapter.output_schema, adapter.variables, merge=merge)
    codec = KeyCodec(key_schema)
    made = Instance("total", OperatorSpec.from_dict(spec.to_dict()), KeyedState(spec.variables, codec), codec)
    made.attach(made.spec, adapter)
    return made


def test_later_declaration_counts_from_the_next_batch_on_or_from_one_that_a_later_run_begins_anew() -> None:
    before = instance(())
    work = before.open(BatchRef("q", "run-1", 4), "0", 10, lambda *_: False)
    assert work.begun["merge"] == ()
    mark, _ = next(part for part in work.parts if part[0]["kind"] == "mark")

    after = instance(BOTH)  # the application has been changed, and starts again within the batch
    after.recovery.mark(mark)
    assert after.open(BatchRef("q", "run-1", 4), "0", 20, lambda *_: False).begun["merge"] == ()
    assert after.open(BatchRef("q", "run-2", 4), "0", 20, lambda *_: False).begun["merge"] == BOTH
    assert after.open(BatchRef("q", "run-2", 5), "0", 30, lambda *_: False).begun["merge"] == BOTH


def test_mark_of_before_there_were_merges_can_be_read() -> None:
    mark, _ = instance(()).mark_part()
    del mark["merge"]
    recovered = instance(BOTH)
    recovered.recovery.mark(mark)
    assert recovered.batch.merge == ()
    old = {name: value for name, value in recovered.spec.to_dict().items() if name != "merge"}
    assert OperatorSpec.from_dict(old).merge == ()
