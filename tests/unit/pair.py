"""Two hosts in one process, joined by a line that a test controls: the product's own movers, receivers, logs and instances.

Only what lies between the hosts is made here. A test decides which message is let through, where the line stops, and when the
connection breaks or a host dies; a host that dies starts again from its log, in the next generation.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from godwit.errors import GodwitError, HostUnavailable
from godwit.migration.events import BatchBegan
from godwit.model.ownership import Stand
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.handover.mover import Mover
from godwit.runtime.host.gate import Gate
from godwit.runtime.host.migration_service import MigrationService
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import Lease, host_directory, write_lease
from godwit.runtime.messages import OperatorDefinition
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.state.changelog import Changelog
from godwit.transport import line, typed, wire
from tests.unit.test_instance import INPUT, Sum, welcome

PATIENCE_S = 10.0
GROUPS = 4
ROUTING = Routing.spread(["host-0"], GROUPS)
ALL = Units(frozenset(range(GROUPS)))
GONE = flight.FlightUnavailableError

Note = dict[str, Any]


class Lane:
    """One direction of a connection: what was sent, and what of it has been let through."""

    def __init__(self, stops: Callable[[Note], bool]) -> None:
        self.sent: list[Note] = []
        self.log: list[tuple[Note, Any]] = []  # the same, with what came with it
        self.broken = False
        self._stops = stops
        self._waiting: deque[tuple[Note, Any, bytes]] = deque()
        self._arrived: deque[tuple[Any, bytes]] = deque()
        self._idle = False  # whoever reads has dealt with all that has arrived
        self._ended = False
        self._changed = threading.Condition()

    def send(self, note: bytes, data: Any = None) -> None:
        with self._changed:
            if self.broken:
                raise GONE("the line is cut")
            head = wire._parse(note)
            self.sent.append(head)
            self.log.append((head, data))
            self._waiting.append((head, data, note))
            self._let_through()

    def read(self) -> Any:
        with self._changed:
            self._idle = not self._arrived
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._arrived or self.broken or self._ended)
            self._idle = False
            if self.broken or not self._arrived:
                raise GONE("the line is cut") if self.broken else StopIteration
            data, note = self._arrived.popleft()
            return SimpleNamespace(app_metadata=note, data=data)

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def cut(self) -> None:
        with self._changed:
            self.broken = True
            self._changed.notify_all()

    def _let_through(self) -> None:
        while self._waiting and not self._stops(self._waiting[0][0]):
            _, data, note = self._waiting.popleft()
            self._arrived.append((data, note))
        self._changed.notify_all()

    # -- the test's side ---------------------------------------------------------------------------------------------

    def stop(self, stops: Callable[[Note], bool]) -> None:
        with self._changed:
            self._stops = stops
            self._let_through()

    def flow(self) -> None:
        self.stop(lambda _: False)

    def repeat(self, *kinds: str) -> None:
        """What has been let through arrives once more, all of it or these kinds."""
        with self._changed:
            came = self.log[: len(self.log) - len(self._waiting)]
            for note, data in came:
                if note["kind"] not in ("hello", "bye") and (not kinds or note["kind"] in kinds):
                    self._arrived.append((data, json.dumps(note).encode()))
            self._changed.notify_all()

    def stopped_at(self) -> str | None:
        with self._changed:
            return self._waiting[0][0]["kind"] if self._waiting else None

    def wait_stopped(self) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting, PATIENCE_S), f"never stopped: {self.kinds()}"
            return str(self._waiting[0][0]["kind"])

    def wait_idle(self) -> None:
        with self._changed:
            assert self._changed.wait_for(self._quiet, PATIENCE_S), self.kinds()

    def _quiet(self) -> bool:
        return self.broken or self._ended or (self._idle and not self._arrived)

    def wait_ended(self) -> None:
        """Until whoever reads has gone."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, PATIENCE_S), self.kinds()

    def wait_sent(self, kind: str, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.kinds().count(kind) >= count, PATIENCE_S), self.kinds()

    def kinds(self) -> list[str]:
        return [note["kind"] for note in self.sent]


