"""A flock as its user sees it: opens and closes it, defines operators, shows state, and moves keys while queries run.

Every method checks that the flock is open and hands the call on; the parts that do the work are in `running_flock`.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError, GodwitError
from godwit.model.units import Units
from godwit.runtime.messages import ClearLetters
from godwit.runtime.processor.native import Processor
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.change.autoscaler import Autoscaler, FlockRoom, RulesGiven, checked_settings
from godwit.spark.change.chosen_units import check_known, chosen_units
from godwit.spark.change.flock_copy import start_from_copy
from godwit.spark.change.lost_hosts import RecoveryMode
from godwit.spark.change.migration_handle import Migration
from godwit.spark.change.move_options import MoveOptions
from godwit.spark.checkpoint.checkpoint_in_use import check_not_in_use
from godwit.spark.checkpoint.disks import checked_disks
from godwit.spark.checkpoint.durability_choice import choose_storage
from godwit.spark.checkpoint.flock_directory import FlockDirectory, checked_path
from godwit.spark.checkpoint.state_view import StateView
from godwit.spark.define import timer_source
from godwit.spark.define.arguments import FlockArguments, check_session, check_silence, check_slots
from godwit.spark.define.key_columns import Keys, keyed_frame
from godwit.spark.define.operator_definition import Definition, OperatorOptions
from godwit.spark.grouped_frame import GroupedFrame
from godwit.spark.hosts.flock_status import StatusSource, flock_status
from godwit.spark.hosts.host_jobs import application_ended
from godwit.spark.hosts.routing_view import RoutingView
from godwit.spark.hosts.task_slots import taken_slots
from godwit.spark.porting.spark_state import SparkState
from godwit.spark.results.measures import MeasuresByOperator
from godwit.spark.results.shown_events import Events
from godwit.spark.results.status import Status
from godwit.spark.running_flock import FlockSettings, RunningFlock
from godwit.spark.worker_python import check_worker_python
from godwit.state.changelog import Durability


class Flock:
    """Long-lived hosts for stateful operators of Structured Streaming queries.

    hosts: the number of hosts. Each occupies a task slot of the application until the flock is closed. A checkpoint with
        another number of hosts is opened with those, and then scaled.
    checkpoint: a directory that the driver and all executors see. A flock that is opened on it again continues from its state.
    durability: "process" survives killed processes, "disk" also a power cut. The default is "process" if hosts listen on
        loopback and the checkpoint is on a local file system, else "disk".
    memory_max_bytes: the memory for state and for the batch in progress, per host and operator; the rest goes to local disk.
    token: the secret by which routers, hosts and driver recognise each other; random unless given.
    bind: the address on which hosts and driver listen: loopback, or "0.0.0.0" if executors are on other machines.
    groups: the number of groups into which keys are divided; a host owns whole groups. Fixed when the checkpoint is made.
    segment_bytes_max: the size of a changelog file at which a host begins the next file.
    disks: directories, each on a disk of its own, over which the logs of the hosts are spread; all executors must see them. By
        default the logs are in the checkpoint.
    backup: whether a second host keeps a copy of the log of every host, if possible on another disk and machine. A host then
        answers only after both logs have the change, and a host whose disk is lost continues from the copy.
    recovery: what happens when a host is lost. "storage": the host is started again from its changelog. "parallel": the other
        hosts take over its keys at once, each a part, and a new host joins. Copies of a standby take over in any case.
    start_from: a copy that `checkpoint()` has made, from which the flock starts; the checkpoint must be a new directory then.
    silent_s: a host counts as lost after so many seconds without a heartbeat, even if its task has not ended: its process is
        stopped or hangs, or its machine is gone. At least 0.5; more if processors hold Python's lock for seconds; None leaves
        it to Spark. A host whose heartbeats were late recently gets more time.
    wait_s: how long a task waits for a host that is down before the task fails.
    take_over: open the checkpoint even if another flock has it open, which ends that flock. By default a checkpoint in use is
        refused. A flock that was killed or closed does not count.
    on_gap: "error" refuses a start if Spark has run batches that this state has not seen; "accept" allows it.
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
        on_gap: Literal["error", "accept"] = "error",
        segment_bytes_max: int = 64 << 20,
        wait_s: float = 60.0,
        recovery: RecoveryMode = "storage",
        disks: Sequence[str | os.PathLike[str]] | None = None,
        backup: bool = False,
        start_from: str | os.PathLike[str] | None = None,
        silent_s: float | None = 1.0,
        take_over: bool = False,
    ) -> None:
        sizes = (memory_max_bytes, segment_bytes_max)
        FlockArguments(hosts, durability, groups, recovery, backup, take_over, wait_s, on_gap, token, *sizes).check()
        disk_paths = checked_disks(disks)
        check_silence(silent_s)
        check_session(spark)
        path = checked_path(checkpoint)
        previous = check_not_in_use(path, take_over)
        taken = taken_slots(spark.sparkContext, str(path))
        check_slots(spark, hosts, taken)
        check_worker_python(spark.sparkContext)
        if start_from is not None:
            start_from_copy(start_from, path)
        directory = FlockDirectory.open(checkpoint, hosts, groups)
        settings = FlockSettings(
            token=token or secrets.token_urlsafe(24),
            bind=bind,
            storage=choose_storage(durability, bind, directory.path, disk_paths),
            disks=disk_paths,
            memory_max_bytes=memory_max_bytes,
            segment_bytes_max=segment_bytes_max,
            backup=backup,
            recovery=recovery,
            silent_s=silent_s,
            wait_s=wait_s,
            accept_gaps=on_gap == "accept",
        )
        check_slots(spark, len(directory.roster()), taken)
        self._spark = spark
        self._closing = threading.Lock()
        self._closed = False
        self._autoscaler: Autoscaler | None = None
        self._running = RunningFlock(spark, directory, settings)
        timer_source.register(spark)
        atexit.register(self.close)
        self._open(hosts, previous)

    def _open(self, hosts: int, previous: str) -> None:
        try:
            self._running.open(hosts, previous)
        except BaseException:
            self.close()
            raise

    # -- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the queries that use this flock, then the hosts; nothing is left running. Calling it again does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if self._autoscaler is not None:
            self._autoscaler.stop()
        self._running.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DefinitionError("this flock is closed", todo="Open a new Flock on the same checkpoint")
        if application_ended(self._spark.sparkContext):
            raise DefinitionError(
                "the SparkSession of this flock has been stopped",
                todo="Make a new session, and open a new Flock on the same checkpoint",
            )

    def __repr__(self) -> str:
        directory = self._running.directory
        if self._closed:
            return f"<Flock in {directory.path}, closed>"
        operators = ", ".join(self._running.operators.names()) or "none yet"
        return f"<Flock in {directory.path}: hosts {', '.join(directory.roster())}; operators {operators}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- operators ---------------------------------------------------------------------------------------------------

    def groupBy(self, frame: DataFrame, *keys: Any) -> GroupedFrame:
        """PySpark's spelling: `flock.groupBy(events, "car").transformWithState(...)`, with PySpark's arguments and `name=`.

        keys: key columns as in `DataFrame.groupBy`, one after the other or in a list.
        """
        return GroupedFrame(self, frame, keys[0] if len(keys) == 1 else list(keys))

    def transformWithState(
        self,
        frame: DataFrame,
        keys: Keys,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | SparkState | None = None,
        eventTimeColumnName: str = "",
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """PySpark's `transformWithState` with state on the hosts: the same StatefulProcessor, unchanged, called with Rows.

        frame: a streaming or batch DataFrame. keys: one or several of its columns, or expressions, as for groupBy; maps cannot
        be keys. eventTimeColumnName: the output column by which operators behind this one use the watermark of the input.
        name: identifies the operator and its state in the checkpoint. For the other arguments see `OperatorOptions`.
        """
        given = keyed_frame(frame, keys)
        words = (outputStructType, outputMode, timeMode, options, eventTimeColumnName, given.added)
        definition = Definition(given.frame, given.keys, statefulProcessor, name, "row", *words)
        return self._operator(definition, initialState)

    def transformWithStateInPandas(
        self,
        frame: DataFrame,
        keys: Keys,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | SparkState | None = None,
        eventTimeColumnName: str = "",
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """As `transformWithState`, for processors whose input and output are pandas DataFrames."""
        given = keyed_frame(frame, keys)
        words = (outputStructType, outputMode, timeMode, options, eventTimeColumnName, given.added)
        definition = Definition(given.frame, given.keys, statefulProcessor, name, "pandas", *words)
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
        """Run a native processor, or one of `godwit.windows`: called with whole chunks, vectorised over keys."""
        given = keyed_frame(frame, keys)
        definition = Definition(given.frame, given.keys, processor, name, "native", None, outputMode, timeMode, options)
        return self._operator(definition, initialState)

    def _operator(self, definition: Definition, initial: DataFrame | GroupedData | SparkState | None) -> DataFrame:
        self._check_open()
        return self._running.operators.define(definition, initial)

    # -- state and status --------------------------------------------------------------------------------------------

    def state(self, name: str) -> DataFrame:
        """Committed state of an operator: the key columns, host, epoch, a column per state variable, and timers."""
        return self._view(name).state()

    def dead_letters(self, name: str) -> DataFrame:
        """Rows and timers that an operator with dead_letters=True has set aside, as of a committed batch, in no order.

        The key columns, host, epoch; kind ("row" or "timer"), batch, lane, row or timer_ms, code, error, failed_at (when its
        batch began), and data, the row as JSON.
        """
        return self._view(name).dead_letters()

    def _view(self, name: str) -> StateView:
        self._check_open()
        running = self._running
        spec, binding = running.operators.known(name)
        access = (running.incarnation, running.settings.token, running.controller.address)
        return StateView(self._spark, running.directory, spec, binding, *access)

    def clear_dead_letters(self, name: str) -> int:
        """Delete the dead letters of an operator, except those of keys that are being moved. Returns how many it deleted."""
        self._check_open()
        self._running.operators.known(name)
        hosts = self._running.directory.roster()
        answers = [self._running.hosts.ask_now(host, ClearLetters(name)) for host in hosts]
        return sum(answer.count for answer in answers)

    def status(self) -> Status:
        """Hosts with generation, address and restarts; per operator and host the keys, bytes, rows, rates and lag."""
        self._check_open()
        running = self._running
        source = StatusSource(running.directory, running.tables, running.controller, running.settings.token)
        storage = running.settings.storage.status()
        return flock_status(source, running.hosts.jobs(), running.losses.quarantined(), storage)

    def checkpoint(self, to: str | os.PathLike[str]) -> dict[str, Any]:
        """Copy the flock, and Spark's checkpoints of its queries, into a new directory while the queries run.

        Returns where the copies are: `path` for `Flock(..., start_from=)`, and under `spark`, by query id, the directory to
        copy to the checkpointLocation from which that query is to start. Refused while keys are being moved.
        """
        self._check_open()
        return self._running.copier.copy(to)

    def last_error(self) -> GodwitError | None:
        """The error that has last ended a task of a query of this flock: operator, key, batch, and what to do.

        Spark tries a failed task again, so the query may be running all the same. None if no task has failed.
        """
        return self._running.controller.last_task_error()

    def measures(self) -> MeasuresByOperator:
        """Recent measures of the hosts, per operator: useful time, true rate, waits, hot keys, and the key that limits it."""
        self._check_open()
        return self._running.measures.by_operator()

    # -- reconfiguring while queries run -----------------------------------------------------------------------------

    def scale(self, hosts: int, **options: Unpack[MoveOptions]) -> Migration:
        """Change the number of hosts while queries run. State is spread evenly, and the fewest possible groups move.

        The options are described in `MoveOptions`, the result in `Migration`; they are the same for all these calls.
        """
        self._check_open()
        return self._running.requests.scale(hosts, options)

    def move(
        self,
        operator: str,
        *,
        keys: list[Any] | None = None,
        groups: list[int] | None = None,
        to: str,
        **options: Unpack[MoveOptions],
    ) -> Migration:
        """Move single keys (as in the input; a tuple if the key has several columns) or whole groups to a host.

        A key that was moved alone stays on its host when its group moves later, until it is moved again or the host leaves.
        A key of which no host has state is refused.
        """
        units = self._chosen(self._known_stream(operator), keys, groups)
        return self._running.requests.move(operator, units, to, options)

    def _chosen(self, spec: OperatorSpec, keys: list[Any] | None, groups: list[int] | None) -> Units:
        units = chosen_units(spec, keys, groups, self._running.tables.group_count())
        if keys is not None:
            check_known(spec, list(keys), self._running.hosts)
        return units

    def drain(self, host: str, **options: Unpack[MoveOptions]) -> Migration:
        """Move all keys away from a host, then stop the host; its name is not used again."""
        self._check_open()
        return self._running.requests.drain(host, options)

    def rebalance(self, operator: str, **options: Unpack[MoveOptions]) -> Migration:
        """Balance the load of an operator by the rows and bytes that its hosts measured. Nothing moves if the gain is small."""
        self._known_stream(operator)
        return self._running.requests.rebalance(operator, options)

    def standby(
        self,
        operator: str,
        *,
        to: str,
        keys: list[Any] | None = None,
        groups: list[int] | None = None,
        **options: Unpack[MoveOptions],
    ) -> Migration:
        """Keep copies of keys or groups, or of all that other hosts own, up to date on a host, until they are handed over.

        wait() returns when the copies are up to date. `move` or `drain` with protocol="standby" makes their host the owner,
        which takes no longer for large state than for small; abort() drops the copies. Copies cost traffic and memory.
        """
        spec = self._known_stream(operator)
        some = keys is not None or groups is not None
        units = self._chosen(spec, keys, groups) if some else None
        return self._running.requests.standby(operator, units, to, options)

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
        """Change the number of hosts by rules that follow the load, until stop() of the handle or the end of the flock.

        rules: `godwit.rules.Rule`s, or the path of a TOML file; by default sizing and hot-key spreading. dry_run: only record
        decisions, in `history()` and in the handle. minimum, maximum: limits on the number of hosts; the default maximum leaves
        two task slots to the query. every_s: the interval between two looks. warm: the number of empty hosts, within the
        maximum, that are started in advance, so that scaling out does not wait for a start.
        """
        self._check_open()
        if self._autoscaler is not None and self._autoscaler.running:
            raise DefinitionError(
                "an autoscaler of this flock is running already", todo="Call stop() of its handle first"
            )
        running = self._running
        room = FlockRoom(self._spark, running.taken_slots(), len(running.members.hosts()), running.tables.names())
        settings = checked_settings(room, rules, minimum, maximum, every_s, warm, dry_run)
        self._autoscaler = Autoscaler(settings, running.measures, running.requests, running.history)
        return self._autoscaler

    def routing(self, operator: str) -> RoutingView:
        """The owner of each group and single key of an operator, since when, and by which migration."""
        self._known_stream(operator)
        return self._running.tables.view(operator)

    def history(self, operator: str | None = None) -> Events:
        """The recorded events of this flock, or those of one operator, oldest first. The checkpoint keeps them."""
        if operator is not None:
            self._running.operators.known(operator)
        return Events(self._running.history.lines(operator))

    def _known_stream(self, operator: str) -> OperatorSpec:
        self._check_open()
        spec = self._running.operators.known(operator)[0]
        self._running.tables.table(operator)
        return spec
