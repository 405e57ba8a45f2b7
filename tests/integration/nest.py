"""Real host processes and a real controller without Spark: what a flock is made of, driven by the test itself.

A test starts, stops and kills hosts by name and runs routers in its own process, several at a time if it likes.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from godwit.errors import StaleRun
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.controller import Controller, DriverAnswers
from godwit.runtime.host.host import HostConfig
from godwit.runtime.liveness.leases import Lease, host_directory, read_lease, write_owner
from godwit.runtime.messages import Admit, Define, FetchState, OperatorDefinition, RunAdmitted
from godwit.runtime.processor.native import NativeAdapter, Processor
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.router import Router
from godwit.state.changelog import Durability
from godwit.state.keys import KeyCodec
from godwit.transport import typed
from godwit.transport.flight import Client
from godwit.transport.typed import Reply, Request
from tests.spark.flocks import Count, wait_until

INPUT = pa.schema([("key", pa.int64()), ("n", pa.int64())])
HASHED = pa.schema([*INPUT, ("hash", pa.int64())])
OPERATOR = "count"
_SERVE = (
    "import pickle, sys, time; from godwit.runtime.host.host import Host; "
    "Host(pickle.loads(bytes.fromhex(sys.argv[1])), lambda: time.time_ns() // 1_000_000).run()"
)


class Nest:
    """A checkpoint, a controller, and host processes."""

    def __init__(
        self,
        checkpoint: Path,
        hosts: int = 2,
        processor: Processor | None = None,
        backup: bool = False,
        **spec: Any,
    ) -> None:
        self.checkpoint = checkpoint
        self.incarnation = secrets.token_hex(4)
        checkpoint.mkdir(parents=True, exist_ok=True)
        write_owner(str(checkpoint), self.incarnation)
        self.token = secrets.token_hex(8)
        self.routing = Routing.spread([f"host-{i}" for i in range(hosts)], 64)
        self.initial = self.routing  # what hosts own at first
        self.runs = {"run-1"}  # those that Spark would call active
        self.backup = backup
        self.durability: Durability = "process"
        names = self.routing.hosts
        self.peers: dict[str, str | None] = dict(zip(names, (*names[1:], names[0]), strict=True))  # who backs up whom
        self.controller = Controller(
            "127.0.0.1", self.token, DriverAnswers(self._admit, list, backup_peer=self.peers.get)
        )
        self.operator = operator_of(processor or Count(), **spec)
        self.controller.add(self.operator)
        self.bind = "127.0.0.1"
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}

    def _admit(self, request: Admit) -> RunAdmitted:
        if request.run not in self.runs:
            raise StaleRun(f"run {request.run} is no longer active")
        return RunAdmitted()

    def config(self, host: str) -> HostConfig:
        return HostConfig(
            host,
            str(self.checkpoint),
            self.controller.address,
            self.token,
            self.bind,
            incarnation=self.incarnation,
            routing=self.initial,
            backup=self.backup,
            durability=self.durability,
        )

    def begin(self, host: str) -> subprocess.Popen[bytes]:
        """Start a host process and do not wait for it."""
        process = subprocess.Popen([sys.executable, "-c", _SERVE, pickle.dumps(self.config(host)).hex()])
        self._processes.setdefault(host, []).append(process)
        return process

    def start(self, *hosts: str) -> None:
        before = {host: self.lease(host) for host in hosts}
        for host in hosts:
            self.begin(host)
        for host, lease in before.items():
            self._wait_lease(host, lease)

    def _wait_lease(self, host: str, lost: Lease | None) -> None:
        wait_until(lambda: self.lease(host) not in (None, lost), what=f"{host} serves")

    def start_all(self) -> Nest:
        self.start(*self.routing.hosts)
        return self

    def lease(self, host: str) -> Lease | None:
        return read_lease(host_directory(str(self.checkpoint), host))

    def process(self, host: str) -> subprocess.Popen[bytes]:
        return self._processes[host][-1]

    def kill(self, host: str) -> None:
        process = self.process(host)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def route(self, **changed: Any) -> Route:
        spec = self.operator.spec
        route = Route(
            operator=spec.name,
            checkpoint=str(self.checkpoint),
            routing=self.routing,
            output_schema=spec.output_schema,
            key_names=tuple(spec.key_schema.names),
            token=self.token,
            gather=False,
            incarnation=self.incarnation,
            timers=spec.time_mode != "none",
        )
        return replace(route, **changed)

    def run(
        self,
        batch: int,
        lane: str,
        batches: Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch],
        run: str = "run-1",
        **changed: Any,
    ) -> Iterator[dict[str, Any]]:
        """What a Spark task does: rows through a router, output rows as they leave."""
        router = Router(self.route(**changed), Task(BatchRef("query", run, batch), lane))
        for outputs in router.run(batches, INPUT):
            yield from outputs.to_pylist()

    def client(self, host: str, token: str | None = None) -> Client:
        lease = self.lease(host)
        assert lease is not None
        return Client(lease.address, token or self.token)

    def ask(self, host: str, request: Request[Reply]) -> Reply:
        client = self.client(host)
        try:
            return typed.ask(client, request)
        finally:
            client.close()

    def fetch(self, host: str, committed_batch: int) -> list[pa.RecordBatch]:
        """All state of a host, as changes."""
        client = self.client(host)
        try:
            return list(typed.fetch(client, FetchState(OPERATOR, committed_batch))[1])
        finally:
            client.close()

    def state(self, committed_batch: int) -> dict[int, int]:
        """All hosts' state, as key -> n."""
        from godwit.runtime.reading.export import rows_of_state

        found: dict[int, int] = {}
        for host in self.routing.hosts:
            changes = self.fetch(host, committed_batch)
            for table in rows_of_state(self.operator.spec, changes, host, 1):
                found |= {row["key"]: row["state"]["n"] for row in table.to_pylist()}
        return found

    def define(self, host: str) -> None:
        self.ask(host, Define(OperatorDefinition.of(self.operator)))

    def close(self) -> None:
        for processes in self._processes.values():
            for process in processes:
                process.kill()
                process.wait()
        self.controller.close()


def operator_of(processor: Processor, **changed: Any) -> Operator:
    adapter = NativeAdapter(processor, INPUT, ["key"])
    spec = OperatorSpec(
        name=OPERATOR,
        processor=type(processor).__qualname__,
        flavour="native",
        key_schema=pa.schema([INPUT.field("key")]),
        output_schema=adapter.output_schema,
        variables=adapter.variables,
    )
    return Operator(replace(spec, **changed), cloudpickle.dumps(adapter))


def rows(numbers: Sequence[int], keys: int = 7) -> pa.RecordBatch:
    """Rows by their numbers, with the routing hash that Spark would have put last."""
    n = np.array(numbers, np.int64)
    key = n % keys
    hashes = np.array([route_hash(k) for k in key.tolist()], np.int64)
    return pa.RecordBatch.from_arrays([pa.array(key), pa.array(n), pa.array(hashes)], schema=HASHED)


@cache
def route_hash(key: int) -> int:
    return KeyCodec(pa.schema([INPUT.field("key")])).route_hash((key,))
