"""A host as a Spark job of its own, so that each host can be started, watched and stopped alone.

The job ends with its host, and is submitted again at once. The new generation of the host reads its state from the changelog.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext

from godwit.errors import CheckpointUnusable, Fenced, HostUnavailable
from godwit.runtime.controller import Controller
from godwit.runtime.host.host import HostConfig
from godwit.runtime.liveness.leases import check_owner, end_lease, host_directory, read_lease
from godwit.spark.hosts.host_task import serve
from godwit.spark.hosts.task_slots import TaskSlots
from godwit.spark.task_errors import plain_errors

PAUSE_S_MAX = 5.0
TASK_ENDED = "its task ended"
FAILURES_MAX = 3  # after so many starts in a row that did not come to serving, a restart will not help
_NOISE = re.compile(
    r"\s*SQLSTATE: \w+\s*|^: |org\.apache\.spark\.\w*Exception: "
    r"|.*\[PYTHON_EXCEPTION\] An exception was thrown from the Python worker: (?!Traceback)"
)
_log = logging.getLogger("godwit.hosts")


def _error_line(text: str) -> str:
    """The line of Spark's error text that names the error: the last one before the stack of the JVM."""
    lines = [_NOISE.sub("", line) for line in text.split("\n\tat ", 1)[0].splitlines()]
    return next((line.strip() for line in reversed(lines) if line.strip()), "no error text")


def application_ended(context: SparkContext) -> bool:
    """Whether the SparkContext was stopped, perhaps while a flock was open."""
    try:
        java: Any = context._jsc
        return java is None or bool(java.sc().isStopped())
    except Py4JError:  # the JVM has ended
        return True


class HostJob:
    """One host, which a thread of the driver keeps running."""

    def __init__(
        self,
        context: SparkContext,
        config: HostConfig,
        controller: Controller,
        slots: TaskSlots,
        lost: Callable[[str, str], bool],
        forget: Callable[[str], None],
    ) -> None:
        """`lost(host, how it was noticed)`: called when the host is lost; True if other hosts own its keys now.

        `forget(host)`: called when the host ends in a known way, so that missing heartbeats mean nothing.
        """
        self.config = config
        self._lost = lost
        self._forget = forget
        self.restarts = 0
        self.gave_up = False
        self.last_end = ""
        self._context = context
        self._controller = controller
        self._slots = slots
        self._name = slots.name(config.host)
        self._group = (
            ""  # the group of the running job; every start has its own, so that a late cancel hits no newer job
        )
        self._ended = 0  # the newest generation whose job has ended
        self._noticed = TASK_ENDED
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._keep_running, daemon=True, name=self._name)

    def start(self) -> None:
        self._thread.start()

    def _keep_running(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            before = self._generation()
            self._noticed = TASK_ENDED
            self._run_once()
            self._ended = self._generation()
            self._forget(self.config.host)
            self._drop_lease(self._ended)
            if application_ended(self._context):
                return
            served = self._generation() > before and not self._stopping.is_set()
            if served and self._lost(self.config.host, self._how_lost()):
                return
            failures = 0 if self._generation() > before else failures + 1
            if (failures > FAILURES_MAX and not self._may_mend()) or self._replaced():
                self.gave_up = not self._stopping.is_set()
                if self.gave_up:
                    self._give_up(self._never_served(failures))
                return
            self._stopping.wait(0.0 if failures == 0 else min(0.2 * 2**failures, PAUSE_S_MAX))
            self.restarts += not self._stopping.is_set()

    def _how_lost(self) -> str:
        ended = self._noticed == TASK_ENDED and self.last_end
        return f"{TASK_ENDED} ({self.last_end})" if ended else self._noticed

    def _give_up(self, error: HostUnavailable) -> None:
        self._controller.gave_up(self.config.host, error)
        _log.error("%s", self._controller.failure(self.config.host))

    def _never_served(self, failures: int) -> HostUnavailable:
        return HostUnavailable(
            f"{self.config.host} was started {failures} times, and each time its task ended before the host served; the last "
            f"error: {self.last_end}",
            todo="Look at the logs of the executors. They must run the Python in which Godwit is installed: activate its "
            "environment, or set PYSPARK_PYTHON",
            host=self.config.host,
        )

    def _may_mend(self) -> bool:
        """Whether a later start may work without a restart of the application, for instance after disk space was freed."""
        return isinstance(self._controller.failure(self.config.host), CheckpointUnusable)

    def _replaced(self) -> bool:
        """Whether a newer flock has opened the checkpoint. A restart here would only fence the hosts of that flock."""
        try:
            check_owner(self.config.checkpoint, self.config.incarnation)
        except Fenced:
            return True
        except CheckpointUnusable:  # the host reads the same file, and reports the error
            return False
        return False

    def _generation(self) -> int:
        registered = self._controller.hosts().get(self.config.host)
        return 0 if registered is None else registered.generation

    def _run_once(self) -> None:
        """One Spark job, which runs as long as the host does."""
        config = self.config

        def task(_: Iterable[int]) -> Iterable[int]:
            with plain_errors():
                serve(config)
            return ()

        self.last_end = ""
        self._group = f"{self._name}-{self.restarts}"
        # Without an interrupt, on which Spark's thread would spin. Spark ends the process by itself after 2 to 4 s.
        try:
            self._context.setJobGroup(self._group, self._description(), interruptOnCancel=False)
            self._slots.reserve(self._name)
            self._context.parallelize([0], 1).mapPartitions(task).collect()
        except Exception as error:  # noqa: BLE001 a host is started again, whatever ended it
            self.last_end = _error_line(str(error))

    def _description(self) -> str:
        """For the pages of Spark's UI, where the job runs and does not end."""
        again = f", started again {self.restarts} times" if self.restarts else ""
        return (
            f"Godwit {self.config.host}{again}: holds state of the flock in {self.config.checkpoint}. "
            "It runs until the flock is closed; that it does not end is no fault"
        )

    def serves(self, generation: int) -> bool:
        """Whether this generation of the host runs, and is not being stopped."""
        return not self._stopping.is_set() and self._ended < generation == self._generation()

    def end(self, noticed: str) -> None:
        """Cancel the job of a host that is lost though its task has not ended. Its process may run a little longer."""
        self._noticed = noticed
        self._cancel()

    def _cancel(self) -> None:
        if not application_ended(self._context):
            self._context.cancelJobGroup(self._group)

    def stop(self) -> None:
        """Do not start the host again after it ends."""
        self._stopping.set()
        self._forget(self.config.host)

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is None:
            return True  # the job was never started
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def clear_up(self) -> None:
        """End the lease for a host that could not: after Ctrl-C Spark ends tasks without waiting for them."""
        self._drop_lease(None)

    def _drop_lease(self, generation: int | None) -> None:
        """End the lease if it is of this generation or an older one; None: of any generation.

        A router with a stream to a machine that has vanished then stops waiting on the stream.
        """
        directory = host_directory(self.config.checkpoint, self.config.host)
        lease = read_lease(directory)
        if lease is None or lease.incarnation != self.config.incarnation:
            return
        if generation is None or lease.generation <= generation:
            end_lease(directory, lease.generation)
