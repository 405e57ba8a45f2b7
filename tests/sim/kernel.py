"""The simulated machine: processes, threads and a clock, in which one seed decides which thread runs next.

A thread of the product is a greenlet here. It runs until it waits for something (`ports`), and now and then gives way where a
real thread might be interrupted: at a lock, a queue, a message, a write. Time passes only while nobody can run. A process that
is killed runs no further line: no `finally`, no `except`; its threads are put away until the schedule is over.
"""

from __future__ import annotations

import heapq
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from tests.sim.points import Points
from tests.sim.waiting import SimCondition, SimEvent, SimLock, SimQueue

STORY_MAX = 600
SLOW_SYNC = 0.3  # of the syncs, where disks are slow


class Breach(AssertionError):
    """An invariant of docs/internals.md does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Process:
    """`node`: what a network cut separates from others."""

    def __init__(self, kernel: Kernel, name: str, node: str, pid: int) -> None:
        self.kernel = kernel
        self.name = name
        self.node = node
        self.pid = pid
        self.alive = True
        self.stopped = False  # as by SIGSTOP
        self.threads: list[SimThread] = []
        self.at_end: list[Callable[[], None]] = []  # what others notice when it ends
        self.singles: dict[Any, Any] = {}
        self.making = SimLock(kernel)  # one of them
        self.error: BaseException | None = None
        self.held_back: list[SimThread] = []  # would run if the process were not stopped

    def __repr__(self) -> str:
        return f"{self.name}#{self.pid}"

    def kill(self) -> None:
        if not self.alive:
            return
        self.kernel.tell(self.name, "is gone")
        self.alive = False
        self.kernel.points.reach(f"{self.name} is gone")
        for notice in self.at_end:
            notice()
        if self.kernel.running is not None and self.kernel.running.process is self:
            self.kernel.leave_for_ever()

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        self.kernel.ready += self.held_back
        self.held_back = []


class SimThread:
    """What `threading.Thread` is, in a simulated process."""

    def __init__(
        self, kernel: Kernel, process: Process, target: Callable[..., Any], name: str, args: Iterable[Any]
    ) -> None:
        self.kernel, self.process, self.name = kernel, process, name
        self._target, self._args = target, tuple(args)
        self.ident: int | None = None
        self.over = False
        self.wait_number = 0  # tells one wait from the next: a late alarm must not end a later wait
        self.waits = self.woken = False
        self._joining: list[SimThread] = []
        self.greenlet = greenlet(self._run)
        self.main = False

    def start(self) -> None:
        if self.ident is not None:
            raise RuntimeError("threads can only be started once")
        self.ident = self.kernel.next_id()
        self.process.threads.append(self)
        self.kernel.ready.append(self)
        self.kernel.give_way()

    def is_alive(self) -> bool:
        return self.ident is not None and not self.over

    def join(self, timeout: float | None = None) -> None:
        if self.ident is None:
            raise RuntimeError("cannot join thread before it is started")
        deadline_s = None if timeout is None else self.kernel.now_s() + timeout
        while not self.over:
            self._joining.append(self.kernel.current())
            if not self.kernel.wait(deadline_s):
                return

    def _run(self) -> None:
        try:
            self._target(*self._args)
        except GreenletExit:
            return
        except BaseException as error:  # noqa: BLE001 told to whoever looks at the process
            self.process.error = error
            if not self.main and not self.kernel.over:
                self.kernel.failures.append((self, error))
        finally:
            self.over = True
            if not self.kernel.over:
                self.process.threads.remove(self)
                for thread in self._joining:
                    self.kernel.wake(thread)
                if self.main and self.process.alive:
                    self.kernel.tell(self.process.name, "has ended", repr(self.process.error or ""))
                    self.process.alive = False
                    self.kernel.points.reach(f"{self.process.name} is gone")
                    for notice in self.process.at_end:
                        notice()


class Kernel:
    """The world that `ports` is given; `run` lets it live until something holds."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.time_s = 1_000.0
        self.processes: list[Process] = []
        self.ready: list[SimThread] = []
        self.running: SimThread | None = None
        self.failures: list[tuple[SimThread, BaseException]] = []
        self.over = False
        self.turns = 0
        self.restless = 0.1  # how often a thread gives way where it need not
        self.story: deque[tuple[Any, ...]] = deque(maxlen=STORY_MAX)
        self.at_write: Callable[[Process], int | None] = lambda _: None
        self.after_thread: Callable[[], None] = lambda: None  # after each turn of a thread
        self.points = Points(self.after, self.now_s)
        self.sync_s = 0.0  # how long a disk may take to sync
        self._unsynced: dict[
            str, tuple[Process, int]
        ] = {}  # by file: who has written to it, and how much of it is safe
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self._hub: Any = None
        self._pids = count(100)

    # -- processes and threads ---------------------------------------------------------------------------------------

    def next_id(self) -> int:
        return next(self._count) + 1

    def process(self, name: str, node: str, main: Callable[[], Any]) -> Process:
        """A new process; it begins with the next turn."""
        process = Process(self, name, node, next(self._pids))
        self.processes.append(process)
        self.spawn(process, main, "main").main = True
        return process

    def spawn(self, process: Process, target: Callable[..., Any], name: str) -> SimThread:
        """A further thread of a process, begun by nobody in it."""
        thread = SimThread(self, process, target, name, ())
        thread.ident = self.next_id()
        process.threads.append(thread)
        self.ready.append(thread)
        return thread

    def current(self) -> SimThread:
        assert self.running is not None, "only threads of the simulation wait"
        return self.running

    def thread(self, target: Callable[..., None], name: str, args: Iterable[Any] = ()) -> SimThread:
        return SimThread(self, self.current().process, target, name, args)

    def tell(self, who: str, *what: Any) -> None:
        self.story.append((round(self.time_s, 4), who, *what))

    def told(self) -> list[str]:
        return [f"{at:10.4f} {who:12} {' '.join(map(str, what))}" for at, who, *what in self.story]

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._alarms, (time_s, next(self._count), do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.at(self.time_s + delay_s, do)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """Somebody else may run first."""
        if self.over:
            raise GreenletExit
        if self.running is not None and self.restless and self.dice.random() < self.restless:
            self.ready.append(self.running)
            self._switch()

    def wait(self, deadline_s: float | None = None) -> bool:
        """Until somebody wakes this thread; False if it is the deadline that has."""
        if self.over:
            raise GreenletExit
        me = self.current()
        me.wait_number += 1
        me.waits, me.woken = True, False
        if deadline_s is not None:
            self.at(deadline_s, partial(self._alarm, me, me.wait_number))
        self._switch()
        return me.woken

    def wake(self, thread: SimThread) -> None:
        if thread.waits:
            thread.waits, thread.woken = False, True
            self.ready.append(thread)

    def _alarm(self, thread: SimThread, number: int) -> None:
        if thread.waits and thread.wait_number == number:
            thread.waits = False
            self.ready.append(thread)

    def leave_for_ever(self) -> NoReturn:
        """The running thread's process is gone."""
        assert self.running is not None
        self._switch()
        raise GreenletExit

    def _switch(self) -> None:
        self._hub.switch()
        if self.over:
            raise GreenletExit

    # -- life --------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], turns_max: int, deadline_s: float) -> bool:
        """Let threads run until it holds; False if nothing can happen any more, or it takes too long."""
        self._hub = getcurrent()
        while not until():
            if not self._turn() or self.turns > turns_max or self.time_s > deadline_s:
                return False
        return True

    def _turn(self) -> bool:
        self.turns += 1
        if not self.ready:
            if not self._alarms:
                return False
            time_s, _, do = heapq.heappop(self._alarms)
            self.time_s = max(self.time_s, time_s)  # a deadline may have passed when it was set
            do()
            return True
        ready = self.ready
        at = self.dice.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        thread = ready.pop()
        if not thread.process.alive:
            return True  # it never runs again
        if thread.process.stopped:
            thread.process.held_back.append(thread)
        else:
            self.running = thread
            thread.greenlet.parent = self._hub  # where it goes on when the thread ends
            thread.greenlet.switch()
            self.running = None
            self.after_thread()
            if self.failures:
                who, error = self.failures[0]
                raise Breach("I6", f"thread {who.name} of {who.process} ended with {error!r}") from error
        return True

    def end(self) -> None:
        """All that still runs is ended. What it does on its way out reaches nobody: every port throws."""
        self.over = True
        for process in self.processes:
            for thread in list(process.threads):
                if not thread.greenlet.dead:
                    self.running = thread
                    thread.greenlet.parent = self._hub
                    with suppress(BaseException):
                        thread.greenlet.throw(GreenletExit)
                    self.running = None

    # -- the ports ---------------------------------------------------------------------------------------------------

    def lock(self) -> Any:
        return SimLock(self)

    def rlock(self) -> Any:
        return SimLock(self, again=True)

    def condition(self, lock: Any = None) -> Any:
        return SimCondition(self, lock or SimLock(self, again=True))

    def event(self) -> Any:
        return SimEvent(self)

    def queue(self) -> Any:
        return SimQueue(self)

    def thread_id(self) -> int:
        return self.current().ident or 0

    def now_s(self) -> float:
        return self.time_s

    def worked_s(self) -> float:
        return 0.0  # no time passes while a thread works

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.wait(self.time_s + seconds)

    def pid(self) -> int:
        return self.current().process.pid

    def parent_pid(self) -> int:
        return 1

    def exit_process(self, code: int) -> NoReturn:
        if self.over:
            raise GreenletExit
        self.current().process.kill()
        raise AssertionError("a process goes on after its end")

    def of_process(self, make: Callable[[], Any]) -> Any:
        process = self.current().process
        if make in process.singles and not process.making.locked():  # as below, and often
            self.give_way()
            self.give_way()
            return process.singles[make]
        with process.making:
            if make not in process.singles:
                process.singles[make] = make()
            return process.singles[make]

    def writev(self, fd: int, views: Sequence[Any]) -> int:
        """Perhaps the process is killed here, with some of it written."""
        self.give_way()
        process = self.current().process
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 with every write
        if path not in self._unsynced:
            self._unsynced[path] = (process, os.fstat(fd).st_size)
        cut = self.at_write(process)
        if cut is not None:
            data = b"".join(bytes(view) for view in views)
            os.write(fd, data[: cut % (len(data) + 1)])
            process.kill()
        return os.writev(fd, views)

    def fsync(self, fd: int) -> None:
        """What has been written when it begins is safe when it is over. Small files are safe at once."""
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 with every write
        written = self._unsynced.get(path)
        if written is None:
            self.give_way()
            return
        size = os.fstat(fd).st_size
        if self.sync_s and self.dice.random() < SLOW_SYNC:
            self.sleep(self.dice.random() * self.sync_s)
        self.give_way()
        self._unsynced[path] = (written[0], max(size, self._unsynced[path][1]))  # a sync that began later may be over

    def lose_files(self, directory: Path) -> None:
        """The disk on which the directory is cannot be read any more."""
        shutil.rmtree(directory, ignore_errors=True)
        for path in [path for path in self._unsynced if path.startswith(f"{directory}/")]:
            del self._unsynced[path]

    def cut_power(self, process: Process) -> None:
        """The machine is gone: of what its process has written and not synced, some is lost."""
        for path, (writer, safe) in self._unsynced.items():
            if writer is process and Path(path).exists():
                os.truncate(path, self.dice.randint(safe, max(safe, Path(path).stat().st_size)))
        process.kill()