class Connection:
    def __init__(self, there: Callable[[Note], bool], back: Callable[[Note], bool]) -> None:
        self.there, self.back = Lane(there), Lane(back)

    def break_(self) -> None:
        self.there.cut()
        self.back.cut()


class End:
    """What Flight gives to one side: a reader and a writer at once."""

    def __init__(self, connection: Connection, out: Lane, into: Lane) -> None:
        self._connection, self._out, self._into = connection, out, into

    def begin(self, schema: Any) -> None:
        return

    def write_metadata(self, note: bytes) -> None:
        self._out.send(bytes(note))

    def write_with_metadata(self, batch: Any, note: bytes) -> None:
        self._out.send(bytes(note), batch)

    def read_chunk(self) -> Any:
        return self._into.read()

    def cancel(self) -> None:
        self._connection.break_()


class Side:
    """One host: its log, its instance, and the migrations it takes part in."""

    def __init__(self, pair: Pair, name: str, operator: Operator) -> None:
        self.name = name
        self.directory = host_directory(str(pair.checkpoint), name)
        self._pair = pair
        self._operator = operator
        self.start()

    def start(self) -> None:
        self.stopping = threading.Event()
        self.log, recovered = Changelog.open(self.directory)
        self.instances = Instances(self.name, HostResources(self.log, Watch(lambda _: None), lambda: 0, set), ROUTING)
        for part in recovered.parts():
            self.instances.recover(part.info, memoryview(part.body))
        for shared in self.instances:
            self.instances.own(shared)
        self.port = HostServices(
            self.name,
            str(self._pair.checkpoint),
            "token",
            "",
            self.log,
            lambda: 0,
            self.stopping.is_set,
            admit=self._pair.ask_driver,
        )
        self.moves = MigrationService(self.port, self.instances.named)
        self.instances.define(OperatorDefinition.of(self._operator))
        self.address = f"{self.name}/{self.log.generation}"
        self._pair.listening[self.address] = self
        self.moves.recover(self.shared)
        write_lease(self.directory, Lease(self.log.generation, self.address, 0))

    @property
    def shared(self) -> SharedInstance:
        return self.instances.named("sum")

    @property
    def mover(self) -> Mover:
        """Of the newest migration from here."""
        return list(self.moves._movers.values())[-1]

    def die(self) -> None:
        """Nothing that this generation does from now on counts, as if the process were gone."""
        del self._pair.listening[self.address]
        self.stopping.set()
        for connection in self._pair.connections:
            connection.break_()
        with self.shared.changed:
            self.shared.changed.notify_all()
        for mover in self.moves._movers.values():
            mover.join(PATIENCE_S)
        self.log.close()

    def restart(self) -> None:
        self.die()
        self.start()

    # -- rows --------------------------------------------------------------------------------------------------------

    def put(self, batch: int, *values: tuple[int, int], lane: str = "0", run: str = "r") -> list[tuple[int, int]]:
        """Rows (key, value) as a router sends them; gives (key, total) of those applied here, and none for refused ones."""
        numbers = self._pair.rows.setdefault((batch, lane), itertools.count())
        return self.put_rows(batch, [next(numbers) for _ in values], *values, lane=lane, run=run)

    def put_rows(
        self, batch: int, numbers: list[int], *values: tuple[int, int], lane: str = "0", run: str = "r"
    ) -> list[tuple[int, int]]:
        request = BatchRef("q", run, batch)
        chunk = self._pair.chunk(numbers, values)
        shared = self.shared
        with shared.lock:
            before = shared.instance.progress.batch
            shared.instance.open(request, lane, 0, welcome)
            if shared.instance.progress.batch != before:
                for tell in shared.event_listeners:
                    tell(BatchBegan())
            gate = Gate(shared, self.stopping.is_set)
            shared.chunks.enter()
            try:
                passed = gate.let_in(chunk, 0, True, lambda c: shared.instance.apply(request, lane, c))
            finally:
                shared.chunks.leave()
        self.log.flush(shared.lsn)
        outputs = [out for work in passed.works for out in work.outputs]
        return [pair for out in outputs for pair in zip(*(out.column(i).to_pylist() for i in (1, 2)), strict=True)]

    # -- what holds --------------------------------------------------------------------------------------------------

    def owned(self) -> Units:
        ownership = self.shared.instance.ownership
        assert ownership is not None
        return ownership.mine()

    def stand(self, unit: Unit) -> Stand:
        ownership = self.shared.instance.ownership
        assert ownership is not None
        return ownership.share(unit).stand

    def totals(self) -> dict[int, int]:
        """All state that lies here, owned or not."""
        found: dict[int, int] = {}
        with self.shared.lock:
            for batch in self.shared.instance.state.export(committed=False):
                keys = batch.column(0).to_pylist()
                state = self.shared.instance.state
                for key in keys:
                    payload = state.value_get(0, (key,))
                    if payload is not None:
                        found[key] = self._pair.decode(payload)
        return found

    def left_over(self) -> list[str]:
        """What a migration that has ended must not leave here."""
        instance = self.shared.instance
        assert instance.ownership is not None
        left = {
            "accepted": self.shared.accepted_units,
            "staged": instance.memory.staged,
            "incoming": instance.ownership.incoming,
            "held": instance.batch.pending_outputs,
            "followers": instance.followers,
        }
        found = [f"{what}: {value}" for what, value in left.items() if value]
        between = (Stand.CUT, Stand.LENT, Stand.EXPECTED, Stand.PREPARED)
        found += [f"{unit} is {self.stand(unit).name}" for unit in ALL if self.stand(unit) in between]
        foreign = {key for key in self.totals() if self._pair.group_of(key) not in self.owned().groups}
        return found + ([f"copies of {sorted(foreign)}"] if foreign else [])


