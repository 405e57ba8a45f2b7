"""Task slots for hosts: a restarted host gets the next free slot, and if routers occupy all slots, one router ends for it.

Spark gives a free slot to the oldest job with a waiting task. When a host dies during a batch, that job is the batch: its next
router gets the slot and waits for the host, which waits for a slot. So a host without a slot goes before all other jobs (FIFO),
or has a pool with a share of its own (FAIR); and one waiting router is killed for each such host. Spark does not count a kill
as a failure: it runs the task again, and hosts answer from their ledgers what they have applied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

FIRST: Final = -1  # jobs are numbered from 0
LOOK_S: Final = 0.1  # many tasks may wait at once, and each look goes through the queue of Spark
KILL_AGAIN_S: Final = 3.0  # after that time a killed task has ended, or Spark ends its process
KILL_ARRIVES_S: Final = 0.3
REASON: Final = "it waits for a godwit host that needs its task slot"


class TaskSlots:
    """`waits` is called by many threads, one for each waiting task.

    `unseated` is called for each host without a slot, whose missing heartbeats mean nothing.
    """

    def __init__(self, context: SparkContext, flock: str, unseated: Callable[[str], None]) -> None:
        self._context = context
        self._prefix = f"godwit-{flock}-"
        self._unseated = unseated
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._kill_again_s: dict[str, float] = {}  # by host that still has no slot after a task was killed for it
        self._fair = context.getConf().get("spark.scheduler.mode", "FIFO").upper() == "FAIR"
        self._local = str(context.master).startswith("local[") or context.master == "local"

    def take(self, checkpoint: str, count: Callable[[], int]) -> None:
        """The flock in this checkpoint occupies `count()` slots of the application from now on."""
        with _open_lock:
            _open[checkpoint] = (self, count)

    def release(self) -> None:
        with _open_lock:
            for checkpoint in [path for path, (slots, _) in _open.items() if slots is self]:
                del _open[checkpoint]

    def name(self, host: str) -> str:
        """The beginning of the names of a host's job groups."""
        return f"{self._prefix}{host}"

    def reserve(self, name: str) -> None:
        """Called before a host's job is submitted from this thread. A pool below its share goes before all others."""
        if not self._fair:
            return
        with self._lock:
            pools = self._scheduler().rootPool()
            if pools.getSchedulableByName(name) is None:
                scala: Any = self._jvm().org.apache.spark.scheduler
                pools.addSchedulable(scala.Pool(name, scala.SchedulingMode.FIFO(), 1, 1))
        self._context.setLocalProperty("spark.scheduler.pool", name)

    def waits(self, attempt: int) -> bool:
        """A task waits for a host; True if Spark has been asked to end it."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._looked_s + LOOK_S:
                return False
            self._looked_s = now_s
            try:
                pending = self._without_slot()
                self._kill_again_s = {host: at_s for host, at_s in self._kill_again_s.items() if host in pending}
                wanting = [host for host in pending if self._kill_again_s.get(host, 0.0) < now_s]
                if not wanting or not self._kill(attempt):
                    return False
            except Py4JError:  # the application is ending
                return False
            self._kill_again_s[wanting[0]] = now_s + KILL_AGAIN_S
            self._looked_s = 0.0  # look again at once: more hosts and more tasks may wait
        if not self._local:
            time.sleep(KILL_ARRIVES_S)
        return True

    def _without_slot(self) -> list[str]:
        """Hosts that were lost and have no slot to start in.

        A host that joins does not count: no task waits for it, so no task is killed for it.
        """
        managers = self._task_sets(self._scheduler().rootPool())
        hosts = [host for host in map(self._lost_host, managers) if host]
        for host in hosts:
            self._unseated(host)
        return hosts

    def _lost_host(self, manager: Any) -> str:
        """The lost host of this task set, which then gets the next free slot; empty if the task set is no lost host's."""
        properties = manager.taskSet().properties()
        group = (None if properties is None else properties.getProperty("spark.jobGroup.id")) or ""
        if not group.startswith(self._prefix) or manager.runningTasks() or manager.isZombie():
            return ""
        host, _, restarts = group.removeprefix(self._prefix).rpartition("-")
        if not int(restarts) and not manager.taskInfos().size():  # the host has never been started
            return ""
        getattr(manager, "priority_$eq")(FIRST)
        return str(host)

    def _task_sets(self, pool: Any) -> list[Any]:
        queue = list(pool.schedulableQueue().toArray())
        if not self._fair:
            return queue
        return [manager for inner in queue if inner.name().startswith(self._prefix) for manager in _within(inner)]

    def _kill(self, attempt: int) -> bool:
        """Without an interrupt, on which Spark's thread would spin. The task ends itself when it learns of the kill."""
        spark: Any = self._context._jsc.sc()
        if not spark.killTaskAttempt(attempt, False, REASON):
            return False
        if self._local:  # answers after the kill arrived: a task that ends itself earlier would count as failed
            spark.getTaskThreadDump(attempt, "driver")
        return True

    def _scheduler(self) -> Any:
        return self._context._jsc.sc().taskScheduler()

    def _jvm(self) -> Any:
        return self._context._jvm


_open_lock = threading.Lock()
_open: dict[str, tuple[TaskSlots, Callable[[], int]]] = {}  # the flocks of this process, by their checkpoints


def taken_slots(context: SparkContext, besides: str) -> dict[str, int]:
    """The number of slots that the flocks of an application occupy, by checkpoint, without the flock in `besides`.

    After a takeover in the same application, the older flock of that checkpoint has its slots for one second more.
    """
    with _open_lock:
        flocks = [(path, count) for path, (slots, count) in _open.items() if slots._context is context]
    return {path: count() for path, count in flocks if path != besides}


def _within(pool: Any) -> list[Any]:
    return list(pool.schedulableQueue().toArray())
