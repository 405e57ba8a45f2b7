"""A host: one long-lived process that holds keyed state and serves routers, from its start to its end.

A host starts from its changelog, in a new generation that fences the generation before. It must not know what a request does
to state: the instance decides that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import (
    Bug,
    CheckpointUnusable,
    DefinitionError,
    GodwitError,
    ProcessorTimeout,
    StaleGeneration,
    StateUncertain,
)
from godwit.model.routing import Routing
from godwit.runtime.backup.keeper import BackupKeeper
from godwit.runtime.backup.records import Records
from godwit.runtime.backup.restore import restore_if_lost
from godwit.runtime.backup.sender import BackupSender, no_backup
from godwit.runtime.host.compaction import CompactionLoop
from godwit.runtime.host.driver_requests import DriverRequests, Handlers, HostParts
from godwit.runtime.host.exchange import LaneExchange, replaced
from godwit.runtime.host.migration_service import MigrationService
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
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
from godwit.runtime.messages import (
    Admit,
    FetchState,
    GetActiveScopes,
    GetBackupPeer,
    GetDefinitions,
    GetStatus,
    GetWatermark,
    HostReport,
    OpenBackup,
    OpenLane,
    OpenMigration,
    Register,
    RunAdmitted,
    SparkWatermark,
    StateOwnership,
    Stop,
)
from godwit.runtime.processor.crash_markers import CrashMarkers
from godwit.runtime.processor.watchdog import Watch
from godwit.state.changelog import Changelog, Durability, Recovered
from godwit.state.changes import changes_schema
from godwit.state.ledger import with_rows
from godwit.state.probing import probe
from godwit.transport import line, typed, wire
from godwit.transport.addresses import reachable
from godwit.transport.flight import GONE, Service
from godwit.transport.typed import Done

STOP_GRACE_S = 2.0
BACKUP_PEER_S = 1.0  # the driver is asked in the loop that also watches the log, so the wait must be short


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What a host is started with; made by the driver."""

    host: str
    checkpoint: str
    controller: str
    token: str = field(repr=False)
    bind: str = "127.0.0.1"
    durability: Durability = "process"
    memory_max_bytes: int | None = None
    segment_bytes_max: int = 64 << 20
    incarnation: str = ""
    # The first owners; without it the host owns everything, and keys cannot move.
    routing: Routing | None = None
    # Whether another host keeps a copy of the changelog, for the loss of a disk.
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

    def run(self) -> None:
        """Serve until the driver stops the host; everything is released when this returns."""
        began = ports.now_s()
        check_owner(self.config.checkpoint, self.config.incarnation)
        check_alive(self.directory)
        recovered = self._open_log()
        self._instances = self._new_instances()
        for part in recovered.parts():
            self._instances.recover(part.info, memoryview(part.body))
        for shared in self._instances:
            self._instances.own(shared)
        self.load_s = ports.now_s() - began
        self._moves = MigrationService(self._host_services(), self._instances.named)
        self._take_definitions()
        self._parts = self._new_parts()
        service = self._listen()
        heartbeats = HeartbeatSender(
            self.config.beats, self.config.token, self.config.incarnation, self.config.host, self.generation
        )
        self._watch.start()
        self._parts.compaction.start()
        try:
            for shared in self._instances:
                self._moves.recover(shared)  # before an origin can bring new copies, which would be taken for old ones
            self._announce(f"{reachable(self.config.bind, self.config.controller)}:{service.ports}")
            if self._backup is not None:
                self._backup.start()
            heartbeats.start()
            self._serve()
        finally:
            self._shut_down(service, heartbeats)

    def _shut_down(self, service: Service, heartbeats: HeartbeatSender) -> None:
        self._stop.set()
        self._instances.wake()
        self._moves.stop()
        clean = service.stop(STOP_GRACE_S)
        if self._backup is not None:
            self._backup.stop()
        self._parts.compaction.stop()
        self._watch.stop()
        self._instances.close()
        end_lease(self.directory, self.generation)
        self.log.close()
        self._controller.close()
        heartbeats.stop()
        if not clean:
            ports.exit_process(0)  # a stream is still open: only the end of the process frees its port

    def _open_log(self) -> Recovered:
        """The log, restored from a backup if its directory is lost.

        The record `none` is written first: what this generation answers is not in the backup until it stands again.
        """
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
        self._backup = (
            BackupSender(self._host_services(), record, self._backup_peer, self._end) if config.backup else None
        )
        return recovered

    def _listen(self) -> Service:
        handlers = DriverRequests(self._parts, self._clock_ms).handlers()
        own: Handlers = {GetStatus: self._status, Stop: self._stop_now}
        actions = typed.actions({**handlers, **self._moves.handlers(), **own})
        return line.listen(self.config.bind, self.config.token, actions, self._exchange, self._fetch)

    def _new_instances(self) -> Instances:
        config = self.config
        resources = HostResources(
            self.log,
            self._watch,
            self._clock_ms,
            lambda: set(typed.ask(self._controller, GetActiveScopes()).scopes),
            config.memory_max_bytes,
            self._crash_markers,
        )
        return Instances(config.host, resources, config.routing)

    def _new_parts(self) -> HostParts:
        lanes = LaneExchange(self._host_services(), self._admit, self._watermark)
        compaction = CompactionLoop(self.log, self._instances.settled)
        return HostParts(self.log, self._instances, lanes, compaction, self._backup_keeper)

    def _host_services(self) -> HostServices:
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
            self._admit,
        )

    def _admit(self, request: Admit) -> RunAdmitted:
        return typed.ask(self._controller, request)

    def _watermark(self, request: GetWatermark) -> SparkWatermark:
        return typed.ask(self._controller, request)

    def _backup_peer(self) -> str | None:
        return typed.ask(self._controller, GetBackupPeer(self.config.host), BACKUP_PEER_S).peer

    def _announce(self, address: str) -> None:
        # Checked again: another flock may have taken the checkpoint since the first check (its hosts start again when they
        # are fenced), and this host may have been declared lost before it claimed its generation.
        check_owner(self.config.checkpoint, self.config.incarnation)
        check_alive(self.directory)
        write_lease(self.directory, Lease(self.generation, address, ports.pid(), self.config.incarnation))
        drop_failure(self.directory)
        host, generation = self.config.host, self.generation
        typed.ask(self._controller, Register(host, generation, address, ports.pid(), self.load_s, self._restored))

    def _serve(self) -> None:
        parent = ports.parent_pid()
        while not self._stop.wait(0.5):
            if ports.parent_pid() != parent:  # the Spark worker's parent has ended, so the executor is gone
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

    def _give_up(self, error: ProcessorTimeout) -> None:
        """User code takes too long. The obituary fails the batch.

        If the operator sets failing rows aside, there is no obituary: the crash markers show the row to the next generation.
        """
        try:
            initial = error.fields["batch"] < 0  # initial rows have no crash markers
            if initial or not self._instances.sets_aside(error.fields["operator"]):
                write_obituary(self.directory, self.generation, error)
        finally:
            ports.exit_process(13)

    def _end(self, error: GodwitError) -> None:
        """The changelog cannot be written any more, so memory may be ahead of it: the next generation starts from the log."""
        self._fatal = error
        self._stop.set()

    # -- streams -----------------------------------------------------------------------------------------------------

    def _exchange(self, header: dict[str, Any], reader: Any, writer: Any) -> None:
        """One stream: of a router, of the origin of a migration, or of a host whose backup is here."""
        began = False
        try:
            match typed.from_header(header, OpenLane, OpenMigration, OpenBackup):
                case OpenMigration() as opening:
                    self._moves.receive(opening, reader, writer)
                case OpenBackup() as opening:
                    self._backup_keeper.receive(opening, reader, writer)
                case OpenLane() as opening:
                    shared = self._instance_for(opening)
                    writer.begin(with_rows(shared.instance.spec.output_schema))
                    began = True
                    self._parts.lanes.serve(shared, opening, reader, writer)
        except GodwitError as error:
            self._send_error(writer, began, error.at(host=self.config.host))
            if isinstance(error, (CheckpointUnusable, StaleGeneration, StateUncertain)):
                self._end(error)
        except GONE:
            return  # the router is gone; it reconnects, or Spark retries its task
        except Exception as error:  # noqa: BLE001 the router gets every error
            self._send_error(writer, began, Bug(f"{type(error).__name__}: {error}", host=self.config.host))

    def _instance_for(self, opening: OpenLane) -> SharedInstance:
        """The instance that the lane means. A host that has missed a definition gets it now."""
        shared = self._instances.of(opening.operator, opening.scope, opening.batch_ms)
        if shared.instance.is_of(opening.definition):
            return shared
        self._take_definitions(opening.operator)
        shared = self._instances.of(opening.operator, opening.scope, opening.batch_ms)
        if shared.instance.definition and not shared.instance.is_of(opening.definition):
            raise DefinitionError(
                "the operator has been defined again since this DataFrame was made",
                todo="Start the query with the DataFrame that the newest definition returned",
                operator=opening.operator,
            )
        return shared

    def _take_definitions(self, only: str | None = None) -> None:
        """Define the operators that the controller knows, or one of them."""
        for definition in typed.ask(self._controller, GetDefinitions()).operators:
            if only is None or definition.spec.name == only:
                self._instances.define(definition)

    def _send_error(self, writer: Any, began: bool, error: GodwitError) -> None:
        try:
            if not began:
                writer.begin(pa.schema([]))
            writer.write_metadata(wire.pack_error(error))
        except GONE:
            return

    def _fetch(self, header: dict[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """All committed state of an operator, as changes."""
        request = typed.from_header(header, FetchState)
        shared = self._instances.newest(request.operator)
        with shared.lock:
            if self.log.failure is not None:  # memory may not be what has been written
                raise self.log.failure.with_traceback(None)
            # Every batch before the one in progress is committed; whether that one is, only Spark knows.
            settled = shared.instance.spec.ephemeral or shared.instance.progress.current <= request.committed_batch
            batches = list(shared.instance.state.export(committed=not settled))
            ownership = shared.instance.ownership
            owned = StateOwnership(None if ownership is None else ownership.to_dict())
        schema = changes_schema(shared.instance.key_codec)
        return schema.with_metadata({owned.kind: typed.pack(owned)}), iter(batches)

    # -- requests about the host itself ------------------------------------------------------------------------------

    def _status(self, _: GetStatus) -> HostReport:
        failure = self._parts.compaction.failure
        backup = no_backup(self.log.bytes_written) if self._backup is None else self._backup.status()
        return HostReport(
            host=self.config.host,
            generation=self.generation,
            pid=ports.pid(),
            load_s=self.load_s,
            uptime_s=ports.now_s() - self.started_s,
            upkeep_error=None if failure is None else str(failure),
            storage={
                "file_system": self._mount.file_system,
                "network": self._mount.network,
                "durability": self.log.durability,
            },
            backup=backup | {"keeps_for": self._backup_keeper.bytes_by_origin()},
            instances=[shared.status() for shared in self._instances],
        )

    def _stop_now(self, _: Stop) -> Done:
        self._stop.set()
        self._instances.wake()
        return Done()