class Pair:
    """host-0 owns everything at first, host-1 nothing."""

    def __init__(self, checkpoint: Path, **spec: Any) -> None:
        self.checkpoint = checkpoint
        self.connections: list[Connection] = []
        self.listening: dict[str, Side] = {}
        self.rows: dict[tuple[int, str], Iterator[int]] = {}
        self.there: Callable[[Note], bool] = lambda _: False
        self.back: Callable[[Note], bool] = lambda _: False
        self.admit: Callable[[messages.Admit], object] = welcome  # the driver's word on a run
        self._connected = threading.Condition()
        self._names = itertools.count()
        self._pause = threading.Event()
        adapter = NativeAdapter(Sum(), INPUT, ["key"])
        key_schema = pa.schema([INPUT.field("key")])
        made = OperatorSpec("sum", "Sum", "native", key_schema, adapter.output_schema, adapter.variables, **spec)
        operator = Operator(made, cloudpickle.dumps(adapter))
        self.a, self.b = Side(self, "host-0", operator), Side(self, "host-1", operator)
        self._codec = self.a.shared.instance.key_codec

    def ask_driver(self, request: messages.Admit) -> messages.RunAdmitted:
        self.admit(request)
        return messages.RunAdmitted()

    def chunk(self, numbers: list[int], values: tuple[tuple[int, int], ...]) -> Chunk:
        columns = [[key for key, _ in values], [0] * len(values), [value for _, value in values]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, INPUT, strict=True)]
        hashes = np.array([self._codec.route_hash((key,)) for key, _ in values], np.int64)
        return Chunk(pa.RecordBatch.from_arrays(arrays, schema=INPUT), np.array(numbers, np.int64), hashes)

    def group_of(self, key: int) -> int:
        return self._codec.route_hash((key,)) % GROUPS

    @staticmethod
    def decode(payload: bytes) -> int:
        from godwit.state.codec import compile_codec

        (value,) = compile_codec(pa.schema([("n", pa.int64())])).decode(payload)
        return int(value)

    # -- the line ----------------------------------------------------------------------------------------------------

    def exchange(self, address: str, header: Note) -> End:
        side = self.listening.get(address)
        if side is None:
            raise GONE("nobody listens")
        connection, stopping = Connection(self.there, self.back), side.stopping
        target = End(connection, connection.back, connection.there)

        def receive() -> None:
            try:
                side.moves.receive(typed.from_fields(messages.OpenMigration, header), target, target)
            except GodwitError:
                assert stopping.is_set(), "as in a host that has ended"
            finally:
                connection.there.end()
                connection.back.end()

        with self._connected:
            self.connections.append(connection)
            self._connected.notify_all()
        threading.Thread(target=receive, daemon=True).start()
        return End(connection, connection.there, connection.back)

    def wait_connection(self, count: int) -> Connection:
        """The n-th, counted from 1."""
        with self._connected:
            assert self._connected.wait_for(lambda: len(self.connections) >= count, PATIENCE_S)
        return self.connections[count - 1]

    # -- migrations --------------------------------------------------------------------------------------------------

    def migrate(self, protocol: str, *steps: Units, back: bool = False, **options: Any) -> str:
        origin, target = (self.b, self.a) if back else (self.a, self.b)
        name = f"m{next(self._names)}"
        origin.moves.start_migration(
            messages.StartMigration(name, "sum", target.name, protocol, steps or (ALL,), **options)
        )
        return name

    def wait_ended(self, side: Side | None = None) -> messages.MigrationReport:
        mover = (side or self.a).mover
        with mover.handover.news:
            assert mover.handover.news.wait_for(lambda: mover.ended, PATIENCE_S), mover.report()
        return mover.report()

    def wait_sent(self, side: Side | None = None) -> None:
        """Until an origin has nothing more to send, and its target has dealt with what has come."""
        mover = (side or self.a).mover
        self.wait(
            lambda: mover.ended or (not mover.handover.slices and mover.handover.queue.empty()),
            lambda: str(mover.report()),
        )
        self.connections[-1].there.wait_idle()

    def wait(self, holds: Callable[[], bool], why: Callable[[], str] = lambda: "") -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s, why()
            self._pause.wait(0.002)

    def moved(self, protocol: str, *steps: Units, back: bool = False) -> messages.MigrationReport:
        """Migrate and see it through."""
        name = self.migrate(protocol, *steps, back=back)
        origin = self.b if back else self.a
        if protocol == "standby":
            origin.moves.hand_over_standby(messages.HandOverStandby(name))
        return self.wait_ended(origin)

    def close(self) -> None:
        for side in (self.a, self.b):
            if side.address in self.listening:
                side.die()


