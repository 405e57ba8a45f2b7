"""What simulated threads wait for: locks, conditions, events, queues, with the manners of the standard library's."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit

if TYPE_CHECKING:
    from tests.sim.kernel import Kernel, SimThread


class SimLock:
    def __init__(self, kernel: Kernel, again: bool = False) -> None:
        self._kernel = kernel
        self._again = again
        self._owner: SimThread | None = None
        self._times = 0
        self._waiting: list[SimThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be positive")
        kernel = self._kernel
        kernel.give_way()
        me = kernel.current()
        if self._again and self._owner is me:
            self._times += 1
            return True
        deadline_s = None if timeout < 0 else kernel.now_s() + timeout
        while self._owner is not None:
            if not blocking:
                return False
            self._waiting.append(me)
            if not kernel.wait(deadline_s):
                if me in self._waiting:
                    self._waiting.remove(me)
                return False
        self._owner, self._times = me, 1
        return True

    def release(self) -> None:
        if self._kernel.over:
            return
        if not self.owned():
            raise RuntimeError("release of a lock that nobody has, or that another thread may take again")
        self._times -= 1
        if not self._times:
            self._owner = None
            self._wake_one()
            self._kernel.give_way()

    def _wake_one(self) -> None:
        while self._waiting:
            thread = self._waiting.pop(self._kernel.dice.randrange(len(self._waiting)))
            if thread.process.alive:
                self._kernel.wake(thread)
                return

    def locked(self) -> bool:
        return self._owner is not None

    def owned(self) -> bool:
        """As far as it is known: a plain lock does not care who has it."""
        return self._owner is self._kernel.current() if self._again else self.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def let_go(self) -> int:
        times, self._times, self._owner = self._times, 0, None
        self._wake_one()
        return times

    def take_back(self, times: int) -> None:
        self.acquire()
        self._times = times


class SimCondition:
    def __init__(self, kernel: Kernel, lock: SimLock) -> None:
        self._kernel = kernel
        self._lock = lock
        self._waiting: list[SimThread] = []
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        kernel = self._kernel
        if kernel.over:
            raise GreenletExit
        self._check("wait on")
        me = kernel.current()
        self._waiting.append(me)
        times = self._lock.let_go()
        woken = kernel.wait(None if timeout is None else kernel.now_s() + timeout)
        if me in self._waiting:
            self._waiting.remove(me)
        self._lock.take_back(times)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else self._kernel.now_s() + timeout
        while not (holds := predicate()):
            left_s = None if deadline_s is None else deadline_s - self._kernel.now_s()
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return holds

    def notify(self, n: int = 1) -> None:
        self._check("notify")
        for _ in range(min(n, len(self._waiting))):
            self._kernel.wake(self._waiting.pop(0))

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def _check(self, what: str) -> None:
        if not self._lock.owned():
            raise RuntimeError(f"cannot {what} un-acquired lock")


class SimEvent:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._set = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            self._kernel.wake(thread)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = self._kernel
        kernel.give_way()
        deadline_s = None if timeout is None else kernel.now_s() + timeout
        if self._set:
            return True
        me = kernel.current()
        self._waiting.append(me)
        if kernel.wait(deadline_s):
            return True  # even if it has been cleared since
        if me in self._waiting:
            self._waiting.remove(me)
        return self._set


class SimQueue:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._waiting: list[SimThread] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        if self._waiting:
            self._kernel.wake(self._waiting.pop(0))
        self._kernel.give_way()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        kernel = self._kernel
        kernel.give_way()
        deadline_s = None if timeout is None else kernel.now_s() + timeout
        while not self._items:
            if not block:
                raise queue.Empty
            me = kernel.current()
            self._waiting.append(me)
            if not kernel.wait(deadline_s):
                if me in self._waiting:
                    self._waiting.remove(me)
                if not self._items:
                    raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)
