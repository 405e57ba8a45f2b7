"""A flock: hosts on a Spark application, and the operators that live on them. What a user holds in hand."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from godwit.errors import CheckpointUnusable, DefinitionError, Fenced, GodwitError
from godwit.runtime.controller import Controller, DriverAnswers
from godwit.runtime.host.host import HostConfig
from godwit.runtime.liveness.heartbeat_datagrams import HeartbeatReceiver
from godwit.runtime.liveness.leases import check_owner, write_owner
from godwit.runtime.liveness.presence import Presence
from godwit.runtime.messages import Admit, ClearLetters
from godwit.runtime.processor.native import Processor
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.change.autoscaler import Autoscaler, RulesGiven, checked_settings
from godwit.spark.change.flock_copy import FlockCopier, start_from_copy
from godwit.spark.change.lost_hosts import LostHostHandler, Recovery
from godwit.spark.change.migration_handle import Migration
from godwit.spark.change.move_options import MoveOptions, chosen_units
from godwit.spark.change.request_queue import RequestQueue
from godwit.spark.change.run_moves import MoveRunner
from godwit.spark.checkpoint.checkpoint_in_use import check_not_in_use, owner_of_this_process
from godwit.spark.checkpoint.disks import Disks, checked_disks
from godwit.spark.checkpoint.durability_choice import choose_storage
from godwit.spark.checkpoint.flock_directory import FlockDirectory, checked_path
from godwit.spark.checkpoint.history import History
from godwit.spark.checkpoint.run_admission import RunAdmission
from godwit.spark.checkpoint.state_view import state_frame
from godwit.spark.define import timer_source
from godwit.spark.define.arguments import check_arguments, check_session, check_silence, check_slots, key_names
from godwit.spark.define.operator_definition import Definition, OperatorOptions
from godwit.spark.define.operator_registry import OperatorRegistry
from godwit.spark.hosts.backup_peers import BackupPeers
from godwit.spark.hosts.flock_status import flock_status
from godwit.spark.hosts.host_jobs import TASK_ENDED, HostJob, Hosts
from godwit.spark.hosts.host_measures import HostMeasures
from godwit.spark.hosts.membership import Membership
from godwit.spark.hosts.owner_tables import OwnerTables, RoutingView
from godwit.spark.hosts.silent_hosts import SilentHostMonitor
from godwit.spark.hosts.task_slots import TaskSlots, taken_slots
from godwit.state.changelog import Durability
from godwit.transport.addresses import ALL

Keys = str | list[str] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlockSettings:
    token: str
    bind: str
    durability: Durability
    memory_max_bytes: int | None
    segment_bytes_max: int
    backup: bool


class Flock:
    """Long-lived hosts for stateful operators of Structured Streaming queries.

    hosts: how many; each takes one task slot of the application for as long as the flock lives. A checkpoint that has another
        number is opened with the hosts it has, and scaled.
    checkpoint: a directory that the driver and all executors see; opening it again goes on where it was.
    durability: "process" survives killed processes, "disk" also a power cut. Unless given, "process" where hosts listen on
        loopback and the checkpoint is on a local file system, else "disk".
    memory_max_bytes: of state and of what a batch in progress needs, per host and operator; the rest goes to local disk.
    token: what routers and hosts prove themselves with; random unless given.
    bind: the address hosts and driver listen on: loopback, or "0.0.0.0" where the executors are on other machines.
    groups: into how many parts the keys are divided; hosts own whole groups. Fixed when the checkpoint is made.
    segment_bytes_max: how large a file of a host's changelog grows before the next one is begun.
    disks: directories, each on a disk of its own, over which the hosts' logs are spread; all executors must see them. The
        checkpoint holds the logs itself unless they are given.
    backup: whether every host's log is kept by another host too, on another disk and machine if there is one. Nothing is
        answered before both have it, and a host whose disk is lost goes on from there.
    recovery: what happens when a host is lost. "storage": it is started again from its changelog. "parallel": the other hosts
        take over its keys at once, each a part, and a new host joins in its place. Copies of a standby take over in any case.
    start_from: a copy that `checkpoint()` has made; the checkpoint must be new then.
    silent_s: how long nothing may be heard of a host before it is taken for lost though its task has not ended: a process that
        is stopped or hangs, a machine that is gone. At least 0.5; longer for processors that hold Python's lock for seconds;
        None leaves it to Spark. A host that was slow lately is given more time by itself.
    wait_s: how long a task waits for a host that is down before it fails.
    take_over: open the checkpoint though another flock has it open, which ends that one. Without it a checkpoint in use is
        refused. A flock that was killed, or has been closed, is not in the way.
    onGap: "error" refuses a start when Spark ran batches that this state has not seen, "accept" takes it.
    """

    def __init__(
        self,
        spark: SparkSession,
        hosts: int = 2,
        *,
        checkpoint: str | os.PathLike[str],
        durability: Durability | None = None,
        memory_max_bytes: int | None = None,
        token: str | None = None,
        bind: str = "127.0.0.1",
        groups: int = 1024,
        onGap: Literal["error", "accept"] = "error",
        segment_bytes_max: int = 64 << 20,
        wait_s: float = 60.0,
        recovery: Recovery = "storage",
        disks: Sequence[str | os.PathLike[str]] | None = None,
        backup: bool = False,
        start_from: str | os.PathLike[str] | None = None,
        silent_s: float | None = 1.0,
        take_over: bool = False,
    ) -> None:
        check_arguments(hosts, durability, groups, onGap, token, recovery, backup, take_over, wait_s)
        on_disks = checked_disks(disks)
        check_silence(silent_s)
        check_session(spark)
        path = checked_path(checkpoint)
        before = check_not_in_use(path, take_over)
        taken = taken_slots(spark.sparkContext, str(path))
        check_slots(spark, hosts, taken)
        self._spark = spark
        if start_from is not None:
            start_from_copy(start_from, path)
        self._home = FlockDirectory.open(checkpoint, hosts, groups)
        self._storage = choose_storage(durability, bind, self._home.path, on_disks)
        durable = self._storage.durability
        self._settings = FlockSettings(
            token or secrets.token_urlsafe(24), bind, durable, memory_max_bytes, segment_bytes_max, backup
        )
        check_slots(spark, len(self._home.roster()), taken)
        self._incarnation = secrets.token_hex(4)
        self._closing = threading.Lock()
        self._closed = False
        self._autoscaler: Autoscaler | None = None
        self._admission = RunAdmission(spark, onGap == "accept")
        self._disks = Disks(self._home.path, self._home.flock, on_disks)
        self._wire(recovery, silent_s, wait_s)
        timer_source.register(spark)
        atexit.register(self.close)
        self._open(hosts, before)

    def _wire(self, recovery: Recovery, silent_s: float | None, wait_s: float) -> None:
        """Who does what, and whom each knows."""
        spark, bind, token = self._spark, self._settings.bind, self._settings.token
        self._slots = TaskSlots(spark.sparkContext, self._home.flock, self._unseated)
        driver = spark.sparkContext.getConf().get("spark.driver.host") if bind in ALL else None
        self._controller = Controller(
            bind,
            token,
            DriverAnswers(
                admit=self._admit,
                active_scopes=self._active_scopes,
                taken_over=self._lost,
                backup_peer=self._keeper_of,
                restored=self._restored,
                slot_claimed=self._slots.waits,
            ),
            driver,
        )
        self._presence = Presence(bind, self._incarnation, driver)
        self._keepers = BackupPeers(str(self._home.path), self._disks, self._home.roster, self._controller.hosts)
        self._hosts = Hosts(self._job, self._controller, token)
        self._history = History(self._home.path)
        receiver = None if silent_s is None else HeartbeatReceiver(bind, token, self._incarnation, driver)
        self._noticing = SilentHostMonitor(receiver, silent_s or 0.0, self._hosts, self._history)
        self._owners = OwnerTables(self._home, self._hosts, self._history)
        self._members = Membership(
            self._home, self._hosts, self._owners, self._history, self._check_slots, self._stop_queries
        )
        self._definer = OperatorRegistry(
            spark,
            self._home,
            self._hosts,
            self._controller,
            self._owners,
            self._members,
            self._admission,
            token,
            wait_s,
            self._incarnation,
        )
        self._measuring = HostMeasures(self._hosts, self._members, self._owners)
        carrier = MoveRunner(self._hosts, self._owners, self._history, self._definer.operators.__contains__)
        self._changes = RequestQueue(self._owners, self._members, carrier, self._history, self._incarnation)
        self._rescuer = LostHostHandler(
            self._home,
            self._hosts,
            self._owners,
            self._members,
            self._changes,
            self._history,
            recovery,
            self._settings.durability,
            self._active_scopes,
        )
        self._copier = FlockCopier(self._home, self._hosts, lambda: self._admission.bindings, self._changes.keys_move)

    def _open(self, hosts: int, before: str) -> None:
        """`before`: what is to be remembered of the flock that had the checkpoint."""
        try:
            self._slots.take(str(self._home.path), lambda: len(self._home.roster()))
            who = owner_of_this_process(str(self._spark.sparkContext.applicationId), self._presence.address)
            write_owner(str(self._home.path), self._incarnation, **who)
            if before:
                self._history.add("opened", before=before)
            self._noticing.start()
            self._members.open()
            if len(self._home.roster()) != hosts:
                self._changes.scale(hosts, {"protocol": "pause"})
        except BaseException:
            self.close()
            raise

    @property
    def _jobs(self) -> list[HostJob]:
        return self._hosts.jobs()

    # -- life --------------------------------------------------------------------------------------------------------

    def _job(self, host: str) -> HostJob:
        settings = self._settings
        self._disks.place(host)
        config = HostConfig(
            host,
            str(self._home.path),
            self._controller.address,
            settings.token,
            settings.bind,
            settings.durability,
            settings.memory_max_bytes,
            settings.segment_bytes_max,
            self._incarnation,
            self._home.routing,
            settings.backup,
            self._noticing.address,
        )
        context, forget = self._spark.sparkContext, self._noticing.forget
        return HostJob(context, config, self._controller, self._slots, self._lost, forget)

    def _lost(self, host: str, noticed: str = TASK_ENDED) -> bool:
        self._noticing.forget(host)  # Spark may have started it again by itself, and the job goes on
        try:  # the hosts of a flock that has taken over are not this one's to fence
            check_owner(str(self._home.path), self._incarnation)
        except Fenced:
            return False
        with suppress(CheckpointUnusable):  # if no disk is left, the host says so when it is started
            self._disks.place(host)
        return self._rescuer.lost(host, noticed)

    def _check_slots(self, hosts: int) -> None:
        check_slots(self._spark, hosts, self._taken_slots())

    def _taken_slots(self) -> dict[str, int]:
        return taken_slots(self._spark.sparkContext, str(self._home.path))

    def _unseated(self, host: str) -> None:
        self._noticing.forget(host)

    def _keeper_of(self, host: str) -> str | None:
        return self._keepers.keeper_of(host)

    def _restored(self, host: str) -> None:
        self._history.add("restored", host=host)

    def close(self) -> None:
        """Stop the queries that use this flock, then the hosts; nothing is left running. Calling it again does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if self._autoscaler is not None:
            self._autoscaler.stop()
        self._noticing.stop()
        self._stop_queries()
        self._hosts.close()
        self._changes.wait_ended(5.0)
        self._controller.close()
        self._retire()
        self._slots.release()
        self._presence.close()

    def _retire(self) -> None:
        """Tasks that still wait for a host of this flock, or start later, hear that none will come."""
        with suppress(GodwitError, OSError):  # replaced by a newer flock, or no room to say so
            check_owner(str(self._home.path), self._incarnation)
            write_owner(str(self._home.path), self._incarnation, closed=True)

    def _stop_queries(self) -> None:
        bound = {binding.query for binding in self._admission.bindings.values()}
        for query in self._spark.streams.active:
            if query.id in bound:
                query.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- operators ---------------------------------------------------------------------------------------------------

    def transformWithState(
        self,
        frame: DataFrame,
        keys: Keys,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | None = None,
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """PySpark's `transformWithState` on resident state: the same StatefulProcessor, unchanged, called with Rows.

        frame may be streaming or batch; keys names one or several columns of atomic types. name identifies the operator
        and its state in the checkpoint. For the other arguments see `OperatorOptions`.
        """
        definition = Definition(
            frame, key_names(keys), statefulProcessor, name, "row", outputStructType, outputMode, timeMode, options
        )
        return self._operator(definition, initialState)

    def transformWithStateInPandas(
        self,
        frame: DataFrame,
        keys: Keys,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | None = None,
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """As `transformWithState`, for processors that take and give pandas DataFrames."""
        definition = Definition(
            frame, key_names(keys), statefulProcessor, name, "pandas", outputStructType, outputMode, timeMode, options
        )
        return self._operator(definition, initialState)

    def process(
        self,
        frame: DataFrame,
        keys: Keys,
        processor: Processor,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | None = None,
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """A native processor, or one of `godwit.windows`: called with whole chunks, vectorised over keys."""
        definition = Definition(frame, key_names(keys), processor, name, "native", None, outputMode, timeMode, options)
        return self._operator(definition, initialState)

    def _operator(self, definition: Definition, initial: DataFrame | GroupedData | None) -> DataFrame:
        self._check_open()
        return self._definer.define(definition, initial)

    def _check_open(self) -> None:
        if self._closed:
            raise DefinitionError("this flock is closed", todo="Open a new Flock on the same checkpoint")

    # -- what Spark knows --------------------------------------------------------------------------------------------

    def _admit(self, request: Admit) -> None:
        self._admission.admit(request)
        self._definer.admitted(request.operator)

    def _active_scopes(self) -> list[str]:
        stages = self._spark.sparkContext.statusTracker().getActiveStageIds()
        return [f"{self._incarnation}-{stage}" for stage in stages]

    # -- looking in --------------------------------------------------------------------------------------------------

    def state(self, name: str) -> DataFrame:
        """Committed state of an operator: the key columns, host, epoch, a column per state variable, and timers."""
        self._check_open()
        known, token = self._definer.known(name), self._settings.token
        return state_frame(self._spark, self._home, self._incarnation, token, *known, self._controller.address)

    def dead_letters(self, name: str) -> DataFrame:
        """Rows and timers that an operator with dead_letters=True has set aside, as of a committed batch, in no order.

        The key columns, host, epoch; kind ("row" or "timer"), batch, lane, row or timer_ms, code, error, failed_at (when its
        batch began), and data, the row as JSON.
        """
        self._check_open()
        known, token, controller = self._definer.known(name), self._settings.token, self._controller.address
        return state_frame(self._spark, self._home, self._incarnation, token, *known, controller, letters=True)

    def clear_dead_letters(self, name: str) -> int:
        """Forget an operator's dead letters, but for those of keys that are being moved; says how many are gone."""
        self._check_open()
        self._definer.known(name)
        answers = [self._hosts.ask_now(host, ClearLetters(name)) for host in self._home.roster()]
        return sum(answer.count for answer in answers)

    def status(self) -> dict[str, Any]:
        """Hosts with generation, address and restarts; per operator and host the keys, bytes, rows, rates and lag."""
        self._check_open()
        told = flock_status(self._home, self._owners, self._controller, self._hosts.jobs(), self._settings.token)
        return told | {"quarantined": self._rescuer.quarantined(), "storage": self._storage.status()}

    def checkpoint(self, to: str | os.PathLike[str]) -> dict[str, Any]:
        """Copy the flock, and Spark's checkpoints of its queries, into a new directory while the queries run.

        Gives where they are: `path` for `Flock(..., start_from=)`, and by query id under `spark` what to copy to the
        checkpointLocation that the query is to start from. Refused while keys are being moved.
        """
        self._check_open()
        return self._copier.copy(to)

    def measures(self) -> dict[str, Any]:
        """Per operator what hosts have measured lately: useful time, true rate, waits, hot keys, the key that limits it."""
        self._check_open()
        return self._measuring.told()

    # -- reconfiguring while queries run -----------------------------------------------------------------------------

    def scale(self, hosts: int, **options: Unpack[MoveOptions]) -> Migration:
        """Have so many hosts, more or fewer, while queries go on; state spreads evenly with the fewest groups moved.

        For the options, and what is returned, see `MoveOptions` and `Migration`; they are the same for all of these calls.
        """
        self._check_open()
        return self._changes.scale(hosts, options)

    def move(
        self,
        operator: str,
        *,
        keys: list[Any] | None = None,
        groups: list[int] | None = None,
        to: str,
        **options: Unpack[MoveOptions],
    ) -> Migration:
        """Move single keys (as they are in the input; tuples where a key has several columns) or whole groups to a host.

        A key stays where it was put when its group moves later, until it is moved again or its host leaves.
        """
        units = chosen_units(self._known_stream(operator), keys, groups, self._owners.group_count())
        return self._changes.move(operator, units, to, options)

    def drain(self, host: str, **options: Unpack[MoveOptions]) -> Migration:
        """Move everything away from a host, then stop it; its name is not used again."""
        self._check_open()
        return self._changes.drain(host, options)

    def rebalance(self, operator: str, **options: Unpack[MoveOptions]) -> Migration:
        """Even out an operator's load by what hosts have measured: rows and bytes. Does nothing if it would gain little."""
        self._known_stream(operator)
        return self._changes.rebalance(operator, options)

    def standby(
        self,
        operator: str,
        *,
        to: str,
        keys: list[Any] | None = None,
        groups: list[int] | None = None,
        **options: Unpack[MoveOptions],
    ) -> Migration:
        """Keep copies of keys or groups, or of all that others own, up to date on a host, until they are handed over.

        wait() returns when the copies stand. `move` or `drain` with protocol="standby" makes them the owner, which takes no
        longer for large state than for small; abort() gives them up. Copies cost traffic and memory for as long as they stand.
        """
        spec = self._known_stream(operator)
        some = keys is not None or groups is not None
        units = chosen_units(spec, keys, groups, self._owners.group_count()) if some else None
        return self._changes.standby(operator, units, to, options)

    def autoscale(
        self,
        rules: RulesGiven = None,
        *,
        dry_run: bool = False,
        minimum: int = 1,
        maximum: int | None = None,
        every_s: float = 1.0,
        warm: int = 0,
    ) -> Autoscaler:
        """Follow the load by rules, until the handle's stop() or the flock's end.

        rules: `godwit.rules.Rule`s, or the path of a TOML file; sizing and hot-key spreading unless given. dry_run: only say,
        in `history()` and by the handle, what would be done. minimum, maximum: of hosts; unless given, as many as leave the
        query two task slots. every_s: how often it looks. warm: hosts beyond those in use that are kept started and empty,
        within the maximum, so that scaling out does not wait for a start.
        """
        self._check_open()
        if self._autoscaler is not None and self._autoscaler.running:
            raise DefinitionError("rules are being followed already", todo="Call stop() of the handle before")
        hosts, operators, taken = len(self._members.hosts()), self._owners.names(), self._taken_slots()
        asked = checked_settings(self._spark, taken, hosts, operators, rules, minimum, maximum, every_s, warm)
        self._autoscaler = Autoscaler(asked, dry_run, self._measuring, self._changes, self._history)
        return self._autoscaler

    def routing(self, operator: str) -> RoutingView:
        """Which host owns which groups and single keys of an operator, since when, and by which migration."""
        self._known_stream(operator)
        return self._owners.view(operator)

    def history(self, operator: str | None = None) -> list[dict[str, Any]]:
        """What happened to this flock, or to an operator of it, oldest first; kept in the checkpoint."""
        if operator is not None:
            self._definer.known(operator)
        return self._history.lines(operator)

    def _known_stream(self, operator: str) -> OperatorSpec:
        self._check_open()
        spec = self._definer.known(operator)[0]
        self._owners.table(operator)
        return spec
