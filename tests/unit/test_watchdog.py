"""The watch over user code: what hangs in Python is interrupted and named, what cannot be is given up on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from godwit.errors import ProcessorTimeout
from godwit.runtime.processor import watchdog as watch_module
from godwit.runtime.processor.watchdog import Watch

WAIT_S = 30.0


class Given:
    """Whom the watch gave up on."""

    def __init__(self) -> None:
        self.errors: list[ProcessorTimeout] = []
        self.called = threading.Event()

    def __call__(self, error: ProcessorTimeout) -> None:
        self.errors.append(error)
        self.called.set()


@pytest.fixture
def given_up() -> Given:
    return Given()


@pytest.fixture
def watch(given_up: Given) -> Iterator[Watch]:
    watch = Watch(given_up)
    watch.start()
    yield watch
    watch.stop()


def where() -> dict[str, Any]:
    return {"operator": "speed", "key": ("C1",), "batch": 7}


def spin() -> None:
    """Hangs in Python, where an exception can be raised."""
    for _ in itertools.count():
        time.sleep(0.001)


def test_a_call_in_time_is_left_alone(watch: Watch, given_up: Given) -> None:
    with watch.over(60.0, where):
        done = True
    assert done
    assert not given_up.called.is_set()


def test_an_error_of_the_call_comes_through(watch: Watch) -> None:
    with pytest.raises(ZeroDivisionError), watch.over(60.0, where):
        raise ZeroDivisionError


def test_a_hang_in_python_is_interrupted_and_named(watch: Watch, given_up: Given) -> None:
    with pytest.raises(
        ProcessorTimeout, match=r"more than 0\.1 s .*operator=speed, key=\('C1',\), batch=7\)\. .*timeout_s"
    ):
        with watch.over(0.1, where):
            spin()
    assert not given_up.called.is_set()


def test_what_was_being_done_is_asked_while_it_is_done(watch: Watch) -> None:
    """On its way out user code's own clean-up forgets the key."""
    current: dict[str, Any] = {"key": "C1"}

    def forgetful() -> None:
        try:
            spin()
        finally:
            current.clear()

    with pytest.raises(ProcessorTimeout, match="key=C1"), watch.over(0.1, lambda: dict(current)):
        forgetful()


def test_user_code_cannot_swallow_the_interrupt_by_catching_exceptions(watch: Watch) -> None:
    def stubborn() -> None:
        while True:
            with suppress(Exception):  # what a careless user writes
                spin()

    with pytest.raises(ProcessorTimeout), watch.over(0.1, where):
        stubborn()


@pytest.mark.parametrize(("then", "ends_as"), [("returns", ProcessorTimeout), ("raises", ProcessorTimeout)])
def test_a_call_that_swallows_even_the_interrupt_ends_as_a_timeout(
    watch: Watch, then: str, ends_as: type[Exception]
) -> None:
    caught: list[BaseException] = []

    def swallows() -> None:
        try:
            spin()
        except BaseException:  # noqa: BLE001 what a careless user writes
            if then == "raises":
                raise KeyError("something else") from None

    def watched() -> None:
        try:
            with watch.over(0.1, where):
                swallows()
        except Exception as error:  # noqa: BLE001 kept for the test
            caught.append(error)

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert [type(error) for error in caught] == [ends_as]


def test_the_thread_can_be_watched_again_after_an_interrupt(watch: Watch) -> None:
    for _ in range(2):
        with pytest.raises(ProcessorTimeout), watch.over(0.1, where):
            spin()
    with watch.over(60.0, where):
        pass


def test_an_interrupt_does_not_reach_what_comes_after_the_call(watch: Watch) -> None:
    """A call that ends just as it is interrupted: the exception must not strike the host's own code later."""
    outcomes = set()
    for pause_s in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4):
        try:
            with watch.over(0.01, where):
                time.sleep(pause_s)
            outcomes.add("in time")
        except ProcessorTimeout:
            outcomes.add("too late")
        for _ in range(20):
            time.sleep(0.001)  # here it would strike
    assert "too late" in outcomes


def test_only_the_call_that_hangs_is_interrupted(watch: Watch) -> None:
    release, entered = threading.Event(), threading.Event()
    outcome: list[str] = []

    def patient() -> None:
        with watch.over(60.0, where):
            entered.set()
            release.wait(WAIT_S)
        outcome.append("done")

    thread = threading.Thread(target=patient)
    thread.start()
    assert entered.wait(WAIT_S)
    with pytest.raises(ProcessorTimeout), watch.over(0.1, where):
        spin()
    release.set()
    thread.join(WAIT_S)
    assert outcome == ["done"]


def test_a_hang_in_c_code_is_given_up_on_with_its_name(
    watch: Watch, given_up: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "GRACE_S", 0.2)
    release = threading.Lock()
    release.acquire()

    def stuck() -> None:
        with watch.over(0.1, where):
            release.acquire()  # waits in C: no bytecode runs on which an exception could be raised
            release.release()

    thread = threading.Thread(target=_quietly, args=(stuck,))
    thread.start()
    assert given_up.called.wait(WAIT_S)
    release.release()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert given_up.errors[0].fields == where()


def _quietly(call: Callable[[], None]) -> None:
    try:
        call()
    except ProcessorTimeout:
        return
