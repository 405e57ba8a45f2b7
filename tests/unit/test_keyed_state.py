"""Keyed state: what is staged, merged, rolled back, undone, due, expired and counted, and the rows each leaves."""

import pyarrow as pa
import pytest

from godwit.errors import InvariantBroken
from godwit.state.changes import CLEAR, PUT, REMOVE, TIMERS, position_sub, timer_sub
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.variables import Variable

CODEC = KeyCodec(pa.schema([("k", pa.string())]))
SCHEMA = pa.schema([("x", pa.int64())])
VALUE, LIST, MAP, SECOND = range(4)
A, B, C = ("a",), ("b",), ("c",)


def new_state(ttl_ms=None):
    return KeyedState(
        [
            Variable("v", "value", SCHEMA, ttl_ms=ttl_ms),
            Variable("l", "list", SCHEMA, ttl_ms=ttl_ms),
            Variable("m", "map", SCHEMA, SCHEMA, ttl_ms=ttl_ms),
            Variable("w", "value", SCHEMA),
        ],
        CODEC,
    )


@pytest.fixture
def state():
    return new_state()


@pytest.fixture
def brief():
    made = new_state(ttl_ms=100)
    made.now_ms = 1_000
    return made


def rows(changes):
    batch = changes.to_batch(CODEC)
    return list(zip(*[column.to_pylist() for column in batch.columns], strict=True))


def exported(state, committed):
    """Rows of an export as (key, var, sub, value), sorted."""
    batches = [pa.Table.from_batches([b]) for b in state.export(committed)]
    found = [
        (k, var, sub, v) for b in batches for k, var, _, sub, v in zip(*[c.to_pylist() for c in b.columns], strict=True)
    ]
    return sorted(found, key=lambda row: (row[0], row[1], row[2] or b""))


def test_a_stage_is_seen_at_once_and_dropped_by_rollback(state):
    state.value_put(VALUE, A, b"1")
    state.list_append(LIST, A, [b"x"])
    state.map_put(MAP, A, b"p", b"2")
    state.timer_put(A, 5)
    assert state.value_get(VALUE, A) == b"1"
    assert state.list_get(LIST, A) == [b"x"]
    assert state.map_get(MAP, A, b"p") == b"2"
    assert state.timer_list(A) == [5]
    assert (state.key_count, state.contains(A)) == (0, False)
    state.rollback()
    assert state.value_get(VALUE, A) is None
    assert state.list_get(LIST, A) == []
    assert state.map_exists(MAP, A) is False
    assert state.timer_list(A) == []
    assert rows(state.commit()) == []


def test_commit_of_values_says_what_was_put_and_cleared(state):
    state.value_put_many(VALUE, [A, B], [b"1", b"2"])
    assert rows(state.commit()) == [("a", VALUE, PUT, None, b"1"), ("b", VALUE, PUT, None, b"2")]
    state.value_clear(VALUE, A)
    state.value_clear(VALUE, C)
    state.value_put(VALUE, B, b"3")
    assert rows(state.commit()) == [("a", VALUE, CLEAR, None, None), ("b", VALUE, PUT, None, b"3")]
    assert state.value_get_many(VALUE, [A, B, C]) == [None, b"3", None]


def test_reading_many_values_sees_the_stage_over_the_base(state):
    state.value_put_many(VALUE, [A, B], [b"1", b"2"])
    state.commit()
    state.value_put(VALUE, B, b"3")
    state.value_clear(VALUE, A)
    assert state.value_get_many(VALUE, [C, B, A, B]) == [None, b"3", None, b"3"]


def test_putting_many_wants_a_payload_for_every_key(state):
    with pytest.raises(ValueError, match="shorter"):
        state.value_put_many(VALUE, [A, B], [b"1"])


