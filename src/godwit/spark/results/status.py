"""What `Flock.status()` returns: the hosts of a flock, and its operators with their instances on the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from godwit.spark.results.result_record import ResultRecord, aligned

HostState = Literal["starting", "serving", "down", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus(ResultRecord):
    """A host. Only `state`, `restarts`, `groups` and `error` are known of a host that does not serve.

    `groups`: how many groups of keys it owns, of all operators. `load_s`: how long it read its changelog before it served.
    `backup`, `storage`: documents on the copy of its log, and on the file system of its log.
    """

    state: HostState
    restarts: int
    groups: int
    address: str | None = None
    generation: int | None = None
    pid: int | None = None
    load_s: float | None = None
    uptime_s: float | None = None
    upkeep_error: str | None = None
    backup: Mapping[str, Any] | None = None
    storage: Mapping[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus(ResultRecord):
    """An operator on one host. `ledger_...`, `undo_...`: what is kept of the batch in progress. `gauges`: its recent load."""

    operator: str
    instance: str
    keys: int
    bytes: int
    ledger_bytes: int
    ledger_disk_bytes: int
    undo_bytes: int
    undo_disk_bytes: int
    batch: int
    query: str | None
    watermark_ms: int | None
    rows: int
    outputs: int
    replayed: int
    late: int
    timers_fired: int
    busy_s: float
    rows_per_second: float
    batches: tuple[Any, ...]
    merges: bool
    touched_ms: int
    dead_letters: int
    gauges: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatus(ResultRecord):
    """An operator on all hosts. `batch`: the newest that a host has begun. `lag_s`: since when none has begun."""

    instances: Mapping[str, InstanceStatus]
    keys: int
    bytes: int
    rows: int
    outputs: int
    replayed: int
    late: int
    timers_fired: int
    rows_per_second: float
    dead_letters: int
    batch: int
    lag_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Status(ResultRecord):
    """A flock. `quarantined`: hosts that were lost too often to be started again, with the reason."""

    flock: str
    checkpoint: str
    hosts: Mapping[str, HostStatus]
    operators: Mapping[str, OperatorStatus]
    quarantined: Mapping[str, str]
    storage: Mapping[str, Any]

    def __repr__(self) -> str:
        hosts = [
            (name, host.state, host.generation, host.restarts, host.groups, host.uptime_s, host.error)
            for name, host in self.hosts.items()
        ]
        operators = [
            (name, one.keys, one.bytes, one.rows, one.rows_per_second, one.late, one.dead_letters, one.batch, one.lag_s)
            for name, one in self.operators.items()
        ]
        lines = [f"flock {self.flock} in {self.checkpoint}, durability {self.storage.get('durability')}"]
        lines += aligned(("host", "state", "generation", "restarts", "groups", "uptime s", "error"), hosts)
        if operators:
            head = ("operator", "keys", "bytes", "rows", "rows/s", "late", "dead letters", "batch", "lag s")
            lines += aligned(head, operators)
        return "\n".join([*lines, *(f"{host} is quarantined: {why}" for host, why in self.quarantined.items())])