@contextmanager
def joined(tmp_path: Path, **spec: Any) -> Iterator[Pair]:
    pair_of: list[Pair] = []

    class Client:
        def __init__(self, address: str) -> None:
            self._address = address

        def exchange(self, kind: str, /, **header: Any) -> tuple[End, End]:
            end = pair_of[0].exchange(self._address, header)
            return end, end

        def call(self, action: str, timeout_s: float = 0, **fields: Any) -> Note:
            side = pair_of[0].listening.get(self._address)
            if side is None:
                raise HostUnavailable("nobody listens")
            return typed.actions(side.moves.handlers())[action](fields)

        def close(self) -> None:
            return

    with line.use(SimpleNamespace(connect=lambda address, *_: Client(address))):
        pair_of.append(Pair(tmp_path, **spec))
        try:
            yield pair_of[0]
        finally:
            pair_of[0].close()


def kind_is(*kinds: str) -> Callable[[Note], bool]:
    return lambda note: note["kind"] in kinds


def after(*kinds: str, stop: Callable[[Note], bool]) -> Callable[[Note], bool]:
    """Stops as `stop` does once these kinds have gone through, one after another."""
    left = list(kinds)

    def stops(note: Note) -> bool:
        if not left:
            return stop(note)
        if note["kind"] == left[0]:
            del left[0]
        return False

    return stops
