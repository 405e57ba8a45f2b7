"""A host: one long-lived process that holds keyed state and serves routers.

Starts from its changelog, in a new generation that fences the one before; applies chunks, one at a time per instance; and
answers only what the changelog holds. What a request means is decided by the instance; this file is the loop around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import (
    Bug,
    CheckpointUnusable,
    GodwitError,
    ProcessorTimeout,
    StaleGeneration,
    StateUncertain,
)
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.runtime.backup.keeper import BackupKeeper
from godwit.runtime.backup.records import Records
from godwit.runtime.backup.restore import restore_if_lost
from godwit.runtime.backup.sender import BackupSender, no_backup
from godwit.runtime.handover.host_services import HostServices
from godwit.runtime.host.compaction import Upkeep
from godwit.runtime.host.exchange import Exchange, replaced
from godwit.runtime.host.migration_service import Moves
from godwit.runtime.instance.instances import Instances
from godwit.runtime.liveness.heartbeat_datagrams import HeartbeatSender
from godwit.runtime.liveness.leases import (
    Lease,
    check_owner,
    drop_failure,
    end_lease,
    host_directory,
    write_lease,
    write_obituary,
)
from godwit.runtime.liveness.wills import check_alive
from godwit.runtime.processor.crash_markers import CrashMarkers
from godwit.runtime.processor.watchdog import Watch
from godwit.state.changelog import Changelog, Durability, Recovered
from godwit.state.changes import changes_schema
from godwit.state.ledger import with_rows
from godwit.state.log_copy import copy_log
from godwit.state.probing import probe
from godwit.transport import line, typed, wire
from godwit.transport.addresses import reachable
from godwit.transport.flight import GONE, Service

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
    # Whether another host keeps all that this one writes, for the loss of a disk.
    backup: bool = False
    beats: str = ""  # where heartbeats go; empty: nobody listens


class Host:
    def __init__(self, config: HostConfig, clock_ms: Callable[[], int]) -> None:
        self.config = config
        self.directory = host_directory(config.checkpoint, config.host)
        self._clock_ms = clock_ms
        self._stop = ports.event()
        self._fatal: GodwitError | None = None
        self._watch = Watch(self._give_up)
        self._controller = line.connect(config.controller, config.token)
        self.generation = 0  # until its log is open
        self.started_s = ports.now_s()
        self.load_s = 0.0

    # -- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop; everything is released when this returns."""
        began = ports.now_s()
        check_owner(self.config.checkpoint, self.config.incarnation)
        check_alive(self.directory)
        recovered = self._opened()
        self._instances, self._lanes = self._made()
        for part in recovered.parts():
            self._instances.recover(part.info, memoryview(part.body))
        for shared in self._instances:
            self._instances.own(shared)
        self.load_s = ports.now_s() - began
        self._moves = Moves(self._port(), self._instances.named)
        self._instances.define_all(self._controller.call("definitions"))
        service = self._service()
        self._upkeep = Upkeep(self.log, self._instances.settled)
        heart = HeartbeatSender(
            self.config.beats, self.config.token, self.config.incarnation, self.config.host, self.generation
        )
        self._watch.start()
        self._upkeep.start()
        try:
            for shared in self._instances:
                self._moves.recover(shared)  # before anybody can bring new copies, which it would take for old ones
            self._announce(f"{reachable(self.config.bind, self.config.controller)}:{service.port}")
            if self._backup is not None:
                self._backup.start()
            heart.start()
            self._serve()
        finally:
            self._stop.set()
            self._instances.wake()
            self._moves.stop()
            clean = service.stop(STOP_GRACE_S)
            if self._backup is not None:
                self._backup.stop()
            self._upkeep.stop()
            self._watch.stop()
            self._release()
            heart.stop()
            if not clean:
                ports.exit_process(0)  # a stream is still open: only the end of the process frees its port

    def _opened(self) -> Recovered:
        """The log, from a backup if need be. What was said of a backup does not hold for what is answered from now on."""
        config = self.config
        self._restored = restore_if_lost(config.checkpoint, config.host)
        records = Records(config.checkpoint, config.host)
        before = records.newest()
        self.log, recovered = Changelog.open(
            self.directory, config.durability, segment_bytes_max=config.segment_bytes_max
        )
        self.generation = self.log.generation
        self._mount = probe(self.directory)  # as this machine sees it
        self._crash_markers = CrashMarkers(self.directory, self.generation, config.incarnation)
        record = records.next(before, "none", None if before is None else before.peer, self.generation)
        self._backup_keeper = BackupKeeper(config.checkpoint, config.host, self._stop.is_set)
        self._backup_keeper.tidy()
        self._backup = BackupSender(self._port(), record, self._controller.call, self._end) if config.backup else None
        return recovered

    def _service(self) -> Service:
        actions = {
            "define": self._action_define,
            "status": self._action_status,
            "timers_due": self._action_timers_due,
            "drop": self._action_drop,
            "sync": self._action_sync,
            "clear_letters": self._action_clear_letters,
            "stop": self._action_stop,
            "marks": self._action_marks,
            "adopt": self._action_adopt,
            "roster": self._action_roster,
            "hold": self._action_hold,
            "copy": self._action_copy,
            "tidy_backups": self._action_tidy_backups,
            "ping": lambda _: {},
            **typed.actions(self._moves.handlers()),
        }
        return line.listen(self.config.bind, self.config.token, actions, self._exchange, self._fetch)

    def _made(self) -> tuple[Instances, Exchange]:
        config, ask = self.config, self._controller.call
        instances = Instances(
            config.host,
            self.log,
            self._watch,
            self._clock_ms,
            lambda: set(ask("active_scopes")["scopes"]),
            config.routing,
            config.memory_max_bytes,
            self._crash_markers,
        )
        return instances, Exchange(config.host, config.checkpoint, self.log, self._clock_ms, self._stop.is_set, ask)

    def _port(self) -> HostServices:
        config = self.config
        return HostServices(
            config.host,
            config.checkpoint,
            config.token,
            config.incarnation,
            self.log,
            self._clock_ms,
            self._stop.is_set,
            self._crash_markers,
        )

    def _announce(self, address: str) -> None:
        # Again, because another flock may have come in between; its hosts start anew when they find themselves fenced. And
        # this host may have been given up for lost between the first look and its claim.
        check_owner(self.config.checkpoint, self.config.incarnation)
        check_alive(self.directory)
        write_lease(self.directory, Lease(self.generation, address, ports.pid(), self.config.incarnation))
        drop_failure(self.directory)
        self._controller.call(
            "register",
            host=self.config.host,
            generation=self.generation,
            address=address,
            pid=ports.pid(),
            load_s=self.load_s,
            restored=self._restored,
        )

    def _serve(self) -> None:
        parent = ports.parent_pid()
        while not self._stop.wait(0.5):
            # The Spark worker's parent died, so the executor is gone; or a newer generation has taken over.
            if ports.parent_pid() != parent:
                return
            if self.log.fenced():
                self._fatal = replaced(self.config.host, self.generation)
                break
            if self.log.failure is not None:
                self._end(self.log.failure)
            if self._backup is not None:
                self._backup.watch()
        if self._fatal is not None:
            raise self._fatal

    def _release(self) -> None:
        self._instances.close()
        end_lease(self.directory, self.generation)
        self.log.close()
        self._controller.close()

    def _give_up(self, error: ProcessorTimeout) -> None:
        """The obituary fails the batch. Where rows are set aside, the crash markers show the row to the next generation."""
        try:
            initial = error.fields["batch"] < 0  # initial rows have no crash markers
            if initial or not self._instances.sets_aside(error.fields["operator"]):
                write_obituary(self.directory, self.generation, error)
        finally:
            ports.exit_process(13)

    # -- the exchange ------------------------------------------------------------------------------------------------

    def _exchange(self, header: dict[str, Any], reader: Any, writer: Any) -> None:
        """One lane of one batch: opened, chunks answered in order, finished."""
        began = False
        try:
            if "migration" in header:
                self._moves.receive(header, reader, writer)
                return
            if "backup" in header:
                self._backup_keeper.receive(header, reader, writer)
                return
            shared = self._instances.of(header)
            writer.begin(with_rows(shared.instance.spec.output_schema))
            began = True
            self._lanes.converse(shared, header, reader, writer)
        except GodwitError as error:
            self._send_error(writer, began, error.at(host=self.config.host))
            if isinstance(error, (CheckpointUnusable, StaleGeneration, StateUncertain)):
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

    # -- fetch and actions -------------------------------------------------------------------------------------------

    def _fetch(self, header: dict[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """All committed state of an operator, as changes; `committed_batch` is the newest batch that Spark has committed."""
        shared = self._instances.newest(wire.field(header, "operator", str))
        committed_batch = wire.field(header, "committed_batch", int)
        with shared.lock:
            if self.log.failure is not None:  # memory may not be what has been written
                raise self.log.failure.with_traceback(None)
            # Every batch before the one in progress is committed; of that one, only Spark knows.
            settled = shared.instance.spec.ephemeral or shared.instance.progress.batch <= committed_batch
            batches = list(shared.instance.state.export(committed=not settled))
            ownership = shared.instance.ownership
            told = {} if ownership is None else {"ownership": json.dumps(ownership.to_dict())}
        return changes_schema(shared.instance.key_codec).with_metadata(told), iter(batches)

    def _action_marks(self, request: dict[str, Any]) -> dict[str, Any]:
        """How far each operator has come here, for a host that joins."""
        marks = {}
        for shared in self._instances:
            if not shared.instance.spec.ephemeral:
                with shared.lock:
                    marks[shared.instance.name], _ = shared.instance.mark_part()
        return {"marks": marks}

    def _action_adopt(self, request: dict[str, Any]) -> dict[str, Any]:
        """Be as far as the others are, before the first router comes."""
        for name, mark in wire.field(request, "marks", dict).items():
            shared = self._instances.get(name)
            if shared is None:
                continue
            with shared.lock:
                if shared.instance.progress.query is None:
                    joins = {"fired": True, "unfired": Units().to_dict(), "joined": True, "spoiled": ""}
                    shared.instance.recovery.mark(mark | joins)
                    shared.instance.write([shared.instance.mark_part()])
            self.log.flush(shared.lsn)
        return {}

    def _action_roster(self, request: dict[str, Any]) -> dict[str, Any]:
        self._lanes.roster = tuple(wire.field(request, "hosts", list))
        return {}

    def _action_hold(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin no other batch, or go on."""
        for shared in self._instances:
            with shared.changed:
                shared.paused = wire.field(request, "held", bool)
                shared.changed.notify_all()
        return {}

    def _action_copy(self, request: dict[str, Any]) -> dict[str, Any]:
        for shared in self._instances:
            self.log.sync(shared.lsn)
        with self._upkeep.nothing_merged():
            return {"bytes": copy_log(self.log, Path(wire.field(request, "to", str)))}

    def _action_tidy_backups(self, request: dict[str, Any]) -> dict[str, Any]:
        self._backup_keeper.tidy()
        return {}

    def _action_define(self, request: dict[str, Any]) -> dict[str, Any]:
        self._instances.define(wire.field(request, "operator", dict))
        return {}

    def _action_status(self, request: dict[str, Any]) -> dict[str, Any]:
        instances = [shared.status() for shared in self._instances]
        backup = no_backup(self.log.bytes_written) if self._backup is None else self._backup.status()
        return {
            "host": self.config.host,
            "generation": self.generation,
            "pid": ports.pid(),
            "load_s": self.load_s,
            "uptime_s": ports.now_s() - self.started_s,
            "upkeep_error": None if self._upkeep.failure is None else str(self._upkeep.failure),
            "storage": {
                "file_system": self._mount.file_system,
                "network": self._mount.network,
                "durability": self.log.durability,
            },
            "backup": backup | {"keeps_for": self._backup_keeper.bytes_by_origin()},
            "instances": instances,
        }

    def _action_timers_due(self, request: dict[str, Any]) -> dict[str, Any]:
        shared = self._instances.get(wire.field(request, "operator", str))
        if shared is None:
            return {"due": False}
        with shared.lock:
            now_ms = self._clock_ms()
            return {"due": shared.instance.timers.due(min(now_ms, request.get("until_ms") or now_ms))}

    def _action_drop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._instances.drop(wire.field(request, "operator", str))
        return {}

    def _action_clear_letters(self, request: dict[str, Any]) -> dict[str, Any]:
        shared = self._instances.get(wire.field(request, "operator", str))
        if shared is None:
            return {"cleared": 0}
        with shared.lock:
            cleared = shared.instance.keys.clear_letters()
        self.log.sync(shared.lsn)
        return {"cleared": cleared}

    def _action_sync(self, request: dict[str, Any]) -> dict[str, Any]:
        for shared in self._instances:
            self.log.sync(shared.lsn)
        return {}

    def _action_stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._stop.set()
        self._instances.wake()
        return {}
