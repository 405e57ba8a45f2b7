"""A flock: hosts on a Spark application, and the operators that live on them. What a user holds in hand."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError, GodwitError, HostUnavailable, NotEnoughSlots
from godwit.model.progress import BatchRef
from godwit.runtime.controller import Controller, Registered, operator_json
from godwit.runtime.host import HostConfig
from godwit.runtime.leases import check_owner, write_owner
from godwit.runtime.native import Processor
from godwit.runtime.route import Numbering, Route, Task
from godwit.runtime.router import Router
from godwit.runtime.spec import Operator
from godwit.spark import timers
from godwit.spark.admission import Admission
from godwit.spark.home import Home
from godwit.spark.hosting import HostJob
from godwit.spark.initial import by_owner, initial_rows
from godwit.spark.operators import (
    INITIAL_BATCH,
    Definition,
    OperatorOptions,
    build,
    checked_name,
    current_task,
    hashed,
    input_schema,
    numbering,
    partitioned,
    routed,
    with_identity,
    with_ticks,
)
from godwit.spark.state_view import state_frame
from godwit.spark.status import flock_status
from godwit.state.changelog import Durability
from godwit.transport.flight import Client

Keys = str | list[str] | tuple[str, ...]
START_TIMEOUT_S = 120.0
EXECUTORS_TIMEOUT_S = 30.0  # as long as Spark itself waits for executors before it schedules without them


@dataclass(frozen=True, slots=True)
class Settings:
    token: str
    bind: str
    durability: Durability
    memory_max_bytes: int | None
    segment_bytes_max: int
    wait_s: float


class Flock:
    """Long-lived hosts for stateful operators of Structured Streaming queries.

    hosts: how many; each takes one task slot of the application for as long as the flock lives.
    checkpoint: a directory that the driver and all executors see; opening it again goes on where it was.
    durability: "process" survives killed processes, "disk" also a power cut.
    memory_max_bytes: of state per host and operator, beyond which cold state goes to local disk.
    token: what routers and hosts prove themselves with; random unless given.
    bind: the address hosts listen on; loopback unless the executors are on other machines.
    groups: into how many parts the keys are divided; hosts own whole groups. Fixed when the checkpoint is made.
    segment_bytes_max: how large a file of a host's changelog grows before the next one is begun.
    wait_s: how long a task waits for a host that is down before it fails.
    onGap: "error" refuses a start when Spark ran batches that this state has not seen, "accept" takes it.
    """

    def __init__(
        self,
        spark: SparkSession,
        hosts: int = 2,
        *,
        checkpoint: str | os.PathLike[str],
        durability: Durability = "process",
        memory_max_bytes: int | None = None,
        token: str | None = None,
        bind: str = "127.0.0.1",
        groups: int = 1024,
        onGap: Literal["error", "accept"] = "error",
        segment_bytes_max: int = 64 << 20,
        wait_s: float = 60.0,
    ) -> None:
        _check_arguments(hosts, durability, groups, onGap, token)
        _check_session(spark)
        _check_slots(spark, hosts)
        self._spark = spark
        self._settings = Settings(
            token or secrets.token_urlsafe(24), bind, durability, memory_max_bytes, segment_bytes_max, wait_s
        )
        self._home = Home.open(checkpoint, hosts, groups)
        self._incarnation = secrets.token_hex(4)
        self._operators: dict[str, Operator] = {}
        self._closing = threading.Lock()
        self._closed = False
        self._admission = Admission(spark, onGap == "accept")
        self._controller = Controller(bind, self._settings.token, self._admit, self._active_scopes)
        self._jobs = [self._job(host) for host in self._home.routing.hosts]
        timers.register(spark)
        atexit.register(self.close)
        try:
            write_owner(str(self._home.path), self._incarnation)
            self._start()
        except BaseException:
            self.close()
            raise

    # -- life --------------------------------------------------------------------------------------------------------

    def _job(self, host: str) -> HostJob:
        settings = self._settings
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
        )
        return HostJob(self._spark.sparkContext, self._home.flock, config, self._controller)

    def _start(self) -> None:
        for job in self._jobs:
            job.start()
        missing = self._controller.wait_hosts([job.config.host for job in self._jobs], START_TIMEOUT_S)
        if missing:
            raise HostUnavailable(
                f"{', '.join(missing)} did not start within {START_TIMEOUT_S:g} s",
                todo="Look for free task slots and at the executors' logs",
            )

    def close(self) -> None:
        """Stop the queries that use this flock, then the hosts; nothing is left running. Calling it again does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._stop_queries()
        for job in self._jobs:
            job.stop()
        for registered in self._controller.hosts().values():
            self._tell_to_stop(registered.address)
        for job in self._jobs:
            if job.join(10.0):
                job.clear_up()
        self._controller.close()
        self._retire()

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

    def _tell_to_stop(self, address: str) -> None:
        client = Client(address, self._settings.token)
        try:
            client.call("stop", timeout_s=5.0)
        except GodwitError:
            return  # it is gone already, or its job is cancelled next
        finally:
            client.close()

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
            frame, _key_names(keys), statefulProcessor, name, "row", outputStructType, outputMode, timeMode, options
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
            frame, _key_names(keys), statefulProcessor, name, "pandas", outputStructType, outputMode, timeMode, options
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
        definition = Definition(frame, _key_names(keys), processor, name, "native", None, outputMode, timeMode, options)
        return self._operator(definition, initialState)

    def _operator(self, definition: Definition, initial: DataFrame | GroupedData | None) -> DataFrame:
        self._check_open()
        checked_name(definition.name)
        if definition.name in self._operators:
            raise DefinitionError(
                "an operator of this name is already defined on this flock",
                todo="Give each operator a name of its own",
                operator=definition.name,
            )
        operator = build(definition)
        start = None if initial is None else hashed(initial_rows(initial, operator.spec.key_schema), definition.keys)
        if start is not None and operator.spec.ephemeral:
            operator = replace(operator, initial=by_owner(start, self._home.routing))
        self._check_kept(operator)
        self._admission.sources[definition.name] = _source_count(definition.frame, operator.spec.time_mode != "none")
        self._announce(operator)
        route = self._route(operator, numbering(definition))
        if start is not None and not operator.spec.ephemeral and not self._home.initialised(definition.name):
            self._initialise(operator, start, route)
        return self._frame(definition, operator, route)

    def _check_open(self) -> None:
        if self._closed:
            raise DefinitionError("this flock is closed", todo="Open a new Flock on the same checkpoint")

    def _check_kept(self, operator: Operator) -> None:
        kept = self._home.operator(operator.spec.name)
        if kept is not None:
            operator.spec.check_fits(kept[0])

    def _announce(self, operator: Operator) -> None:
        """To the controller first, so that a host that starts in between has it too."""
        self._controller.add(operator)
        try:
            for host in self._controller.hosts().values():
                self._define_at(host, operator)
        except GodwitError:
            self._controller.remove(operator.spec.name)
            raise
        self._home.keep(operator.spec, None)
        self._operators[operator.spec.name] = operator

    def _define_at(self, host: Registered, operator: Operator) -> None:
        client = Client(host.address, self._settings.token)
        try:
            client.call("define", operator=operator_json(operator))
        except HostUnavailable:
            return  # it died; whoever follows it takes its definitions from the controller
        finally:
            client.close()

    def _route(self, operator: Operator, numbered_by: Numbering) -> Route:
        spec = operator.spec
        return Route(
            operator=spec.name,
            checkpoint=str(self._home.path),
            routing=self._home.routing,
            output_schema=spec.output_schema,
            key_names=tuple(spec.key_schema.names),
            token=self._settings.token,
            null_keys=spec.null_keys,
            event_time=spec.event_time,
            gather=spec.flavour != "native",
            numbering=numbered_by,
            wait_s=self._settings.wait_s,
            incarnation=self._incarnation,
        )

    def _frame(self, definition: Definition, operator: Operator, route: Route) -> DataFrame:
        rows = partitioned(with_identity(definition, route.numbering))
        if definition.frame.isStreaming and operator.spec.time_mode != "none":
            ticks = (
                self._spark.readStream.format(timers.FORMAT)
                .options(
                    operator=route.operator,
                    checkpoint=route.checkpoint,
                    hosts=",".join(route.routing.hosts),
                    token=route.token,
                )
                .load()
            )
            rows = with_ticks(rows, ticks)
        return routed(rows, route, self._incarnation)

    def _initialise(self, operator: Operator, frame: DataFrame, route: Route) -> None:
        """Send the initial rows to hosts now, in a batch job of their own, before any batch of the stream."""
        schema = input_schema(frame.drop(frame.columns[-1]))
        incarnation = self._incarnation

        def body(batches: Any) -> Any:
            lane = current_task(incarnation).lane
            task = Task(BatchRef("initial", "initial", INITIAL_BATCH), f"initial-{lane}")
            return Router(replace(route, numbering="position"), task).run(batches, schema)

        frame.mapInArrow(body, "none int").count()
        self._home.keep(operator.spec, None, initialised=True)

    # -- what Spark knows --------------------------------------------------------------------------------------------

    def _admit(self, request: dict[str, Any]) -> None:
        self._admission.admit(request)
        operator = self._operators.get(request["operator"])
        if operator is not None:
            self._home.keep(operator.spec, self._admission.bindings[request["operator"]])

    def _active_scopes(self) -> list[str]:
        stages = self._spark.sparkContext.statusTracker().getActiveStageIds()
        return [f"{self._incarnation}-{stage}" for stage in stages]

    # -- looking in --------------------------------------------------------------------------------------------------

    def state(self, name: str) -> DataFrame:
        """Committed state of an operator: the key columns, host, epoch, a column per state variable, and timers."""
        self._check_open()
        kept = self._home.operator(name)
        if kept is None:
            raise DefinitionError(
                "no operator of this name on this flock",
                todo=f"There are: {', '.join(sorted(self._operators)) or 'none yet'}",
                operator=name,
            )
        return state_frame(self._spark, self._home, self._settings.token, *kept)

    def status(self) -> dict[str, Any]:
        """Hosts with generation, address and restarts; per operator and host the keys, bytes, rows, rates and lag."""
        self._check_open()
        return flock_status(self._home, self._controller, self._jobs, self._settings.token)


