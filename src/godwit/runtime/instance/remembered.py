"""What an instance is between two requests: state, ledger, progress, watermark, ownership; and how it comes back from the log.

Decides which parts say it, and what a part that is read again means. What requests do to it is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import BatchIncomplete, CheckpointUnusable, GodwitError, StaleGeneration, StaleRun, StateUncertain
from godwit.model.ownership import Ownership, Stand
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.model.watermark import Watermark
from godwit.runtime.instance.ownership_columns import Shares, selects
from godwit.runtime.instance.sketch import HotKeys
from godwit.runtime.instance.work import Counters, Follower, Journal, Part, Unwritten, Work
from godwit.runtime.processor.black_box import NoTrail, Trail
from godwit.runtime.processor.rows import Adapter, Index, Times
from godwit.runtime.processor.spec import OperatorSpec, merge_of, schema_text
from godwit.state.changes import COLUMN_VAR, changes_schema
from godwit.state.keys import Key, KeyCodec
from godwit.state.ledger import Entry, Ledger, memory_bytes_max
from godwit.state.tables import KeyedState


class Remembered:
    def __init__(self, name: str, spec: OperatorSpec, state: KeyedState, key_codec: KeyCodec) -> None:
        self.name = name
        self.spec = spec
        self.key_codec = key_codec
        self.state = state
        self.ledger = Ledger(spec.output_schema, memory_bytes_max(state.memory_max_bytes))
        state.beside_bytes = lambda: self.ledger.memory_bytes
        self.progress = Progress()
        self.fired = True
        self.due: Times | None = None  # up to when timers fire in this batch; None for not at all
        self.watermark = Watermark(spec.delay_ms, spec.watermark_policy)
        self.times = Times(0, 0)
        self.merge = spec.merge  # as the batch in progress was begun; a later definition counts from the next one on
        self.counters = Counters()
        self.adapter: Adapter | None = None
        self.ownership: Ownership | None = None  # None: all keys are this instance's, as for a batch DataFrame
        self._shares: Shares | None = None
        self.staged = Units()  # of which copies may lie here that are not owned yet, or any more
        self.followers: list[Follower] = []
        self.hot: HotKeys | None = None  # counts the rows of the keys that have most, where somebody wants to know
        self.fired_elsewhere: list[Units] = []  # came from an owner that has fired their timers in this batch already
        self.before: int | None = (
            None  # the batch before this one; None where it is not known that there was none between
        )
        self.joined = False  # in this batch, so that batches before the next may not have come here
        self.firings = 0  # how often timers have fired here in this batch
        self.unfired = Units()  # came from a lost owner that had not, when this instance had fired its own
        self.held: dict[
            str, list[tuple[str, Entry]]
        ] = {}  # by step: what such timers put out, until the step is served
        self.late_before = 0  # late rows that had been counted when the batch in progress began
        self.spoiled = ""  # why the batch in progress must not be committed: something of it did not replay
        self.journal: Journal = Unwritten()
        self.trail: Trail = NoTrail()
        self.lsn = -1  # of the last frame that the instance rests on
        self.guard: Callable[[], AbstractContextManager[None]] = nullcontext  # the host watches user code through this

    # -- changing ----------------------------------------------------------------------------------------------------

    def change(self, prepare: Callable[[Work], Callable[[], None]], undo: Callable[[], None] | None = None) -> Work:
        """Change all or nothing: prepare on the stage, write it down, then merge what was prepared.

        `prepare` puts parts into the work and gives what merges them; what it changes besides the stage, `undo` changes back.
        What fails before the frame is put in line leaves everything as it was. What fails later leaves memory and changelog
        apart, so nothing more is written, and the next generation of the host begins with what the changelog has.
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
                error.at(operator=self.spec.name, batch=self.progress.batch)
            raise
        work.lsn = self.lsn
        return work

    def _undone(self, undo: Callable[[], None] | None) -> bool:
        try:
            self.state.rollback()
            if undo is not None:
                undo()
        except BaseException:  # noqa: BLE001 whatever it is, nobody knows what memory holds now
            return False
        return True

    def write(self, parts: Sequence[Part]) -> int:
        """Write down what has changed in memory already; if that fails, only the changelog knows what holds."""
        try:
            self.lsn = self.journal.append(self.journal.draft(parts))
        except BaseException as error:
            raise self.uncertain(error) from error
        return self.lsn

    def uncertain(self, error: BaseException) -> GodwitError:
        """Nothing counts any more that this generation does. A changelog that cannot be written says so by itself."""
        failure: GodwitError = StateUncertain(
            f"memory and changelog may differ since {type(error).__name__}: {error}",
            todo="The host starts again from its changelog by itself, and nothing is lost or applied twice",
            operator=self.spec.name,
            batch=self.progress.batch,
        )
        if isinstance(error, (CheckpointUnusable, StaleGeneration, StateUncertain)):
            failure = error
        self.journal.fail(failure)
        return failure

    def take_rows(self, rows: pa.RecordBatch, body: Any, settled: bool) -> None:
        """Change rows from elsewhere, as they are; `settled`: what the keys hold then is committed."""

        def prepare(work: Work) -> Callable[[], None]:
            keys = self.key_codec.from_arrow(rows.columns[:COLUMN_VAR]) if settled else []
            self.state.stage(rows)
            prepared = self.state.prepare()
            info = {"kind": "state", "op": self.name, "batch": self.progress.batch, "settled": settled}
            work.parts.append((info, body))

            def merge() -> None:
                self.state.merge(prepared)
                self.state.settle_keys(keys)

            return merge

        self.change(prepare)

    def drop_keys(self, keys: Sequence[Key], settled: bool, *parts: Part) -> None:
        """Nothing is left of these keys; the parts are written in the same frame."""

        def prepare(work: Work) -> Callable[[], None]:
            self.state.stage_drop(keys)
            prepared = self.state.prepare()
            work.parts += parts
            if len(prepared.changes):
                info = {"kind": "state", "op": self.name, "batch": self.progress.batch, "settled": settled}
                work.parts.append((info, prepared.changes.to_batch(self.key_codec).serialize()))

            def merge() -> None:
                self.state.merge(prepared)
                if settled:  # a batch that begins anew must not bring them back
                    self.state.settle_keys(keys)

            return merge

        self.change(prepare)

    # -- definition and recovery -------------------------------------------------------------------------------------

    def attach(self, spec: OperatorSpec, adapter: Adapter) -> None:
        """Give the instance its code. Definitions may gain variables over the one the state was made with."""
        self.redefine(spec)
        adapter.open(self.state)
        self.adapter = adapter

    def redefine(self, spec: OperatorSpec) -> None:
        """A later definition of the same state, with or without its code."""
        spec.check_fits(self.spec)
        self.state.extend(spec.variables[len(self.spec.variables) :])
        self.spec = spec
        self.watermark.delay_ms, self.watermark.policy = spec.delay_ms, spec.watermark_policy

    def define_part(self) -> Part:
        schema = changes_schema(self.key_codec)
        info = {"kind": "define", "op": self.name, "schema": schema_text(schema), "spec": self.spec.to_dict()}
        return info, b""

    def mark_part(self) -> Part:
        info = {
            "kind": "mark",
            "op": self.name,
            "batch": self.progress.batch,
            "progress": self.progress.to_dict(),
            "watermark": self.watermark.to_dict(),
            "attempt": self.progress.attempt,
            "processing_ms": self.times.processing_ms,
            # Also where all have fired: this host may become the heir of one that has not.
            "due": None if self.due is None else [self.due.processing_ms, self.due.watermark_ms, self.due.late_ms],
            "fired": self.fired,
            "fired_elsewhere": [units.to_dict() for units in self.fired_elsewhere],
            "unfired": self.unfired.to_dict(),
            "firings": self.firings,
            "before": self.before,
            "joined": self.joined,
            "late": self.counters.late,
            "late_before": self.late_before,
            "spoiled": self.spoiled,
            "merge": self.merge,
        }
        return info, b""

    def recover_mark(self, info: Mapping[str, Any]) -> None:
        self._recover_batch(info["batch"])
        if info.get("attempt", 0) > self.progress.attempt:  # the batch began anew: rows of its ledger were reverted
            self.ledger.clear()
            self.held.clear()
        self.progress = Progress.from_dict(info["progress"])
        self.watermark.restore(info["watermark"])
        self.counters.late = info["late"]
        self.late_before = info.get("late_before", info["late"])
        self.spoiled = info.get("spoiled", "")
        self.times = self._times(info["processing_ms"])
        self.merge = merge_of(info.get("merge"))
        self.due = self._recovered_due(info)
        self.fired = info["fired"]
        self.fired_elsewhere = [Units.from_dict(units) for units in info.get("fired_elsewhere", ())]
        self.unfired = Units.from_dict(info["unfired"]) if "unfired" in info else Units()
        self.firings = info.get("firings", 0)
        self.before, self.joined = info.get("before"), info.get("joined", False)

    def _recovered_due(self, info: Mapping[str, Any]) -> Times | None:
        """Marks of earlier versions do not tell up to when timers have fired; the watermark and the time of the batch do."""
        if info["due"] is None and info["fired"] and "unfired" not in info and self.spec.time_mode != "none":
            return Times(info["processing_ms"], self.watermark.late, self.watermark.late)
        return None if info["due"] is None else Times(*info["due"])

    def recover_state(self, info: Mapping[str, Any], batch: pa.RecordBatch) -> None:
        self._recover_batch(info["batch"])
        self.state.replay(batch)
        if info.get("settled"):  # of a key that came from elsewhere, as it was committed there
            self.state.settle_keys(self.key_codec.from_arrow(batch.columns[:COLUMN_VAR]))
        if "slice" in info:  # of a snapshot: settled long ago, so there is nothing to undo
            self.state.settle()

    def recover_ledger(self, info: Mapping[str, Any], body: memoryview) -> None:
        self._recover_batch(info["batch"])
        if info["batch"] < self.progress.batch:
            return  # settled since; it goes when its snapshot is next rewritten
        if "finished" in info:
            self._finished(info)
            return
        self.ledger.make_room()  # it may be the ledger for which there was no room when the host ended
        entry = Entry.from_part(info, memoryview(bytes(body)), self.spec.output_schema)
        if "held" in info:
            self.held.setdefault(info["held"], []).append((info["lane"], entry))
        elif info.get("from"):
            self.ledger.take_over(info["lane"], entry)
        else:
            self.ledger.record(info["lane"], entry)
            if info["batch"] >= 0 and len(entry.rows):
                self.ledger.begin(info["lane"])

    def _recover_batch(self, batch: int) -> None:
        """Any part of a later batch shows that the one before is committed; snapshots keep only the last mark of a batch."""
        if batch > self.progress.batch:
            self.state.settle()
            self.ledger.clear()
            self.held.clear()
            self.progress = self.progress.advance(batch)

    # -- ownership ---------------------------------------------------------------------------------------------------

    def own(self, ownership: Ownership) -> None:
        self.ownership = ownership
        self._shares = None

    @property
    def shares(self) -> Shares | None:
        """The ownership for whole chunks, as it is now."""
        if self.ownership is None:
            return None
        if self._shares is None or self._shares.version != self.ownership.version:
            self._shares = Shares(self.ownership)
        return self._shares

    def stands(self, hashes: Index) -> Any:
        """How this instance stands to the key of every row; see `model.ownership`."""
        shares = self.shares
        assert shares is not None, "only an instance with an ownership is asked"
        return shares.stands(hashes)

    @property
    def between_owners(self) -> bool:
        """Whether some unit is: then a new batch that may fire timers waits, so that both ends of a hand-over fire alike."""
        shares = self.shares
        return shares is not None and shares.between

    @property
    def fires(self) -> bool:
        """Whether some timers have not had their turn in this batch."""
        return not self.fired or bool(self.unfired)

    @property
    def answers_later(self) -> bool:
        """Whether what timers have put out elsewhere is about to be this instance's to tell: it is prepared, not served."""
        return self.ownership is not None and any(step in self.ownership.incoming for step in self.held)

    def inherit_timers(self, units: Units, mark: Mapping[str, Any], same_batch: bool, lost: bool) -> None:
        """Units come with their state. `mark`: their owner's, which says which of their timers have had their turn.

        Where this instance has fired its own, those of a lost owner that had not wait for the next lane that opens here.
        """
        done = fired_of(units, mark) if same_batch else Units()
        if not self.fired:
            if done:
                self.fired_elsewhere.append(done)
        elif lost and self.spec.time_mode != "none":
            self.unfired |= units - done
        if same_batch and self.due is None and mark["due"] is not None:
            self.due = Times(*mark["due"])

    def keep_up(self, progress: Progress, now_ms: int) -> None:
        """Another instance of the operator is in this batch, so those before it are committed.

        If it has begun the batch anew, in a later run of the query, so does this one.
        """
        request = BatchRef(progress.query or "", progress.run or "", progress.batch)
        if progress.query is not None and self.progress.behind(progress):
            self.revert(request)
            return
        if progress.query is None or progress.batch <= self.progress.batch:
            return
        self.check_complete(request)

        def prepare(work: Work) -> Callable[[], None]:
            if self.progress.query is None:
                self.progress = Progress(progress.query, progress.run, -1, progress.fenced)
            elif self.progress.run != progress.run:
                self.progress = self.progress.admit(request)
            self._next_batch(request, now_ms)
            work.parts.append(self.mark_part())
            return lambda: self._settle(now_ms)

        self.change(prepare, self._undo_batch())

    def merge_watermark(self, watermark: Mapping[str, Any], same_batch: bool) -> None:
        """What another instance knows of the lanes' event times, in this batch or at the end of the one before."""
        self.watermark.merge(watermark, same_batch)
        self.times = self._times(self.times.processing_ms)

    def own_part(self) -> Part:
        assert self.ownership is not None
        info = {"kind": "own", "op": self.name, "own": self.ownership.to_dict(), "staged": self.staged.to_dict()}
        return info, b""

    def recover_own(self, host: str, info: Mapping[str, Any]) -> None:
        self.own(Ownership.from_dict(host, info["own"]))
        self.staged = Units.from_dict(info["staged"])

    def recover_committed(self, info: Mapping[str, Any], batch: pa.RecordBatch) -> None:
        """What keys that came from elsewhere held before the batch in progress."""
        if info["batch"] == self.progress.batch:
            self.state.amend(batch)

    # -- batches ------------------------------------------------------------------------------------------------------

    def revert(self, request: BatchRef) -> None:
        """A later run begins the batch in progress anew: everything is as it was when the batch began, and the log says so.

        Its timers fire again with the times they had, as a batch of Spark keeps its timestamp.
        """
        self._begin_anew(self.progress.admit(request).again())

    def begin_initial(self, run: str) -> None:
        """A job brings initial state. What one before it has brought, which did not come to its end, counts no more.

        So it does not matter how the rows are cut this time, nor which they are.
        """
        if run in self.progress.fenced:
            raise StaleRun("another job brings the initial state by now", operator=self.spec.name)
        if self.progress.query is None and run != self.progress.run:
            self._begin_anew(self.progress.initialised_by(run))

    def _begin_anew(self, progress: Progress) -> None:
        def prepare(work: Work) -> Callable[[], None]:
            keys = self._answered_for(list(self.state.touched()))
            changes = self.state.stage_revert(keys)
            prepared = self.state.prepare()
            self.progress = progress
            self.fired = self.progress.batch < 0
            self.fired_elsewhere, self.held, self.unfired = [], {}, Units()
            self.watermark = replace(self.watermark, reported={})
            self.counters.late = self.late_before
            self.spoiled = ""
            self.merge = self.spec.merge
            work.parts += [*self._settled_parts(changes), self.mark_part()]

            def merge() -> None:
                self.state.merge(prepared)
                self.state.settle_keys(keys)
                self.ledger.clear()
                for follower in self.followers:
                    follower.reverted(keys, changes)

            return merge

        self.change(prepare, self._undo_batch())

    def revert_units(self, units: Units) -> None:
        """Keys of an origin that has not begun the batch anew yet: what it has applied of the batch counts no more."""
        assert self.ownership is not None, "keys came from another owner"
        touched = list(self.state.touched())
        hashes: Index = np.array([self.key_codec.route_hash(key) for key in touched], np.int64)
        keys = [touched[i] for i in np.flatnonzero(selects(units, self.ownership)(hashes)).tolist()]

        def prepare(work: Work) -> Callable[[], None]:
            changes = self.state.stage_revert(keys)
            prepared = self.state.prepare()
            work.parts += self._settled_parts(changes)

            def merge() -> None:
                self.state.merge(prepared)
                self.state.settle_keys(keys)

            return merge

        self.change(prepare)

    def _settled_parts(self, changes: Sequence[pa.RecordBatch]) -> list[Part]:
        info = {"kind": "state", "op": self.name, "batch": self.progress.batch, "settled": True}
        return [(dict(info), batch.serialize()) for batch in changes]

    def _answered_for(self, keys: list[Key]) -> list[Key]:
        """Without copies of keys that others own. Keys that were given away and may have to be sent again are not left out."""
        shares, ownership = self.shares, self.ownership
        if not keys or shares is None or ownership is None or shares.whole:
            return keys
        hashes: Index = np.array([self.key_codec.route_hash(key) for key in keys], np.int64)
        mine = ~np.isin(shares.stands(hashes), (int(Stand.AWAY), int(Stand.EXPECTED)))
        for outgoing in ownership.outgoing.values():
            mine |= selects(outgoing.units, ownership)(hashes)
        return [key for key, own in zip(keys, mine.tolist(), strict=True) if own]

    @property
    def applied(self) -> bool:
        """Whether anything of the batch in progress has left a trace."""
        ledger = self.ledger
        return bool(ledger.lanes or ledger.begun or ledger.finished or self.spoiled or self.state.touched())

    @property
    def incomplete(self) -> str:
        """Why the state is not that of the whole batch in progress; empty if nothing shows that."""
        if self.spoiled:
            return f"rows of it were refused: {self.spoiled}"
        lanes = self.ledger.unfinished
        return (
            f"partitions of it were applied in part and never read to their end ({', '.join(lanes)})" if lanes else ""
        )

    def check_complete(self, request: BatchRef) -> None:
        """A batch begins, so Spark has committed the one before: all of that must be here."""
        why = self.incomplete
        if why and not self.spec.ephemeral:
            raise BatchIncomplete(
                f"Spark has committed batch {self.progress.batch}, but {why}",
                todo="Let foreachBatch raise what its batch raises, and evaluate the whole of it. Restore both checkpoints "
                "from a copy made before that batch; or start the query again with onGap='accept', without that batch",
                operator=self.spec.name,
                batch=request.batch,
            )

    def _undo_batch(self) -> Callable[[], None]:
        """Makes a batch that could not be begun undone: what `_next_batch` and its caller set is as it is now."""
        progress, fired, due, times, merge = self.progress, self.fired, self.due, self.times, self.merge
        watermark, fired_elsewhere, held = self.watermark, self.fired_elsewhere, self.held
        unfired, firings, before, joined = self.unfired, self.firings, self.before, self.joined
        spoiled, late, late_before = self.spoiled, self.counters.late, self.late_before

        def undo() -> None:
            self.progress, self.fired, self.due, self.times, self.merge = progress, fired, due, times, merge
            self.watermark, self.fired_elsewhere, self.held = watermark, fired_elsewhere, held
            self.unfired, self.firings, self.before, self.joined = unfired, firings, before, joined
            self.spoiled, self.counters.late, self.late_before = spoiled, late, late_before

        return undo

    def _next_batch(self, request: BatchRef, now_ms: int) -> None:
        """Begin the batch. What was remembered of the one before goes when that is written down: `_settle`."""
        # Timers from initial state wait for the rows of the first batch, as in Spark.
        is_first = self.times.processing_ms == 0
        self.due = None if self.spec.time_mode == "none" or is_first else self._times(now_ms)
        self.fired = False
        self.fired_elsewhere, self.held = [], {}
        self.unfired, self.firings = Units(), 0  # what is left of it is due in the new batch, too
        self.before = None if self.joined or self.progress.batch < 0 else self.progress.batch
        self.joined = False
        self.progress = self.progress.advance(request.batch)
        before = self.watermark
        self.watermark = replace(before, lanes=dict(before.lanes), reported=dict(before.reported))
        self.watermark.next_batch()
        self.times = self._times(now_ms)
        self.merge = self.spec.merge
        self.late_before = self.counters.late
        self.spoiled = ""

    def _settle(self, now_ms: int) -> None:
        """The batch before is committed: forget how to answer for it."""
        self.state.settle()
        self.ledger.clear()
        self.counters.recent.append((self.progress.batch, now_ms, self.counters.rows))

    def _times(self, now_ms: int) -> Times:
        """A batch DataFrame has no watermark: PySpark shows -1."""
        if self.spec.ephemeral:
            return Times(now_ms, -1)
        return Times(now_ms, self.watermark.eviction, self.watermark.late)

    def _finished(self, info: Mapping[str, Any]) -> None:
        self.ledger.finished[info["lane"]] = info["finished"]
        self.watermark.report(info["lane"], info["event_max_ms"])


def fired_of(units: Units, mark: Mapping[str, Any]) -> Units:
    """Those of the units whose timers have had their turn in the batch of the mark, at the host that wrote it."""
    if mark["fired"]:
        return units - Units.from_dict(mark["unfired"]) if "unfired" in mark else units
    done = Units()
    for elsewhere in mark.get("fired_elsewhere", ()):
        done |= units & Units.from_dict(elsewhere)
    return done
