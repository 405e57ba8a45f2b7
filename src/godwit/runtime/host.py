"""A host: one long-lived process that holds keyed state and serves routers.

Starts from its changelog, in a new generation that fences the one before; applies chunks, one at a time per instance; and
answers only what the changelog holds. What a request means is decided by the instance; this file is the loop around it.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from godwit.errors import (
    Bug,
    CheckpointUnusable,
    DefinitionError,
    GodwitError,
    InvariantBroken,
    ProcessorTimeout,
    StaleGeneration,
    UnsupportedQuery,
    WorkLost,
)
from godwit.migration.events import BatchBegan
from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef, Verdict
from godwit.model.routing import Routing
from godwit.runtime.gate import Gate
from godwit.runtime.instance import Instance
from godwit.runtime.leases import (
    Lease,
    check_owner,
    drop_failure,
    drop_lease,
    host_directory,
    write_lease,
    write_obituary,
)
from godwit.runtime.moves import Moves
from godwit.runtime.orders import Port
from godwit.runtime.parcels import chunk_from
from godwit.runtime.seat import Seat
from godwit.runtime.spec import Operator, OperatorSpec
from godwit.runtime.tables import read_routing
from godwit.runtime.upkeep import Upkeep
from godwit.runtime.watch import Watch
from godwit.runtime.work import Chunk, Part, Work
from godwit.state.changelog import Changelog, Durability
from godwit.state.changes import changes_schema
from godwit.state.keys import KeyCodec
from godwit.state.ledger import ROW, in_row_order, with_rows
from godwit.state.tables import KeyedState
from godwit.transport import wire
from godwit.transport.flight import GONE, Client, Service

STOP_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class HostConfig:
    """All a host needs to know; made by the driver."""

    host: str
    checkpoint: str
    controller: str
    token: str = field(repr=False)
    bind: str = "127.0.0.1"
    durability: Durability = "process"
    memory_max_bytes: int | None = None
    segment_bytes_max: int = 64 << 20
    incarnation: str = ""
    # Who owned what at first; None takes ownership, and with it migration, out of the path.
    routing: Routing | None = None


class Host:
    def __init__(self, config: HostConfig, clock_ms: Callable[[], int]) -> None:
        self.config = config
        self.directory = host_directory(config.checkpoint, config.host)
        self._clock_ms = clock_ms
        self._seats: dict[str, Seat] = {}
        self._operators: dict[str, Operator] = {}
        self._admin = threading.Lock()
        self._stop = threading.Event()
        self._roster: tuple[str, ...] = ()
        self._fatal: GodwitError | None = None
        self._watch = Watch(self._give_up)
        self._controller = Client(config.controller, config.token)
        self.started_s = time.monotonic()
        self.load_s = 0.0

    # -- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop; everything is released when this returns."""
        began = time.monotonic()
        check_owner(self.config.checkpoint, self.config.incarnation)
        self.log, recovered = Changelog.open(
            self.directory, self.config.durability, segment_bytes_max=self.config.segment_bytes_max
        )
        self.generation = self.log.generation
        for part in recovered.parts():
            self._recover(part.info, memoryview(part.body))
        for seat in self._seats.values():
            self._own(seat)
        self.load_s = time.monotonic() - began
        self._moves = Moves(self._port(), self._seat_named)
        self._define_all(self._controller.call("definitions"))
        service = self._service()
        self._upkeep = Upkeep(self.log, self._settled)
        self._watch.start()
        self._upkeep.start()
        try:
            for seat in list(self._seats.values()):
                self._moves.recover(seat)  # before anybody can bring new copies, which it would take for old ones
            self._announce(f"{self.config.bind}:{service.port}")
            self._serve()
        finally:
            self._stop.set()
            self._wake()
            self._moves.stop()
            clean = service.stop(STOP_GRACE_S)
            self._upkeep.stop()
            self._watch.stop()
            self._release()
            if not clean:
                os._exit(0)  # a stream is still open: only the end of the process frees its port

    def _service(self) -> Service:
        actions = {
            "define": self._action_define,
            "status": self._action_status,
            "timers_due": self._action_timers_due,
            "drop": self._action_drop,
            "sync": self._action_sync,
            "stop": self._action_stop,
            "marks": self._action_marks,
            "adopt": self._action_adopt,
            "roster": self._action_roster,
            **self._moves.actions(),
        }
        return Service(self.config.bind, self.config.token, actions, self._exchange, self._fetch)

    def _port(self) -> Port:
        config = self.config
        return Port(
            config.host,
            config.checkpoint,
            config.token,
            config.incarnation,
            self.log,
            self._clock_ms,
            self._stop.is_set,
        )

    def _own(self, seat: Seat, first: Routing | None = None) -> None:
        """An instance that has never written down what it owns owns what the operator's first table says."""
        instance = seat.instance
        if self.config.routing is not None and not instance.spec.ephemeral and instance.ownership is None:
            instance.own(Ownership.initial(self.config.host, first or self.config.routing))

    def _wake(self) -> None:
        for seat in list(self._seats.values()):
            with seat.changed:
                seat.changed.notify_all()

    def _announce(self, address: str) -> None:
        # Again, because another flock may have come in between; its hosts start anew when they find themselves fenced.
        check_owner(self.config.checkpoint, self.config.incarnation)
        write_lease(self.directory, Lease(self.generation, address, os.getpid(), self.config.incarnation))
        drop_failure(self.directory)
        self._controller.call(
            "register",
            host=self.config.host,
            generation=self.generation,
            address=address,
            pid=os.getpid(),
            load_s=self.load_s,
        )

    def _serve(self) -> None:
        parent = os.getppid()
        while not self._stop.wait(0.5):
            # The Spark worker's parent died, so the executor is gone; or a newer generation has taken over.
            if os.getppid() != parent:
                return
            if self.log.fenced():
                self._fatal = self._replaced()
                break
        if self._fatal is not None:
            raise self._fatal

    def _replaced(self) -> StaleGeneration:
        return StaleGeneration(f"generation {self.generation} of {self.config.host} has been replaced by a newer one")

    def _release(self) -> None:
        for seat in self._seats.values():
            with seat.lock:
                seat.instance.close()
                seat.instance.state.close()
        if not self.log.fenced():
            drop_lease(self.directory)
        self.log.close()
        self._controller.close()

    def _give_up(self, error: ProcessorTimeout) -> None:
        write_obituary(self.directory, self.generation, error)
        os._exit(13)

    # -- recovery and definitions ------------------------------------------------------------------------------------

    def _recover(self, info: dict[str, Any], body: memoryview) -> None:
        name = info["op"]
        match info["kind"]:
            case "define":
                spec = OperatorSpec.from_dict(info["spec"])
                seat = self._seats.get(name)
                if seat is None:
                    self._seats[name] = Seat(self._fresh(name, spec))
                else:
                    seat.instance.redefine(spec)
            case "mark":
                self._seats[name].instance.recover_mark(info)
            case "state":
                instance = self._seats[name].instance
                schema = changes_schema(instance.key_codec)
                instance.recover_state(info, pa.ipc.read_record_batch(pa.py_buffer(body), schema))
            case "ledger":
                self._seats[name].instance.recover_ledger(info, body)
            case "own":
                self._seats[name].instance.recover_own(self.config.host, info)
            case "committed":
                instance = self._seats[name].instance
                rows = pa.ipc.read_record_batch(pa.py_buffer(body), changes_schema(instance.key_codec))
                instance.recover_committed(info, rows)
            case "drop":
                self._seats.pop(name).instance.state.close()
            case other:
                raise InvariantBroken(f"the changelog holds a part of unknown kind {other!r}", operator=name)

    def _fresh(self, name: str, spec: OperatorSpec) -> Instance:
        key_codec = KeyCodec(spec.key_schema, spec.tz)
        limit = self.config.memory_max_bytes
        scratch = None if limit is None else Path(tempfile.mkdtemp(prefix="godwit-spill-"))
        instance = Instance(name, spec, KeyedState(spec.variables, key_codec, scratch, limit), key_codec)
        instance.guard = lambda: self._watch.over(instance.spec.timeout_s, instance.describe)
        return instance

    def _define_all(self, answer: dict[str, Any]) -> None:
        for item in answer["operators"]:
            self._define(item)

    def _define(self, item: dict[str, Any]) -> None:
        """Take up an operator's code: a fresh instance, or code for recovered state."""
        initial = {host: base64.b64decode(rows) for host, rows in item["initial"].items() if host == self.config.host}
        operator = Operator(OperatorSpec.from_dict(item["spec"]), base64.b64decode(item["adapter"]), initial)
        name = operator.spec.name
        with self._admin:
            self._operators[name] = operator
            if operator.spec.ephemeral:
                return
            seat = self._seats.get(name) or Seat(self._fresh(name, operator.spec))
            first = item.get("routing")
            self._own(seat, None if first is None else Routing.from_dict(first))
            with seat.lock:
                seat.instance.attach(operator.spec, self._adapter(operator))
                owned = [seat.instance.own_part()] if seat.instance.ownership is not None else []
                seat.lsn = self.log.append([seat.instance.define_part(), *owned])
            self.log.flush(seat.lsn)
            self._seats[name] = seat

    def _adapter(self, operator: Operator) -> Any:
        try:
            return cloudpickle.loads(operator.adapter)
        except Exception as error:
            raise DefinitionError(
                f"the processor cannot be loaded on a host: {type(error).__name__}: {error}",
                todo="Make the modules it uses available on the executors (spark.submit.pyFiles or an installed package)",
                operator=operator.spec.name,
            ) from error

    def _seat(self, header: dict[str, Any]) -> Seat:
        name = wire.field(header, "operator", str)
        scope = header.get("scope")
        seat = self._seats.get(name if scope is None else f"{name}@{scope}")
        if seat is None and scope is not None and name in self._operators:
            seat = self._scoped(self._operators[name], scope)
        if seat is None:
            raise DefinitionError(
                "no operator of this name is defined on this flock",
                todo="Define it with flock.transformWithState before the query starts",
                operator=name,
                host=self.config.host,
            )
        return seat

    def _scoped(self, operator: Operator, scope: str) -> Seat:
        """State for one evaluation of a batch DataFrame. Evaluations that have ended are dropped now."""
        name = f"{operator.spec.name}@{scope}"
        if not operator.spec.ephemeral:
            raise UnsupportedQuery(
                "a batch of a stream was evaluated outside its query, so its rows cannot be told from new ones",
                todo="Evaluate it in the thread that runs foreachBatch, or in a pyspark.InheritableThread started there",
                operator=operator.spec.name,
            )
        active = set(self._controller.call("active_scopes")["scopes"])
        with self._admin:
            if name in self._seats:
                return self._seats[name]
            for old in [n for n in self._seats if n.startswith(f"{operator.spec.name}@")]:
                if old.rpartition("@")[2] not in active:
                    self._drop(old)
            seat = Seat(self._fresh(name, operator.spec))
            seat.instance.attach(operator.spec, self._adapter(operator))
            parts = [seat.instance.define_part(), *self._initial_parts(operator, seat.instance)]
            seat.lsn = self.log.append(parts)
            self._seats[name] = seat
            return seat

    def _initial_parts(self, operator: Operator, instance: Instance) -> list[Part]:
        if self.config.host not in operator.initial:
            return []
        table = pa.ipc.open_stream(operator.initial[self.config.host]).read_all().combine_chunks()
        (batch,) = table.drop_columns([wire.HASH]).to_batches()
        hashes = table.column(wire.HASH).to_numpy()
        return instance.initialise("initial", batch, np.arange(len(batch)), hashes, self._clock_ms()).parts

    def _drop(self, name: str) -> None:
        seat = self._seats.pop(name)
        with seat.lock:
            seat.instance.close()
            seat.instance.state.close()
            self.log.append([({"kind": "drop", "op": name}, b"")])

    def _settled(self) -> dict[str, int]:
        """Up to which batch each instance's state is known to be committed."""
        return {name: seat.instance.progress.batch - 1 for name, seat in list(self._seats.items())}

    # -- the exchange ------------------------------------------------------------------------------------------------

    def _exchange(self, header: dict[str, Any], reader: Any, writer: Any) -> None:
        """One lane of one batch: opened, chunks answered in order, finished."""
        began = False
        try:
            if "migration" in header:
                self._moves.receive(header, reader, writer)
                return
            seat = self._seat(header)
            writer.begin(with_rows(seat.instance.spec.output_schema))
            began = True
            self._converse(seat, header, reader, writer)
        except GodwitError as error:
            self._send_error(writer, began, error.at(host=self.config.host))
            if isinstance(error, (CheckpointUnusable, StaleGeneration)):
                self._end(error)
        except GONE:
            return  # the router went away; it comes back or Spark retries its task
        except Exception as error:  # noqa: BLE001 whatever it is, the router must hear of it
            self._send_error(writer, began, Bug(f"{type(error).__name__}: {error}", host=self.config.host))

    def _end(self, error: GodwitError) -> None:
        """The changelog cannot be written any more, so memory may be ahead of it: only a new generation knows what holds."""
        self._fatal = error
        self._stop.set()

    def _send_error(self, writer: Any, began: bool, error: GodwitError) -> None:
        try:
            if not began:
                writer.begin(pa.schema([]))
            writer.write_metadata(wire.pack_error(error))
        except GONE:
            return

    def _converse(self, seat: Seat, header: dict[str, Any], reader: Any, writer: Any) -> None:
        request = BatchRef(
            wire.field(header, "query", str), wire.field(header, "run", str), wire.field(header, "batch", int)
        )
        lane = wire.field(header, "lane", str)
        if request.batch >= 0:
            carries = header.get("carries", True) is True
            admit = self._admit(header)
            work = self._opened(seat, request, lane, admit, carries)
            self._answer(writer, work, "opened", generation=self.generation)
        gate = Gate(seat, self._stop.is_set)
        while True:
            try:
                message = reader.read_chunk()
            except StopIteration:
                return
            note = wire.unpack(message.app_metadata, "rows", "finish")
            if note["kind"] == "rows":
                work, refused = self._rows(gate, seat, request, note, message.data)
                self._answer(writer, work, "outputs", **({"refused": refused} if refused else {}))
            else:
                self._finish(seat, request, lane, note)
                writer.write_metadata(wire.pack("finished", also=self._newcomers(seat, note)))

    def _opened(
        self, seat: Seat, request: BatchRef, lane: str, admit: Callable[[BatchRef, int, bool], None], carries: bool
    ) -> Work:
        """A lane begins a batch here. Where there are timers, it waits until what is between two owners is decided."""
        instance = seat.instance

        def ready() -> bool:
            fires = carries and not instance.fired
            same = instance.progress.judge(request) is Verdict.SAME and not fires
            return same or not instance.between_owners or self._stop.is_set()

        with seat.changed:
            if instance.spec.time_mode != "none" and not ready():
                began_s = time.monotonic()
                seat.changed.wait_for(ready)
                seat.stalled((time.monotonic() - began_s) * 1000, 1)  # how many rows wait behind it is not known here
            before = (instance.progress.batch, instance.fired)
            work = self._do(seat, lambda i: i.open(request, lane, self._clock_ms(), admit, carries))
            if (instance.progress.batch, instance.fired) != before:
                for tell in seat.told:
                    tell(BatchBegan())
        self.log.flush(work.lsn)
        return work

    def _newcomers(self, seat: Seat, note: dict[str, Any]) -> list[str]:
        """Hosts that this router has not opened: they need to know how far its lane has come, too."""
        known = note.get("hosts")
        if known is None or seat.instance.spec.ephemeral:
            return []
        routing = read_routing(self.config.checkpoint, seat.instance.spec.name)
        roster = self._roster if routing is None else tuple(dict.fromkeys((*routing.hosts, *self._roster)))
        return [host for host in roster if host not in known]

    def _admit(self, header: dict[str, Any]) -> Callable[[BatchRef, int, bool], None]:
        def admit(request: BatchRef, last_batch: int, fresh: bool) -> None:
            if header.get("scope") is None:
                self._controller.call(
                    "admit",
                    operator=header["operator"],
                    query=request.query,
                    run=request.run,
                    batch=request.batch,
                    last_batch=last_batch,
                    fresh=fresh,
                )

        return admit

    def _rows(
        self, gate: Gate, seat: Seat, request: BatchRef, note: dict[str, Any], data: pa.RecordBatch
    ) -> tuple[Work, dict[str, Any] | None]:
        """Apply what is this instance's; the rest waits, or is told to go elsewhere."""
        if data.schema.names[-2:] != [ROW, wire.HASH]:
            raise InvariantBroken("a chunk without its row and hash columns", host=self.config.host)
        lane = wire.field(note, "lane", str)

        def apply(chunk: Chunk) -> Work:
            if request.batch < 0:
                return self._do(
                    seat, lambda i: i.initialise(lane, chunk.batch, chunk.rows, chunk.hashes, self._clock_ms())
                )
            return self._do(seat, lambda i: i.apply(request, lane, chunk))

        with seat.lock:
            passed = gate.let_in(chunk_from(data), note.get("seen", 0), note.get("again", False), apply)
            work = Work([batch for done in passed.works for batch in done.outputs], lsn=seat.lsn)
        self.log.flush(work.lsn)
        return work, passed.refused

    def _worked(self, seat: Seat, job: Callable[[Instance], Work]) -> Work:
        """Do it alone on the instance, then wait until all it rests on is in the changelog."""
        with seat.lock:
            work = self._do(seat, job)
        self.log.flush(work.lsn)
        return work

    def _do(self, seat: Seat, job: Callable[[Instance], Work]) -> Work:
        """With the lock held: do it and put in line what it must leave in the changelog."""
        began = time.perf_counter()
        work = job(seat.instance)
        if work.parts:
            seat.lsn = self.log.append(work.parts)
        work.lsn = seat.lsn
        seat.instance.counters.busy_s += time.perf_counter() - began
        return work

    def _answer(self, writer: Any, work: Work, kind: str, **fields: Any) -> None:
        note = wire.pack(kind, lsn=work.lsn, **fields)
        if not work.outputs:
            writer.write_metadata(note)
            return
        writer.write_with_metadata(in_row_order(work.outputs), note)

    def _finish(self, seat: Seat, request: BatchRef, lane: str, note: dict[str, Any]) -> None:
        """All of the lane's work here becomes durable, and the task may end."""
        rows = wire.field(note, "rows", (int, type(None)))
        if request.batch >= 0:
            self._worked(seat, lambda i: i.finish(request, lane, rows, note.get("event_max_ms")))
        self.log.sync(seat.lsn)
        for generation, lsn in wire.field(note, "answered", list):
            if not self.log.survived(generation, lsn):
                raise WorkLost(
                    "the host restarted from before work it had answered, so this attempt must be repeated",
                    operator=seat.instance.spec.name,
                    batch=request.batch,
                    lane=lane,
                )
        if self.log.fenced():
            raise self._replaced()

    # -- fetch and actions -------------------------------------------------------------------------------------------

    def _fetch(self, header: dict[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """All committed state of an operator, as changes; `committed_batch` is the newest batch that Spark has committed."""
        seat = self._newest_seat(wire.field(header, "operator", str))
        committed_batch = wire.field(header, "committed_batch", int)
        with seat.lock:
            # Every batch before the one in progress is committed; of that one, only Spark knows.
            settled = seat.instance.spec.ephemeral or seat.instance.progress.batch <= committed_batch
            batches = list(seat.instance.state.export(committed=not settled))
            ownership = seat.instance.ownership
            told = {} if ownership is None else {"ownership": json.dumps(ownership.to_dict())}
        return changes_schema(seat.instance.key_codec).with_metadata(told), iter(batches)

    def _newest_seat(self, name: str) -> Seat:
        scoped = [n for n in self._seats if n.startswith(f"{name}@")]
        seat = self._seats.get(max(scoped, key=lambda n: int(n.rpartition("-")[2])) if scoped else name)
        if seat is None:
            raise DefinitionError("no such operator on this host", operator=name, host=self.config.host)
        return seat

    def _seat_named(self, name: str) -> Seat:
        seat = self._seats.get(name)
        if seat is None:
            raise DefinitionError("no such operator on this host", operator=name, host=self.config.host)
        return seat

    def _action_marks(self, request: dict[str, Any]) -> dict[str, Any]:
        """How far each operator has come here, for a host that joins."""
        marks = {}
        for name, seat in list(self._seats.items()):
            if not seat.instance.spec.ephemeral:
                with seat.lock:
                    marks[name], _ = seat.instance.mark_part()
        return {"marks": marks}

    def _action_adopt(self, request: dict[str, Any]) -> dict[str, Any]:
        """Be as far as the others are, before the first router comes."""
        for name, mark in wire.field(request, "marks", dict).items():
            seat = self._seats.get(name)
            if seat is None:
                continue
            with seat.lock:
                if seat.instance.progress.query is None:
                    seat.instance.recover_mark({**mark, "due": None, "fired": True})
                    seat.lsn = self.log.append([seat.instance.mark_part()])
            self.log.flush(seat.lsn)
        return {}

    def _action_roster(self, request: dict[str, Any]) -> dict[str, Any]:
        self._roster = tuple(wire.field(request, "hosts", list))
        return {}

    def _action_define(self, request: dict[str, Any]) -> dict[str, Any]:
        self._define(wire.field(request, "operator", dict))
        return {}

    def _action_status(self, request: dict[str, Any]) -> dict[str, Any]:
        instances = [seat.instance.status() for seat in list(self._seats.values())]
        return {
            "host": self.config.host,
            "generation": self.generation,
            "pid": os.getpid(),
            "load_s": self.load_s,
            "uptime_s": time.monotonic() - self.started_s,
            "upkeep_error": None if self._upkeep.failure is None else str(self._upkeep.failure),
            "instances": instances,
        }

    def _action_timers_due(self, request: dict[str, Any]) -> dict[str, Any]:
        seat = self._seats.get(wire.field(request, "operator", str))
        if seat is None:
            return {"due": False}
        with seat.lock:
            now_ms = self._clock_ms()
            return {"due": seat.instance.timers_due(min(now_ms, request.get("until_ms") or now_ms))}

    def _action_drop(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._admin:
            name = wire.field(request, "operator", str)
            self._operators.pop(name, None)
            for held in [n for n in self._seats if n == name or n.startswith(f"{name}@")]:
                self._drop(held)
        return {}

    def _action_sync(self, request: dict[str, Any]) -> dict[str, Any]:
        for seat in list(self._seats.values()):
            self.log.sync(seat.lsn)
        return {}

    def _action_stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._stop.set()
        self._wake()
        return {}
