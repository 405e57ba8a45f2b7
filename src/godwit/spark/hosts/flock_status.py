"""The status of a flock, gathered from its hosts and their Spark jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from godwit.errors import GodwitError
from godwit.runtime.controller import Controller
from godwit.runtime.messages import GetStatus
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.hosts.host_jobs import HostJob
from godwit.spark.hosts.owner_tables import OwnerTables
from godwit.spark.results.status import HostStatus, InstanceStatus, OperatorStatus, Status
from godwit.transport import line, typed

ADDED = ("keys", "bytes", "rows", "outputs", "replayed", "late", "timers_fired", "rows_per_second", "dead_letters")
SHOWN = ("generation", "pid", "load_s", "uptime_s", "upkeep_error", "backup", "storage", "instances")


@dataclass(frozen=True, slots=True)
class StatusSource:
    """What the status is gathered from."""

    directory: FlockDirectory
    tables: OwnerTables
    controller: Controller
    token: str


def flock_status(
    source: StatusSource, jobs: Sequence[HostJob], quarantined: Mapping[str, str], storage: Mapping[str, Any]
) -> Status:
    hosts: dict[str, HostStatus] = {}
    instances: dict[str, dict[str, InstanceStatus]] = {}
    for job in jobs:
        name = job.config.host
        report = _ask(source.controller, name, source.token)
        for instance in report.pop("instances", []):
            by_host = instances.setdefault(instance["operator"], {})
            by_host[name] = InstanceStatus(**instance | {"batches": tuple(instance["batches"])})
        report |= {"state": "failed"} if job.gave_up else {}
        groups = sum(len(units.groups) for units in source.tables.owned(name).values())
        hosts[name] = HostStatus(restarts=job.restarts, groups=groups, **report)
    return Status(
        flock=source.directory.flock,
        checkpoint=str(source.directory.path),
        hosts=hosts,
        operators={operator: _operator(by_host) for operator, by_host in instances.items()},
        quarantined=quarantined,
        storage=storage,
    )


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
    return {"state": "serving", "address": registered.address, **{name: getattr(status, name) for name in SHOWN}}


def _operator(instances: Mapping[str, InstanceStatus]) -> OperatorStatus:
    totals = {name: sum(instance[name] for instance in instances.values()) for name in ADDED}
    newest_ms = max(instance.touched_ms for instance in instances.values())
    return OperatorStatus(
        instances=instances,
        batch=max(instance.batch for instance in instances.values()),
        lag_s=None if newest_ms == 0 else max(0.0, time.time() - newest_ms / 1000),
        **totals,
    )