def test_an_append_leaves_only_the_appended_rows(state):
    state.list_put(LIST, A, [b"x", b"y"])
    assert rows(state.commit()) == [
        ("a", LIST, PUT, position_sub(0), b"x"),
        ("a", LIST, PUT, position_sub(1), b"y"),
    ]
    state.list_append(LIST, A, [b"z"])
    assert rows(state.commit()) == [("a", LIST, PUT, position_sub(2), b"z")]
    assert state.list_get(LIST, A) == [b"x", b"y", b"z"]


def test_a_replaced_list_is_cleared_first(state):
    state.list_put(LIST, A, [b"x", b"y"])
    state.commit()
    state.list_put(LIST, A, [b"z"])
    state.list_append(LIST, A, [b"w"])
    assert rows(state.commit()) == [
        ("a", LIST, CLEAR, None, None),
        ("a", LIST, PUT, position_sub(0), b"z"),
        ("a", LIST, PUT, position_sub(1), b"w"),
    ]


def test_a_list_read_or_given_is_not_the_one_kept(state):
    given = [b"x"]
    state.list_put(LIST, A, given)
    given.append(b"not kept")
    state.list_get(LIST, A).append(b"not kept")
    state.commit()
    state.list_get(LIST, A).append(b"not kept")
    assert state.list_get(LIST, A) == [b"x"]


def test_map_changes_are_rows_of_their_entries(state):
    for sub in (b"p", b"q", b"r"):
        state.map_put(MAP, A, sub, b"1")
    state.commit()
    state.map_put(MAP, A, b"q", b"2")
    state.map_remove(MAP, A, b"p")
    state.map_remove(MAP, A, b"never there")
    state.map_put(MAP, A, b"s", b"3")
    assert list(state.map_items(MAP, A)) == [(b"q", b"2"), (b"r", b"1"), (b"s", b"3")]
    assert rows(state.commit()) == [
        ("a", MAP, REMOVE, b"p", None),
        ("a", MAP, PUT, b"q", b"2"),
        ("a", MAP, PUT, b"s", b"3"),
    ]
    assert list(state.map_items(MAP, A)) == [(b"q", b"2"), (b"r", b"1"), (b"s", b"3")]


def test_a_map_entry_that_comes_back_comes_last_here_and_after_replay(state):
    for sub in (b"p", b"q"):
        state.map_put(MAP, A, sub, b"1")
    log = [state.commit()]
    state.map_remove(MAP, A, b"p")
    state.map_put(MAP, A, b"p", b"2")
    log.append(state.commit())
    other = new_state()
    for changes in log:
        other.replay(changes.to_batch(CODEC))
    assert list(state.map_items(MAP, A)) == list(other.map_items(MAP, A)) == [(b"q", b"1"), (b"p", b"2")]


def test_a_map_may_be_changed_while_it_is_read(state):
    for sub in (b"p", b"q", b"r"):
        state.map_put(MAP, A, sub, b"1")
    for sub, _ in state.map_items(MAP, A):
        state.map_remove(MAP, A, sub)
    assert not state.map_exists(MAP, A)


def test_a_map_cleared_and_filled_again_holds_only_the_new(state):
    state.map_put(MAP, A, b"p", b"1")
    state.commit()
    state.map_clear(MAP, A)
    state.map_put(MAP, A, b"q", b"2")
    assert state.map_get(MAP, A, b"p") is None
    assert rows(state.commit()) == [("a", MAP, CLEAR, None, None), ("a", MAP, PUT, b"q", b"2")]


def test_timers_are_sorted_and_changed_by_row(state):
    for at_ms in (30, 10, 20, 10):
        state.timer_put(A, at_ms)
    assert state.timer_list(A) == [10, 20, 30]
    state.commit()
    state.timer_remove(A, 20)
    state.timer_remove(A, 999)
    state.timer_put(A, 10)
    state.timer_put(A, 5)
    assert rows(state.commit()) == [("a", TIMERS, REMOVE, timer_sub(20), None), ("a", TIMERS, PUT, timer_sub(5), None)]
    assert state.timer_list(A) == [5, 10, 30]