def _key_names(keys: Any) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys) if isinstance(keys, (list, tuple)) else ()
    if not all(isinstance(name, str) for name in names) or (not names and not isinstance(keys, (list, tuple))):
        raise DefinitionError(f"keys={keys!r} are not names of columns", todo="Give one name, or a list of names")
    return names


def _check_arguments(hosts: Any, durability: str, groups: Any, on_gap: str, token: Any) -> None:
    for name, value, good, allowed in (
        ("hosts", hosts, isinstance(hosts, int) and hosts >= 1, "a number from 1 up"),
        ("durability", durability, durability in ("process", "disk"), "'process' or 'disk'"),
        ("groups", groups, isinstance(groups, int) and groups >= 1, "a number from 1 up"),
        ("onGap", on_gap, on_gap in ("error", "accept"), "'error' or 'accept'"),
    ):
        if not good:
            raise DefinitionError(f"{name}={value!r} is not possible", todo=f"Give {allowed}")
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable() and token.strip()):
        raise DefinitionError(
            "the token cannot be sent", todo="Give printable ASCII text that is not empty, or leave it out"
        )


def _check_session(spark: Any) -> None:
    if not isinstance(spark, SparkSession):
        raise DefinitionError(
            f"a classic SparkSession is expected, not {type(spark).__module__}.{type(spark).__name__}",
            todo="Hosts are tasks of the application itself, so it must run beside its driver, not through Spark Connect",
        )
    if spark.sparkContext._jsc is None:
        raise DefinitionError(
            "this SparkSession has been stopped", todo="Make a new session and open the flock on that"
        )


def _check_slots(spark: SparkSession, hosts: int) -> None:
    """Hosts hold a task slot each, and at least one must be left for the query's own tasks.

    The executors of a cluster come some time after the session; those of a local master are there from the start.
    """
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    patience_s = 0.0 if str(spark.sparkContext.master).startswith("local[") else EXECUTORS_TIMEOUT_S
    deadline = time.monotonic() + patience_s
    slots = context.maxNumConcurrentTasks(profile)
    while slots < hosts + 1 and time.monotonic() < deadline:
        time.sleep(0.1)
        slots = context.maxNumConcurrentTasks(profile)
    if slots < hosts + 1:
        raise NotEnoughSlots(
            f"{hosts} hosts need {hosts + 1} task slots (one each, and one or more for the query), Spark has {slots}",
            todo=f"Use local[{hosts + 2}] or more cores (master is {spark.sparkContext.master}), or fewer hosts",
        )


def _source_count(frame: DataFrame, ticks: bool) -> int:
    """Streaming sources under an operator, its timers' included."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    count = sum(1 for i in range(leaves.size()) if leaves.apply(i).isStreaming())
    return count + int(ticks)
