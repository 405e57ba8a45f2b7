"""All migrations that a host takes part in: what the controller, origins and targets ask of it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from godwit import ports
from godwit.errors import DefinitionError, HostUnavailable, MalformedRequest
from godwit.migration.events import AbortAsked, HandoverAsked
from godwit.migration.origin import PROTOCOLS, register
from godwit.model.ownership import Stand
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.copies import scan
from godwit.runtime.handover.mover import Mover, union
from godwit.runtime.handover.order import Order, Port
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.memory.ownership_columns import AWAY, selects
from godwit.runtime.processor.rows import Index
from godwit.runtime.takeover.heir import Heir
from godwit.state.keys import Key
from godwit.transport import typed, wire

KEPT_MAX = 200  # migrations that have ended and can still be asked about
HOT_MAX = 50


class Moves:
    def __init__(self, port: Port, instance_of: Callable[[str], SharedInstance]) -> None:
        self._port = port
        self._instance_of = instance_of
        self._movers: dict[str, Mover] = {}
        self._receivers: dict[str, Receiver] = {}
        self._heirs: dict[str, Heir] = {}
        self._lock = ports.lock()

    def actions(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {
            "migrate": self._migrate,
            "migration": self._migration,
            "abort_migration": self._abort,
            "handover": self._handover,
            "outcome": self._outcome,
            "ownership": self._ownership,
            "waits": self._waits,
            "load": self._load,
            "inherit": self._inherit,
            "inheritance": self._inheritance,
            "inherited": self._inherited,
            "disinherit": self._disinherit,
        }

    # -- after a restart ---------------------------------------------------------------------------------------------

    def recover(self, shared: SharedInstance) -> None:
        """Take up what the log left open: tell targets what was released, ask origins what they decided, drop old copies."""
        instance = shared.instance
        ownership = instance.ownership
        if ownership is None:
            return
        waiting = Units()
        for incoming in ownership.incoming.values():
            waiting |= incoming.units
        with shared.lock:
            leftover = instance.memory.staged - waiting
            if leftover:
                self._drop_copies(shared, leftover)
            mine = selects(ownership.mine() | waiting, ownership)
            gone = selects(_released(shared), ownership)
            told = not ownership.mine() and not ownership.outgoing  # what timers put out: by whoever got the last keys
            instance.ledger.drop(lambda hashes: ~mine(hashes) & ~gone(hashes), timers=told)
        for migration, steps in _by_migration(ownership.outgoing).items():
            target = ownership.outgoing[f"{migration}/{next(iter(steps))}"].target
            order = Order(migration, instance.name, target, "pause", tuple(steps.values()))
            mover = Mover(self._port, shared, order, released=steps)
            self._keep(mover)
            mover.start()
        for migration, steps in _by_migration(ownership.incoming).items():
            origin = ownership.incoming[f"{migration}/{next(iter(steps))}"].origin
            receiver = Receiver(self._port, shared, migration, origin, steps)
            self._receivers[migration] = receiver
            for step in steps:
                receiver.ask(step)

    def _drop_copies(self, shared: SharedInstance, units: Units) -> None:
        instance = shared.instance
        assert instance.ownership is not None
        select = selects(units, instance.ownership)
        keys = scan(shared, lambda hashes: select(hashes) & (instance.stands(hashes) == AWAY))
        instance.memory.staged -= units
        instance.keys.drop(keys, True, instance.own_part())

    def stop(self) -> None:
        for mover in list(self._movers.values()):
            mover.join(5.0)

    # -- the origin's side -------------------------------------------------------------------------------------------

    def _migrate(self, request: dict[str, Any]) -> dict[str, Any]:
        order = _order(request)
        shared = self._instance_of(order.operator)
        instance = shared.instance
        if instance.ownership is None:
            raise DefinitionError("this operator's keys are not moved", operator=order.operator)
        if PROTOCOLS[order.protocol].deterministic and instance.code.adapter is None:
            raise DefinitionError(
                f"protocol {order.protocol!r} replays rows, and the operator has no code on this host yet",
                todo="Define the operator first, or use protocol='pause'",
                operator=order.operator,
                host=self._port.host,
            )
        with self._lock:
            self._check_free(order, shared)
            mover = Mover(self._port, shared, order)
            self._keep(mover)
        mover.start()
        return {}

    def _check_free(self, order: Order, shared: SharedInstance) -> None:
        """All of it must be this host's, and no other migration may be at it."""
        ownership = shared.instance.ownership
        assert ownership is not None
        asked = union(order.steps)
        for other in self._movers.values():
            same = other.order.operator == order.operator and not other.ended
            if same and asked.overlaps(other.units, len(ownership.groups)):
                raise DefinitionError(
                    f"some of these keys are being moved by {other.order.id}",
                    todo="Wait for that migration, or abort it",
                    operator=order.operator,
                    host=self._port.host,
                )
        with shared.lock:
            for unit in asked:
                share = ownership.share(unit)
                if share.stand is not Stand.MINE:
                    raise DefinitionError(
                        f"{unit.kind} {unit.id} is not owned by {self._port.host} now: {share.stand.name} ({share.peer})",
                        todo="Look at flock.routing() and ask again",
                        operator=order.operator,
                        host=self._port.host,
                    )

    def _keep(self, mover: Mover) -> None:
        ended = [name for name, other in self._movers.items() if other.ended]
        for name in ended[:-KEPT_MAX]:
            del self._movers[name]
        self._movers[mover.order.id] = mover

    def _migration(self, request: dict[str, Any]) -> dict[str, Any]:
        """How it stands, at once or after something has changed."""
        mover = self._movers.get(wire.field(request, "id", str))
        if mover is None:
            return {"id": request["id"], "state": "unknown"}
        wait_s = float(request.get("wait_s") or 0.0)
        with mover.news:
            seen = mover.news_count
            deadline_s = ports.now_s() + wait_s
            while not mover.ended and mover.news_count == seen and (left_s := deadline_s - ports.now_s()) > 0:
                mover.news.wait(left_s)
        return mover.report()

    def _abort(self, request: dict[str, Any]) -> dict[str, Any]:
        mover = self._movers.get(wire.field(request, "id", str))
        if mover is not None:
            mover.post(AbortAsked(str(request.get("reason") or "aborted")))
        return {}

    def _handover(self, request: dict[str, Any]) -> dict[str, Any]:
        mover = self._movers.get(wire.field(request, "id", str))
        if mover is None:
            raise DefinitionError("no such standby on this host", todo="Start it with flock.standby", id=request["id"])
        mover.post(HandoverAsked())
        return {}

    def _outcome(self, request: dict[str, Any]) -> dict[str, Any]:
        """What became of a step, for a target that has lost the connection."""
        name = wire.field(request, "step", str)
        shared = self._instance_of(wire.field(request, "operator", str))
        migration, _, number = name.rpartition("/")
        with shared.lock:
            released = shared.instance.ownership is not None and name in shared.instance.ownership.outgoing
        if released:
            self._port.log.sync(shared.lsn)  # in memory it is released a moment before it is durable
            return {"outcome": "released"}
        mover = self._movers.get(migration)
        return {"outcome": "kept" if mover is None else mover.outcome(int(number))}

    # -- the target's side -------------------------------------------------------------------------------------------

    def receive(self, header: dict[str, Any], reader: Any, writer: Any) -> None:
        """A stream from an origin."""
        opening = typed.from_fields(messages.OpenMigration, header)
        shared, migration = self._instance_of(opening.operator), opening.migration
        writer.begin(pa.schema([]))
        with self._lock:
            receiver = self._receivers.get(migration)
            if receiver is None:
                receiver = Receiver(self._port, shared, migration, opening.origin, kept=opening.kept)
                self._receivers[migration] = receiver
            receiver.callers += 1
        try:
            receiver.serve(reader, writer, opening.generation)
        finally:
            with self._lock:
                receiver.callers -= 1
                if receiver.settled and self._receivers.get(migration) is receiver:
                    del self._receivers[migration]
                    receiver.close()

    # -- an heir's side ----------------------------------------------------------------------------------------------

    def _inherit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin to take over keys of a host that was lost, from the log it has left."""
        name = wire.field(request, "name", str)
        with self._lock:
            if name not in self._heirs:
                self._heirs[name] = Heir(self._port, request, self._instance_of, self._receiver)
        return {}

    def _receiver(self, migration: str, origin: str, shared: SharedInstance, units: Units) -> Receiver:
        """For keys of a lost host; with the copies of them that stand here."""
        receiver = Receiver(self._port, shared, migration, origin)
        instance = shared.instance.name
        adopted = False
        for other in [r for r in self._receivers.values() if r.origin == origin and r.operator == instance]:
            adopted = (not adopted and receiver.adopt(other, units)) or adopted
            other.drop_copies()  # what is left of them is in the way
        self._receivers[migration] = receiver
        return receiver

    def _inheritance(self, request: dict[str, Any]) -> dict[str, Any]:
        """How it stands: at once if it is read or has failed, else after a while."""
        heir = self._heir(request)
        with heir.changed:
            heir.changed.wait_for(lambda: heir.state != "reading", float(request.get("wait_s") or 0.0))
        reason = None if heir.failure is None else heir.failure.to_json()
        return {"state": heir.state, "reason": reason, **heir.figures()}

    def _inherited(self, request: dict[str, Any]) -> dict[str, Any]:
        heir = self._heir(request)
        served = heir.serve()
        self._part_from(heir)
        return {"served": served}

    def _disinherit(self, request: dict[str, Any]) -> dict[str, Any]:
        heir = self._heir(request)
        heir.give_up()
        self._part_from(heir)
        return {}

    def _heir(self, request: dict[str, Any]) -> Heir:
        heir = self._heirs.get(wire.field(request, "name", str))
        if heir is None:
            raise HostUnavailable("this host knows nothing of the takeover: it has restarted", host=self._port.host)
        return heir

    def _part_from(self, heir: Heir) -> None:
        with self._lock:
            self._heirs.pop(heir.name, None)
            for receiver in heir.receivers():
                self._receivers.pop(receiver.id, None)
                receiver.close()

    # -- looking in --------------------------------------------------------------------------------------------------

    def _ownership(self, request: dict[str, Any]) -> dict[str, Any]:
        shared = self._instance_of(wire.field(request, "operator", str))
        with shared.lock:
            ownership = shared.instance.ownership
            return {"ownership": None if ownership is None else ownership.to_dict()}

    def _waits(self, request: dict[str, Any]) -> dict[str, Any]:
        shared = self._instance_of(wire.field(request, "operator", str))
        return {"waits": shared.waits(float(request["since_ms"]))}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Rows of late, keys and bytes by group, and the keys that had most rows."""
        shared = self._instance_of(wire.field(request, "operator", str))
        instance = shared.instance
        with shared.lock:
            samples = list(instance.counters.hashes)
            lists = instance.state.key_lists()
            share = instance.state.bytes_estimate / max(instance.state.key_count, 1)
        count = 1 if instance.ownership is None else len(instance.ownership.groups)
        rows = _rows_by_hash(samples)
        top = sorted(rows, key=lambda h: (-rows[h], h))[:HOT_MAX]
        names: dict[int, Key] = {}
        groups: dict[int, list[float]] = {}
        for key in dict.fromkeys(key for keys in lists for key in keys):
            route_hash = instance.key_codec.route_hash(key)
            line = groups.setdefault(route_hash % count, [0, 0, 0])
            line[1] += 1
            line[2] += share
            names.setdefault(route_hash, key)
        for route_hash, n in rows.items():
            groups.setdefault(route_hash % count, [0, 0, 0])[0] += n
        hot = [[h, rows[h], _plain(instance.key_codec.public(names[h]))] for h in top if h in names]
        return {"groups": {str(group): line for group, line in groups.items()}, "hot": hot}


