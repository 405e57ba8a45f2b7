"""A watch over user code: a processor that hangs is interrupted. If it cannot be interrupted, its host ends itself.

Python cannot stop a thread from outside, but it can raise an exception in a thread at the next bytecode. That ends most hangs
with the state as it was. A hang inside C code cannot be interrupted: then the host writes an obituary and exits, and the next
generation starts from the changelog.

A chunk may need many calls of user code. The working thread only counts its calls, at the cost of one assignment each. The
watching thread reads the count at intervals: for it, a call begins when the count has changed. So a call always gets its full
time, and a hang is noticed up to two intervals late.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from godwit import ports
from godwit.errors import ProcessorTimeout

LOOK_S = 0.2
GRACE_S = 5.0
INTERRUPT_S = 1.0  # an interrupt comes at the next bytecode; after this time user code has swallowed it


class _Hang(BaseException):
    """Raised inside the thread that runs user code; not an Exception, so that user code does not swallow it."""


@dataclass(slots=True)
class _Call:
    thread: int
    since: float
    timeout_s: float
    describe: Callable[[], dict[str, Any]]
    count: Callable[[], int]
    counted: int
    interrupted: bool = False
    where: dict[str, Any] = field(default_factory=dict)  # the key and batch when it was interrupted


class Watch:
    """One thread for all calls of a host."""

    def __init__(self, give_up: Callable[[ProcessorTimeout], None]) -> None:
        self._calls: dict[int, _Call] = {}
        self._lock = ports.lock()
        self._stop = ports.event()
        self._give_up = give_up
        self._thread = ports.thread(self._run, "godwit-watch")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def over(
        self, timeout_s: float, describe: Callable[[], dict[str, Any]], count: Callable[[], int] = lambda: 0
    ) -> Iterator[None]:
        """Watch this thread from here on. `count` returns another number for each further call of user code."""
        call = _Call(ports.thread_id(), ports.now_s(), timeout_s, describe, count, count())
        with self._lock:
            self._calls[call.thread] = call
        try:
            yield
            self._end(call)
        except _Hang:
            with self._lock:
                self._calls.pop(call.thread, None)
            raise _timeout(call) from None
        except BaseException:
            self._end_quietly(call)
            raise

    def _end(self, call: _Call) -> None:
        with self._lock:
            self._calls.pop(call.thread, None)
        if not call.interrupted:
            return
        deadline = ports.now_s() + INTERRUPT_S
        while (
            ports.now_s() < deadline
        ):  # the interrupt is on its way: take it here, not in the middle of the host's own work
            ports.sleep(0.001)
        raise _Hang

    def _end_quietly(self, call: _Call) -> None:
        try:
            self._end(call)
        except _Hang:
            raise _timeout(call) from None

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            with self._lock:
                for call in self._calls.values():
                    self._look(call)

    def _look(self, call: _Call) -> None:
        counted, now = (
            call.count(),
            ports.now_s(),
        )  # in this order: a new call has not begun later than now
        if counted != call.counted and not call.interrupted:
            call.counted, call.since = counted, now
        elif now - call.since > call.timeout_s:
            self._act(call, now)

    def _act(self, call: _Call, now: float) -> None:
        if not call.interrupted:
            call.interrupted = True
            call.where = call.describe()  # now: after the interrupt user code may not know its key any more
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(call.thread), ctypes.py_object(_Hang))
        elif now - call.since > call.timeout_s + GRACE_S:
            self._give_up(_timeout(call))


def _timeout(call: _Call) -> ProcessorTimeout:
    return ProcessorTimeout(
        f"the processor worked on one call for more than {call.timeout_s:g} s",
        todo="State is as before. Make the processor faster or give the operator a longer timeout_s",
        **call.where,
    )
