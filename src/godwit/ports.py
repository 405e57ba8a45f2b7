"""What the shell needs from the world it runs in: threads and what they wait for, a clock, the process, the disk's word.

A machine gives all of it, through the standard library. The simulator puts a world of its own in its place (`use`), in which
one seed decides which thread runs next, how long everything takes and where a process is killed: so the shell that is
simulated is the shell that users run. Network connections have a port of their own, `transport.line`.
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

# What `lock`, `event` and so on give, for annotations.
Lock = threading.Lock
Condition = threading.Condition
Event = threading.Event
Thread = threading.Thread
Queue = queues.SimpleQueue


class Machine:
    """The real world: this process on this machine. The simulator's world has the same methods."""

    def __init__(self) -> None:
        self._of_process: dict[Callable[[], Any], Any] = {}
        self._making = threading.Lock()

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

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pid(self) -> int:
        return os.getpid()

    def parent_pid(self) -> int:
        return os.getppid()

    def exit_process(self, code: int) -> NoReturn:
        os._exit(code)

    def of_process(self, make: Callable[[], T]) -> T:
        with self._making:
            if make not in self._of_process:
                self._of_process[make] = make()
            made: T = self._of_process[make]
            return made

    def writev(self, fd: int, views: Sequence[Any]) -> int:
        return os.writev(fd, views)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)


_world: Machine = Machine()


@contextmanager
def use(world: Any) -> Iterator[None]:
    """What is made and asked for in here comes from that world. For the simulator alone."""
    global _world  # noqa: PLW0603 threads of one world are in it together
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
    """A thread that is not started yet, and that the process does not wait for when it ends."""
    return _world.thread(target, name, args)


def thread_id() -> int:
    return _world.thread_id()


def now_s() -> float:
    """A clock that never goes back; its zero means nothing."""
    return _world.now_s()


def sleep(seconds: float) -> None:
    _world.sleep(seconds)


def pid() -> int:
    return _world.pid()


def parent_pid() -> int:
    return _world.parent_pid()


def exit_process(code: int) -> NoReturn:
    """End this process at once: no cleaning up, and nothing more is written."""
    _world.exit_process(code)


def of_process(make: Callable[[], T]) -> T:
    """The one object of its kind in this process, made when it is first asked for."""
    return _world.of_process(make)


def writev(fd: int, views: Sequence[Any]) -> int:
    """What is written survives the process; it survives the machine after `fsync`."""
    return _world.writev(fd, views)


def fsync(fd: int) -> None:
    _world.fsync(fd)
