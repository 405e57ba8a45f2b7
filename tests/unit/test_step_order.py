"""The order of a migration: how a move is cut into steps, which moves run at once, and which requests may."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.control.migration_report import MoveProgress, progress, stall, totals
from godwit.control.moves import Move, groups_in, record, recorded, spans
from godwit.control.reservations import Reservation
from godwit.control.step_order import ORDERS, STEP_UNITS, STEP_UNITS_SMALL, matching, rounds, step_units, steps
from godwit.model.units import Unit, Units

SOME = Units(frozenset(range(10)), frozenset((-7, 99)))


def move(origin: str, target: str, *groups: int, operator: str = "speed") -> Move:
    return Move(operator, origin, target, Units(frozenset(groups or (0,))))


def test_sudden_is_one_step_with_everything() -> None:
    assert steps("sudden", SOME, 3) == [SOME]


def test_fluid_is_one_unit_per_step() -> None:
    assert [len(step) for step in steps("fluid", SOME, 5)] == [1] * 12


def test_batched_steps_have_the_size_asked_for() -> None:
    assert [len(step) for step in steps("batched", SOME, 5)] == [5, 5, 2]


def test_hot_first_sends_the_hottest_units_first() -> None:
    rates = {Unit("group", 7): 5.0, Unit("key", 99): 9.0, Unit("group", 2): 7.0}
    first, second, *_ = steps("hot-first", SOME, 2, rates)
    assert first == Units.of(Unit("key", 99), Unit("group", 2))
    assert Unit("group", 7) in second


@given(
    st.sampled_from(sorted(ORDERS)),
    st.frozensets(st.integers(0, 50)),
    st.frozensets(st.integers(-99, 99)),
    st.integers(1, 9),
)
def test_steps_of_every_order_are_all_units_each_once(
    order: str, groups: frozenset[int], keys: frozenset[int], size: int
) -> None:
    units = Units(groups, keys)
    made = steps(order, units, size)
    assert sum(map(len, made)) == len(units)
    assert all(made)
    together = Units()
    for step in made:
        together |= step
    assert together == units


@pytest.mark.parametrize(
    ("order", "protocol", "asked", "wanted"),
    [
        ("batched", "live", None, STEP_UNITS),
        ("batched", "pause", None, STEP_UNITS),
        ("batched", "push", None, STEP_UNITS_SMALL),
        ("batched", "fetch", None, STEP_UNITS_SMALL),
        ("by-backlog", "pause", None, STEP_UNITS_SMALL),
        ("batched", "push", 17, 17),
    ],
)
def test_size_of_steps_follows_the_protocol_unless_it_is_given(
    order: str, protocol: str, asked: int | None, wanted: int
) -> None:
    assert step_units(order, protocol, asked) == wanted


PAIRS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")), unique=True, max_size=12)


@given(PAIRS)
def test_no_host_is_twice_on_one_side_of_a_batched_round_and_no_move_is_left_out(pairs: list[tuple[str, str]]) -> None:
    moves = [move(origin, target) for origin, target in pairs]
    made = rounds("batched", moves)
    for together in made:
        assert len({one.origin for one in together}) == len(together) == len({one.target for one in together})
    assert sorted((one.origin, one.target) for together in made for one in together) == sorted(pairs)


@given(PAIRS)
def test_a_round_has_as_many_moves_as_possible(pairs: list[tuple[str, str]]) -> None:
    moves = [move(origin, target) for origin, target in pairs]
    assert len(matching(moves)) == _most(pairs)


def _most(pairs: list[tuple[str, str]]) -> int:
    for size in range(min(4, len(pairs)), 0, -1):
        for some in combinations(pairs, size):
            if len({a for a, _ in some}) == len({b for _, b in some}) == size:
                return size
    return 0


def test_two_moves_of_one_pair_run_one_after_the_other() -> None:
    assert [len(together) for together in rounds("batched", [move("a", "b"), move("a", "b", operator="other")])] == [
        1,
        1,
    ]


def test_sudden_runs_all_moves_at_once_and_fluid_one_by_one() -> None:
    moves = [move("a", "b"), move("a", "c"), move("d", "b")]
    assert rounds("sudden", moves) == [moves]
    assert rounds("fluid", moves) == [[one] for one in moves]


# -- what may go on at the same time ---------------------------------------------------------------------------------


def test_requests_for_other_groups_go_on_at_the_same_time() -> None:
    assert not Reservation.of([move("a", "b", 1, 2)]).conflict(Reservation.of([move("a", "b", 3)]), 16)


def test_requests_of_other_operators_go_on_at_the_same_time() -> None:
    assert not Reservation.of([move("a", "b", 1)]).conflict(Reservation.of([move("a", "b", 1, operator="other")]), 16)


def test_a_key_is_not_moved_apart_from_its_group_while_the_group_moves() -> None:
    key = Reservation.of([Move("speed", "a", "b", Units(keys=frozenset((19,))))])
    assert "some of the same keys of 'speed'" in key.conflict(Reservation.of([move("a", "c", 3)]), 16)
    assert not key.conflict(Reservation.of([move("a", "c", 4)]), 16)


def test_only_one_request_at_a_time_changes_the_roster() -> None:
    joining = Reservation.of([move("a", "b", 1)], roster=True)
    assert "join or leave" in joining.conflict(Reservation.of([move("a", "b", 2)], roster=True), 16)
    assert not joining.conflict(Reservation.of([move("a", "b", 2)]), 16)


def test_a_host_that_leaves_is_given_nothing() -> None:
    leaving = Reservation.of([move("b", "a", 1)], leaving=["b"], roster=True)
    coming = Reservation.of([move("c", "b", 2)])
    assert leaving.conflict(coming, 16) == coming.conflict(leaving, 16) != ""


# -- how a move is told ----------------------------------------------------------------------------------------------


@given(st.frozensets(st.integers(0, 60)))
def test_groups_can_be_read_back_from_their_spans(groups: frozenset[int]) -> None:
    assert groups_in(spans(groups)) == groups


def test_spans_are_short() -> None:
    assert spans([3, 1, 2, 9, 0, 7, 8]) == "0-3, 7-9"


def test_a_move_can_be_read_back_from_its_record() -> None:
    one = Move("speed", "a", "b", SOME)
    assert recorded(record(one)) == one


def test_stall_counts_rows_not_waits() -> None:
    found = stall([[1.0, 98], [50.0, 1], [7.0, 1]])
    over_all = {"rows": 100, "p50_ms": 1.0, "p99_ms": 7.0, "max_ms": 50.0}
    assert found == {**over_all, "rows_waited": 100, "waited_p50_ms": 1.0, "waited_p99_ms": 7.0}
    assert not any(stall([]).values())


def test_stall_counts_rows_that_did_not_wait_too() -> None:
    found = stall([[8.0, 10], [20.0, 1]], at_once=989)
    assert (found["rows"], found["p50_ms"], found["p99_ms"], found["max_ms"]) == (1000, 0.0, 8.0, 20.0)
    assert (found["rows_waited"], found["waited_p50_ms"], found["waited_p99_ms"]) == (11, 8.0, 20.0)


def answer(keys: int, moved: list[int], phase: str, wait_ms: float) -> dict[str, object]:
    return {
        "keys": keys,
        "keys_total": 10,
        "bytes": keys * 100,
        "moved": [["group", group, 2] for group in moved],
        "phases": [["copying", 0.0], [phase, 4.0]],
        "waits": [[wait_ms, 2]],
    }


def test_a_second_try_adds_to_what_the_first_has_moved() -> None:
    tracked = MoveProgress(move("a", "b", 1, 2, 3))
    tracked.take_report(answer(4, [1], "lost", 3.0))
    tracked.take_report(answer(5, [1], "lost", 3.0))
    tracked.try_ended()
    tracked.take_report(answer(2, [2], "following", 5.0))
    seen = progress([tracked], "running")
    assert (seen["units"], seen["units_moved"], seen["keys"], seen["bytes"]) == (3, 2, 7, 700)
    assert seen["moves"][0]["phase"] == "following"
    account = totals([tracked])
    assert account["groups_moved"] == 2
    told = account["stall"]
    assert (told["rows"], told["p50_ms"], told["p99_ms"], told["max_ms"]) == (4, 3.0, 5.0, 5.0)
