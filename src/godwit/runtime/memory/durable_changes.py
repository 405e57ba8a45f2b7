"""Where a change of an instance becomes durable: a chunk, timers, a batch that begins, state from another host.

Every change takes the same way (`DurableChanges.change`): prepare it on the stage of the state, append it to the changelog
as one frame, merge it into memory. The caller sends its answer when the frame of `Work.lsn` is written
(`Changelog.flush`). Knows nothing of what a change is about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from godwit.errors import CheckpointUnusable, GodwitError, StaleGeneration, StateUncertain
from godwit.runtime.memory.memory import Memory
from godwit.runtime.memory.work import Journal, Part, Unwritten, Work
from godwit.state.ledger import Entry

Merging = Callable[[], None]  # makes a prepared change count in memory; called when the frame is in line
Prepare = Callable[[Work], Merging]


class DurableChanges:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.journal: Journal = Unwritten()
        self.lsn = -1  # of the last frame that the instance rests on

    def change(self, prepare: Prepare, undo: Callable[[], None] | None = None) -> Work:
        """Change all or nothing.

        `prepare` puts the parts of the frame into the work and returns what merges them. `undo` takes back what `prepare`
        has changed besides the stage. A failure before the frame is in line leaves everything as it was. A failure after
        that leaves memory and changelog apart: nothing more is written, and the next generation of the host begins with
        what the changelog has.
        """
        work, in_line = Work(), False
        try:
            merge = prepare(work)
            draft = self.journal.draft(work.parts)
            in_line = True
            if work.parts:
                self.lsn = self.journal.append(draft)
            merge()
        except BaseException as error:
            if in_line or not self._undone(undo):
                raise self.uncertain(error) from error
            if isinstance(error, GodwitError):
                error.at(operator=self._memory.spec.name, batch=self._memory.progress.batch)
            raise
        work.lsn = self.lsn
        return work

    def _undone(self, undo: Callable[[], None] | None) -> bool:
        try:
            self._memory.state.rollback()
            if undo is not None:
                undo()
        except BaseException:  # noqa: BLE001 whatever it is, nobody knows what memory holds now
            return False
        return True

    def write(self, parts: Sequence[Part]) -> int:
        """Append parts that describe memory as it is already. If that fails, only the changelog is right."""
        try:
            self.lsn = self.journal.append(self.journal.draft(parts))
        except BaseException as error:
            raise self.uncertain(error) from error
        return self.lsn

    def uncertain(self, error: BaseException) -> GodwitError:
        """Nothing that this generation does counts any more. A changelog that cannot be written has its own error."""
        failure: GodwitError = StateUncertain(
            f"memory and changelog may differ since {type(error).__name__}: {error}",
            todo="The host starts again from its changelog by itself, and nothing is lost or applied twice",
            operator=self._memory.spec.name,
            batch=self._memory.progress.batch,
        )
        if isinstance(error, (CheckpointUnusable, StaleGeneration, StateUncertain)):
            failure = error
        self.journal.fail(failure)
        return failure

    # -- what is prepared --------------------------------------------------------------------------------------------

    def prepare_state(self, work: Work, settled: bool = False) -> Merging:
        """What the stage changes, as one part of the frame."""
        memory = self._memory
        prepared = memory.state.prepare()
        work.changes = prepared.changes
        if len(prepared.changes):
            info = {"kind": "state", "op": memory.name, "batch": memory.progress.batch}
            info |= {"settled": True} if settled else {}
            work.parts.append((info, prepared.changes.to_batch(memory.key_codec).serialize()))
        return lambda: memory.state.merge(prepared)

    def prepare_entry(self, work: Work, lane: str, entry: Entry, record: bool = True, settled: bool = False) -> Merging:
        """What the stage changes, and its entry in the ledger. `record`: a router may ask for the rows again."""
        memory, outputs = self._memory, entry.outputs
        merge_state = self.prepare_state(work, settled)
        if record:
            part = entry.part(memory.name, memory.progress.batch, lane)
            entry = entry.within(part)
            work.parts.append(part)
        if len(outputs):
            work.outputs.append(outputs)

        def merge() -> None:
            merge_state()
            if record:
                memory.ledger.record(lane, entry)
            memory.counters.outputs += len(outputs)

        return merge
