"""What one migration has brought to its target: copies among the instance's own keys, written down like any other state.

Decides how each thing that an origin tells (or the log that one has left behind) goes into state, ledger and changelog.
`Memory.staged` says which units may have copies here, so that a restart can remove those that never became its own. Knows
nothing of connections, nor of when a step is prepared, served or dropped: it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import InvariantBroken, NotDeterministic
from godwit.model.ownership import Incoming, Stand
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover import parcels
from godwit.runtime.handover.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.memory.ownership_columns import AWAY, selects
from godwit.runtime.memory.work import Part, Work
from godwit.runtime.processor.rows import Times
from godwit.state.changes import COLUMN_VAR, changes_schema
from godwit.state.keys import Key
from godwit.state.ledger import Entry
from godwit.state.state_at_lsn import state_at

BACKUP_KEYS, BACKUP_ROWS, BACKUP_BYTES = 1_000, 10_000, 1 << 20  # taken over at a time from a backup


class Copies:
    """Of one migration, by step."""

    def __init__(self, port: HostServices, shared: SharedInstance, migration: str, origin: str) -> None:
        self.standing: dict[int, int] = {}  # of a standby: the origin's batch when the step was last heard of
        self.written: tuple[int, int] | None = None  # and how far its log had been written: generation and lsn
        self.copied_in = -1  # the origin's batch when the last of the copies was whole
        self._port = port
        self._shared = shared
        self._id = migration
        self._origin = origin
        self._units: dict[int, Units] = {}
        self._keys: dict[int, dict[Key, None]] = {}  # that lie here as copies
        self._rests: dict[int, messages.StepEnd] = {}  # the last that came of a step
        self.apart: dict[
            int, Collection[int]
        ] = {}  # by step, the keys that the origin knows to be apart from its groups

    # -- what comes --------------------------------------------------------------------------------------------------

    def announce(self, step: int, units: Units) -> None:
        """Write down that copies may lie here from now on; what lies here from earlier goes.

        A step that is announced again on one connection is followed by its end only, or by all of it once more: what has been
        copied stays.
        """
        instance = self._shared.instance
        again, self._units[step] = step in self._units, units
        with self._shared.changed:
            instance.batch.pending_outputs.pop(self._name(step), None)
            if self.claim(units) != units:
                raise InvariantBroken(f"{self._name(step)} brings what {self._port.host} owns")
            back = self._ownership.rejoin(units, self.apart.get(step, ()))
            if not again and any((out.units & units) for out in self._ownership.outgoing.values()):
                self._drop_keys(scan(self._shared, selects(units, self._ownership)))
            if back or units - instance.memory.staged:
                instance.memory.staged |= units
                self._log([instance.own_part()])

    def claim(self, units: Units) -> Units:
        """A migration before this one may still have copies here, not knowing yet what became of it: it goes first. Locked.

        Gives what may come: of units that this host owns by now, or has prepared, nothing.
        """
        staging = self._shared.copy_claims

        def free() -> bool:
            return not any(other != self._id and staged & units for other, staged in staging.items())

        self._shared.changed.wait_for(lambda: free() or self._port.stopping())
        away = (Stand.AWAY, Stand.EXPECTED)
        units = Units.of(*(unit for unit in units if self._ownership.share(unit).stand in away))
        if units:
            staging[self._id] = staging.get(self._id, Units()) | units
        return units

    def _note(self, step: int, keys: list[Key]) -> None:
        self._keys.setdefault(step, {}).update(dict.fromkeys(keys))

    def reached(self, progress: Progress) -> None:
        """So far the origin has come."""
        with self._shared.changed:
            self._keep_up(progress)

    def stands(self, step: int, batch: int) -> None:
        """All of it has been copied, in this batch of the origin's."""
        self.standing.setdefault(step, batch)
        self.copied_in = max(batch, self.copied_in)

    def committed(self, message: messages.StateBeforeBatch, body: Any) -> None:
        """What keys held before the batch in progress."""
        instance, batch = self._shared.instance, self._batch(body)
        with self._shared.changed:
            if self._in_its_batch(message.progress):
                info = {"kind": "committed", "op": instance.name, "batch": instance.progress.batch}
                self._change((info, body), lambda: instance.state.amend(batch))

    def ledger(self, message: messages.StepLedger, body: Any) -> None:
        """What the batch in progress has done; of what timers put out only one host tells, so that waits for the hand-over."""
        instance, lane, progress = self._shared.instance, message.entry["lane"], message.progress
        entry = Entry.from_part(message.entry, memoryview(body), instance.spec.output_schema)
        with self._shared.changed:
            if not self._in_its_batch(progress) or not instance.progress.same_attempt(progress):
                return
            if not len(entry.rows):
                name = self._name(message.step)
                info = message.entry | {"batch": instance.progress.batch, "held": name}
                self._change(
                    (info, body), lambda: instance.batch.pending_outputs.setdefault(name, []).append((lane, entry))
                )
                return
            instance.ledger.make_room()
            taken = instance.ledger.missing(lane, entry)
            if taken is not None:
                info, data = taken.part(instance.name, instance.progress.batch, lane)
                self._change((info | {"from": self._origin}, data), lambda: self._take(lane, taken))

    def _take(self, lane: str, entry: Entry) -> None:
        self._shared.instance.ledger.take_over(lane, entry)

    def _in_its_batch(self, progress: Progress) -> bool:
        """Whether this instance is in the batch that is told of: of a batch that is over nobody asks again. Locked."""
        self._keep_up(progress)
        return progress.batch == self._shared.instance.progress.batch

    def state(self, message: messages.StepState, body: Any) -> None:
        instance = self._shared.instance
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._note(message.step, keys)
        with self._shared.lock:
            instance.keys.take(batch, body, settled=True)

    def backup(self, message: messages.StepBackup) -> None:
        """The step's state out of the origin's changelog, as it was at the cut: the origin has no work with it."""
        instance = self._shared.instance
        spec = instance.spec
        state = state_at(Path(message.directory), instance.name, spec.variables, instance.key_codec, message.lsn)
        keys = list(state.keys())
        hashes = np.array([instance.key_codec.route_hash(key) for key in keys], np.int64)
        mine = [keys[i] for i in np.flatnonzero(selects(self._units[message.step], self._ownership)(hashes)).tolist()]
        for at in range(0, len(mine), BACKUP_KEYS):
            for batch in state.export_keys(mine[at : at + BACKUP_KEYS], BACKUP_ROWS, BACKUP_BYTES):
                self.state(messages.StepState(message.step), batch.serialize())

    def changes(self, message: messages.StepChanges, body: Any) -> None:
        instance, progress = self._shared.instance, message.progress
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._note(message.step, keys)
        if message.step in self.standing:
            self.standing[message.step] = max(progress.batch, self.standing[message.step])
        with self._shared.changed:
            self._keep_up(progress)
            settled = progress.batch < instance.progress.batch or message.settled
            instance.keys.take(batch, body, settled=settled)

    def replay(self, message: messages.StepRows, body: Any) -> None:
        """Rows that the origin has applied: the same again here, silently."""
        instance, progress = self._shared.instance, message.progress
        chunk = parcels.chunk_of(body)
        codec = instance.key_codec
        keys = codec.from_arrow([chunk.batch.column(name) for name in codec.schema.names])
        self._note(message.step, keys)
        with self._shared.changed:
            self._keep_up(progress)
            request = BatchRef(progress.query or "", progress.run or "", progress.batch)
            work = instance.follow(request, message.lane, chunk, Times(*message.times))
            if message.fingerprint is not None:
                self._compare(message, work)

    def _compare(self, message: messages.StepRows, work: Work) -> None:
        instance = self._shared.instance
        found = parcels.fingerprint(work.changes.to_batch(instance.key_codec), work.outputs)
        if found != message.fingerprint:
            raise NotDeterministic(
                "the processor did something else to the same rows when they were replayed on another host",
                todo="Take clocks, chance and outside state out of it, or use a protocol that ships state, such as push",
                operator=instance.spec.name,
                lane=message.lane,
                batch=message.progress.batch,
            )

    def _keep_up(self, progress: Progress) -> None:
        """Be in the origin's batch, or ahead of it; the lock is held.

        Does not wait for hand-overs to be decided, as the first row of a batch does: that they are may come later on this very
        connection. Timers are not fired by it, so none is missed.
        """
        self._shared.instance.batches.catch_up(progress, self._port.clock_ms())

    def rest(self, message: messages.StepEnd) -> bool:
        """The last of a step has come. It fits unless timers of it that are due in this batch would be forgotten.

        That is so if this instance has fired those of the batch already, and the origin has not: it has not come to firing
        them, or not even to the batch, or to the batch as a later run of the query has begun it anew. Of a lost origin it fits
        all the same: routers come again before they send rows. Nor does it fit if both are in runs of which the other does not
        know: then nobody can tell which of them has to be reverted.
        """
        instance, mark = self._shared.instance, message.mark
        progress = Progress.from_dict(mark["progress"])
        self._rests[message.step] = message
        with self._shared.changed:
            self._keep_up(progress)
            same = instance.progress.same_attempt(progress)
            if progress.batch == instance.progress.batch and not same and not progress.behind(instance.progress):
                return False
            if instance.spec.time_mode == "none" or message.released or message.lost:
                return True
            if same and "unfired" in mark and Units.from_dict(mark["unfired"]):
                return False  # the origin has them from a lost host, and fires them when the next router comes
            return not instance.batch.fired or (mark["fired"] and same)

    # -- what becomes of it ------------------------------------------------------------------------------------------

    def expect(self, units: Units) -> None:
        with self._shared.changed:
            self._ownership.expect(units, self._origin)
            self._shared.changed.notify_all()

    def prepare(self, step: int, units: Units) -> None:
        """All of it is here: durable when this returns, not served."""
        instance, rest = self._shared.instance, self._rests[step]
        with self._shared.changed:
            mark, progress = rest.mark, Progress.from_dict(rest.mark["progress"])
            same_batch = progress.batch == instance.progress.batch
            anew = same_batch and not instance.progress.same_attempt(progress)  # here, and not there yet
            if anew:
                instance.batches.revert_units(units)
                mark = mark | {"fired": False, "fired_elsewhere": [], "watermark": mark["watermark"] | {"reported": {}}}
            elif same_batch:  # whoever knew that the batch must not be committed may be gone by its end
                instance.batch.spoiled = instance.batch.spoiled or mark.get("spoiled", "")
            instance.batches.merge_watermark(mark["watermark"], same_batch)
            instance.timers.inherit(units, mark, same_batch, rest.lost)
            apart = {key: (owner, epoch) for key, owner, epoch in rest.apart}
            incoming = Incoming(units, self._origin, rest.epochs, apart)
            self._ownership.prepare(self._name(step), incoming)
            instance.memory.staged |= units
            self._log([instance.mark_part(), instance.own_part()])
            lsn = self._shared.lsn
            self._shared.changed.notify_all()
        self._port.log.sync(lsn)

    def serve(self, step: int, units: Units) -> None:
        """They are this instance's own from now on, durably."""
        instance = self._shared.instance
        with self._shared.changed:
            if self._name(step) in self._ownership.incoming:
                self._ownership.serve(self._name(step))
                self._unstage(units)
                parts: list[Part] = [instance.own_part()]
                for lane, entry in instance.batch.pending_outputs.pop(self._name(step), ()):
                    instance.ledger.record(lane, entry)
                    parts.append(entry.part(instance.name, instance.progress.batch, lane))
                self._log(parts)
            lsn = self._shared.lsn
            self._shared.changed.notify_all()
        self._close(step)
        self._port.log.sync(lsn)

    def _close(self, step: int) -> None:
        for by_step in (self._units, self._rests, self._keys, self.standing, self.apart):
            by_step.pop(step, None)

    def discard(self, step: int, units: Units) -> None:
        """They stay with their origin; of a step that is not known here (-1), only what was promised is dropped.

        Only as far as this migration has claimed them: another may be bringing them by now.
        """
        instance = self._shared.instance
        with self._shared.changed:
            units &= self._shared.copy_claims.get(self._id, Units())
            if not units:
                self._close(step)
                return
            self._ownership.drop(units)
            select = selects(units, self._ownership)

            def not_mine(hashes: Any) -> Any:
                return select(hashes) & (instance.stands(hashes) == AWAY)

            known = self._keys.pop(step, None) if step >= 0 else {}
            keys = (
                list(known)
                if known is not None
                else scan(self._shared, not_mine)
                if units & instance.memory.staged
                else []
            )
            self._drop_keys([key for key in keys if not_mine(np.array([instance.key_codec.route_hash(key)]))[0]])
            instance.ledger.drop(not_mine)
            self._unstage(units)
            instance.batch.pending_outputs.pop(self._name(step), None)
            self._log([*self._left_unfired(units), instance.own_part()])
            self._shared.changed.notify_all()
            self._close(step)

    def _left_unfired(self, units: Units) -> list[Part]:
        """Units that stay with their owner take their timers with them."""
        instance = self._shared.instance
        if not instance.batch.unfired & units:
            return []
        instance.batch.unfired -= units
        return [instance.mark_part()]

    def _unstage(self, units: Units) -> None:
        self._shared.instance.memory.staged -= units
        left = self._shared.copy_claims.pop(self._id, Units()) - units
        if left:
            self._shared.copy_claims[self._id] = left

    # -- copies of a standby whose origin is lost --------------------------------------------------------------------

    def adopt(self, other: Copies, units: Units, batch: int) -> bool:
        """Take over, as one step, what another migration has brought here; False if that is not all of these units. Locked."""
        staging = self._shared.copy_claims
        staged = staging.get(other._id, Units())
        if units - staged:
            return False
        copied = {key: None for keys in other._keys.values() for key in keys}
        unwanted = self._outside(units, copied) if staged - units else []
        for key in unwanted:
            del copied[key]
        self.standing, self._units, self._keys = {0: batch}, {0: units}, {0: copied}
        self.written, self.copied_in = other.written, other.copied_in
        other._keys, other._units, other.standing = {}, {}, {}
        other._drop_keys(unwanted)
        other._unstage(staged)
        staging[self._id] = units
        self._shared.instance.memory.staged |= units
        self._log([self._shared.instance.own_part()])
        return True

    def _outside(self, units: Units, keys: Iterable[Key]) -> list[Key]:
        found = list(keys)
        hashes = np.array([self._shared.instance.key_codec.route_hash(key) for key in found], np.int64)
        return [found[i] for i in np.flatnonzero(~selects(units, self._ownership)(hashes)).tolist()]

    def drop_adopted(self) -> None:
        """All of it is told anew, and the log no longer tells what has been removed meanwhile."""
        with self._shared.changed:
            if self.standing:
                self._drop_keys(list(self._keys.pop(0, {})))
                self.standing.clear()

    # -- writing down ------------------------------------------------------------------------------------------------

    def _name(self, step: int) -> str:
        return f"{self._id}/{step}"

    @property
    def _ownership(self) -> Any:
        assert self._shared.instance.ownership is not None, "only instances with an ownership take part in migrations"
        return self._shared.instance.ownership

    def _batch(self, body: pa.Buffer) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(body, changes_schema(self._shared.instance.key_codec))

    def _log(self, parts: list[Part]) -> None:
        """Memory has changed already: if the parts cannot be written, the host ends."""
        self._shared.instance.write(parts)

    def _change(self, part: Part, change: Callable[[], None]) -> None:
        """Write the part, then change memory."""

        def prepare(work: Work) -> Callable[[], None]:
            work.parts.append(part)
            return change

        self._shared.instance.durable.change(prepare)

    def _drop_keys(self, keys: list[Key]) -> None:
        if keys:
            self._shared.instance.keys.drop(keys, settled=True)


def scan(shared: SharedInstance, select: Callable[[Any], Any]) -> list[Key]:
    """The keys that are selected, of all there are; the lock is held."""
    codec = shared.instance.key_codec
    keys = list(shared.instance.state.keys())
    hashes = np.array([codec.route_hash(key) for key in keys], np.int64)
    return [keys[i] for i in np.flatnonzero(select(hashes)).tolist()]
