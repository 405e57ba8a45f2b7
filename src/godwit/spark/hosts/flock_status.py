"""The status of a flock, gathered from its hosts and their Spark jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from godwit.errors import GodwitError
from godwit.runtime.controller import Controller
from godwit.runtime.messages import GetStatus
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.hosts.host_jobs import HostJob
from godwit.spark.hosts.owner_tables import OwnerTables
from godwit.transport import line, typed


def flock_status(
    directory: FlockDirectory, tables: OwnerTables, controller: Controller, jobs: Sequence[HostJob], token: str
) -> dict[str, Any]:
    """The hosts by name, with the number of groups they own; and the operators by name, with their instances."""
    hosts: dict[str, Any] = {}
    operators: dict[str, Any] = {}
    for job in jobs:
        name = job.config.host
        report = _ask(controller, name, token)
        instances = report.pop("instances", [])
        hosts[name] = {
            "restarts": job.restarts,
            "groups": sum(len(units.groups) for units in tables.owned(name).values()),
            **report,
        }
        if job.gave_up:
            hosts[name]["state"] = "failed"
        for instance in instances:
            operators.setdefault(instance["operator"], {"instances": {}})["instances"][name] = instance
    for operator in operators.values():
        operator |= _totals(list(operator["instances"].values()))
    return {"flock": directory.flock, "checkpoint": str(directory.path), "hosts": hosts, "operators": operators}


def _ask(controller: Controller, name: str, token: str) -> dict[str, Any]:
    registered = controller.hosts().get(name)
    failure = controller.failure(name)
    if registered is None:
        return {"state": "starting", "error": str(failure) if failure else None}
    client = line.connect(registered.address, token)
    try:
        status = typed.ask(client, GetStatus(), 5.0)
    except GodwitError as error:
        return {"state": "down", "generation": registered.generation, "error": str(failure or error)}
    finally:
        client.close()
    shown = ("generation", "pid", "load_s", "uptime_s", "upkeep_error", "backup", "storage", "instances")
    return {"state": "serving", "address": registered.address, **{name: getattr(status, name) for name in shown}}


def _totals(instances: Sequence[dict[str, Any]]) -> dict[str, Any]:
    added = ("keys", "bytes", "rows", "outputs", "replayed", "late", "timers_fired", "rows_per_second", "dead_letters")
    totals = {name: sum(instance[name] for instance in instances) for name in added}
    newest_ms = max(instance["touched_ms"] for instance in instances)
    return totals | {
        "batch": max(instance["batch"] for instance in instances),
        "lag_s": None if newest_ms == 0 else max(0.0, time.time() - newest_ms / 1000),
    }
