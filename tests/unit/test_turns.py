"""Copying works in slices by time, gives way to rows, and pauses as long as rows have to wait; and it always goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from godwit import ports
from godwit.runtime.pacing.chunks_inside import ChunksInside
from godwit.runtime.pacing.turns import (
    GIVE_WAY_S,
    ITEMS_MAX,
    ITEMS_MIN,
    PAUSE_MAX_S,
    SHARE_MAX,
    SHARE_MIN,
    SLICE_S,
    UNDER_WAY_MAX,
    Breaths,
    SliceTime,
    Turns,
)


class Clock(ports.Machine):
    """A machine whose time goes on only while a thread sleeps, and on which every sleeper wakes up so much late."""

    def __init__(self) -> None:
        super().__init__()
        self.time_s = 0.0
        self.work_s = 0.0
        self.late_s = 0.0
        self.slept_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def worked_s(self) -> float:
        return self.work_s

    def work(self, seconds: float) -> None:
        self.work_s += seconds
        self.time_s += seconds

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.time_s += seconds + self.late_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with ports.use(clock):
        yield clock


def slices(
    turns: Turns, clock: Clock, chunks: ChunksInside, count: int, rows: bool = True, took_s: float = SLICE_S
) -> float:
    """So many slices, with rows between them; returns the share of the time in which the thread worked."""
    began_s = clock.time_s
    for _ in range(count):
        with turns.working():
            clock.work(took_s)
        if rows:
            chunks.enter()
            chunks.leave()
        turns.wait()
    return count * took_s / (clock.time_s - began_s)


def test_without_rows_copying_does_not_pause(clock: Clock) -> None:
    chunks = ChunksInside()
    assert slices(Turns(chunks), clock, chunks, 20, rows=False) == pytest.approx(1)
    assert clock.slept_s == 0


def test_copying_leaves_half_of_the_time_to_rows_that_do_not_wait(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    slices(turns, clock, chunks, 50)
    assert slices(turns, clock, chunks, 50) == pytest.approx(SHARE_MAX)


def test_copying_becomes_slow_while_threads_wake_up_late_and_fast_again_after_that(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    clock.late_s = 0.004
    slices(turns, clock, chunks, 20)
    slow = slices(turns, clock, chunks, 20)
    assert SHARE_MIN / 2 < slow <= SHARE_MIN
    clock.late_s = 0.0
    slices(turns, clock, chunks, 50)
    assert slices(turns, clock, chunks, 20) == pytest.approx(SHARE_MAX)


def test_no_pause_is_longer_than_its_limit(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    slices(turns, clock, chunks, 1, took_s=1.0)
    assert clock.slept_s == pytest.approx(PAUSE_MAX_S)


def test_a_slice_has_as_many_keys_as_fit_its_time(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)

    def after(seconds_per_key: float) -> int:
        for _ in range(20):
            with turns.working():
                clock.work(turns.items * seconds_per_key)
            turns.count(turns.items)
            turns.wait()
        return turns.items

    assert after(SLICE_S / 100) == pytest.approx(100, abs=1)
    assert after(SLICE_S / 1_000_000) == ITEMS_MAX
    assert after(SLICE_S) == ITEMS_MIN


def test_one_slice_that_was_interrupted_halves_the_next_one_at_most(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    before = turns.items
    with turns.working():
        clock.work(1.0)
    turns.count(turns.items)
    turns.wait()
    assert turns.items == before // 2


def test_a_slice_begins_when_the_last_chunk_has_left() -> None:
    chunks = ChunksInside()
    order: list[str] = []
    chunks.enter()
    chunks.enter()
    waiting = threading.Thread(target=lambda: (chunks.wait_none(60.0), order.append("slice")), daemon=True)
    waiting.start()
    chunks.leave()
    order.append("a chunk left")
    chunks.leave()
    waiting.join(10)
    assert order == ["a chunk left", "slice"]


def test_a_slice_begins_though_chunks_never_leave() -> None:
    """So copying ends, whatever rows do."""
    chunks = ChunksInside()
    chunks.enter()
    turns = Turns(chunks)
    began_s = ports.now_s()
    turns.wait()
    assert GIVE_WAY_S <= ports.now_s() - began_s < 5


def test_chunks_that_never_leave_make_copying_slow(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    chunks.enter()
    slices(turns, clock, chunks, 15)
    chunks.leave()
    assert slices(turns, clock, chunks, 1) == pytest.approx(SHARE_MIN, rel=0.2)


def test_few_slices_are_under_way_until_the_target_answers(clock: Clock) -> None:
    turns = Turns(ChunksInside())
    for _ in range(UNDER_WAY_MAX):
        assert turns.pause_s() == 0
        turns.sent()
    assert turns.pause_s() > 0
    turns.taken(0.001, crowded=False)
    assert turns.pause_s() == 0


def test_answers_that_a_broken_connection_owes_are_not_waited_for(clock: Clock) -> None:
    turns = Turns(ChunksInside())
    for _ in range(UNDER_WAY_MAX):
        turns.sent()
    turns.forget_sent()
    assert turns.pause_s() == 0
    turns.taken(0.001, crowded=False)  # it comes all the same
    turns.sent()
    assert turns.pause_s() == 0


def test_the_slower_end_sets_the_pace(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    slices(turns, clock, chunks, 50)
    before = turns.items
    for _ in range(10):
        turns.sent()
        turns.count(turns.items)
        turns.taken(10 * SLICE_S, crowded=False)
        share = slices(turns, clock, chunks, 1)
    assert share == pytest.approx(1 / 12)  # as long a pause as both have worked
    assert turns.items == ITEMS_MIN < before


def test_rows_at_the_target_make_copying_slow(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    for _ in range(20):
        turns.sent()
        turns.taken(0.0, crowded=True)
        slices(turns, clock, chunks, 1)
    turns.sent()
    turns.taken(0.0, crowded=True)
    assert slices(turns, clock, chunks, 1) == pytest.approx(SHARE_MIN, rel=0.2)


def test_a_target_tells_how_long_it_has_worked_on_a_slice_and_whether_rows_left_it_alone(clock: Clock) -> None:
    chunks = ChunksInside()
    time_of = SliceTime(chunks)
    for _ in range(3):
        time_of.begin()
        with time_of:
            clock.work(0.002)
    assert time_of.end() == (6.0, False)
    chunks.enter()
    time_of.begin()
    assert time_of.end() == (0.0, True)
    assert time_of.end() == (0.0, False)


def test_a_slice_that_waited_for_a_core_is_not_followed_by_a_longer_pause(clock: Clock) -> None:
    chunks = ChunksInside()
    turns = Turns(chunks)
    with turns.working():
        clock.work(SLICE_S)
        clock.time_s += 1.0
    chunks.enter()
    chunks.leave()
    assert turns.pause_s() < 10 * SLICE_S


class Pauses:
    """Stands for the event that ends a pause: notes how long the pauses are."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout or 0.0)
        return False


def breaths(chunks: ChunksInside) -> tuple[Breaths, Pauses]:
    pauses = Pauses()
    made = Breaths(chunks, pauses)  # type: ignore[arg-type]
    made.begin()
    return made, pauses


def test_work_of_many_small_steps_pauses_after_each_slice_while_rows_come(clock: Clock) -> None:
    chunks = ChunksInside()
    breathe, pauses = breaths(chunks)
    for _ in range(1_000):
        chunks.entered += 1
        clock.work(SLICE_S / 10)
        breathe()
    assert 80 <= len(pauses.waited_s) <= 120
    assert min(pauses.waited_s) >= SLICE_S * (1 / SHARE_MAX - 1)


def test_work_of_many_small_steps_does_not_pause_where_no_rows_come(clock: Clock) -> None:
    breathe, pauses = breaths(ChunksInside())
    for _ in range(100):
        clock.work(SLICE_S)
        breathe()
    assert pauses.waited_s == []


def test_a_long_step_has_a_pause_of_bounded_length(clock: Clock) -> None:
    chunks = ChunksInside()
    breathe, pauses = breaths(chunks)
    chunks.entered += 1
    clock.work(1.0)
    breathe()
    assert pauses.waited_s == [pytest.approx(PAUSE_MAX_S)]
