"""How many rows are sent at once."""

from __future__ import annotations

from godwit.runtime.router.pace import ROWS_MIN, TARGET_S, Pace


def test_nothing_is_cut_as_long_as_nothing_is_known() -> None:
    assert Pace("a", {}).rows_max() is None


def test_as_many_as_are_applied_in_a_moment() -> None:
    pace = Pace("a", {})
    pace.answered(50_000, sent_s=10.0, now_s=10.5)
    assert pace.rows_max() == 100_000 * TARGET_S


def test_slow_rows_are_sent_in_small_chunks_but_not_one_by_one() -> None:
    pace = Pace("a", {})
    pace.answered(1_000, sent_s=10.0, now_s=12.0)
    assert pace.rows_max() == ROWS_MIN


def test_rows_that_were_sent_early_wait_for_those_before_them() -> None:
    pace = Pace("a", {})
    pace.answered(10_000, sent_s=10.0, now_s=11.0)
    pace.answered(10_000, sent_s=10.0, now_s=12.0)
    assert pace.rows_max() == 10_000 * TARGET_S


def test_what_was_learnt_is_known_to_the_next_task_of_the_operator() -> None:
    known: dict[str, float] = {}
    Pace("a", known).answered(50_000, sent_s=10.0, now_s=10.5)
    assert Pace("a", known).rows_max() == 100_000 * TARGET_S
    assert Pace("b", known).rows_max() is None