def test_due_timers_come_by_time_then_packed_key_until_removed(state):
    for key, at_ms in ((B, 10), (A, 10), (C, 5), (A, 11)):
        state.timer_put(key, at_ms)
    assert (state.due(100), state.next_timer_ms()) == ([], None)
    state.commit()
    assert state.due(4) == []
    assert state.due(10) == state.due(10) == [(5, C), (10, A), (10, B)]
    state.timer_remove(C, 5)
    state.timer_remove(A, 10)
    state.commit()
    assert state.due(10) == [(10, B)]
    assert state.next_timer_ms() == 10


def test_a_timer_removed_and_set_again_is_due_once(state):
    for _ in range(3):
        state.timer_put(A, 10)
        state.commit()
        state.timer_remove(A, 10)
        state.commit()
    assert (state.due(10), state.next_timer_ms()) == ([], None)
    state.timer_put(A, 10)
    state.commit()
    assert (state.due(10), state.next_timer_ms()) == ([(10, A)], 10)


def test_a_timer_moved_again_and_again_does_not_pile_up(state):
    for at_ms in range(1, 10_000):
        state.timer_put(A, at_ms)
        state.timer_remove(A, at_ms - 1)
        state.commit()
    assert state._timers._deadlines.count < 2_000
    assert state.due(10**9) == [(9_999, A)]


def test_a_committed_export_shows_the_last_settled_state(state):
    state.value_put(VALUE, A, b"1")
    state.list_put(LIST, A, [b"x"])
    state.map_put(MAP, A, b"p", b"1")
    state.map_put(MAP, A, b"s", b"1")
    state.timer_put(A, 10)
    state.commit()
    assert exported(state, committed=True) == []
    state.settle()
    settled = exported(state, committed=False)
    assert exported(state, committed=True) == settled
    for payload in (b"2", b"3"):
        state.value_put(VALUE, A, payload)
        state.value_put(VALUE, B, payload)
        state.list_append(LIST, A, [payload])
        state.map_put(MAP, A, b"p", payload)
        state.map_put(MAP, A, b"q", payload)
        state.timer_put(A, 20)
        state.timer_remove(A, 10)
        state.commit()
    state.list_clear(LIST, A)
    state.map_clear(MAP, A)
    state.commit()
    for payload in (b"newer", b"new"):
        state.list_put(LIST, A, [payload])
        state.map_put(MAP, A, b"p", payload)
        state.map_put(MAP, A, b"s", payload)
        state.commit()
    assert exported(state, committed=True) == settled
    assert exported(state, committed=False) == [
        ("a", TIMERS, timer_sub(20), None),
        ("a", VALUE, None, b"3"),
        ("a", LIST, position_sub(0), b"new"),
        ("a", MAP, b"p", b"new"),
        ("a", MAP, b"s", b"new"),
        ("b", VALUE, None, b"3"),
    ]
    state.settle()
    assert exported(state, committed=True) == exported(state, committed=False)


def test_a_committed_export_stays_the_same_however_often_and_much_is_changed(state):
    state.value_put(VALUE, A, b"settled")
    state.commit()
    state.settle()
    for i in range(10_100):  # enough for the changes to be sorted out on the way
        state.value_put(VALUE, A, b"%d" % i)
        state.commit()
    for payload in (b"1", b"2"):
        assert exported(state, committed=True) == [("a", VALUE, None, b"settled")]
        state.value_put(VALUE, A, payload)
        state.commit()
    assert state.value_get(VALUE, A) == b"2"


def test_drop_leaves_nothing_and_says_so(state):
    for key in (A, B):
        state.value_put(VALUE, key, b"1")
        state.list_put(LIST, key, [b"x"])
        state.map_put(MAP, key, b"p", b"1")
        state.timer_put(key, 10)
    state.commit()
    dropped = rows(state.drop([A, C]))
    assert sorted(dropped, key=lambda row: row[1]) == [
        ("a", TIMERS, REMOVE, timer_sub(10), None),
        ("a", VALUE, CLEAR, None, None),
        ("a", LIST, CLEAR, None, None),
        ("a", MAP, CLEAR, None, None),
    ]
    assert (list(state.keys()), state.key_count, state.due(10)) == ([B], 1, [(10, B)])


