"""What one migration has brought to its target: copies among the instance's own keys, written down like any other state.

Decides how each message of an origin (or of the changelog that a lost host has left) goes into state, ledger and changelog.
Knows nothing of connections, nor of when a step is prepared, served or discarded. Follows the lock rule of
`incoming.IncomingHandover`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import NotDeterministic
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.incoming import IncomingHandover
from godwit.runtime.memory import chunk_bytes
from godwit.runtime.memory.ownership_columns import selects
from godwit.runtime.memory.work import Part, Work
from godwit.runtime.processor.rows import Times
from godwit.state.changes import COLUMN_VAR, changes_schema
from godwit.state.ledger import Entry
from godwit.state.state_at_lsn import state_at

BACKUP_KEYS, BACKUP_ROWS, BACKUP_BYTES = 1_000, 10_000, 1 << 20  # taken over at a time from a backup


class Copies:
    """Called with the receiver's `_acting`: one message at a time."""

    def __init__(self, handover: IncomingHandover) -> None:
        self._handover = handover
        self._shared = handover.shared

    def origin_progress(self, progress: Progress) -> None:
        """So far the origin has come."""
        with self._shared.changed:
            self._keep_up(progress)

    def complete(self, message: messages.CopyMarker) -> None:
        """All of the step has been copied."""
        step = self._handover.step(message.step)
        if step.copied_up_to is None:
            step.copied_up_to = message.batch
        self._handover.copied_in = max(message.batch, self._handover.copied_in)

    def state_before_batch(self, message: messages.StateBeforeBatch, body: Any) -> None:
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
                name = self._handover.name(message.step)
                info = message.entry | {"batch": instance.progress.batch, "held": name}
                self._change(
                    (info, body), lambda: instance.batch.pending_outputs.setdefault(name, []).append((lane, entry))
                )
                return
            instance.ledger.make_room()
            taken = instance.ledger.missing(lane, entry)
            if taken is not None:
                info, data = taken.part(instance.name, instance.progress.batch, lane)
                self._change((info | {"from": self._handover.origin}, data), lambda: self._take(lane, taken))

    def _take(self, lane: str, entry: Entry) -> None:
        self._shared.instance.ledger.take_over(lane, entry)

    def _in_its_batch(self, progress: Progress) -> bool:
        """Whether this instance is in that batch: nobody asks again for a batch that is over. With the lock."""
        self._keep_up(progress)
        return progress.batch == self._shared.instance.progress.batch

    def state(self, message: messages.StepState, body: Any) -> None:
        instance = self._shared.instance
        batch = self._batch(body)
        keys = instance.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        self._handover.step(message.step).add_keys(keys)
        with self._shared.lock:
            instance.keys.take(batch, body, settled=True)

    def backup(self, message: messages.StepBackup) -> None:
        """The step's state out of the origin's changelog, as it was at the cut: the origin has no work with it."""
        instance = self._shared.instance
        spec = instance.spec
        state = state_at(Path(message.directory), instance.name, spec.variables, instance.key_codec, message.lsn)
        keys = list(state.keys())
        hashes = np.array([instance.key_codec.route_hash(key) for key in keys], np.int64)
        units = self._handover.step(message.step).units
        assert units is not None, "only a step that was announced takes state"
        mine = [keys[i] for i in np.flatnonzero(selects(units, self._handover.ownership)(hashes)).tolist()]
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
        """Rows that the origin has applied: the same again here, silently."""
        instance, progress = self._shared.instance, message.progress
        chunk = chunk_bytes.chunk_of(body)
        codec = instance.key_codec
        keys = codec.from_arrow([chunk.batch.column(name) for name in codec.schema.names])
        self._handover.step(message.step).add_keys(keys)
        with self._shared.changed:
            self._keep_up(progress)
            request = BatchRef(progress.query or "", progress.run or "", progress.batch)
            work = instance.follow(request, message.lane, chunk, Times(*message.times))
            if message.fingerprint is not None:
                self._compare(message, work)

    def _compare(self, message: messages.StepRows, work: Work) -> None:
        instance = self._shared.instance
        fingerprint = chunk_bytes.fingerprint(work.changes.to_batch(instance.key_codec), work.outputs)
        if fingerprint != message.fingerprint:
            raise NotDeterministic(
                "the processor did something else to the same rows when they were replayed on another host",
                todo="Take clocks, chance and outside state out of it, or use a protocol that ships state, such as push",
                operator=instance.spec.name,
                lane=message.lane,
                batch=message.progress.batch,
            )

    def _keep_up(self, progress: Progress) -> None:
        """Be in the origin's batch, or ahead of it; with the instance's lock.

        Does not wait for hand-overs to be decided, as the first row of a batch does: that they are may come later on this very
        connection. Timers are not fired by it, so none is missed.
        """
        self._shared.instance.batches.catch_up(progress, self._handover.services.clock_ms())

    def end_fits(self, message: messages.StepEnd) -> bool:
        """The last of a step has come. It fits unless timers of it that are due in this batch would be forgotten.

        That is so if this instance has fired those of the batch already, and the origin has not: it has not come to firing
        them, or not even to the batch, or to the batch as a later run of the query has begun it anew. Of a lost origin it fits
        all the same: routers come again before they send rows. Nor does it fit if both are in runs of which the other does not
        know: then nobody can tell which of them has to be reverted.
        """
        instance, mark = self._shared.instance, message.mark
        progress = Progress.from_dict(mark["progress"])
        self._handover.step(message.step).end = message
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

    # -- writing down ------------------------------------------------------------------------------------------------

    def _batch(self, body: pa.Buffer) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(body, changes_schema(self._shared.instance.key_codec))

    def _change(self, part: Part, change: Callable[[], None]) -> None:
        """Write the part, then change memory."""

        def prepare(work: Work) -> Callable[[], None]:
            work.parts.append(part)
            return change

        self._shared.instance.durable.change(prepare)
