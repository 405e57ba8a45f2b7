"""The numbers of variables over several definitions, and rows of old forms read with a later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from godwit.errors import HostUnavailable
from godwit.state.changes import CLEAR, PUT, Changes, latest
from godwit.state.codec import compile_codec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.layout import Layout, PastForm
from godwit.state.variables import Variable

KEYS = KeyCodec(pa.schema({"key": pa.string()}))
INT, LONG = pa.schema({"n": pa.int32()}), pa.schema({"n": pa.int64()})
NAMED = pa.schema({"name": pa.string(), "n": pa.int64()})
COUNT = Variable("count", "value", INT)
ITEMS = Variable("items", "list", INT)
SEEN = Variable("seen", "map", INT, pa.schema({"k": pa.string()}))
TTL = Variable("recent", "value", INT, ttl_ms=1_000)
FIRST = Layout.first((COUNT, ITEMS))
FORM = {"in_columns": False}


@pytest.fixture(params=[False, True], ids=["by-key", "in-columns"], autouse=True)
def in_columns(request: pytest.FixtureRequest) -> None:
    """Every test is run with both forms of a table in memory."""
    FORM["in_columns"] = request.param


def new_state(layout: Layout | Sequence[Variable]) -> KeyedState:
    return KeyedState(layout, KEYS, **FORM)


def wider(variable: Variable, schema: pa.Schema = LONG) -> Variable:
    return replace(variable, schema=schema)


def payload(schema: pa.Schema, *values: Any) -> bytes:
    return compile_codec(schema).encode(values)


def value(state: KeyedState, key: str, place: int = 0) -> tuple[Any, ...] | None:
    stored = state.value_get(place, (key,))
    return None if stored is None else compile_codec(state.variables[place].schema).decode(stored)


def exported(state: KeyedState, committed: bool = False) -> list[pa.RecordBatch]:
    return list(state.export(committed))


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_the_same_definition_has_the_same_numbers() -> None:
    assert FIRST.evolved((COUNT, ITEMS)) == FIRST


def test_variables_go_by_name_and_not_by_place() -> None:
    layout = FIRST.evolved((SEEN, ITEMS, COUNT))
    assert (layout.numbers, layout.past) == ((2, 1, 0), ())


def test_another_schema_is_another_number() -> None:
    layout = FIRST.evolved((wider(COUNT), ITEMS)).evolved((wider(COUNT, NAMED), ITEMS))
    assert layout.numbers == (3, 1)
    assert layout.past == (PastForm(0, COUNT, 2), PastForm(2, wider(COUNT), 3))
    assert layout.newest == {0: 3, 2: 3, 3: 3, 1: 1}
    assert layout.steps(0) == [0, 2, 3]


def test_another_ttl_is_the_same_form() -> None:
    layout = Layout.first((TTL,)).evolved((replace(TTL, ttl_ms=5),))
    assert (layout.numbers, layout.past) == ((0,), ())


def test_a_variable_that_is_not_declared_keeps_its_number_until_it_comes_back() -> None:
    without = FIRST.evolved((ITEMS,))
    assert (without.numbers, without.past) == ((1,), (PastForm(0, COUNT),))
    assert without.evolved((ITEMS, COUNT)).numbers == (1, 0)
    assert without.evolved((ITEMS, wider(COUNT))).past == (PastForm(0, COUNT, 2),)


def test_a_deleted_variable_never_gets_its_number_back() -> None:
    without = FIRST.evolved((ITEMS,), ["count", "nothing of this name"])
    assert without.past == (PastForm(0, COUNT, deleted=True),)
    again = without.evolved((ITEMS, Variable("count", "list", NAMED)))
    assert (again.numbers, again.past) == ((1, 2), without.past)
    assert 0 not in again.newest


def test_a_variable_may_be_deleted_and_declared_in_one_definition() -> None:
    anew = Variable("count", "map", INT, INT)
    assert FIRST.refusals((anew,), ["count"]) == []
    assert FIRST.evolved((anew, ITEMS), ["count"]).past == (PastForm(0, COUNT, deleted=True),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (COUNT, replace(COUNT, kind="list"), "it is a value state in the checkpoint and a list state now"),
        (
            SEEN,
            replace(SEEN, key_schema=pa.schema({"k": pa.int64()})),
            "the key of the map is (k string) in the checkpoint and (k int64) now",
        ),
        (COUNT, replace(COUNT, ttl_ms=5), "its TTL is none in the checkpoint and 5 ms now"),
        (TTL, replace(TTL, ttl_ms=None), "its TTL is 1000 ms in the checkpoint and none now"),
        (wider(COUNT), COUNT, "field 'n' is int64 in the checkpoint and int32 now"),
    ],
)
def test_what_is_refused_is_named(old: Variable, new: Variable, message: str) -> None:
    (refusal,) = Layout.first((old,)).refusals((new,))
    assert refusal.startswith(f"state variable {old.name!r}: {message}")


def test_a_layout_is_refused_on_the_form_of_a_variable_that_was_not_declared_for_a_while() -> None:
    assert Layout.first((wider(COUNT),)).evolved(()).refusals((COUNT,))


# -- rows ------------------------------------------------------------------------------------------------------------


def written() -> KeyedState:
    """Of every kind, and two batches: the second is not settled."""
    state = new_state((COUNT, ITEMS, SEEN, TTL))
    for n in (1, 2):
        state.value_put(0, ("a",), payload(INT, n))
        state.list_append(1, ("a",), [payload(INT, n)])
        state.map_put(2, ("a",), f"{n}".encode(), payload(INT, n))
        state.value_put(3, ("a",), payload(INT, n))
        state.timer_put(("a",), n)
        if n == 1:
            state.value_put(0, ("b",), payload(INT, 5))
        else:
            state.value_clear(0, ("b",))
        state.commit()
        if n == 1:
            state.settle()
    return state


WIDER = Layout.first((COUNT, ITEMS, SEEN, TTL)).evolved((wider(SEEN), wider(TTL), wider(ITEMS, NAMED), wider(COUNT)))


def test_state_in_memory_takes_the_later_form() -> None:
    state = written()
    before = (state.key_count, state.touched())
    state.redefine(WIDER)
    assert (state.key_count, state.touched()) == before
    assert value(state, "a", 3) == (2,)
    decode = compile_codec(NAMED).decode
    assert [decode(each) for each in state.list_get(2, ("a",))] == [(None, 1), (None, 2)]
    assert [sub for sub, _ in state.map_items(0, ("a",))] == [b"1", b"2"]
    assert value(state, "a", 1) == (2,), "an entry with a time to live keeps its stamp"
    state.now_ms = 1_000
    assert value(state, "a", 1) is None


def test_what_was_settled_takes_the_later_form_too() -> None:
    state = written()
    state.redefine(WIDER)
    state.stage_revert(state.touched())
    state.commit()
    assert (value(state, "a", 3), value(state, "b", 3)) == ((1,), (5,))
    assert len(state.list_get(2, ("a",))) == 1
    assert state.timer_list(("a",)) == [1]


def test_rows_of_old_forms_are_read_with_the_later_layout() -> None:
    before, after = written(), new_state(WIDER)
    for batch in exported(before):
        after.replay(batch)
    before.redefine(WIDER)
    assert exported(after) == exported(before)


def test_committed_rows_of_old_forms_are_read_with_the_later_layout() -> None:
    before, after = written(), new_state(WIDER)
    for batch in exported(before):
        after.replay(batch)
    after.settle()
    for batch in before.export_committed([("a",), ("b",)], 100, 10_000):
        after.amend(batch)
    before.redefine(WIDER)
    assert exported(after, committed=True) == exported(before, committed=True)


def test_rows_of_both_forms_may_be_mixed() -> None:
    layout = Layout.first((SEEN,)).evolved((wider(SEEN),))
    changes = Changes()
    changes.add(1, PUT, [("a",)], [b"x"], [payload(LONG, 1)])
    changes.add(0, PUT, [("a",), ("a",)], [b"y", b"z"], [payload(INT, 2), payload(INT, 3)])
    state = new_state(layout)
    state.replay(changes.to_batch(KEYS))
    assert [sub for sub, _ in state.map_items(0, ("a",))] == [b"x", b"y", b"z"], "in the order of the rows"


def test_a_clear_in_an_old_form_clears_the_variable() -> None:
    layout = Layout.first((COUNT,)).evolved((wider(COUNT),))
    state = new_state(layout)
    for number, op, values in ((1, PUT, [payload(LONG, 1)]), (0, CLEAR, None)):
        changes = Changes()
        changes.add(number, op, [("a",)], None, values)
        state.replay(changes.to_batch(KEYS))
    assert (value(state, "a"), state.key_count) == (None, 0)


def test_a_variable_that_is_not_declared_keeps_its_state_and_moves_with_its_key() -> None:
    state, target = written(), new_state(())
    hidden = state.layout.evolved((ITEMS,))
    state.redefine(hidden)
    target.redefine(hidden)
    for batch in state.export_keys([("a",)], 10, 1_000):
        target.replay(batch)
    target.redefine(hidden.evolved((ITEMS, COUNT)))
    assert value(target, "a", 1) == (2,)


def test_a_deleted_variable_is_gone_at_once_and_does_not_come_back() -> None:
    state = new_state((COUNT, ITEMS))
    state.value_put(0, ("only",), payload(INT, 1))
    state.list_append(1, ("a",), [payload(INT, 1)])
    state.commit()
    old = exported(state)
    deleted = state.layout.evolved((ITEMS,), ["count"])
    state.redefine(deleted)
    assert (list(state.keys()), state.key_count) == ([("a",)], 1)
    for batch in old:
        state.replay(batch)
    state.redefine(deleted.evolved((ITEMS, COUNT)))
    assert (value(state, "only", 1), state.key_count) == (None, 1)


def test_a_changed_ttl_counts_for_what_is_written_from_then_on() -> None:
    state = new_state((TTL,))
    state.value_put(0, ("old",), payload(INT, 1))
    state.commit()
    state.redefine(state.layout.evolved((replace(TTL, ttl_ms=10),)))
    state.value_put(0, ("new",), payload(INT, 1))
    state.commit()
    state.now_ms = 500
    assert (value(state, "old"), value(state, "new")) == ((1,), None)


def test_a_field_that_was_removed_and_is_added_again_is_null() -> None:
    state = new_state((wider(COUNT, NAMED),))
    state.value_put(0, ("a",), payload(NAMED, "x", 1))
    state.commit()
    rows = exported(state)
    layout = state.layout.evolved((wider(COUNT),)).evolved((wider(COUNT, NAMED),))
    state.redefine(layout)
    assert value(state, "a") == (None, 1)
    later = new_state(layout)
    later.replay(rows[0])
    assert value(later, "a") == (None, 1), "whether it was converted at each definition or at once"


def test_rows_of_a_definition_that_this_process_does_not_have_are_refused() -> None:
    ahead = new_state(WIDER)
    ahead.value_put(3, ("a",), payload(LONG, 1))
    ahead.commit()
    for behind in (WIDER.past[0].variable, wider(COUNT, NAMED)):
        state = new_state(Layout.first((COUNT,)).evolved((behind,)))
        for take in (state.replay, state.amend):
            with pytest.raises(HostUnavailable, match="a later definition"):
                take(exported(ahead)[0])


def test_spilled_state_takes_the_later_form(tmp_path: Any) -> None:
    state = KeyedState((wider(COUNT, pa.schema({"text": pa.string()})),), KEYS, tmp_path, 200_000)
    for n in range(3_000):
        state.value_put(0, (f"k{n}",), payload(pa.schema({"text": pa.string()}), "x" * 100 + str(n)))
        if n % 100 == 0:
            state.commit()
            state.settle()
    state.commit()
    state.settle()
    state.redefine(state.layout.evolved((wider(COUNT, pa.schema({"n": pa.int32(), "text": pa.string()})),)))
    assert state.key_count == 3_000
    for n in range(3_000):
        assert value(state, f"k{n}") == (None, "x" * 100 + str(n))


def test_compaction_keeps_the_newest_row_of_all_forms_where_the_first_stood() -> None:
    changes = Changes()
    changes.add(0, PUT, [("a",), ("a",)], [b"x", b"y"], [b"1", b"2"])
    changes.add(1, PUT, [("a",)], [b"x"], [b"3"])
    table = pa.Table.from_batches([changes.to_batch(KEYS)])
    rows = latest(table, ["key"], newest={0: 1}).select(["var", "sub", "value"]).to_pylist()
    assert rows == [{"var": 1, "sub": b"x", "value": b"3"}, {"var": 0, "sub": b"y", "value": b"2"}]


def test_compaction_takes_a_removal_for_all_forms() -> None:
    changes = Changes()
    changes.add(0, PUT, [("a",), ("b",)], None, [b"1", b"2"])
    changes.add(1, CLEAR, [("a",)])
    table = pa.Table.from_batches([changes.to_batch(KEYS)])
    assert latest(table, ["key"], newest={0: 1}).column("key").to_pylist() == ["b"]
    assert latest(table, ["key"], keep_removals=True, newest={0: 1}).column("op").to_pylist() == [CLEAR, PUT]