@pytest.mark.parametrize("call", [lambda s: s.drop([A]), lambda s: s.replay(s.drop([]).to_batch(CODEC))])
def test_drop_and_replay_want_no_stage(state, call):
    state.value_put(VALUE, A, b"1")
    with pytest.raises(InvariantBroken):
        call(state)


def test_a_key_counts_once_however_much_it_has(state):
    state.value_put(VALUE, A, b"1")
    state.value_put(SECOND, A, b"1")
    state.timer_put(A, 1)
    state.timer_put(B, 1)
    state.commit()
    assert (state.key_count, sorted(state.keys())) == (2, [A, B])
    state.value_clear(VALUE, A)
    state.timer_remove(B, 1)
    state.commit()
    assert (state.key_count, sorted(state.keys())) == (1, [A])
    state.value_clear(SECOND, A)
    state.timer_remove(A, 1)
    state.commit()
    assert (state.key_count, list(state.keys()), state.bytes_estimate) == (0, [], 0)


def test_the_estimate_of_bytes_comes_back_to_zero(state):
    for i in range(5):
        state.value_put(VALUE, A, b"x" * i * 100)
        state.list_append(LIST, A, [b"x" * 100])
        state.map_put(MAP, A, b"%d" % (i % 2), b"x" * i)
        state.commit()
    assert state.bytes_estimate > 500
    state.drop([A])
    assert state.bytes_estimate == 0


def test_brief_entries_are_read_until_their_time_is_over(brief):
    brief.value_put_many(VALUE, [A], [b"1"])
    brief.list_append(LIST, A, [b"x"])
    brief.map_put(MAP, A, b"p", b"2")
    brief.commit()
    brief.now_ms = 1_050
    brief.list_append(LIST, A, [b"y"])
    brief.map_put(MAP, A, b"q", b"3")
    brief.commit()
    brief.now_ms = 1_099
    assert brief.value_get(VALUE, A) == b"1"
    assert brief.list_get(LIST, A) == [b"x", b"y"]
    assert list(brief.map_items(MAP, A)) == [(b"p", b"2"), (b"q", b"3")]
    brief.now_ms = 1_100
    assert brief.value_get(VALUE, A) is None
    assert brief.value_get_many(VALUE, [A, B]) == [None, None]
    assert brief.list_get(LIST, A) == [b"y"]
    assert brief.map_get(MAP, A, b"p") is None
    assert list(brief.map_items(MAP, A)) == [(b"q", b"3")]
    brief.now_ms = 1_150
    assert not brief.map_exists(MAP, A)


def test_an_entry_put_again_after_its_time_comes_last(brief):
    brief.map_put(MAP, A, b"p", b"1")
    brief.commit()
    brief.now_ms = 1_050
    brief.map_put(MAP, A, b"q", b"2")
    brief.commit()
    brief.now_ms = 1_100
    brief.map_put(MAP, A, b"p", b"3")
    assert list(brief.map_items(MAP, A)) == [(b"q", b"2"), (b"p", b"3")]
    brief.commit()
    assert list(brief.map_items(MAP, A)) == [(b"q", b"2"), (b"p", b"3")]


def test_expiry_removes_what_is_over_and_keeps_what_was_written_since(brief):
    brief.value_put_many(VALUE, [A, B], [b"1", b"2"])
    brief.value_put(SECOND, A, b"lasts")
    brief.commit()
    brief.now_ms = 1_060
    brief.value_put(VALUE, B, b"3")
    brief.commit()
    brief.now_ms = 1_100
    brief.expire_ttl(1_100)
    assert rows(brief.commit()) == [("a", VALUE, CLEAR, None, None)]
    brief.expire_ttl(1_160)
    assert rows(brief.commit()) == [("b", VALUE, CLEAR, None, None)]
    assert list(brief.keys()) == [A]


