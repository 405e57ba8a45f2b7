"""Threads, locks, clock, process and disk writes, as the runtime uses them: through a world that the simulator can replace.

The real world is `Machine`, which calls the standard library. The simulator replaces it (`use`) by a world in which one seed
decides which thread runs next, how long everything takes and where a process is killed, so that the simulated runtime is the
runtime that users run. Network connections have a port of their own, `transport.line`.
"""

from __future__ import annotations

import os
import queue as queues
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

# The types that `lock`, `event` and so on return, for annotations.
Lock = threading.Lock
Condition = threading.Condition
Event = threading.Event
Thread = threading.Thread
Queue = queues.SimpleQueue


class Machine:
    """The real world: this process on this machine. The world of the simulator has the same methods."""

    def __init__(self) -> None:
        self._singletons: dict[Callable[[], Any], Any] = {}
        self._singletons_lock = threading.Lock()

    def lock(self) -> threading.Lock:
        return threading.Lock()

    def rlock(self) -> Any:
        return threading.RLock()

    def condition(self, lock: Any) -> threading.Condition:
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        return threading.Event()

    def queue(self) -> queues.SimpleQueue[Any]:
        return queues.SimpleQueue()

    def thread(self, target: Callable[..., None], name: str, args: Iterable[Any]) -> threading.Thread:
        return threading.Thread(target=target, name=name, args=tuple(args), daemon=True)

    def thread_id(self) -> int:
        return threading.get_ident()

    def now_s(self) -> float:
        return time.monotonic()

    def worked_s(self) -> float:
        return time.thread_time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pid(self) -> int:
        return os.getpid()

    def parent_pid(self) -> int:
        return os.getppid()

    def exit_process(self, code: int) -> NoReturn:
        os._exit(code)

    def of_process(self, make: Callable[[], T]) -> T:
        with self._singletons_lock:
            if make not in self._singletons:
                self._singletons[make] = make()
            singleton: T = self._singletons[make]
            return singleton

    def writev(self, fd: int, views: Sequence[Any]) -> int:
        return os.writev(fd, views)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)


_world: Machine = Machine()


@contextmanager
def use(world: Any) -> Iterator[None]:
    """In the body of the `with` block, all functions of this module use the given world. For the simulator alone."""
    global _world  # noqa: PLW0603 all threads of a process share one world
    before, _world = _world, world
    try:
        yield
    finally:
        _world = before


def lock() -> threading.Lock:
    return _world.lock()


def rlock() -> Any:
    return _world.rlock()


def condition(lock: Any = None) -> threading.Condition:
    return _world.condition(lock)


def event() -> threading.Event:
    return _world.event()


def queue() -> queues.SimpleQueue[Any]:
    return _world.queue()


def thread(target: Callable[..., None], name: str, args: Iterable[Any] = ()) -> threading.Thread:
    """A daemon thread, not started yet: the process does not wait for it when it ends."""
    return _world.thread(target, name, args)


def thread_id() -> int:
    return _world.thread_id()


def now_s() -> float:
    """A monotonic clock; only differences of its values mean something."""
    return _world.now_s()


def worked_s() -> float:
    """How long this thread has had a core; only differences of its values mean something."""
    return _world.worked_s()


def sleep(seconds: float) -> None:
    _world.sleep(seconds)


def pid() -> int:
    return _world.pid()


def parent_pid() -> int:
    return _world.parent_pid()


def exit_process(code: int) -> NoReturn:
    """End this process at once: no clean-up code runs, and nothing more is written."""
    _world.exit_process(code)


def of_process(make: Callable[[], T]) -> T:
    """The object that `make` returns: made at the first call in this process, the same object at every later call."""
    return _world.of_process(make)


def writev(fd: int, views: Sequence[Any]) -> int:
    """Written bytes survive the end of the process; they survive the end of the machine only after `fsync`."""
    return _world.writev(fd, views)


def fsync(fd: int) -> None:
    _world.fsync(fd)
