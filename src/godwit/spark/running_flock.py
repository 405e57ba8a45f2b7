"""An open flock: its parts, which part knows which, and the order in which they start and stop.

Decides nothing about operators or moves. `Flock` is the face for users.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from godwit.errors import CheckpointUnusable, Fenced, GodwitError
from godwit.runtime.controller import Controller, DriverAnswers
from godwit.runtime.host.host import HostConfig
from godwit.runtime.liveness.heartbeat_datagrams import HeartbeatReceiver
from godwit.runtime.liveness.leases import check_owner, write_owner
from godwit.runtime.liveness.presence import Presence
from godwit.runtime.messages import Admit, RunAdmitted
from godwit.spark.change.flock_copy import FlockCopier
from godwit.spark.change.loss_log import LossLog, TaskErrorLog
from godwit.spark.change.lost_hosts import LostHostHandler, RecoveryMode
from godwit.spark.change.request_queue import RequestQueue
from godwit.spark.change.run_moves import MoveRunner
from godwit.spark.checkpoint.checkpoint_in_use import owner_of_this_process
from godwit.spark.checkpoint.disks import Disks
from godwit.spark.checkpoint.durability_choice import Storage
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.history import History
from godwit.spark.checkpoint.run_admission import RunAdmission
from godwit.spark.commit_watch import CommitLogs, CommitWatch, WatchedRun
from godwit.spark.define.arguments import check_slots
from godwit.spark.define.operator_registry import OperatorRegistry, RouterAccess
from godwit.spark.hosts.backup_peers import BackupPeers
from godwit.spark.hosts.flock_hosts import Hosts
from godwit.spark.hosts.flock_parts import FlockParts
from godwit.spark.hosts.host_jobs import TASK_ENDED, HostJob, application_ended
from godwit.spark.hosts.host_measures import HostMeasures
from godwit.spark.hosts.membership import Membership
from godwit.spark.hosts.owner_tables import OwnerTables
from godwit.spark.hosts.silent_hosts import SilentHostMonitor
from godwit.spark.hosts.task_slots import TaskSlots, taken_slots
from godwit.spark.query_watermark import QueryWatermarks
from godwit.transport.addresses import ALL


@dataclass(frozen=True, slots=True)
class FlockSettings:
    """The arguments of `Flock`, checked."""

    token: str = field(repr=False)
    bind: str
    storage: Storage
    disks: tuple[Path, ...]
    memory_max_bytes: int | None
    segment_bytes_max: int
    backup: bool
    recovery: RecoveryMode
    silent_s: float | None
    wait_s: float
    accept_gaps: bool


class RunningFlock:
    def __init__(self, spark: SparkSession, directory: FlockDirectory, settings: FlockSettings) -> None:
        self._spark = spark
        self.directory = directory
        self.settings = settings
        self.incarnation = secrets.token_hex(4)
        bind, token = settings.bind, settings.token
        driver = spark.sparkContext.getConf().get("spark.driver.host") if bind in ALL else None
        self.history = History(directory.path)
        self._loss_log = LossLog(str(directory.path))
        self._disks = Disks(directory.path, directory.flock, settings.disks)
        self._admission = RunAdmission(spark, settings.accept_gaps)
        self._watermarks = QueryWatermarks(spark, self._admission)
        self._slots = TaskSlots(spark.sparkContext, directory.flock, self._ignore_silence)
        self.controller = self._make_controller(driver)
        self._presence = Presence(bind, self.incarnation, driver)
        self._backup_peers = BackupPeers(str(directory.path), self._disks, directory.roster, self.controller.hosts)
        self.hosts = Hosts(self._make_job, self.controller, token)
        silent_s = settings.silent_s
        receiver = None if silent_s is None else HeartbeatReceiver(bind, token, self.incarnation, driver)
        self._monitor = SilentHostMonitor(receiver, silent_s or 0.0, self.hosts, self.history)
        self.tables = OwnerTables(directory, self.hosts, self.history)
        self.members = Membership(
            directory, self.hosts, self.tables, self.history, self._check_slots, self._stop_queries
        )
        logs = CommitLogs(self._admission.committed, self._admission.active_run)
        self._commits = CommitWatch(logs, directory.roster, self.hosts.ask_now)
        parts = FlockParts(directory, self.history, self.hosts, self.tables, self.members)
        access = RouterAccess(token, settings.wait_s, self.incarnation)
        self.operators = OperatorRegistry(spark, parts, self.controller, self._admission, access)
        self.measures = HostMeasures(parts)
        runner = MoveRunner(parts, self.operators.is_defined)
        self.requests = RequestQueue(parts, runner, self.incarnation)
        self.operators.at_rest = self.requests.at_rest
        self.losses = LostHostHandler(parts, self.requests, settings.recovery, settings.storage.durability, self.scopes)
        self.copier = FlockCopier(directory, self.hosts, lambda: self._admission.bindings, self.requests.keys_move)

    def _make_controller(self, driver: str | None) -> Controller:
        return Controller(
            self.settings.bind,
            self.settings.token,
            DriverAnswers(
                admit=self._admit,
                active_scopes=self.scopes,
                taken_over=self._lost,
                backup_peer=self._backup_peer,
                registered=self._loss_log.registered,
                restored=self._restored,
                slot_taken=self._slots.waits,
                task_failed=TaskErrorLog().failed,
                watermark=self._watermarks.of_batch,
                watermark_moved=self._watermarks.moved,
            ),
            driver,
        )

    # -- open and close ----------------------------------------------------------------------------------------------

    def open(self, hosts: int, previous: str) -> None:
        """Start the hosts, then scale to so many. `previous`: a line for the history on the flock that had the checkpoint."""
        path = str(self.directory.path)
        self._slots.take(path, lambda: len(self.directory.roster()))
        owner = owner_of_this_process(str(self._spark.sparkContext.applicationId), self._presence.address)
        write_owner(path, self.incarnation, **owner)
        if previous:
            self.history.add("opened", before=previous)
        self._monitor.start()
        self.members.open()
        if len(self.directory.roster()) != hosts:
            self.requests.scale(hosts, {"protocol": "pause"})

    def close(self) -> None:
        self._monitor.stop()
        if not self._is_replaced():
            self._stop_queries()
        self._commits.close()
        self.hosts.close()
        self.requests.wait_ended(5.0)
        self.controller.close()
        self._mark_closed()
        self._slots.release()
        self._presence.close()

    def _is_replaced(self) -> bool:
        """Whether a newer flock has the checkpoint. Then the queries run with that flock."""
        try:
            check_owner(str(self.directory.path), self.incarnation)
        except Fenced:
            return True
        except GodwitError:  # the file cannot be read: closing must go on
            return False
        return False

    def _mark_closed(self) -> None:
        """Tasks that wait for a host of this flock, or start later, then fail instead of waiting."""
        with suppress(GodwitError, OSError):  # a newer flock has the checkpoint, or the disk is full
            check_owner(str(self.directory.path), self.incarnation)
            write_owner(str(self.directory.path), self.incarnation, closed=True)

    def _stop_queries(self) -> None:
        if application_ended(self._spark.sparkContext):
            return  # its queries have ended with it
        bound = {binding.query for binding in self._admission.bindings.values()}
        for query in self._spark.streams.active:
            if query.id in bound:
                query.stop()

    # -- hosts -------------------------------------------------------------------------------------------------------

    def _make_job(self, host: str) -> HostJob:
        settings = self.settings
        self._disks.place(host)
        config = HostConfig(
            host,
            str(self.directory.path),
            self.controller.address,
            settings.token,
            settings.bind,
            settings.storage.durability,
            settings.memory_max_bytes,
            settings.segment_bytes_max,
            self.incarnation,
            self.directory.routing,
            settings.backup,
            self._monitor.address,
        )
        context, forget = self._spark.sparkContext, self._ignore_silence
        return HostJob(context, config, self.controller, self._slots, self._lost, forget)

    def _lost(self, host: str, noticed: str = TASK_ENDED) -> bool:
        """A host is lost. True if other hosts own its keys now; if not, the host is to be started again."""
        self._ignore_silence(host)  # Spark may have restarted the task by itself, so the job did not end
        try:  # a flock that has lost its checkpoint to a newer one must not fence the hosts of that flock
            check_owner(str(self.directory.path), self.incarnation)
        except Fenced:
            return False
        with suppress(CheckpointUnusable):  # without any disk left, the host reports the error when it starts
            self._disks.place(host)
        if not self.hosts.closing.is_set() and host in self.members.hosts():
            self._loss_log.lost(host, noticed)
        taken_over = self.losses.lost(host, noticed)
        if taken_over:
            self._loss_log.taken_over(host)
        return taken_over

    def _ignore_silence(self, host: str) -> None:
        self._monitor.forget(host)

    def _backup_peer(self, host: str) -> str | None:
        return self._backup_peers.peer_of(host)

    def _restored(self, host: str) -> None:
        self.history.add("restored", host=host)

    # -- what Spark knows --------------------------------------------------------------------------------------------

    def _admit(self, request: Admit) -> RunAdmitted:
        admitted = self._admission.admit(request)
        self.operators.admitted(request.operator)
        if request.batch >= 0:
            run = WatchedRun(request.operator, request.query, request.run)
            self._commits.begin(run, admitted.asynchronous)
        return admitted

    def scopes(self) -> list[str]:
        """The evaluations of batch DataFrames that run now."""
        stages = self._spark.sparkContext.statusTracker().getActiveStageIds()
        return [f"{self.incarnation}-{stage}" for stage in stages]

    def taken_slots(self) -> Mapping[str, int]:
        """Task slots that other flocks of the application occupy, by checkpoint."""
        return taken_slots(self._spark.sparkContext, str(self.directory.path))

    def _check_slots(self, hosts: int) -> None:
        check_slots(self._spark, hosts, self.taken_slots())
