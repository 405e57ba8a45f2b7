"""All migrations in which a host takes part, as origin, target or heir: answers requests about them, and resumes them.

Finds the mover, receiver or heir that a request means. Must not know how a hand-over goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from godwit import ports
from godwit.errors import DefinitionError, HostUnavailable, MalformedRequest
from godwit.migration.events import AbortRequested, HandoverRequested
from godwit.migration.origin import PROTOCOLS, register
from godwit.model.ownership import Stand, migration_and_number, step_name
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.chunk.ownership_columns import AWAY, selects
from godwit.runtime.handover.incoming import scan
from godwit.runtime.handover.mover import Mover
from godwit.runtime.handover.outgoing import union
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host.exchange import replaced
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.processor.rows import Index
from godwit.runtime.takeover.heir import Heir
from godwit.state.keys import Key
from godwit.transport import typed

ENDED_MAX = 200  # ended migrations that are still reported
HOT_MAX = 50


class MigrationService:
    def __init__(self, services: HostServices, instance_of: Callable[[str], SharedInstance]) -> None:
        self._services = services
        self._instance_of = instance_of
        self._movers: dict[str, Mover] = {}
        self._receivers: dict[str, Receiver] = {}
        self._heirs: dict[str, Heir] = {}
        self._lock = ports.lock()

    def handlers(self) -> dict[type[typed.Request[Any]], Callable[[Any], typed.Message]]:
        """The method that answers each request."""
        return {
            messages.StartMigration: self.start_migration,
            messages.ReportMigration: self.report_migration,
            messages.AbortMigration: self.abort_migration,
            messages.HandOverStandby: self.hand_over_standby,
            messages.ReportOutcome: self.report_outcome,
            messages.ReportOwnership: self._report_ownership,
            messages.ReportWaits: self._report_waits,
            messages.ReportLoad: self._report_load,
            messages.PrepareTakeover: self._prepare_takeover,
            messages.ReportTakeover: self._report_takeover,
            messages.CompleteTakeover: self._complete_takeover,
            messages.AbandonTakeover: self._abandon_takeover,
        }

    # -- after a restart ---------------------------------------------------------------------------------------------

    def recover(self, shared: SharedInstance) -> None:
        """Resume what the log left open: report released steps, ask about prepared steps, drop stale copies."""
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
            instance.ledger.drop(lambda hashes: ~mine(hashes) & ~gone(hashes))
        for migration, steps in _by_migration(ownership.outgoing).items():
            target = ownership.outgoing[step_name(migration, next(iter(steps)))].target
            request = messages.StartMigration(migration, instance.name, target, "pause", tuple(steps.values()))
            mover = Mover(self._services, shared, request, released=steps)
            self._remember(mover)
            mover.start()
        for migration, steps in _by_migration(ownership.incoming).items():
            origin = ownership.incoming[step_name(migration, next(iter(steps)))].origin
            receiver = Receiver(self._services, shared, migration, origin, steps)
            self._receivers[migration] = receiver
            for step in steps:
                receiver.ask_outcome(step)

    def _drop_copies(self, shared: SharedInstance, units: Units) -> None:
        instance = shared.instance
        select = selects(units, shared.ownership)
        keys = scan(shared, lambda hashes: select(hashes) & (instance.stands(hashes) == AWAY))
        instance.memory.staged -= units
        instance.keys.drop(keys, True, instance.own_part())

    def stop(self) -> None:
        for mover in list(self._movers.values()):
            mover.join(5.0)

    # -- the origin's side -------------------------------------------------------------------------------------------

    def start_migration(self, request: messages.StartMigration) -> typed.Done:
        _check_protocol(request)
        shared = self._instance_of(request.operator)
        instance = shared.instance
        if instance.ownership is None:
            raise DefinitionError("the keys of this operator never move", operator=request.operator)
        if PROTOCOLS[request.protocol].deterministic and instance.code.adapter is None:
            raise DefinitionError(
                f"protocol {request.protocol!r} replays rows, and the operator has no code on this host yet",
                todo="Define the operator first, or use protocol='pause'",
                operator=request.operator,
                host=self._services.host,
            )
        with self._lock:
            self._check_free(request, shared)
            mover = Mover(self._services, shared, request)
            self._remember(mover)
        mover.start()
        return typed.Done()

    def _check_free(self, request: messages.StartMigration, shared: SharedInstance) -> None:
        """The host must own all of the units, and no other migration may be moving them."""
        ownership = shared.ownership
        asked = union(request.steps)
        for other in self._movers.values():
            same = other.request.operator == request.operator and not other.ended
            if same and asked.overlaps(other.handover.units, len(ownership.groups)):
                raise DefinitionError(
                    f"some of these keys are being moved by {other.request.id}",
                    todo="Wait for that migration, or abort it",
                    operator=request.operator,
                    host=self._services.host,
                )
        with shared.lock:
            for unit in asked:
                share = ownership.share(unit)
                if share.stand is not Stand.MINE:
                    raise DefinitionError(
                        f"{unit.kind} {unit.id} is not owned by {self._services.host} now: {share.stand.name} ({share.peer})",
                        todo="Look at flock.routing() and ask again",
                        operator=request.operator,
                        host=self._services.host,
                    )

    def _remember(self, mover: Mover) -> None:
        ended = [name for name, other in self._movers.items() if other.ended]
        for name in ended[:-ENDED_MAX]:
            del self._movers[name]
        self._movers[mover.request.id] = mover

    def report_migration(self, request: messages.ReportMigration) -> messages.MigrationReport:
        """The state of a migration, at once or after it has changed."""
        mover = self._movers.get(request.id)
        if mover is None:
            return messages.MigrationReport(request.id, "unknown")
        mover.wait_news(request.wait_s)
        return mover.report()

    def abort_migration(self, request: messages.AbortMigration) -> typed.Done:
        mover = self._movers.get(request.id)
        if mover is not None:
            mover.post(AbortRequested(request.reason))
        return typed.Done()

    def hand_over_standby(self, request: messages.HandOverStandby) -> typed.Done:
        mover = self._movers.get(request.id)
        if mover is None:
            raise DefinitionError("no such standby on this host", todo="Start it with flock.standby", id=request.id)
        mover.post(HandoverRequested())
        return typed.Done()

    def report_outcome(self, request: messages.ReportOutcome) -> messages.StepOutcome:
        """What became of a step, for a target that has lost the connection.

        A process that was taken for lost and goes on must not answer: its heirs ask this too, and the will decides.
        """
        if self._services.log.fenced():
            raise replaced(self._services.host, self._services.log.generation)
        return self._outcome(request)

    def _outcome(self, request: messages.ReportOutcome) -> messages.StepOutcome:
        name = request.step
        shared = self._instance_of(request.operator)
        migration, number = migration_and_number(name)
        with shared.lock:
            released = shared.instance.ownership is not None and name in shared.instance.ownership.outgoing
        if released:
            self._services.log.sync(shared.lsn)  # in memory it is released a moment before it is durable
            return messages.StepOutcome("released")
        mover = self._movers.get(migration)
        return messages.StepOutcome("kept" if mover is None else mover.outcome(number))

    # -- the target's side -------------------------------------------------------------------------------------------

    def receive(self, opening: messages.OpenMigration, reader: Any, writer: Any) -> None:
        """A stream from an origin."""
        shared, migration = self._instance_of(opening.operator), opening.migration
        writer.begin(pa.schema([]))
        with self._lock:
            receiver = self._receivers.get(migration)
            if receiver is None:
                receiver = Receiver(self._services, shared, migration, opening.origin, standby=opening.standby)
                self._receivers[migration] = receiver
            receiver.open_connections += 1
        try:
            receiver.serve(reader, writer, opening.generation)
        finally:
            with self._lock:
                receiver.open_connections -= 1
                if receiver.settled and self._receivers.get(migration) is receiver:
                    del self._receivers[migration]
                    receiver.close()

    # -- an heir's side ----------------------------------------------------------------------------------------------

    def _prepare_takeover(self, request: messages.PrepareTakeover) -> typed.Done:
        """Begin to take over keys of a host that was lost, from the log it has left."""
        with self._lock:
            if request.name not in self._heirs:
                self._heirs[request.name] = Heir(self._services, request, self._instance_of, self._receiver)
        return typed.Done()

    def _receiver(self, migration: str, origin: str, shared: SharedInstance, units: Units) -> Receiver:
        """A receiver for keys of a lost host, with the complete copies of a standby that are here."""
        receiver = Receiver(self._services, shared, migration, origin)
        instance = shared.instance.name
        taken_over = False
        for other in [r for r in self._receivers.values() if r.origin == origin and r.operator == instance]:
            taken_over = (not taken_over and receiver.take_over_copies(other, units)) or taken_over
            other.drop_copies()  # copies that are not taken over would be in the way
        self._receivers[migration] = receiver
        return receiver

    def _report_takeover(self, request: messages.ReportTakeover) -> messages.TakeoverReport:
        """The state of a takeover: at once if the log is read or the takeover has failed, else after a while."""
        heir = self._heir(request.name)
        with heir.changed:
            heir.changed.wait_for(lambda: heir.state != "reading", request.wait_s)
        return heir.report()

    def _complete_takeover(self, request: messages.CompleteTakeover) -> messages.UnitsServed:
        heir = self._heir(request.name)
        served = heir.serve()
        self._close(heir)
        return messages.UnitsServed(served)

    def _abandon_takeover(self, request: messages.AbandonTakeover) -> typed.Done:
        heir = self._heir(request.name)
        heir.give_up()
        self._close(heir)
        return typed.Done()

    def _heir(self, name: str) -> Heir:
        heir = self._heirs.get(name)
        if heir is None:
            raise HostUnavailable(
                "this host does not know the takeover, because it has restarted", host=self._services.host
            )
        return heir

    def _close(self, heir: Heir) -> None:
        with self._lock:
            self._heirs.pop(heir.name, None)
            for receiver in heir.receivers():
                self._receivers.pop(receiver.id, None)
                receiver.close()

    # -- reports -----------------------------------------------------------------------------------------------------

    def _report_ownership(self, request: messages.ReportOwnership) -> messages.OwnershipReport:
        shared = self._instance_of(request.operator)
        with shared.lock:
            ownership = shared.instance.ownership
            return messages.OwnershipReport(None if ownership is None else ownership.to_dict())

    def _report_waits(self, request: messages.ReportWaits) -> messages.WaitsReport:
        return messages.WaitsReport(self._instance_of(request.operator).waits(request.since_ms))

    def _report_load(self, request: messages.ReportLoad) -> messages.LoadReport:
        """Recent rows, keys and bytes by group, and the keys with most rows."""
        shared = self._instance_of(request.operator)
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
        return messages.LoadReport({str(group): line for group, line in groups.items()}, hot)


def _rows_by_hash(samples: list[tuple[int, Index]]) -> dict[int, int]:
    """An estimate of the recent rows of each routing hash."""
    if not samples:
        return {}
    hashes = np.concatenate([some for _, some in samples])
    weights = np.concatenate([np.full(len(some), each) for each, some in samples])
    distinct, at = np.unique(hashes, return_inverse=True)
    counts = np.bincount(at, weights).astype(np.int64)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def _plain(key: Key) -> list[Any]:
    """A key in types that JSON has."""
    return [value if isinstance(value, (str, int, float, bool, type(None))) else str(value) for value in key]


def _check_protocol(request: messages.StartMigration) -> None:
    """Register the protocol that comes with the request, if it is one of the user's own; refuse an unknown one."""
    if request.protocol not in PROTOCOLS and request.code is not None:
        register(cloudpickle.loads(request.code))
    if request.protocol not in PROTOCOLS:
        known = ", ".join(sorted(PROTOCOLS))
        raise MalformedRequest(f"unknown protocol {request.protocol!r}", todo=f"There are: {known}")


def _by_migration(open_steps: dict[str, Any]) -> dict[str, dict[int, Units]]:
    steps: dict[str, dict[int, Units]] = {}
    for name, step in open_steps.items():
        migration, number = migration_and_number(name)
        steps.setdefault(migration, {})[number] = step.units
    return steps


def _released(shared: SharedInstance) -> Units:
    units = Units()
    for outgoing in shared.ownership.outgoing.values():
        units |= outgoing.units
    return units
