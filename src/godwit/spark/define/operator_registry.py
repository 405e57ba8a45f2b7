"""The operators of a flock: defined, announced to its hosts, and turned into DataFrames whose rows go there.

Decides in which order checkpoint, controller and hosts learn of a definition. `build_operator` builds the operator;
`redefinition` decides whether it may take the place of an earlier one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, GroupedData, SparkSession

from godwit.errors import DefinitionError, GodwitError, HostUnavailable, StaleGeneration
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.start import Start
from godwit.runtime.controller import Controller
from godwit.runtime.messages import Define, OperatorDefinition
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.router.route import Numbering, Route, Task
from godwit.runtime.router.router import Router
from godwit.spark.checkpoint.run_admission import Admitted, Binding, RunAdmission
from godwit.spark.checkpoint.source_offsets import stream_columns
from godwit.spark.define import timer_source
from godwit.spark.define.build_operator import build
from godwit.spark.define.initial_state import INITIAL_BATCH, by_key, by_owner, initial_rows
from godwit.spark.define.operator_definition import Definition, checked_name
from godwit.spark.define.operator_frame import (
    batches_without_data,
    current_task,
    default_partitions,
    exchanged,
    hashed,
    numbering,
    partitioned,
    routed,
    ticking,
    timed,
    with_identity,
    with_ticks,
)
from godwit.spark.define.redefinition import check_unused, on_state_of
from godwit.spark.define.row_identity import RowIdentity, row_identity
from godwit.spark.define.watermarks import with_output_watermark
from godwit.spark.hosts.flock_parts import FlockParts
from godwit.spark.porting.spark_state import SparkState
from godwit.spark.pyspark_api.schemas import input_schema
from godwit.spark.task_errors import instead_of_sparks, plain_errors

_log = logging.getLogger("godwit.operators")
InitialState = DataFrame | GroupedData | SparkState
Recorded = tuple[OperatorSpec, Binding | None]  # what the checkpoint has of an operator


@dataclass(frozen=True, slots=True)
class RouterAccess:
    """How routers reach the hosts of the flock. `wait_s`: how long a task waits for a host that is down."""

    token: str = field(repr=False)
    wait_s: float
    incarnation: str


class OperatorRegistry:
    """The operators that were defined since the flock was opened, and access to those of the checkpoint."""

    def __init__(
        self,
        spark: SparkSession,
        parts: FlockParts,
        controller: Controller,
        admission: RunAdmission,
        access: RouterAccess,
    ) -> None:
        self._spark = spark
        self._directory = parts.directory
        self._history = parts.history
        self._hosts = parts.hosts
        self._tables = parts.tables
        self._members = parts.members
        self._controller = controller
        self._admission = admission
        self._access = access
        self._operators: dict[str, Operator] = {}
        # No state of the operator moves meanwhile: a host must not get state of a form that it does not know yet.
        self.at_rest: Callable[[str, bool], AbstractContextManager[None]] = lambda *_: nullcontext()

    def is_defined(self, name: str) -> bool:
        """Whether hosts have the processor of the operator."""
        return name in self._operators

    def define(self, definition: Definition, initial: InitialState | None) -> DataFrame:
        name = checked_name(definition.name)
        check_unused(name, self._admission)
        operator = replace(build(definition), definition=uuid4().hex)
        recorded = self._directory.operator(name)
        ended = None if operator.spec.ephemeral else self._ended(name, recorded)
        recorded = None if ended else recorded
        operator = on_state_of(self._partitioned(definition, operator, recorded), recorded[0] if recorded else None)
        if ended is not None:
            operator = replace(operator, spec=replace(operator.spec, life=ended.life + 1))
        operator, rows = self._initial(definition, operator, initial, recorded)
        routing = self._publish(operator, recorded) if ended is None else self._begin_anew(operator)
        # A merge needs the same blocks of rows again, which columns cannot promise.
        identity = None if operator.spec.merge else row_identity(definition)
        route = self._route(operator, numbering(definition, identity), routing, definition.real_time)
        if rows is not None:
            self._initialise(operator, rows, route)
        return self._frame(definition, operator, route, identity)

    def _initial(
        self, definition: Definition, operator: Operator, initial: InitialState | None, recorded: Recorded | None
    ) -> tuple[Operator, DataFrame | None]:
        """The operator on its initial state, and the rows that routers have to load first; None if there are none."""
        used = recorded is not None and recorded[1] is not None
        initialised = recorded is not None and self._directory.initialised(definition.name)
        if initialised:
            operator = _started(operator, recorded[0].start if recorded else None)
        if initial is None:
            return operator, None
        if isinstance(initial, SparkState):
            return (operator, None) if initialised else self._taken_over(operator, initial, used)
        rows = hashed(initial_rows(initial, operator.spec.key_schema), definition.keys)
        if operator.spec.ephemeral:
            return replace(operator, initial=by_owner(rows, self._fixed_routing())), None
        if initialised:
            return operator, None
        if used:
            _log.warning("initialState of operator %s is ignored: it has processed batches already", definition.name)
            return operator, None
        return operator, by_key(rows)

    def _publish(self, operator: Operator, recorded: Recorded | None) -> Routing:
        """Let the checkpoint, the controller and the hosts have the operator."""
        spec = operator.spec
        over_stream = recorded is not None and not recorded[0].ephemeral
        reshaped = over_stream and recorded is not None and not spec.same_forms(recorded[0])
        with self._members.changing, self.at_rest(spec.name, True) if reshaped else nullcontext():
            check_unused(spec.name, self._admission)  # again: a query may have started meanwhile
            routing = self._fixed_routing() if spec.ephemeral else self._tables.define(spec.name)
            self._operators.pop(spec.name, None)
            if not (spec.ephemeral and over_stream):  # the record of the state of a stream stays
                self._directory.write_operator(spec, None)
            self._announce(operator, routing)
        return routing

    def _ended(self, name: str, recorded: Recorded | None) -> OperatorSpec | None:
        """The definition whose state has ended with its query, because the query had no checkpointLocation."""
        if recorded is None or recorded[0].ephemeral:
            return None
        spec, binding = recorded
        temporary = binding is not None and binding.temporary
        return spec if temporary or self._directory.dropping(name) else None

    def _begin_anew(self, operator: Operator) -> Routing:
        """Let every host drop the state of the operator and have the definition. Owners stay as they are.

        If that fails on the way, the next definition drops the state of all hosts once more.
        """
        spec = operator.spec
        with self._members.changing, self.at_rest(spec.name, False):
            check_unused(spec.name, self._admission)
            routing = self._tables.define(spec.name)
            self._operators.pop(spec.name, None)
            self._directory.begin_anew(spec)
            self._announce(operator, routing, self._directory.roster())
            self._directory.write_operator(spec, None)
            self._admission.bindings.pop(spec.name, None)
        self._history.add("begun anew", operator=spec.name, reason="its query had no checkpointLocation")
        _log.info("operator %s begins without the state that it had: its query had no checkpointLocation", spec.name)
        return routing

    def _taken_over(self, operator: Operator, state: SparkState, used: bool) -> tuple[Operator, DataFrame]:
        """The operator, which begins where the state ends, and the rows of the state. `used`: it has processed batches."""
        if used:
            raise DefinitionError(
                "state of a Spark query was given to an operator that has already processed batches",
                todo="Give it to an operator with another name, or drop initialState",
                operator=operator.spec.name,
            )
        if operator.spec.ephemeral:
            raise DefinitionError(
                "state of a Spark query can be taken over by an operator over a stream only",
                todo="Use a streaming DataFrame",
                operator=operator.spec.name,
            )
        start = state.start()
        operator = _started(operator, start)
        return operator, hashed(state.rows(operator, start), operator.spec.key_schema.names)

    def _partitioned(self, definition: Definition, operator: Operator, recorded: Recorded | None) -> Operator:
        """The operator with its number of partitions by key, which the checkpoint fixes if it has one already."""
        if not definition.by_key:
            return operator
        partitions = definition.given.get("partitions") or (0 if recorded is None else recorded[0].partitions)
        partitions = partitions or default_partitions(self._spark, len(self._directory.roster()))
        return replace(operator, spec=replace(operator.spec, partitions=int(partitions)))

    def _fixed_routing(self) -> Routing:
        """The table of an operator over a batch DataFrame: its state lives for one evaluation and is never moved."""
        return Routing.spread(self._directory.roster(), len(self._directory.routing.owners))

    def _announce(self, operator: Operator, routing: Routing, needed: Sequence[str] = ()) -> None:
        """Let the controller, then the hosts have the definition. `needed`: hosts that are waited for if they are down.

        The checkpoint has it already: hosts write state in the forms of the definition, and the number of a form is never used
        again. The controller comes before hosts, because a host that starts meanwhile gets its operators from there.
        """
        self._controller.add(operator, routing)
        request = Define(OperatorDefinition.of(operator, routing))
        try:
            for host in needed:
                self._hosts.ask(host, request)
            for host in self._controller.hosts().keys() - set(needed):
                # The next generation of a host gets the operator from the controller.
                with suppress(HostUnavailable, StaleGeneration):
                    self._hosts.ask_now(host, request)
        except GodwitError:
            self._controller.remove(operator.spec.name)
            raise
        self._operators[operator.spec.name] = operator

    def _route(self, operator: Operator, numbered_by: Numbering, routing: Routing, real_time: bool) -> Route:
        spec = operator.spec
        return Route(
            operator=spec.name,
            checkpoint=str(self._directory.path),
            routing=routing,
            output_schema=spec.output_schema,
            key_names=tuple(spec.key_schema.names),
            token=self._access.token,
            null_keys=spec.null_keys,
            event_time=spec.event_time,
            gather=spec.flavour != "native" and not real_time,
            numbering=numbered_by,
            wait_s=self._access.wait_s,
            incarnation=self._access.incarnation,
            timers=spec.time_mode != "none",
            timed=spec.time_mode == "processingTime" and not real_time,
            partitions=spec.partitions,
            merge=spec.merge,
            checked=True,
            controller=self._controller.address,
            definition=operator.definition,
            real_time=real_time,
        )

    def _frame(
        self, definition: Definition, operator: Operator, route: Route, identity: RowIdentity | None
    ) -> DataFrame:
        spec, partitions = operator.spec, route.partitions
        sources = stream_columns(definition.frame, without=timer_source.FORMAT)
        rows = partitioned(with_identity(definition, route.numbering, identity), partitions)
        rows = timed(rows) if route.timed else rows
        timers = definition.frame.isStreaming and route.timers and not route.real_time
        if timers and not batches_without_data(self._spark):
            rows = ticking(rows, partitions) if partitions else rows
        elif timers:
            by_query = spec.time_mode == "eventTime" and spec.watermark_policy == "query"
            ticks = timer_source.ticks(self._spark, route, by_query)
            sources |= stream_columns(ticks)
            rows = with_ticks(rows, ticks, partitions)
        elif operator.initial and route.timers_end_lanes:  # keys of initial state may have timers in lanes without rows
            rows = with_ticks(rows, self._spark.range(0, partitions, 1, 1).toDF("tick"), partitions)
        self._admission.operators[spec.name] = Admitted(
            sources,
            bool(spec.merge),
            definition.by_key,
            route.real_time,
            spec.start,
            by_columns=identity is not None,
            timers=route.timers,
            compared=bool(definition.event_time_column),
        )
        output = routed(exchanged(rows, partitions), route, self._access.incarnation)
        return with_output_watermark(definition, output)

    def _initialise(self, operator: Operator, frame: DataFrame, route: Route) -> None:
        """Send the initial rows to the hosts now, by a Spark job of their own, before any batch of the stream."""
        schema = input_schema(frame.drop(frame.columns[-1]))
        incarnation = self._access.incarnation
        # The run is unique, because another job may divide the rows otherwise.
        batch = BatchRef("initial", f"initial-{uuid4().hex}", INITIAL_BATCH)
        self._admission.initial_runs[operator.spec.name] = batch.run

        def body(batches: Iterator[Any]) -> Iterator[Any]:
            now = current_task(incarnation)
            task = Task(batch, f"initial-{now.lane}", attempt=now.attempt)
            with plain_errors(route.controller, route.token):
                yield from Router(route.of_initial_rows(), task).run(batches, schema)

        instead_of_sparks(self._controller.last_task_error, frame.mapInArrow(body, "none int").count)
        self._directory.write_operator(operator.spec, None, initialised=True)

    def admitted(self, name: str) -> None:
        """A run of the operator's query was admitted: the checkpoint records which query that is."""
        operator, binding = self._operators.get(name), self._admission.bindings.get(name)
        if operator is not None and binding is not None:
            self._directory.write_operator(operator.spec, binding)

    def names(self) -> list[str]:
        """Operators that were defined since the flock was opened, and those of the checkpoint."""
        return sorted(self._operators.keys() | set(self._directory.operators()))

    def known(self, name: str) -> tuple[OperatorSpec, Binding | None]:
        """An operator of this checkpoint, also if it was defined before the flock was opened."""
        recorded = self._directory.operator(str(name))
        if recorded is None:
            raise DefinitionError(
                "no operator of this name on this flock",
                todo=f"The operators are: {', '.join(self.names()) or 'none yet'}",
                operator=name,
            )
        return recorded


def _started(operator: Operator, start: Start | None) -> Operator:
    return replace(operator, spec=replace(operator.spec, start=start))