def test_expiry_that_is_rolled_back_happens_again(brief):
    brief.value_put(VALUE, A, b"1")
    brief.map_put(MAP, A, b"p", b"1")
    brief.list_put(LIST, A, [b"1"])
    brief.commit()
    brief.expire_ttl(1_100)
    brief.rollback()
    assert brief.key_count == 1
    brief.expire_ttl(1_100)
    assert len(brief.commit()) == 3
    assert brief.key_count == 0


def test_expiry_survives_a_replay(brief):
    brief.value_put(VALUE, A, b"1")
    brief.map_put(MAP, A, b"p", b"1")
    brief.list_put(LIST, A, [b"1"])
    batch = brief.commit().to_batch(CODEC)
    other = new_state(ttl_ms=100)
    other.replay(batch)
    other.expire_ttl(1_099)
    assert len(other.commit()) == 0
    other.expire_ttl(1_100)
    other.commit()
    assert other.key_count == 0


def test_a_long_list_is_not_rewritten_for_every_element_that_expires(brief):
    for step in range(200):
        brief.now_ms = 1_000 + step
        brief.list_append(LIST, A, [b"x"])
        brief.commit()
    rewritten = 0
    for now_ms in range(1_000 + 200, 1_000 + 300):
        brief.now_ms = now_ms
        brief.expire_ttl(now_ms)
        rewritten += len(brief.commit())
        assert len(brief.list_get(LIST, A)) == 1_299 - now_ms
        assert sum(batch.num_rows for batch in brief.export(False)) <= 2 * (1_299 - now_ms)
    assert rewritten < 400


def test_a_value_written_over_and_over_is_watched_once(brief):
    for _ in range(1_000):
        brief.value_put(VALUE, A, b"1")
        brief.commit()
    assert brief._values[VALUE]._expiry._deadlines.count == 1


def test_replay_takes_rows_of_several_variables_and_splits_of_a_batch(state):
    state.value_put_many(VALUE, [A, B], [b"1", b"2"])
    state.list_put(LIST, B, [b"x", b"y"])
    state.map_put(MAP, A, b"p", b"3")
    state.timer_put(A, 10)
    first = state.commit().to_batch(CODEC)
    state.value_clear(VALUE, A)
    state.list_append(LIST, B, [b"z"])
    state.timer_remove(A, 10)
    second = state.commit().to_batch(CODEC)
    other = new_state()
    for batch in (first.slice(0, 1), first.slice(1, 2), first.slice(3), second):
        other.replay(batch)
    assert exported(other, False) == exported(state, False)
    assert other.key_count == state.key_count == 2
    assert other.bytes_estimate == state.bytes_estimate


def test_an_exported_state_is_cut_into_batches(state):
    state.value_put_many(VALUE, [(f"k{i}",) for i in range(10)], [b"x"] * 10)
    state.commit()
    assert [batch.num_rows for batch in state.export(False, rows_max=4)] == [4, 4, 2]


def test_variables_added_later_are_used_like_the_first(state):
    state.redefine(state.layout.evolved((*state.variables, Variable("late", "map", SCHEMA, SCHEMA))))
    state.map_put(4, A, b"p", b"1")
    assert rows(state.commit()) == [("a", 4, PUT, b"p", b"1")]
    assert state.key_count == 1


def test_a_variable_comes_back_from_json():
    import json

    variable = Variable("m", "map", SCHEMA, pa.schema([pa.field("k", pa.string(), nullable=False)]), ttl_ms=5)
    assert Variable.from_json(json.loads(json.dumps(variable.to_json()))) == variable
    plain = Variable("v", "value", SCHEMA)
    assert Variable.from_json(json.loads(json.dumps(plain.to_json()))) == plain
