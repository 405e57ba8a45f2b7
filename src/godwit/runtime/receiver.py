"""The target's side of a migration on a host: what the origin sends goes into the instance's state, in the order sent.

A copy lies among the instance's own keys and is not served before the origin has released it: the gate holds or refuses its
rows, and its timers do not fire. It is written to the changelog like any other state; `Instance.staged` says which units may
have copies here, so that a restart can remove those that never became its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import GodwitError, NotDeterministic
from godwit.migration.events import (
    AbortHeard,
    Announced,
    AnswerDeclined,
    AnswerMissing,
    AnswerOffered,
    AnswerPrepared,
    Arrived,
    AskOutcome,
    Discard,
    Durable,
    Effect,
    Event,
    Expect,
    OriginLost,
    Persist,
    Promised,
    ReleaseHeard,
    Serve,
)
from godwit.migration.target import Phase, Target
from godwit.model.ownership import Incoming
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.runtime import parcels
from godwit.runtime.leases import host_directory, read_lease
from godwit.runtime.orders import Port
from godwit.runtime.prompt import prompt
from godwit.runtime.rows import Times
from godwit.runtime.seat import Seat
from godwit.runtime.shares import AWAY, selects
from godwit.runtime.wills import read_will, step_name
from godwit.runtime.work import Part, Work
from godwit.state.backup import state_at
from godwit.state.changes import COLUMN_VAR, changes_schema
from godwit.state.keys import Key
from godwit.state.ledger import Entry
from godwit.transport import wire
from godwit.transport.flight import GONE, Client

ASK_AGAIN_S = 0.02
ORPHAN_WAIT_S = 2.0  # until the end of a connection is noticed whose other side is gone
ORPHAN_ASK_S = 0.05  # copies whose origin is back are dropped, and made anew by it
BACKUP_KEYS, BACKUP_ROWS, BACKUP_BYTES = 1_000, 10_000, 1 << 20  # taken over at a time from a backup


class Receiver:
    """One migration at its target, over as many connections as it takes."""

    def __init__(
        self,
        port: Port,
        seat: Seat,
        migration: str,
        origin: str,
        prepared: dict[int, Units] | None = None,
        kept: bool = False,
    ) -> None:
        self.id = migration
        self.origin = origin
        self._port = port
        self._seat = seat
        self._machine = Target(prepared)
        self._rests: dict[int, dict[str, Any]] = {}  # by step: the last that came of it
        self._copies: dict[int, dict[Key, None]] = {}  # by step: keys that lie here as copies
        self._timers: dict[int, list[tuple[str, Entry]]] = {}
        self._standing: dict[int, int] = {}  # by step of a standby: the batch in which it was last heard of
        self._kept = kept
        self.orphaned = False  # the origin of a standby is away, and its copies are still here
        self._writer: Any = None
        self._writing = threading.Lock()
        self._serving = threading.Lock()
        self._acting = threading.RLock()  # one event at a time: connections, and the answers to questions
        self._wanted = Units()
        seat.wanted.append(self.want)
        for units in (prepared or {}).values():
            seat.staging[migration] = seat.staging.get(migration, Units()) | units

    # -- the connection ----------------------------------------------------------------------------------------------

    def serve(self, reader: Any, writer: Any) -> None:
        """One connection from the origin, until it ends.

        The next one waits until the end of this one is dealt with: what it brings must not be dropped as left over from this.
        """
        with self._serving, prompt():
            self.drop_copies()
            self._converse(reader, writer)

    def _converse(self, reader: Any, writer: Any) -> None:
        self._wanted = Units()
        try:
            while True:
                message = reader.read_chunk()
                note = wire.unpack(message.app_metadata)
                if note["kind"] == "hello":
                    self.greet(writer)
                    continue
                try:
                    self.tell(note, parcels.body_of(message) if message.data is not None else None)
                except GodwitError as error:
                    self._answer("failed", error=error.at(host=self._port.host).to_json())
        except (StopIteration, GodwitError, *GONE):
            return
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        """Copies of a standby stay until their origin is back: if it is lost for good, this host may be its heir."""
        with self._writing:
            self._writer = None
        with self._acting:
            self.orphaned = self._kept and self.following is not None
            if not self.orphaned:
                self._handle(OriginLost())
                return
        threading.Thread(target=self._await_origin, name="godwit-orphan", daemon=True).start()

    def _await_origin(self) -> None:
        pause = threading.Event()
        while self.orphaned and not self._port.stopping():
            if ask_outcome(self._port, self.origin, self._seat.instance.name, f"{self.id}/0") != "away":
                self.drop_copies()
            pause.wait(ORPHAN_ASK_S)

    def drop_copies(self) -> None:
        """Of a standby whose origin is back, or whose copies are of no use."""
        with self._acting:
            if self.orphaned:
                self.orphaned = False
                self._handle(OriginLost())

    def greet(self, writer: Any) -> None:
        """Nothing is said before this. Who asks the origin for an outcome may hear of it, and say so, at any time."""
        with self._writing, suppress(*GONE, pa.ArrowInvalid):
            writer.write_metadata(wire.pack("hello"))
            self._writer = writer

    @property
    def settled(self) -> bool:
        """Whether nothing of it is open here any more."""
        return self._writer is None and self._machine.settled and not self.orphaned

    # -- copies of a standby whose origin is lost --------------------------------------------------------------------

    @property
    def following(self) -> int | None:
        """The batch of which the copies were last heard: all before it they have. None if some do not stand."""
        steps = self._machine.steps
        stand = all(at in self._standing and step.phase is Phase.ABSENT for at, step in steps.items())
        return min(self._standing.values()) if steps and stand else None

    def adopt(self, other: Receiver, units: Units) -> bool:
        """Take over the copies that another migration has brought here; False if they are not all of these units."""
        if not other._serving.acquire(timeout=ORPHAN_WAIT_S):
            return False  # its origin is there, as far as can be seen from here
        try:
            with other._acting, self._acting, self._seat.changed:
                return self._adopted(other, units)
        finally:
            other._serving.release()

    def _adopted(self, other: Receiver, units: Units) -> bool:
        staged = self._seat.staging.get(other.id, Units())
        if not other.orphaned or units - staged:
            return False
        self._standing = {0: other.following or 0}
        self._copies[0] = {key: None for copies in other._copies.values() for key in copies}
        self._seat.staging[self.id] = units
        self._seat.staging[other.id] = staged - units
        other._machine, other._copies, other.orphaned = Target(), {}, False
        self._handle(Announced(0, units))
        return True

    def drop_adopted(self) -> None:
        """All of it is told anew, and the log no longer tells what has been removed meanwhile."""
        with self._acting, self._seat.changed:
            if self._standing:
                self._drop_keys(list(self._copies.pop(0, {})))
                self._standing.clear()

    @property
    def operator(self) -> str:
        return self._seat.instance.name

    def close(self) -> None:
        with self._seat.lock:
            self._seat.wanted.remove(self.want)

    def _answer(self, kind: str, **fields: Any) -> None:
        with self._writing, suppress(*GONE, pa.ArrowInvalid):
            if self._writer is not None:
                self._writer.write_metadata(wire.pack(kind, **fields))

    def want(self, units: Units) -> None:
        """Rows wait for these units; called with the seat's lock held. Asked for once a connection."""
        missing = (units & self._machine.promised) - self._wanted
        if missing:
            self._wanted |= missing
            self._answer("wanted", units=missing.to_dict())

    # -- what comes --------------------------------------------------------------------------------------------------

    def tell(self, note: dict[str, Any], body: Any) -> None:
        """What an origin says, or the log that one has left behind."""
        with self._acting:
            self._take(note, body)

    def _take(self, note: dict[str, Any], body: Any) -> None:
        {
            "offer": self._offer,
            "step": self._announced,
            "reached": self._reached,
            "state": self._state,
            "backup": self._backup,
            "changes": self._changes,
            "replay": self._replay,
            "copied": self._copied,
            "committed": self._committed,
            "ledger": self._ledger,
            "rest": self._rest,
            "released": self._released,
            "aborted": self._aborted,
        }[note["kind"]](note, body)

    def _offer(self, note: dict[str, Any], body: Any) -> None:
        units = parcels.units_in(note)
        with self._seat.changed:
            self._claim(units)
        self._handle(Promised(units))

    def _reached(self, note: dict[str, Any], body: Any) -> None:
        """So far the origin has come."""
        with self._seat.changed:
            self._log(self._keep_up(Progress.from_dict(note["progress"])))

    def _copied(self, note: dict[str, Any], body: Any) -> None:
        self._standing.setdefault(note["step"], self._seat.instance.progress.batch)
        self._answer("caught_up", step=note["step"], rows=note["rows"])

    def _committed(self, note: dict[str, Any], body: Any) -> None:
        """What keys held before the batch in progress."""
        instance, batch = self._seat.instance, self._batch(body)
        with self._in_its_batch(note) as same:
            if same:
                instance.state.amend(batch)
                self._log([({"kind": "committed", "op": instance.name, "batch": instance.progress.batch}, body)])

    def _ledger(self, note: dict[str, Any], body: Any) -> None:
        """What the batch in progress has done; of what timers put out only one host tells, so that waits for the hand-over."""
        instance, lane = self._seat.instance, note["entry"]["lane"]
        entry = Entry.from_part(note["entry"], memoryview(body), instance.spec.output_schema)
        with self._in_its_batch(note) as same:
            if not same:
                return
            if not len(entry.rows):
                self._timers.setdefault(note["step"], []).append((lane, entry))
                return
            taken = instance.ledger.take_over(lane, entry)
            if taken is not None:
                info, data = taken.part(instance.name, instance.progress.batch, lane)
                self._log([(info | {"from": self.origin}, data)])

    @contextmanager
    def _in_its_batch(self, note: dict[str, Any]) -> Iterator[bool]:
        """Whether this instance is in the batch that is told of, and not ahead: of a committed batch nobody asks again."""
        progress = Progress.from_dict(note["progress"])
        with self._seat.changed:
            self._log(self._keep_up(progress))
            yield progress.batch == self._seat.instance.progress.batch

    def _released(self, note: dict[str, Any], body: Any) -> None:
        if self._ownership.served(parcels.epochs_of(note["epochs"])):
            self._answer("served", step=note["step"])
        else:
            self._handle(ReleaseHeard(note["step"]))

    def _aborted(self, note: dict[str, Any], body: Any) -> None:
        self._handle(AbortHeard(note["step"]))

    def _batch(self, body: pa.Buffer) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(body, changes_schema(self._seat.instance.key_codec))

    def _announced(self, note: dict[str, Any], body: Any) -> None:
        """Write down that copies may lie here from now on; what lies here from earlier goes."""
        instance = self._seat.instance
        step, units = note["step"], parcels.units_in(note)
        self._handle(Announced(step, units))
        self._timers.pop(step, None)
        with self._seat.changed:
            assert instance.ownership is not None
            self._claim(units)
            if any((out.units & units) for out in instance.ownership.outgoing.values()):
                self._drop_keys(scan(self._seat, selects(units, instance.ownership)))
            if units - instance.staged:
                instance.staged |= units
                self._log([instance.own_part()])

    def _claim(self, units: Units) -> None:
        """A migration before this one may still have copies here, not knowing yet what became of it: it goes first."""
        staging = self._seat.staging

        def free() -> bool:
            return not any(other != self.id and staged & units for other, staged in staging.items())

        self._seat.changed.wait_for(lambda: free() or self._port.stopping())
        staging[self.id] = staging.get(self.id, Units()) | units

    def _note_keys(self, step: int, keys: list[Key]) -> None:
        self._copies.setdefault(step, {}).update(dict.fromkeys(keys))

    def _state(self, note: dict[str, Any], body: Any) -> None:
        instance = self._seat.instance
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._note_keys(note["step"], keys)
        with self._seat.lock:
            instance.state.replay(batch)
            instance.state.settle_keys(keys)
            info = {"kind": "state", "op": instance.name, "batch": instance.progress.batch, "settled": True}
            self._log([(info, body)])

    def _backup(self, note: dict[str, Any], body: Any) -> None:
        """The step's state out of the origin's changelog, as it was at the cut: the origin has no work with it."""
        instance = self._seat.instance
        units = self._machine.steps[note["step"]].units
        spec = instance.spec
        state = state_at(Path(note["directory"]), instance.name, spec.variables, instance.key_codec, note["lsn"])
        keys = list(state.keys())
        hashes = np.array([instance.key_codec.route_hash(key) for key in keys], np.int64)
        mine = [keys[i] for i in np.flatnonzero(selects(units, self._ownership)(hashes)).tolist()]
        for at in range(0, len(mine), BACKUP_KEYS):
            for batch in state.held(mine[at : at + BACKUP_KEYS], BACKUP_ROWS, BACKUP_BYTES):
                self._state(note, batch.serialize())

    def _changes(self, note: dict[str, Any], body: Any) -> None:
        instance = self._seat.instance
        progress = Progress.from_dict(note["progress"])
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._note_keys(note["step"], keys)
        if note["step"] in self._standing:
            self._standing[note["step"]] = max(progress.batch, self._standing[note["step"]])
        with self._seat.changed:
            parts = self._keep_up(progress)
            instance.state.replay(batch)
            settled = progress.batch < instance.progress.batch
            if settled:
                instance.state.settle_keys(keys)
            info = {"kind": "state", "op": instance.name, "batch": instance.progress.batch, "settled": settled}
            self._log([*parts, (info, body)])

    def _replay(self, note: dict[str, Any], body: Any) -> None:
        """Rows that the origin has applied: the same again here, silently."""
        instance = self._seat.instance
        progress = Progress.from_dict(note["progress"])
        chunk = parcels.chunk_of(body)
        codec = instance.key_codec
        keys = codec.from_arrow([chunk.batch.column(name) for name in codec.schema.names])
        self._note_keys(note["step"], keys)
        with self._seat.changed:
            parts = self._keep_up(progress)
            request = BatchRef(progress.query or "", progress.run or "", progress.batch)
            work = instance.follow(request, note["lane"], chunk, Times(*note["times"]))
            self._log([*parts, *work.parts])
            if "expect" in note:
                self._compare(note, work)

    def _compare(self, note: dict[str, Any], work: Work) -> None:
        instance = self._seat.instance
        found = parcels.fingerprint(work.changes.to_batch(instance.key_codec), work.outputs)
        if found != note["expect"]:
            raise NotDeterministic(
                "the processor did something else to the same rows when they were replayed on another host",
                todo="Take clocks, chance and outside state out of it, or use a protocol that ships state, such as push",
                operator=instance.spec.name,
                lane=note["lane"],
                batch=note["progress"]["batch"],
            )

    def _keep_up(self, progress: Progress) -> list[Part]:
        """Be in the origin's batch, or ahead of it; the lock is held.

        Does not wait for hand-overs to be decided, as the first row of a batch does: that they are may come later on this very
        connection. Timers are not fired by it, so none is missed.
        """
        instance = self._seat.instance
        return [instance.mark_part()] if instance.keep_up(progress, self._port.clock_ms()) else []

    def _rest(self, note: dict[str, Any], body: Any) -> None:
        """The last of a step has come. It fits unless timers of it that are due in this batch would be forgotten.

        That is so if this instance has fired those of the batch already, and the origin has not: it has not come to firing
        them, or not even to the batch.
        """
        instance = self._seat.instance
        progress, mark = Progress.from_dict(note["mark"]["progress"]), note["mark"]
        self._rests[note["step"]] = note
        with self._seat.changed:
            parts = self._keep_up(progress)
            if parts:
                self._log(parts)
            fired_there = mark["fired"] and progress.batch == instance.progress.batch
            timely = instance.spec.time_mode == "none" or fired_there or not instance.fired
            fits = timely or note["released"]
        self._handle(Arrived(note["step"], parcels.units_in(note), fits))

    # -- effects -----------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        for effect in self._machine.on(event):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Expect(units):
                with self._seat.changed:
                    self._ownership.expect(units, self.origin)
                    self._seat.changed.notify_all()
            case AnswerOffered(units):
                self._answer("offered", units=units.to_dict())
            case Persist(step, units):
                self._persist(step, units)
            case AnswerPrepared(step):
                self._answer("prepared", step=step)
            case AnswerDeclined(step):
                self._answer("declined", step=step)
            case AnswerMissing(step):
                self._answer("missing", step=step)
            case Serve(step, units):
                self._serve(step, units)
            case Discard(step, units):
                self._discard(step, units)
            case AskOutcome(step):
                self.ask(step)
            case _:
                raise AssertionError(effect)

    @property
    def _ownership(self) -> Any:
        assert self._seat.instance.ownership is not None, "only instances with an ownership take part in migrations"
        return self._seat.instance.ownership

    def _log(self, parts: list[Part]) -> None:
        if parts:
            self._seat.lsn = self._port.log.append(parts)

    def _persist(self, step: int, units: Units) -> None:
        instance, rest = self._seat.instance, self._rests[step]
        with self._seat.changed:
            same_batch = rest["mark"]["progress"]["batch"] == instance.progress.batch
            instance.merge_watermark(rest["mark"]["watermark"], same_batch)
            if same_batch and rest["mark"]["fired"] and not instance.fired:
                instance.fired_elsewhere.append(selects(units, self._ownership))
            apart = {key: (owner, epoch) for key, owner, epoch in rest["apart"]}
            incoming = Incoming(units, self.origin, parcels.epochs_of(rest["epochs"]), apart)
            self._ownership.prepare(f"{self.id}/{step}", incoming)
            instance.staged |= units
            self._log([instance.mark_part(), instance.own_part()])
            lsn = self._seat.lsn
            self._seat.changed.notify_all()
        self._port.log.sync(lsn)
        self._handle(Durable(step))

    def _serve(self, step: int, units: Units) -> None:
        instance = self._seat.instance
        with self._seat.changed:
            if f"{self.id}/{step}" in self._ownership.incoming:
                self._ownership.serve(f"{self.id}/{step}")
                self._unstage(units)
                parts: list[Part] = [instance.own_part()]
                for lane, entry in self._timers.pop(step, ()):
                    instance.ledger.record(lane, entry)
                    parts.append(entry.part(instance.name, instance.progress.batch, lane))
                self._log(parts)
            lsn = self._seat.lsn
            self._seat.changed.notify_all()
        self._rests.pop(step, None)
        self._copies.pop(step, None)
        self._port.log.sync(lsn)
        self._answer("served", step=step)

    def _discard(self, step: int, units: Units) -> None:
        instance = self._seat.instance
        with self._seat.changed:
            self._ownership.drop(units)
            select = selects(units, self._ownership)

            def not_mine(hashes: Any) -> Any:
                return select(hashes) & (instance.stands(hashes) == AWAY)

            known = self._copies.pop(step, None) if step >= 0 else {}
            keys = list(known) if known is not None else scan(self._seat, not_mine) if units & instance.staged else []
            self._drop_keys([key for key in keys if not_mine(np.array([instance.key_codec.route_hash(key)]))[0]])
            instance.ledger.drop(not_mine)
            self._unstage(units)
            self._log([instance.own_part()])
            self._seat.changed.notify_all()
        self._rests.pop(step, None)
        self._timers.pop(step, None)

    def _unstage(self, units: Units) -> None:
        self._seat.instance.staged -= units
        left = self._seat.staging.pop(self.id, Units()) - units
        if left:
            self._seat.staging[self.id] = left

    def _drop_keys(self, keys: list[Key]) -> None:
        instance = self._seat.instance
        changes = instance.state.drop(keys) if keys else None
        if changes is not None and len(changes):
            info = {"kind": "state", "op": instance.name, "batch": instance.progress.batch, "settled": True}
            self._log([(info, changes.to_batch(instance.key_codec).serialize())])

    # -- the origin's last word --------------------------------------------------------------------------------------

    def ask(self, step: int) -> None:
        """The origin's log knows. It may be restarting: ask until it answers, in a thread of its own."""
        threading.Thread(target=self._asking, args=(step,), name="godwit-ask", daemon=True).start()

    def _asking(self, step: int) -> None:
        pause = threading.Event()
        while not self._port.stopping():
            outcome = ask_outcome(self._port, self.origin, self._seat.instance.name, f"{self.id}/{step}")
            if outcome in ("released", "kept"):
                with self._acting:
                    self._handle(ReleaseHeard(step) if outcome == "released" else AbortHeard(step))
                return
            pause.wait(ASK_AGAIN_S)


def ask_outcome(port: Port, origin: str, operator: str, step: str) -> str:
    """Of a host that was lost for good, its will says it."""
    directory = host_directory(port.checkpoint, origin)
    will = read_will(directory)
    if will is not None:
        return "released" if step == step_name(will[0], operator) else "kept"
    lease = read_lease(directory)
    if lease is None or lease.incarnation != port.incarnation:
        return "away"
    client = Client(lease.address, port.token)
    try:
        return str(client.call("outcome", timeout_s=5.0, operator=operator, step=step)["outcome"])
    except GodwitError:
        return "away"
    finally:
        client.close()


def scan(seat: Seat, select: Callable[[Any], Any]) -> list[Key]:
    """The keys that are selected, of all there are; the lock is held."""
    codec = seat.instance.key_codec
    keys = list(seat.instance.state.keys())
    hashes = np.array([codec.route_hash(key) for key in keys], np.int64)
    return [keys[i] for i in np.flatnonzero(select(hashes)).tolist()]
