"""Where a change of an instance becomes durable: a chunk, timers, a batch that begins, state from another host.

Every change goes through `DurableChanges.change`: it is prepared on the stage of the state, appended to the changelog as one
frame, and installed in memory. The caller sends its answer when the frame of `Work.lsn` is written (`Changelog.flush`). This
module does not know what a change means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from godwit.errors import CheckpointUnusable, GodwitError, StaleGeneration, StateUncertain
from godwit.runtime.durable.changelog_parts import ledger_part
from godwit.runtime.durable.journal import Journal, NewPart, Unwritten
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.state.ledger import Entry

InstallInMemory = Callable[[], None]  # makes a prepared change count in memory; called when the frame is in line
Prepare = Callable[[Work], InstallInMemory]


class DurableChanges:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.journal: Journal = Unwritten()
        self.lsn = -1  # of the newest frame with a change of this instance
        self._failure: GodwitError | None = None  # why memory and changelog may differ

    def change(self, prepare: Prepare, undo: Callable[[], None] | None = None) -> Work:
        """Make the whole change, or nothing of it.

        `prepare` puts the parts of the frame into the work and returns a function that installs the change in memory. `undo`
        takes back what `prepare` has changed besides the stage. A failure before the frame is in line leaves everything as it
        was. After that, a failure makes memory and changelog differ: nothing more is written, and the next generation of the
        host starts from the changelog.
        """
        if self._failure is not None:  # the host is ending, and what was staged then is still there
            raise self._failure
        work, in_line = Work(), False
        try:
            install = prepare(work)
            draft = self.journal.draft(work.parts)
            in_line = True
            if work.parts:
                self.lsn = self.journal.append(draft)
            install()
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

    def write(self, parts: Sequence[NewPart]) -> int:
        """Append parts that describe a change which memory has already. If this fails, only the changelog is valid."""
        try:
            self.lsn = self.journal.append(self.journal.draft(parts))
        except BaseException as error:
            raise self.uncertain(error) from error
        return self.lsn

    def uncertain(self, error: BaseException) -> GodwitError:
        """The error after which this generation writes nothing more. If the changelog itself failed, its error is used."""
        failure: GodwitError = StateUncertain(
            f"memory and changelog may differ since {type(error).__name__}: {error}",
            todo="The host starts again from its changelog by itself, and nothing is lost or applied twice",
            operator=self._memory.spec.name,
            batch=self._memory.progress.batch,
        )
        if isinstance(error, (CheckpointUnusable, StaleGeneration, StateUncertain)):
            failure = error
        self.journal.fail(failure)
        self._failure = failure
        return failure

    # -- what is prepared --------------------------------------------------------------------------------------------

    def prepare_state(self, work: Work, settled: bool = False) -> InstallInMemory:
        """Put the changes of the stage into the frame, as one part."""
        memory = self._memory
        prepared = memory.state.prepare()
        work.changes = prepared.changes
        if len(prepared.changes):
            info = {"kind": "state", "op": memory.name, "batch": memory.progress.batch}
            info |= {"settled": True} if settled else {}
            work.parts.append((info, prepared.changes.to_batch(memory.key_codec).serialize()))
        return lambda: memory.state.install(prepared)

    def prepare_entry(
        self, work: Work, lane: str, entry: Entry, record: bool = True, settled: bool = False
    ) -> InstallInMemory:
        """Put the changes of the stage and its ledger entry into the frame. `record`: a router may ask for the rows again."""
        memory, outputs = self._memory, entry.outputs
        install_state = self.prepare_state(work, settled)
        if record:
            part = ledger_part(memory, lane, entry)
            entry = entry.within(part)
            work.parts.append(part)
        if len(outputs):
            work.outputs.append(outputs)

        def install() -> None:
            install_state()
            if record:
                memory.ledger.record(lane, entry)
            memory.counters.outputs += len(outputs)

        return install
