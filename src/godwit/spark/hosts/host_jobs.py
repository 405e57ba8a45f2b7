"""Hosts as Spark tasks: each one a job of its own, so that they can be started, watched and stopped one by one.

A host that dies takes its job with it; the job is submitted again at once, and the new generation goes on from the changelog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from pyspark import InheritableThread, SparkContext, TaskContext

from godwit.errors import Bug, CheckpointUnusable, Fenced, GodwitError, HostUnavailable
from godwit.runtime.controller import Controller
from godwit.runtime.host.host import Host, HostConfig
from godwit.runtime.liveness.leases import check_owner, end_lease, host_directory, read_lease, write_failure
from godwit.runtime.messages import CheckTakenOver, ReportFailure, Stop
from godwit.spark.hosts.task_slots import TaskSlots
from godwit.transport import line, typed
from godwit.transport.typed import Reply

START_TIMEOUT_S = 120.0
TAKEOVER_S = 600.0  # others may have much to read
ASK_AGAIN_S = 1.0  # a host that only could not be reached for a moment registers no new generation
PAUSE_S_MAX = 5.0
TASK_ENDED = "its task ended"
FAILURES_MAX = 3  # starts in a row that never came to serving: then something is wrong that a restart does not mend


def serve(config: HostConfig) -> None:
    """The body of a host task: serve until stopped; an error that a user must see goes to the controller too."""
    host = Host(config, lambda: time.time_ns() // 1_000_000)
    try:
        if not _taken_over(config):
            host.run()
    except Exception as error:
        told = error if isinstance(error, GodwitError) else Bug(f"{type(error).__name__}: {error}")
        _leave_word(config, told, host.generation)
        raise


def _leave_word(config: HostConfig, error: GodwitError, generation: int) -> None:
    """Unless it is of a process that was given up: then it would be taken for the word of its successor."""
    directory = host_directory(config.checkpoint, config.host)
    lease = read_lease(directory)
    if lease is None or not 0 < generation < lease.generation:
        write_failure(directory, error.at(host=config.host))
    _tell(config, error, generation)


def _taken_over(config: HostConfig) -> bool:
    """Spark itself starts a task again that has failed: then the driver has not heard yet that the host was lost."""
    task = TaskContext.get()
    if task is None or task.attemptNumber() == 0:
        return False
    client = line.connect(config.controller, config.token)
    try:
        return typed.ask(client, CheckTakenOver(config.host), TAKEOVER_S).taken_over
    finally:
        client.close()


def _tell(config: HostConfig, error: GodwitError, generation: int) -> None:
    client = line.connect(config.controller, config.token)
    try:
        typed.ask(client, ReportFailure(config.host, generation, error), 5.0)
    except HostUnavailable:
        return  # the driver is gone; the executor's log has the error
    finally:
        client.close()


def _error_line(text: str) -> str:
    """The line of Spark's many that names the error: the last one before the stack of the JVM."""
    lines = [line for line in text.split("\n\tat ", 1)[0].splitlines() if line.strip() and "SQLSTATE" not in line]
    return lines[-1].strip() if lines else "no word"


class HostJob:
    """One host, kept running by a thread on the driver."""

    def __init__(
        self,
        context: SparkContext,
        config: HostConfig,
        controller: Controller,
        slots: TaskSlots,
        lost: Callable[[str, str], bool],
        forget: Callable[[str], None],
    ) -> None:
        """`lost`: it has ended, and so it was noticed; whether others own its keys now. `forget`: its silence says nothing."""
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
        self._group = ""  # of the job that runs: each has its own, so that none is ended for the silence of another
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
            served = self._generation() > before and not self._stopping.is_set()
            if served and self._lost(self.config.host, self._noticed):
                return
            failures = 0 if self._generation() > before else failures + 1
            if (failures > FAILURES_MAX and not self._may_mend()) or self._replaced():
                self.gave_up = not self._stopping.is_set()
                if self.gave_up:
                    self._controller.gave_up(self.config.host, self._never_served(failures))
                return
            self._stopping.wait(0.0 if failures == 0 else min(0.2 * 2**failures, PAUSE_S_MAX))
            self.restarts += not self._stopping.is_set()

    def _never_served(self, failures: int) -> HostUnavailable:
        return HostUnavailable(
            f"{self.config.host} was started {failures} times and never came to serving; its task ended with: {self.last_end}",
            todo="Executors must run the Python that has Godwit: activate its environment, or set PYSPARK_PYTHON; their logs "
            "have the whole error",
            host=self.config.host,
        )

    def _may_mend(self) -> bool:
        """Whether somebody may make it work from outside, by making room for instance."""
        return isinstance(self._controller.failure(self.config.host), CheckpointUnusable)

    def _replaced(self) -> bool:
        """Whether a newer flock has opened the checkpoint: starting again would only fence its hosts."""
        try:
            check_owner(self.config.checkpoint, self.config.incarnation)
        except Fenced:
            return True
        except CheckpointUnusable:  # the host reads the owner too, and says what is wrong with it
            return False
        return False

    def _generation(self) -> int:
        registered = self._controller.hosts().get(self.config.host)
        return 0 if registered is None else registered.generation

    def _run_once(self) -> None:
        """One Spark job that lasts as long as the host lives. How it ended is told by lease, obituary and controller."""
        config = self.config

        def task(_: Iterable[int]) -> Iterable[int]:
            serve(config)
            return ()

        self._group = f"{self._name}-{self.restarts}"
        # Not interrupted: Spark's thread would not heed it, but spin. Spark ends the process itself when 2 to 4 s have passed.
        self._context.setJobGroup(self._group, f"godwit {config.host}", interruptOnCancel=False)
        self._slots.reserve(self._name)
        try:
            self._context.parallelize([0], 1).mapPartitions(task).collect()
        except Exception as error:  # noqa: BLE001 a host that died is started again, whatever killed it
            self.last_end = _error_line(str(error))

    def serves(self, generation: int) -> bool:
        """Whether this is what runs, and is meant to."""
        return not self._stopping.is_set() and self._ended < generation == self._generation()

    def end(self, noticed: str) -> None:
        """It was noticed that it is lost, though its task has not ended. The job has when this returns; the process may not."""
        self._noticed = noticed
        self._context.cancelJobGroup(self._group)

    def stop(self) -> None:
        """From now on the end of the host is not a reason to start it again."""
        self._stopping.set()
        self._forget(self.config.host)

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is None:
            return True  # it was never started
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def clear_up(self) -> None:
        """Say good-bye for a host that could not: Ctrl-C makes Spark end tasks without waiting for them."""
        self._drop_lease(None)

    def _drop_lease(self, generation: int | None) -> None:
        """Of that generation or an older one. Who still has a stream to a machine that has vanished ends it then, and waits."""
        directory = host_directory(self.config.checkpoint, self.config.host)
        lease = read_lease(directory)
        if lease is None or lease.incarnation != self.config.incarnation:
            return
        if generation is None or lease.generation <= generation:
            end_lease(directory, lease.generation)


