"""The Spark task of a host: serves until it is stopped, and reports the error that ended it."""

from __future__ import annotations

import gc
import time

from pyspark import TaskContext

from godwit.errors import Bug, GodwitError, HostUnavailable
from godwit.runtime.host.host import Host, HostConfig
from godwit.runtime.liveness.leases import host_directory, read_lease, write_failure
from godwit.runtime.messages import CheckTakenOver, ReportFailure
from godwit.transport import line, typed

TAKEOVER_TIMEOUT_S = 600.0  # the other hosts may have a large log to read


def serve(config: HostConfig) -> None:
    """Serve until stopped. An error that ends the host goes to its directory and to the controller, where users see it."""
    gc.collect()
    gc.freeze()  # what a Python worker of Spark has imported: to look through it would stop all rows for 20 ms, again and again
    host = Host(config, lambda: time.time_ns() // 1_000_000)
    try:
        if not _is_taken_over(config):
            host.run()
    except Exception as error:
        cause = error if isinstance(error, GodwitError) else Bug(f"{type(error).__name__}: {error}")
        _report(config, cause, host.generation)
        raise


def _report(config: HostConfig, error: GodwitError, generation: int) -> None:
    """Write the error to the host's directory, unless a newer generation runs: the error would be taken for its own."""
    directory = host_directory(config.checkpoint, config.host)
    lease = read_lease(directory)
    if lease is None or not 0 < generation < lease.generation:
        write_failure(directory, error.at(host=config.host))
    _tell_controller(config, error, generation)


def _is_taken_over(config: HostConfig) -> bool:
    """Whether other hosts own the keys of this host. Asked if Spark itself has restarted the task, before the driver knew."""
    task = TaskContext.get()
    if task is None or task.attemptNumber() == 0:
        return False
    client = line.connect(config.controller, config.token)
    try:
        return typed.ask(client, CheckTakenOver(config.host), TAKEOVER_TIMEOUT_S).taken_over
    finally:
        client.close()


def _tell_controller(config: HostConfig, error: GodwitError, generation: int) -> None:
    client = line.connect(config.controller, config.token)
    try:
        typed.ask(client, ReportFailure(config.host, generation, error), 5.0)
    except HostUnavailable:
        return  # the driver is gone; the executor's log has the error
    finally:
        client.close()
