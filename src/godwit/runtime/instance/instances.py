"""The instances of one host, by name: recovered from the changelog, defined, made for one evaluation, dropped.

Decides which instance a request means and how an instance begins and ends. Does not know what requests do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from godwit import ports
from godwit.errors import DefinitionError, UnsupportedQuery
from godwit.model.ownership import Ownership
from godwit.model.routing import Routing
from godwit.runtime.durable.journal import Dropped, NewPart, Unwritten
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OperatorDefinition
from godwit.runtime.processor.crash_markers import CrashMarkers
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.state.changelog import Changelog
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.transport import wire


@dataclass(frozen=True, slots=True)
class HostResources:
    """What all instances of a host share. `memory_max_bytes`: for the state of each instance; None for no limit."""

    log: Changelog
    watch: Watch
    clock_ms: Callable[[], int]
    active_scopes: Callable[[], set[str]]  # evaluations of batch DataFrames that have not ended
    memory_max_bytes: int | None = None
    crash_markers: CrashMarkers | None = None


class Instances:
    """`routing`: the owners at first; None switches ownership off, and with it migration."""

    def __init__(self, host: str, resources: HostResources, routing: Routing | None = None) -> None:
        self._host = host
        self._resources = resources
        self._log = resources.log
        self._routing = routing
        self._named: dict[str, SharedInstance] = {}
        self._operators: dict[str, Operator] = {}
        self._admin = ports.lock()  # held while instances are made, given code or dropped

    def __iter__(self) -> Iterator[SharedInstance]:
        return iter(list(self._named.values()))

    # -- recovery and definitions ------------------------------------------------------------------------------------

    def recover(self, info: dict[str, Any], body: memoryview) -> None:
        """Take a part of the changelog; called in the order in which the parts were written."""
        name = info["op"]
        match info["kind"]:
            case "define" if name not in self._named:
                self._named[name] = SharedInstance(self._fresh(name, OperatorSpec.from_dict(info["spec"])))
            case "define":
                self._named[name].instance.memory.redefine(OperatorSpec.from_dict(info["spec"]))
            case "drop":
                self._named.pop(name).instance.state.close()
            case _:
                self._named[name].instance.recovery.take(self._host, info, body)

    def own(self, shared: SharedInstance, first: Routing | None = None) -> None:
        """Give the ownership of the first routing table to an instance that has no ownership in the changelog."""
        instance = shared.instance
        if self._routing is not None and not instance.spec.ephemeral and instance.ownership is None:
            instance.memory.ownership = Ownership.initial(self._host, first or self._routing)

    def _fresh(self, name: str, spec: OperatorSpec) -> Instance:
        key_codec = KeyCodec(spec.key_schema, spec.tz)
        resources, limit = self._resources, self._resources.memory_max_bytes
        scratch = None if limit is None else Path(tempfile.mkdtemp(prefix="godwit-spill-"))
        in_columns = spec.flavour == "native"
        instance = Instance(name, spec, KeyedState(spec.layout, key_codec, scratch, limit, in_columns), key_codec)
        instance.durable.journal = self._log
        code = instance.code
        if resources.crash_markers is not None:
            code.marker = resources.crash_markers.marker(name)
        code.guard = lambda: resources.watch.over(instance.spec.timeout_s, code.describe, code.current_call)
        return instance

    def define(self, definition: OperatorDefinition) -> None:
        """Take up an operator's code: a fresh instance, code for recovered state, or code in place of other code."""
        operator = definition.operator_at(self._host)
        name = operator.spec.name
        with self._admin:
            self._operators[name] = operator
            if operator.spec.ephemeral:
                return
            known = self._named.get(name)
            ended = known if known is not None and known.instance.spec.life < operator.spec.life else None
            shared = known if known is not None and ended is None else self._without_state(operator.spec, ended)
            self.own(shared, definition.routing)
            with shared.lock:
                shared.instance.definition = ""
                shared.instance.redefine(operator.spec)
                shared.instance.attach(operator.spec, self._adapter(operator))
                shared.instance.definition = operator.definition
                owned = [shared.instance.own_part()] if shared.instance.ownership is not None else []
                # One frame, so that no crash separates the end of an earlier life from the units that stay here.
                dropped = [] if ended is None else [self._end(ended)]
                shared.instance.write([*dropped, shared.instance.define_part(), *owned])
            self._log.flush(shared.lsn)
            self._named[name] = shared

    def _without_state(self, spec: OperatorSpec, ended: SharedInstance | None) -> SharedInstance:
        """An instance that begins; it owns the units of the one whose life has ended."""
        shared = SharedInstance(self._fresh(spec.name, spec))
        if ended is not None:
            with ended.lock:
                shared.instance.memory.ownership = ended.instance.ownership
                shared.paused = ended.paused
        return shared

    def _end(self, shared: SharedInstance) -> NewPart:
        """End an instance. The part says so in the changelog. A task that still has the instance changes nothing any more."""
        instance = shared.instance
        with shared.lock:
            instance.durable.journal = Dropped(instance.spec.name)
            instance.close()
            instance.state.close()
            instance.code.marker.close()
        return {"kind": "drop", "op": instance.name}, b""

    def _adapter(self, operator: Operator) -> Any:
        try:
            return cloudpickle.loads(operator.adapter)
        except Exception as error:
            raise DefinitionError(
                f"the processor cannot be loaded on a host: {type(error).__name__}: {error}",
                todo="Make the modules it uses available on the executors (spark.submit.pyFiles or an installed package)",
                operator=operator.spec.name,
            ) from error

    # -- by name -----------------------------------------------------------------------------------------------------

    def of(self, name: str, scope: str | None, batch_ms: int | None = None) -> SharedInstance:
        """`batch_ms`: Spark's time of the evaluation of a batch DataFrame, if the lane that asks knows it."""
        shared = self._named.get(name if scope is None else f"{name}@{scope}")
        # A host that was started again has the state and not the code.
        lacks_code = shared is None or shared.instance.code.adapter is None
        if lacks_code and scope is not None and name in self._operators:
            shared = self._scoped(self._operators[name], scope, batch_ms)
        if shared is None:
            raise DefinitionError(
                "no operator of this name is defined on this flock",
                todo="Define it with flock.transformWithState before the query starts",
                operator=name,
                host=self._host,
            )
        return shared

    def _scoped(self, operator: Operator, scope: str, batch_ms: int | None) -> SharedInstance:
        """State for one evaluation of a batch DataFrame. Evaluations that have ended are dropped now."""
        name = f"{operator.spec.name}@{scope}"
        if not operator.spec.ephemeral:
            raise UnsupportedQuery(
                "a batch of a stream was evaluated outside its query, so its rows cannot be told from new ones",
                todo="Evaluate it in the thread that runs foreachBatch, or in a pyspark.InheritableThread started there",
                operator=operator.spec.name,
            )
        active = self._resources.active_scopes()
        with self._admin:
            if name in self._named:
                return self._with_code(self._named[name], operator)
            for old in [n for n in self._named if n.startswith(f"{operator.spec.name}@")]:
                if old.rpartition("@")[2] not in active:
                    self._drop(old)
            instance = self._fresh(name, operator.spec)
            instance.durable.journal = Unwritten()  # the instance is unknown until all of its first parts are in line
            instance.attach(operator.spec, self._adapter(operator))
            instance.definition = operator.definition
            parts = [instance.define_part(), *self._initial_parts(operator, instance, batch_ms)]
            instance.durable.journal = self._log
            instance.write(parts)
            self._named[name] = shared = SharedInstance(instance)
            return shared

    def _with_code(self, shared: SharedInstance, operator: Operator) -> SharedInstance:
        with shared.lock:
            if shared.instance.code.adapter is None:
                shared.instance.attach(operator.spec, self._adapter(operator))
                shared.instance.definition = operator.definition
        return shared

    def _initial_parts(self, operator: Operator, instance: Instance, batch_ms: int | None) -> list[NewPart]:
        if self._host not in operator.initial:
            return []
        table = pa.ipc.open_stream(operator.initial[self._host]).read_all().combine_chunks()
        (batch,) = table.drop_columns([wire.HASH]).to_batches()
        hashes = table.column(wire.HASH).to_numpy()
        now_ms = self._resources.clock_ms() if batch_ms is None else batch_ms
        return instance.initialise("initial", batch, np.arange(len(batch)), hashes, now_ms).parts

    def _drop(self, name: str) -> None:
        self._log.append([self._end(self._named.pop(name))])

    def settled(self) -> dict[str, int]:
        """The last batch of each instance that is committed. The log says so on disk when this returns.

        Otherwise a snapshot could drop the ledger of a batch though a power cut takes the mark that proved it committed.
        """
        batches = {}
        for name, shared in list(self._named.items()):
            with shared.lock:
                batches[name], lsn = shared.instance.progress.batch - 1, shared.lsn
            self._log.sync(lsn)
        return batches

    def newest(self, name: str) -> SharedInstance:
        scoped = [n for n in self._named if n.startswith(f"{name}@")]
        shared = self._named.get(max(scoped, key=lambda n: int(n.rpartition("-")[2])) if scoped else name)
        if shared is None:
            raise DefinitionError("no such operator on this host", operator=name, host=self._host)
        return shared

    def sets_aside(self, name: str) -> bool:
        """Whether rows that this operator fails on become dead letters."""
        return any(shared.instance.spec.dead_letters for shared in self if shared.instance.spec.name == name)

    def named(self, name: str) -> SharedInstance:
        shared = self._named.get(name)
        if shared is None:
            raise DefinitionError("no such operator on this host", operator=name, host=self._host)
        return shared

    def get(self, name: str) -> SharedInstance | None:
        return self._named.get(name)

    def close(self) -> None:
        for shared in self:
            with shared.lock:
                shared.instance.close()
                shared.instance.state.close()

    def wake(self) -> None:
        for shared in self:
            with shared.changed:
                shared.changed.notify_all()
