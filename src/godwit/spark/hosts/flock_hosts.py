"""All hosts of a flock, by name: started, sent requests, waited for and stopped.

Decides what a request to a host that is down means: wait until the host is back, or fail. What the requests are about is not
known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from godwit.errors import GodwitError, HostUnavailable
from godwit.runtime.controller import Controller
from godwit.runtime.messages import Stop
from godwit.spark.hosts.host_jobs import HostJob
from godwit.transport import line, typed
from godwit.transport.typed import Reply

START_TIMEOUT_S = 120.0
ASK_AGAIN_S = 1.0  # a host that was only unreachable for a moment registers no new generation


class Hosts:
    """`make` makes the job of a host. `closing` is set when the flock closes."""

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
        """Start these hosts, and wait until they serve."""
        self._check_open()
        for name in names:
            with self._lock:
                job = self._jobs[name] = self._make(name)
            job.start()
        missing = self._controller.wait_hosts(list(names), START_TIMEOUT_S)
        if missing:
            raise HostUnavailable(
                f"{', '.join(missing)} did not start within {START_TIMEOUT_S:g} s",
                todo="Check that Spark has free task slots, and look at the logs of the executors",
            )

    def stop(self, names: Sequence[str]) -> None:
        """Stop these hosts for good. A host that has ended already is left out."""
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
        """End the job of a host that is lost though its task has not ended. `noticed`: how the loss was noticed."""
        job = self._job(name)
        if job is not None and job.serves(generation):
            job.end(noticed)

    def _job(self, name: str) -> HostJob | None:
        with self._lock:
            return self._jobs.get(name)

    def remove(self, name: str) -> None:
        """Forget a host that was lost and is not started again."""
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
            return  # the host has ended already, or its job is cancelled next
        finally:
            client.close()

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, host: str, request: typed.Request[Reply]) -> Reply:
        """The answer of the host. A host that is down is waited for, because its job starts it again. Its errors are raised."""
        while True:
            self._check_open()
            generation = self._generation(host)
            try:
                return self.ask_now(host, request)
            except HostUnavailable:
                self._check_may_return(host)
            self._controller.wait_newer(host, generation, ASK_AGAIN_S)

    def ask_now(self, host: str, request: typed.Request[Reply]) -> Reply:
        """As `ask`, but raises HostUnavailable if the host is down now."""
        registered = self._controller.hosts().get(host)
        if registered is None:
            raise HostUnavailable(
                f"{host} is not serving now", todo="Try again when flock.status() shows it", host=host
            )
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
                "the flock is being closed", todo="Open it again: its hosts then finish or undo what was under way"
            )

    def _check_may_return(self, host: str) -> None:
        job = self._job(host)
        if job is None or job.gave_up:
            failure = self._controller.failure(host)
            raise failure or HostUnavailable(
                f"{host} has ended and is not started again", todo="Look at flock.history()", host=host
            )