def _rows_by_hash(samples: list[tuple[int, Index]]) -> dict[int, int]:
    """How many rows of late had which routing hash, about."""
    if not samples:
        return {}
    hashes = np.concatenate([some for _, some in samples])
    weights = np.concatenate([np.full(len(some), each) for each, some in samples])
    found, at = np.unique(hashes, return_inverse=True)
    counts = np.bincount(at, weights).astype(np.int64)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _plain(key: Key) -> list[Any]:
    """A key in JSON."""
    return [value if isinstance(value, (str, int, float, bool, type(None))) else str(value) for value in key]


def _order(request: dict[str, Any]) -> Order:
    options = dict(request.get("options") or {})
    known = {name: options[name] for name in ("side_by_side", "rate_bytes_per_s", "source", "check") if name in options}
    protocol = wire.field(request, "protocol", str)
    if protocol not in PROTOCOLS and "code" in request:
        register(cloudpickle.loads(base64.b64decode(request["code"])))
    if protocol not in PROTOCOLS:
        raise MalformedRequest(f"unknown protocol {protocol!r}", todo=f"There are: {', '.join(sorted(PROTOCOLS))}")
    return Order(
        wire.field(request, "id", str),
        wire.field(request, "operator", str),
        wire.field(request, "target", str),
        protocol,
        tuple(Units.from_dict(units) for units in wire.field(request, "steps", list)),
        gap_ms=float(options.get("gap_ms") or 0.0),
        **known,
    )


def _by_migration(open_steps: dict[str, Any]) -> dict[str, dict[int, Units]]:
    found: dict[str, dict[int, Units]] = {}
    for name, step in open_steps.items():
        migration, _, number = name.rpartition("/")
        found.setdefault(migration, {})[int(number)] = step.units
    return found


def _released(shared: SharedInstance) -> Units:
    assert shared.instance.ownership is not None
    units = Units()
    for outgoing in shared.instance.ownership.outgoing.values():
        units |= outgoing.units
    return units
