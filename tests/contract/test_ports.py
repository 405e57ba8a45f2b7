"""What `godwit.ports` promises, of this machine and of the simulator's: locks, conditions, events, queues, threads, the clock.

A test here that fails in the simulator alone means that schedules are tried which no machine runs, or the other way round.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from godwit import ports
from tests.contract.worlds import in_both_worlds

SOON_S = 0.02
LATE_S = 10.0  # never reached, unless something is wrong
ROUNDED_S = 1e-6


def started(target: Callable[..., None], *args: Any) -> ports.Thread:
    thread = ports.thread(target, "contract", args)
    thread.start()
    return thread


def passes(wait: Callable[[], Any]) -> float:
    """How long it takes, by the clock of the port."""
    began_s = ports.now_s()
    wait()
    return ports.now_s() - began_s + ROUNDED_S


# -- locks -----------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_lock_lets_one_thread_in_at_a_time() -> None:
    lock, inside, most = ports.lock(), [0], [0]

    def work() -> None:
        for _ in range(5):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                ports.sleep(0.0)
                inside[0] -= 1

    for thread in [started(work) for _ in range(3)]:
        thread.join()
    assert most == [1]


@in_both_worlds
def test_lock_is_given_up_on_after_its_timeout() -> None:
    lock = ports.lock()
    assert lock.acquire()
    assert lock.locked()
    assert not lock.acquire(blocking=False)
    assert passes(lambda: lock.acquire(timeout=SOON_S)) >= SOON_S
    lock.release()
    assert not lock.locked()
    assert lock.acquire(timeout=LATE_S)


@in_both_worlds
def test_lock_can_be_released_by_another_thread_and_not_twice() -> None:
    lock = ports.lock()
    lock.acquire()
    started(lock.release).join()
    assert not lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()


@in_both_worlds
def test_rlock_is_taken_again_by_its_owner_and_released_as_often() -> None:
    lock, tries = ports.rlock(), ports.queue()

    def other() -> None:
        tries.put(lock.acquire(blocking=False))

    with lock:
        with lock:
            started(other).join()
        started(other).join()
    started(other).join()
    assert [tries.get() for _ in range(3)] == [False, False, True]


@in_both_worlds
def test_rlock_is_released_by_its_owner_alone() -> None:
    lock, heard = ports.rlock(), ports.queue()

    def other() -> None:
        try:
            lock.release()
        except RuntimeError as error:
            heard.put(error)

    with lock:
        started(other).join()
    assert heard.get(timeout=LATE_S)


# -- conditions ------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_condition_wakes_as_many_as_are_notified() -> None:
    condition, ready, woken = ports.condition(), ports.queue(), ports.queue()

    def wait() -> None:
        with condition:
            ready.put(None)
            woken.put(condition.wait(LATE_S))

    threads = [started(wait) for _ in range(3)]
    for _ in threads:
        ready.get()
    with condition:
        condition.notify()
    assert woken.get(timeout=LATE_S)
    with pytest.raises(queue.Empty):
        woken.get(timeout=SOON_S)
    with condition:
        condition.notify_all()
    assert [woken.get(timeout=LATE_S) for _ in range(2)] == [True, True]


@in_both_worlds
def test_condition_is_waited_for_without_its_lock_and_returns_with_it() -> None:
    lock = ports.rlock()
    condition, held = ports.condition(lock), ports.queue()

    def notify() -> None:
        with lock:
            condition.notify()

    def look() -> None:
        held.put(not lock.acquire(blocking=False))

    with lock, lock:
        thread = started(notify)
        assert condition.wait(LATE_S)
        thread.join()
        started(look).join()
    assert held.get()


@in_both_worlds
def test_condition_that_nobody_notifies_ends_its_wait() -> None:
    condition = ports.condition()
    with condition:
        assert passes(lambda: condition.wait(SOON_S)) >= SOON_S
        assert condition.wait(SOON_S) is False
        assert condition.wait(-1.0) is False


@in_both_worlds
def test_wait_for_gives_what_the_predicate_gives() -> None:
    condition, seen = ports.condition(), [0]

    def count() -> None:
        for _ in range(3):
            with condition:
                seen[0] += 1
                condition.notify_all()

    started(count)
    with condition:
        assert condition.wait_for(lambda: seen[0] == 3, LATE_S)
        assert not condition.wait_for(lambda: seen[0] == 4, SOON_S)
        assert passes(lambda: condition.wait_for(lambda: False, SOON_S)) >= SOON_S


@in_both_worlds
def test_condition_wants_its_lock_to_be_held() -> None:
    condition = ports.condition()
    with pytest.raises(RuntimeError):
        condition.notify_all()
    with pytest.raises(RuntimeError):
        condition.wait(SOON_S)


# -- events ----------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_event_wakes_all_and_stays_set_until_it_is_cleared() -> None:
    event, woken = ports.event(), ports.queue()
    for _ in range(2):
        started(lambda: woken.put(event.wait(LATE_S)))
    assert not event.is_set()
    event.set()
    assert [woken.get(timeout=LATE_S) for _ in range(2)] == [True, True]
    assert event.wait(0.0)
    event.clear()
    assert not event.wait(0.0)


@in_both_worlds
def test_event_that_is_not_set_ends_its_wait() -> None:
    event = ports.event()
    assert passes(lambda: event.wait(SOON_S)) >= SOON_S
    assert event.wait(SOON_S) is False


@in_both_worlds
def test_event_that_is_set_and_cleared_at_once_wakes_who_waited() -> None:
    event, woken = ports.event(), ports.queue()
    thread = started(lambda: woken.put(event.wait(LATE_S)))
    while thread.is_alive():
        event.set()
        event.clear()
        ports.sleep(0.001)
    assert woken.get() is True


# -- queues ----------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_queue_gives_what_was_put_in_that_order() -> None:
    items = ports.queue()
    assert items.empty()

    def fill() -> None:
        for n in range(5):
            items.put(n)

    started(fill)
    assert [items.get(timeout=LATE_S) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert items.qsize() == 0


@in_both_worlds
def test_queue_in_which_nothing_comes_is_empty_after_the_timeout() -> None:
    items = ports.queue()

    def wait() -> None:
        with pytest.raises(queue.Empty):
            items.get(timeout=SOON_S)

    assert passes(wait) >= SOON_S
    with pytest.raises(queue.Empty):
        items.get(block=False)


@in_both_worlds
def test_each_item_of_a_queue_is_given_once() -> None:
    items, given = ports.queue(), ports.queue()

    def take() -> None:
        for _ in range(4):
            given.put(items.get(timeout=LATE_S))

    threads = [started(take) for _ in range(3)]
    for n in range(12):
        items.put(n)
    for thread in threads:
        thread.join()
    assert sorted(given.get() for _ in range(12)) == list(range(12))


# -- threads ---------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_thread_lives_from_its_start_until_its_target_returns() -> None:
    go, seen = ports.event(), ports.queue()

    def work(*args: int) -> None:
        go.wait()
        seen.put((args, ports.thread_id()))

    thread = ports.thread(work, "a name", (1, 2))
    assert (thread.name, thread.is_alive()) == ("a name", False)
    thread.start()
    assert thread.is_alive()
    assert passes(lambda: thread.join(SOON_S)) >= SOON_S
    assert thread.is_alive()
    go.set()
    thread.join()
    assert not thread.is_alive()
    assert seen.get() == ((1, 2), thread.ident)
    assert thread.ident != ports.thread_id()
    thread.join(LATE_S)


@in_both_worlds
def test_thread_is_joined_by_several_but_not_before_it_has_begun() -> None:
    go, joined = ports.event(), ports.queue()

    def work() -> None:
        go.wait()

    def join() -> None:
        thread.join()
        joined.put(thread.is_alive())

    thread = ports.thread(work, "contract")
    with pytest.raises(RuntimeError):
        thread.join()
    thread.start()
    with pytest.raises(RuntimeError):
        thread.start()
    for _ in range(2):
        started(join)
    go.set()
    assert [joined.get(timeout=LATE_S) for _ in range(2)] == [False, False]


# -- the clock -------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_clock_goes_on_while_a_thread_sleeps() -> None:
    assert SOON_S <= passes(lambda: ports.sleep(SOON_S)) < LATE_S


@in_both_worlds
def test_clock_never_goes_back() -> None:
    event, condition, lock = ports.event(), ports.condition(), ports.lock()
    lock.acquire()
    with condition:
        for wait in (lambda: event.wait(-1.0), lambda: condition.wait(-1.0), lambda: lock.acquire(timeout=0.0)):
            assert passes(wait) >= 0.0


@in_both_worlds
def test_time_that_has_passed_is_no_timeout() -> None:
    lock = ports.lock()
    with pytest.raises(ValueError, match="negative"):
        ports.sleep(-0.5)
    with pytest.raises(ValueError, match="negative"):
        ports.queue().get(timeout=-0.5)
    with pytest.raises(ValueError, match="positive"):
        lock.acquire(timeout=-0.5)


# -- the process -----------------------------------------------------------------------------------------------------


class Single:
    def __init__(self) -> None:
        ports.sleep(SOON_S)  # others ask for it in the meantime


@in_both_worlds
def test_process_has_one_object_of_a_kind_whoever_asks_first() -> None:
    asked = ports.queue()
    for _ in range(3):
        started(lambda: asked.put(ports.of_process(Single)))
    assert len({asked.get(timeout=LATE_S) for _ in range(3)}) == 1


@in_both_worlds
def test_process_has_one_number() -> None:
    numbers = ports.queue()
    started(lambda: numbers.put(ports.pid()))
    assert numbers.get(timeout=LATE_S) == ports.pid() != ports.parent_pid()


@in_both_worlds
def test_what_is_written_is_in_the_file() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        assert ports.writev(fd, [b"ab", memoryview(b"cd")]) == 4
        ports.fsync(fd)
        os.close(fd)
        assert path.read_bytes() == b"abcd"


# -- work ------------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_a_thread_that_sleeps_does_not_work() -> None:
    """And no thread works for longer than the clock goes on."""
    began_s, worked_s = ports.now_s(), ports.worked_s()
    ports.sleep(SOON_S)
    sum(range(10_000))
    worked_s = ports.worked_s() - worked_s
    assert 0 <= worked_s < ports.now_s() - began_s
