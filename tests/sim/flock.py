"""A flock in the simulated world: the product's hosts and controller as processes, and a driver that plays Spark's part.

The driver starts hosts again when they end, has others take over from those that are lost (the product's `rescue`), follows
migrations, and keeps the routing tables. What it decides comes from the seed; everything else is the product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, StaleRun
from godwit.model.ownership import Ownership, Stand
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.model.watermark import BatchWatermark
from godwit.runtime.controller import Controller, DriverAnswers
from godwit.runtime.host.host import Host, HostConfig
from godwit.runtime.liveness.heartbeat_datagrams import HeartbeatReceiver
from godwit.runtime.liveness.leases import host_directory, read_lease, write_owner
from godwit.runtime.liveness.wills import read_will
from godwit.runtime.messages import Admit, GetWatermark, NoteCommitted, RunAdmitted, SparkWatermark
from godwit.runtime.processor.spec import Operator
from godwit.runtime.router.routing_table import write_routing
from godwit.runtime.takeover import rescue
from godwit.spark.hosts.silent_hosts import SilentHostMonitor
from godwit.state.segments import Durability
from godwit.transport import line, typed
from godwit.transport.typed import Reply, Request
from tests.sim.kernel import Kernel, Process
from tests.sim.network import BIND

TOKEN = "token"
INCARNATION = "flock"
TAKEN_OVER = 0.4  # of the hosts that are lost, if nothing stands against it


@dataclass(frozen=True, slots=True)
class Plan:
    """What a flock is made of."""

    hosts: tuple[str, ...]
    first: Routing  # who owns what at first
    operators: tuple[Operator, ...]
    durability: Durability
    backup: bool
    silent_s: float | None = None  # so long a host may be silent; without it there are no heartbeats


class Flock:
    def __init__(self, kernel: Kernel, checkpoint: Path, plan: Plan) -> None:
        self.kernel, self.checkpoint, self.plan = kernel, checkpoint, plan
        self.operators = {operator.spec.name: operator for operator in plan.operators}
        self.hosts: dict[str, tuple[Process, Host | None]] = {}  # the newest process of each
        self.lost: set[str] = set()  # others own what they had
        self.recovering: set[str] = set()
        self.tables = {name: plan.first.joined(plan.hosts) for name in self.operators}
        self.runs: set[str] = set()  # those that Spark would call active
        self.batches: dict[str, int] = {}  # by run: the batch that Spark is in
        self.watermarks: dict[
            str, Callable[[], BatchWatermark]
        ] = {}  # by operator: Spark's, of the batch that it is in
        self.asynchronous: set[str] = set()  # queries whose progress Spark tracks asynchronously
        self.migrations: set[str] = set()  # that the driver follows
        self.standing: dict[str, tuple[str, str, str, Units]] = {}  # standbys: operator, origin, target, what is copied
        self.recoveries: dict[str, list[tuple[float, bool]]] = {}  # by host, as they came
        self.planned: dict[str, list[tuple[float, bool]]] | None = None  # instead of what chance says
        self.takeovers = 0
        self.silent = 0  # hosts that were taken for lost because their heartbeats did not come
        self.by_copies = 0  # of the heirs, those that had copies of a standby
        self._address = self._beats = ""
        write_owner(str(checkpoint), INCARNATION)
        self.driver = kernel.process("driver", "driver", self._drive)

    def _drive(self) -> None:
        answers = DriverAnswers(
            self._admit,
            list,
            taken_over=self.lost.__contains__,
            backup_peer=self._peer_of,
            watermark=self._watermark,
        )
        controller = Controller(BIND, TOKEN, answers)
        for operator in self.operators.values():
            controller.add(operator)
        self._address = controller.address
        if self.plan.silent_s is not None:
            heartbeats = HeartbeatReceiver(BIND, TOKEN, INCARNATION)
            SilentHostMonitor(heartbeats, self.plan.silent_s, self, self).start()
            self._beats = heartbeats.address
        for name, table in self.tables.items():
            write_routing(str(self.checkpoint), name, table)
        for name in self.plan.hosts:
            self.start(name)
        ports.event().wait()

    def _admit(self, request: Admit) -> RunAdmitted:
        if request.run not in self.runs:
            raise StaleRun(f"run {request.run} is no longer active")
        return RunAdmitted(request.query in self.asynchronous)

    def _watermark(self, request: GetWatermark) -> SparkWatermark:
        if request.run not in self.runs or self.batches.get(request.run) != request.batch:
            raise StaleRun(f"batch {request.batch} of run {request.run} is over")
        given = self.watermarks[request.operator]()
        return SparkWatermark(given.eviction, given.late)

    def _peer_of(self, host: str) -> str | None:
        left = self.left()
        return left[(left.index(host) + 1) % len(left)] if host in left and len(left) > 1 else None

    def by_driver(self, what: str, job: Callable[[], None]) -> None:
        """Something that the driver does, beside what else it does."""
        self.kernel.spawn(self.driver, job, what)

    # -- hosts -------------------------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        return [name for name in self.plan.hosts if name not in self.lost]

    def up(self) -> list[str]:
        return [name for name in self.left() if name in self.hosts and self.hosts[name][0].alive]

    def start(self, name: str) -> None:
        config = HostConfig(
            name,
            str(self.checkpoint),
            self._address,
            TOKEN,
            BIND,
            durability=self.plan.durability,
            incarnation=INCARNATION,
            routing=self.plan.first,
            backup=self.plan.backup,
            segment_bytes_max=1 << 14,  # so that there is something to compact
            beats=self._beats,
        )

        def main() -> None:
            host = Host(config, lambda: int(self.kernel.time_s * 1000))
            self.hosts[name] = (process, host)
            host.run()

        self.kernel.tell("driver", "starts", name)
        self.kernel.points.reach(f"driver starts {name}")
        process = self.kernel.process(name, name, main)
        self.hosts[name] = (process, None)
        process.at_end.append(lambda: self._ended(name, process))

    def _ended(self, name: str, process: Process) -> None:
        """Spark tells the driver that the task of a host has ended."""
        if self.hosts[name][0] is process and name not in self.lost | self.recovering:
            self.recovering.add(name)
            delay_s, take_over = self._drawn(name)
            self.recoveries.setdefault(name, []).append((delay_s, take_over))
            recover = partial(self._recover, name, take_over)
            self.kernel.after(delay_s, lambda: self.by_driver(f"recover {name}", recover))

    def serves(self, name: str, generation: int) -> bool:
        process, host = self.hosts[name]
        return process.alive and host is not None and host.generation == generation and name not in self.recovering

    def end(self, name: str, generation: int, noticed: str) -> None:
        """Its heartbeats do not come any more. The process may go on beside its successor or its heirs."""
        if self.serves(name, generation):
            self.silent += 1
            self._ended(name, self.hosts[name][0])

    def add(self, event: str, **fields: Any) -> None:
        """A note of the driver, for people."""
        self.kernel.tell("driver", event, fields)

    def _drawn(self, name: str) -> tuple[float, bool]:
        """After how long a host is recovered, and whether others are to take over from it."""
        if self.planned is None:
            return round(self.kernel.dice.random() * 0.5, 4), self.kernel.dice.random() < TAKEN_OVER
        planned = self.planned.get(name)
        return planned.pop(0) if planned else (0.1, False)

    def _recover(self, name: str, take_over: bool) -> None:
        """Keys that are being moved are in nobody's way only if their copies stand and nobody has asked for more."""
        possible = len(self.left()) > 1 and self.migrations <= self.standing.keys()
        try:
            if not (take_over and possible and self._take_over(name)):
                self.start(name)
        finally:
            self.recovering.discard(name)

    def _take_over(self, name: str) -> bool:
        """Whether others own now what it had."""
        directory = host_directory(str(self.checkpoint), name)
        try:
            estate = rescue.fence(directory, self.plan.durability)
            owned = {operator: own.mine() for operator, own in estate.owned.items() if own.mine()}
            by_tables = [operator for operator, table in self.tables.items() if table.units_of(name)]
            if estate.unsettled(by_tables) or not owned:
                return False
            heirs = [host for host in self.left() if host != name]
            told = rescue.hand_to_heirs(estate, rescue.divide(owned, heirs, self._copies_of(name)), self.ask)
        except GodwitError as error:
            self.kernel.tell("driver", "nobody takes over from", name, str(error)[:200])
            return self._given_up(name) if read_will(directory) is not None else False
        for heir, answer in told.items():
            for operator, epochs in answer.served.items():
                self.moved(operator, epochs, heir)
        self.by_copies += sum(answer.by_copies for answer in told.values())
        return self._given_up(name)

    def _copies_of(self, name: str) -> dict[str, dict[str, Units]]:
        """By operator, by the host that has them."""
        copies: dict[str, dict[str, Units]] = {}
        for operator, origin, target, units in self.standing.values():
            if origin == name and target in self.left():
                copied = copies.setdefault(operator, {})
                copied[target] = copied.get(target, Units()) | units
        return copies

    def _given_up(self, name: str) -> bool:
        self.lost.add(name)
        self.takeovers += 1
        for operator in self.operators:
            self._write_table(operator, self.tables[operator].parted([name]))
        return True

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, host: str, request: Request[Reply], timeout_s: float = 10.0) -> Reply:
        """Once."""
        lease = read_lease(host_directory(str(self.checkpoint), host))
        if lease is None:
            raise HostUnavailable(f"{host} does not serve", host=host)
        return typed.ask(line.connect(lease.address, TOKEN), request, timeout_s)

    def note_committed(self, operator: str, run: str, batch: int) -> None:
        """As the driver tells hosts what Spark's log names. A host that is down does not hear of it."""
        for host in self.left():
            with suppress(GodwitError):
                self.ask(host, NoteCommitted(operator, run, batch), timeout_s=1.0)

    def moved(self, operator: str, epochs: Mapping[Unit, int], to: str) -> None:
        after = self.tables[operator].moved(epochs, to)
        if not after.same_owners(self.tables[operator]):
            self._write_table(operator, after)

    def _write_table(self, operator: str, table: Routing) -> None:
        self.tables[operator] = table
        write_routing(str(self.checkpoint), operator, table)

    # -- looking in, from outside the world --------------------------------------------------------------------------

    def shared(self, host: str, operator: str) -> Any:
        """None until the host has read its whole log: before that, its memory is of an earlier time."""
        one = self.hosts[host][1]
        return one._instances.get(operator) if hasattr(one, "_moves") else None

    def ownership(self, host: str, operator: str) -> Ownership | None:
        shared = self.shared(host, operator)
        return None if shared is None else shared.instance.ownership

    def owners(self, operator: str, route_hash: int) -> list[str]:
        owned = {host: self.ownership(host, operator) for host in self.left()}
        return [host for host, own in owned.items() if own is not None and own.of(route_hash).stand is Stand.MINE]

    def unresolved(self) -> list[str]:
        """What is still under way."""
        found = [f"the driver follows {name}" for name in sorted(self.migrations)]
        found += [f"{name} is being recovered" for name in sorted(self.recovering)]
        for name in self.left():
            found += self._unresolved(name)
        return found

    def _unresolved(self, name: str) -> Sequence[str]:
        process, host = self.hosts[name]
        moves = getattr(host, "_moves", None)
        lease = read_lease(host_directory(str(self.checkpoint), name))
        if not process.alive or host is None or moves is None or lease is None or lease.generation != host.generation:
            return [f"{name} does not serve"]
        found = [f"{name} moves {migration}" for migration, mover in moves._movers.items() if not mover.ended]
        found += [f"{name} receives {migration}" for migration, one in moves._receivers.items() if not one.settled]
        for operator in self.operators:
            shared = self.shared(name, operator)
            own = None if shared is None else shared.instance.ownership
            if own is None:
                return [*found, f"{name} does not know {operator}"]
            found += [f"{name} has copies of {units}" for units in shared.accepted_units.values()]
            found += [f"{name} has copies of {shared.instance.memory.staged}"] if shared.instance.memory.staged else []
            found += [f"{name} has let go of {step}" for step in own.outgoing]
            found += [f"{name} has prepared {step}" for step in own.incoming]
        return found