class Hosts:
    """All hosts of a flock: started, asked, waited for and stopped by name."""

    def __init__(self, make: Callable[[str], HostJob], controller: Controller, token: str) -> None:
        self._make = make
        self._controller = controller
        self._token = token
        self._lock = threading.Lock()
        self._jobs: dict[str, HostJob] = {}
        self.closing = threading.Event()

    def jobs(self) -> list[HostJob]:
        with self._lock:
            return list(self._jobs.values())

    def names(self) -> list[str]:
        return [job.config.host for job in self.jobs()]

    def start(self, names: Sequence[str]) -> None:
        """Start these and wait until they serve."""
        self._check_open()
        for name in names:
            with self._lock:
                job = self._jobs[name] = self._make(name)
            job.start()
        missing = self._controller.wait_hosts(list(names), START_TIMEOUT_S)
        if missing:
            raise HostUnavailable(
                f"{', '.join(missing)} did not start within {START_TIMEOUT_S:g} s",
                todo="Look for free task slots and at the executors' logs",
            )

    def stop(self, names: Sequence[str]) -> None:
        """End these for good; calling it for a host that has ended already does nothing."""
        with self._lock:
            jobs = [self._jobs.pop(name) for name in names if name in self._jobs]
        for job in jobs:
            job.stop()
        for job in jobs:
            registered = self._controller.hosts().get(job.config.host)
            if registered is not None:
                self._tell_to_stop(registered.address)
        for job in jobs:
            if job.join(10.0):
                job.clear_up()
            self._controller.forget(job.config.host)

    def serves(self, name: str, generation: int) -> bool:
        job = self._job(name)
        return job is not None and not self.closing.is_set() and job.serves(generation)

    def end(self, name: str, generation: int, noticed: str) -> None:
        """Its task does not end by itself."""
        job = self._job(name)
        if job is not None and job.serves(generation):
            job.end(noticed)

    def _job(self, name: str) -> HostJob | None:
        with self._lock:
            return self._jobs.get(name)

    def part_from(self, name: str) -> None:
        """It was lost, and is not started again."""
        with self._lock:
            job = self._jobs.pop(name, None)
        if job is not None:
            job.stop()
        self._controller.forget(name)

    def close(self) -> None:
        self.closing.set()
        self.stop(self.names())

    def _tell_to_stop(self, address: str) -> None:
        client = line.connect(address, self._token)
        try:
            typed.ask(client, Stop(), 5.0)
        except GodwitError:
            return  # it is gone already, or its job is cancelled next
        finally:
            client.close()

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, host: str, request: typed.Request[Reply]) -> Reply:
        """The host's answer. If the host is away, wait for it: its job starts it again. Its own errors are raised."""
        while True:
            self._check_open()
            generation = self._generation(host)
            try:
                return self.ask_now(host, request)
            except HostUnavailable:
                self._check_may_return(host)
            self._controller.wait_newer(host, generation, ASK_AGAIN_S)

    def ask_now(self, host: str, request: typed.Request[Reply]) -> Reply:
        """As `ask`, but a host that is away now is an error."""
        registered = self._controller.hosts().get(host)
        if registered is None:
            raise HostUnavailable(f"{host} is not serving", host=host)
        client = line.connect(registered.address, self._token)
        try:
            return typed.ask(client, request)
        finally:
            client.close()

    def _generation(self, host: str) -> int:
        registered = self._controller.hosts().get(host)
        return 0 if registered is None else registered.generation

    def _check_open(self) -> None:
        if self.closing.is_set():
            raise HostUnavailable(
                "the flock is being closed", todo="Open it again: its hosts resolve what was under way"
            )

    def _check_may_return(self, host: str) -> None:
        job = self._job(host)
        if job is None or job.gave_up:
            failure = self._controller.failure(host)
            raise failure or HostUnavailable(f"{host} has ended and is not started again", host=host)
