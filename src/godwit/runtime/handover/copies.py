"""The copies that one migration brings to its target: they are in the instance's state and changelog beside the keys it owns.

Decides how each message of an origin (or of an heir that reads a lost host's changelog) changes state, ledger and changelog.
Knows nothing of connections, nor of when a step is prepared, served or discarded. Follows the lock rule of
`incoming.IncomingHandover`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import NotDeterministic, Retryable, StaleRun
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.chunk import chunk_bytes
from godwit.runtime.chunk.ownership_columns import selects
from godwit.runtime.durable.changelog_parts import PENDING_STEP, entry_of, ledger_part
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.durable.work import Work
from godwit.runtime.handover.incoming import IncomingHandover, SendAgain
from godwit.runtime.processor.rows import Times
from godwit.state.changes import COLUMN_VAR, changes_schema
from godwit.state.ledger import Entry
from godwit.state.state_at_lsn import state_at

DRIVER_AWAY_S = 0.2
BACKUP_KEYS, BACKUP_ROWS, BACKUP_BYTES = 1_000, 10_000, 1 << 20  # of a step, read at a time from the origin's changelog


class Copies:
    """All methods are called with the receiver's lock `_acting`: one message at a time."""

    def __init__(self, handover: IncomingHandover) -> None:
        self._handover = handover
        self._shared = handover.shared

    def origin_progress(self, progress: Progress) -> None:
        """The origin is in this batch."""
        with self._shared.changed:
            self._keep_up(progress)

    def complete(self, message: messages.CopyMarker) -> None:
        """The copy of the step is complete."""
        step = self._handover.step(message.step)
        if step.copied_up_to is None:
            step.copied_up_to = message.batch
        self._handover.copied_in = max(message.batch, self._handover.copied_in)

    def state_before_batch(self, message: messages.StateBeforeBatch, body: Any) -> None:
        """Take up the state that keys had before the batch in progress."""
        instance, batch = self._shared.instance, self._batch(body)
        with self._shared.changed:
            if self._in_its_batch(message.progress):
                info = {"kind": "committed", "op": instance.name, "batch": instance.progress.batch}
                self._change((info, body), lambda: instance.state.amend(batch))

    def ledger(self, message: messages.StepLedger, body: Any) -> None:
        """Take up a ledger entry of the batch in progress, or of earlier batches whose rows outlast them.

        Only one host may answer for the outputs of timers (an entry without rows), so they count from the hand-over on.
        """
        instance, lane, progress = self._shared.instance, message.entry["lane"], message.progress
        entry = entry_of(instance.memory, message.entry, memoryview(body))
        with self._shared.changed:
            self._note_unrelated(message.step, progress)
            in_its_batch = self._in_its_batch(progress) and instance.progress.same_attempt(progress)
            if not in_its_batch and not instance.progress.lasting:
                return
            if not len(entry.rows):
                name = self._handover.name(message.step)
                info = message.entry | {"batch": instance.progress.batch, PENDING_STEP: name}
                self._change(
                    (info, body), lambda: instance.batch.pending_outputs.setdefault(name, []).append((lane, entry))
                )
                return
            instance.ledger.make_room()
            if progress.run != instance.progress.run:
                entry = entry.without_checks()
            taken = instance.ledger.missing(lane, entry)
            if taken is not None:
                info, data = ledger_part(instance.memory, lane, taken)
                self._change((info | {"from": self._handover.origin}, data), lambda: self._record(lane, taken))

    def _record(self, lane: str, entry: Entry) -> None:
        self._shared.instance.ledger.take_over(lane, entry)

    def _in_its_batch(self, progress: Progress) -> bool:
        """Whether this instance is in the batch of the message: an earlier batch is over. Called with the lock."""
        self._keep_up(progress)
        return progress.batch == self._shared.instance.progress.batch

    def state(self, message: messages.StepState, body: Any) -> None:
        instance = self._shared.instance
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._handover.step(message.step).add_keys(keys)
        with self._shared.lock:
            instance.keys.take(batch, body, settled=True)
            lsn = self._shared.lsn
        self._handover.services.log.write(lsn)  # else the next chunk of rows would have to

    def backup(self, message: messages.StepBackup) -> None:
        """Read the state of the step, as of the cut, from the origin's changelog: this saves the origin the work."""
        instance = self._shared.instance
        layout = instance.spec.layout
        state = state_at(Path(message.directory), instance.name, layout, instance.key_codec, message.lsn)
        units = self._handover.step(message.step).units
        assert units is not None, "only a step that was announced takes state"
        mine = instance.memory.select_keys(list(state.keys()), selects(units, self._handover.shared.ownership))
        for at in range(0, len(mine), BACKUP_KEYS):
            for batch in state.export_keys(mine[at : at + BACKUP_KEYS], BACKUP_ROWS, BACKUP_BYTES):
                self.state(messages.StepState(message.step), batch.serialize())

    def changes(self, message: messages.StepChanges, body: Any) -> None:
        instance, progress = self._shared.instance, message.progress
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._handover.step(message.step).add_keys(keys)
        step = self._handover.step(message.step)
        if step.copied_up_to is not None:
            step.copied_up_to = max(progress.batch, step.copied_up_to)
        with self._shared.changed:
            self._keep_up(progress)
            settled = progress.batch < instance.progress.batch or message.settled
            instance.keys.take(batch, body, settled=settled)

    def rows(self, message: messages.StepRows, body: Any) -> None:
        """Replay rows that the origin has applied; no outputs leave."""
        instance, progress = self._shared.instance, message.progress
        chunk = chunk_bytes.chunk_of(body)
        codec = instance.key_codec
        keys = codec.from_arrow([chunk.batch.column(name) for name in codec.schema.names])
        self._handover.step(message.step).add_keys(keys)
        with self._shared.changed:
            self._note_unrelated(message.step, progress)
            request = BatchRef(progress.query or "", progress.run or "", progress.batch)
            work = instance.follow(request, message.lane, chunk, Times(*message.times))
            if message.fingerprint is not None:
                self._compare(message, work)

    def _compare(self, message: messages.StepRows, work: Work) -> None:
        instance = self._shared.instance
        fingerprint = chunk_bytes.fingerprint(work.changes.to_batch(instance.key_codec), work.outputs)
        if fingerprint != message.fingerprint:
            raise NotDeterministic(
                "the processor gave another result for the same rows when they were replayed on another host",
                todo="Use no clock, random numbers or outside state; or a protocol that ships state, such as push",
                operator=instance.spec.name,
                lane=message.lane,
                batch=message.progress.batch,
            )

    def _note_unrelated(self, step: int, progress: Progress) -> None:
        """Rows of a run that may be earlier or later than this instance's own are not put into the ledger."""
        self._keep_up(progress)
        if self._shared.instance.progress.unrelated(progress):
            self._handover.step(step).lacks_rows_of = progress

    def _keep_up(self, progress: Progress) -> None:
        """Begin the origin's batch if this instance is behind it; called with the instance's lock.

        Unlike a lane that opens a batch, this does not wait until hand-overs are decided: the decision may arrive later on this
        connection. It fires no timers, so no timer is missed.
        """
        self._shared.instance.batches.catch_up(progress, self._handover.services.clock_ms())

    def end_fits(self, message: messages.StepEnd) -> bool:
        """Take the last message of a step; returns whether this instance can take over the step in its present batch.

        It cannot if timers of the step would never fire: this instance has fired the timers of its batch, and the origin has
        not, because the origin has not begun the batch, has not fired its timers yet, or has begun the batch anew in a later
        run of the query. A step of a lost origin can be taken over all the same: every router opens its lane again before it
        sends rows, and the timers fire then. A step cannot be taken over if both hosts are in runs that the other host does
        not know: it is not known which of the two has to revert its batch. A step that is released must be taken over all the
        same, because nobody else owns it: the hosts agree on the later run, and the origin sends the step again.
        """
        instance, mark = self._shared.instance, message.mark
        progress = Progress.from_dict(mark["progress"])
        self._handover.step(message.step).end = message
        with self._shared.changed:
            unrelated = self._unrelated(message.step, progress)
        if unrelated and message.released:
            self._agree_on_run(progress)
            raise SendAgain
        with self._shared.changed:
            if self._unrelated(message.step, progress):
                return False
            same = instance.progress.same_attempt(progress)
            if not instance.spec.timers_between_batches or message.released or message.lost:
                return True
            if same and "unfired" in mark and Units.from_dict(mark["unfired"]):
                return False  # timers of a lost host, which the origin fires when the next lane opens
            return not instance.batch.fired or (mark["fired"] and same)

    def _unrelated(self, step: int, progress: Progress) -> bool:
        """Whether runs of which neither host knew the other have met in this step. Called with the lock."""
        self._note_unrelated(step, progress)
        lacking = self._handover.step(step).lacks_rows_of
        return lacking is not None and lacking.same_attempt(progress)

    def _agree_on_run(self, progress: Progress) -> None:
        """Follow the origin's run if it is the later one, and fence it if not; after a pause if the driver is away.

        A host knows the runs that came before its own. If a query starts again twice in a short time, its runs may reach
        different hosts, and then no host can say which run has replaced the other. Spark can, so the driver is asked.
        """
        instance = self._shared.instance
        with self._shared.lock:
            own = instance.progress
        try:
            later = self._is_active(progress)
        except Retryable:
            ports.sleep(DRIVER_AWAY_S)
            return
        with self._shared.lock:
            if instance.progress != own or not own.unrelated(progress):
                return  # a lane has opened meanwhile
            if later:
                instance.batches.follow_run(progress)
            else:
                instance.batches.fence_run(progress.run or "")

    def _is_active(self, progress: Progress) -> bool:
        """Whether this is the run that works now."""
        query, run, batch = progress.query or "", progress.run or "", progress.batch
        try:
            self._handover.services.admit(messages.Admit(self._shared.instance.name, query, run, batch, batch, False))
        except StaleRun:
            return False
        return True

    # -- changelog ---------------------------------------------------------------------------------------------------

    def _batch(self, body: pa.Buffer) -> pa.RecordBatch:
        """The rows of a message. State of a definition that this host does not have is refused before anything is written."""
        instance = self._shared.instance
        batch = pa.ipc.read_record_batch(body, changes_schema(instance.key_codec))
        instance.state.check_forms(batch)
        return batch

    def _change(self, part: NewPart, change: Callable[[], None]) -> None:
        """Write the part, then change memory."""

        def prepare(work: Work) -> Callable[[], None]:
            work.parts.append(part)
            return change

        self._shared.instance.durable.change(prepare)
