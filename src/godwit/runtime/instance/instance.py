"""An operator's share on one host: decides what a request means, applies it whole or not at all, remembers what it gave back.

Everything that must be durable is put in line in the changelog before memory changes (`Remembered.change`); the host waits
until it is written before it answers. No threads, sockets, files or clock here: the host holds the lock and tells the time.
Follows DESIGN 4: the ledger of the batch in progress, commit proven by the next batch, timers fired between two batches.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import (
    CheckpointMismatch,
    DefinitionError,
    GodwitError,
    InvariantBroken,
    NotReplayable,
    ProcessorFailed,
    StaleBatch,
    StaleRun,
)
from godwit.model.ownership import Stand
from godwit.model.progress import BatchRef, Verdict
from godwit.model.units import Units
from godwit.runtime.instance.ownership_columns import MINE, selects
from godwit.runtime.instance.remembered import Remembered
from godwit.runtime.instance.user_code import Calls, Due, Sifting
from godwit.runtime.instance.work import Admit, Chunk, Followed, Work
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Adapter, Index, Outputs, Rows, Times
from godwit.state.keys import Key
from godwit.state.ledger import TIMER_ROW, Entry, in_row_order, with_rows


class Instance(Remembered):
    """What a request does to what is remembered."""

    # -- requests ----------------------------------------------------------------------------------------------------

    def open(self, request: BatchRef, lane: str, now_ms: int, admit: Admit, carries: bool = True) -> Work:
        """A lane begins a batch here. The first to do so settles the batch before; the first that has rows fires its timers.

        What timers put out leaves through that lane, and only through it, however often it is opened again. A lane without
        rows cannot be told from others of its kind, so it carries nothing; if no other opens, timers wait for the next batch.
        """
        if self.progress.judge(request) is Verdict.UNKNOWN_RUN:
            self._check_run(request, admit)
        work = self.change(lambda work: self._prepare_batch(work, request, lane, now_ms, carries), self._undo_batch())
        work.outputs = self.ledger.timer_outputs(lane) if carries else []
        work.begun["firings"] = self.ledger.firings(lane) if carries else []
        return work

    def _prepare_batch(
        self, work: Work, request: BatchRef, lane: str, now_ms: int, carries: bool
    ) -> Callable[[], None]:
        verdict = self.progress.judge(request)
        if unknown := verdict is Verdict.UNKNOWN_RUN:  # checked before, and nothing of the batch is applied here
            self.progress = self.progress.admit(request)
            self.merge = self.spec.merge
            verdict = self.progress.judge(request)
        self._refuse(verdict, request, lane)
        if begins := verdict is not Verdict.SAME:
            self.check_complete(request)
            self._next_batch(request, now_ms)
        fires = carries and self.fires
        fire = self._prepare_timers(work, lane) if fires else None
        # A run taken up within a batch is written down at once, so that the one before stays fenced after a restart.
        if begins or unknown or fires:
            work.parts.insert(0, self.mark_part())
        # What is behind the watermark may be late, or may not be for this processor: that is told of each row by itself.
        by_event = self._late_us(self.times) is not None
        work.begun = {"merge": self.merge, "late_us": self.times.late_ms * 1000 if by_event else None}
        work.begun |= {"before": self.before}

        def merge() -> None:
            if begins:
                self._settle(now_ms)
            if fire is not None:
                fire()

        return merge

    def _check_run(self, request: BatchRef, admit: Admit) -> None:
        """A run that is new here. If it replays the batch in progress, what was applied of that is reverted, as Spark does.

        So it does not matter how the batch is cut this time, nor what is in it.
        """
        why = self.incomplete if request.batch > self.progress.batch and not self.spec.ephemeral else ""
        try:
            admit(request, self.progress.batch - bool(why), self.progress.query is None)
        except CheckpointMismatch as error:
            raise error if not why else self._lost_batch(why, error) from None
        if request.batch < self.progress.batch:
            raise CheckpointMismatch(
                f"Spark starts again at batch {request.batch}, but this state already holds batch {self.progress.batch}: "
                "Spark's checkpoint is older than Godwit's",
                todo="Restore both checkpoints from the same copy",
                operator=self.spec.name,
            )
        if why or (request.batch == self.progress.batch and self.applied):
            self.revert(request)

    def _lost_batch(self, why: str, error: CheckpointMismatch) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"Spark has committed batch {self.progress.batch}, but {why}. So this state is that of the batch before",
            todo=error.todo,
            operator=self.spec.name,
        )

    def _refuse(self, verdict: Verdict, request: BatchRef, lane: str) -> None:
        where: dict[str, Any] = {"operator": self.spec.name, "batch": request.batch, "lane": lane}
        match verdict:
            case Verdict.OTHER_QUERY:
                raise CheckpointMismatch(
                    f"this state belongs to query {self.progress.query}, not to query {request.query}: Spark's checkpoint is "
                    "missing or another one",
                    todo="Start the query with the checkpointLocation it had, or use a fresh checkpoint directory for both",
                    **where,
                )
            case Verdict.STALE_RUN:
                raise StaleRun(f"run {request.run} was replaced by run {self.progress.run}", **where)
            case Verdict.STALE_BATCH:
                raise StaleBatch(f"batch {self.progress.batch} has begun, so this one is committed", **where)
            case Verdict.UNKNOWN_RUN:
                raise InvariantBroken("a run was admitted and is still unknown", **where)
            case Verdict.SAME | Verdict.NEXT | Verdict.SKIPPED:
                return

    def _prepare_timers(self, work: Work, lane: str) -> Callable[[], None]:
        """Timers that are due after the rows of the batch before, which is complete: as Spark fires them at its end."""
        self.state.now_ms = self.times.processing_ms
        if not self.staged:  # a copy must stay as its owner has it; what has expired is not seen anyway
            self.state.expire_ttl(self.times.processing_ms)
        due = self.due
        timers = [] if due is None else self._owned(self.state.due(self._due_ms(due)))
        if due is not None and timers:
            sifting = self._sifting(self.progress.batch, self.progress.run or "", lane, due)
            sifting.timers(timers)
            tagged = in_row_order(sifting.outputs or [_empty(self.spec.output_schema)])
            entry = Entry(_NO_ROWS, _NO_ROWS, tagged, firing=self._next_firing())
            record = self._prepare_record(work, lane, entry)
        else:
            record = self._prepare_changes(work)
        self.fired, self.unfired = True, self._not_owned(self.unfired)

        def merge() -> None:
            record()
            self.counters.timers_fired += len(timers)
            for follower in self.followers:
                follower.changed(self.progress.batch, work.changes)

        return merge

    def _next_firing(self) -> str:
        """A name that no other firing of the batch has, at any host."""
        self.firings += 1
        return f"{'' if self.ownership is None else self.ownership.host}/{self.progress.batch}/{self.firings}"

    def _owned(self, timers: list[tuple[int, Key]]) -> list[tuple[int, Key]]:
        """Without those of keys that others own, or that came from an owner who has fired them in this batch already.

        If this instance has fired its own, only those that came from a lost owner who had not are left.
        """
        if not timers or (shares := self.shares) is None:
            return timers
        if shares.whole and not self.fired and not self.fired_elsewhere:
            return timers
        hashes: Index = np.array([self.key_codec.route_hash(key) for _, key in timers], np.int64)
        mine = np.isin(self.stands(hashes), (MINE, int(Stand.LENT)))
        for units in self.fired_elsewhere:
            assert self.ownership is not None, "keys came from another owner"
            mine &= ~selects(units, self.ownership)(hashes)
        if self.fired:
            assert self.ownership is not None, "keys came from another owner"
            mine &= selects(self.unfired, self.ownership)(hashes)
        return [timer for timer, own in zip(timers, mine.tolist(), strict=True) if own]

    def _not_owned(self, units: Units) -> Units:
        """Those of them whose timers cannot fire here: they are still between two owners."""
        if self.ownership is None:
            return units
        fire = (Stand.MINE, Stand.LENT)
        return Units.of(*(unit for unit in units if self.ownership.share(unit).stand not in fire))

    def _due_ms(self, times: Times) -> int:
        return times.watermark_ms if self.spec.time_mode == "eventTime" else times.processing_ms

    def apply(self, request: BatchRef, lane: str, chunk: Chunk) -> Work:
        """Rows of a lane, ascending by index. Rows applied before are answered from the ledger, the others are applied."""
        self._check_current(request, lane)
        unseen = self._unseen(lane, chunk)
        recorded: list[pa.RecordBatch] = []
        if unseen is not None:
            recorded = self.ledger.recorded(lane, chunk.rows[~unseen])
            chunk = chunk.filter(unseen)
        if len(chunk):
            self.ledger.begin(lane)  # first: rows that fail are as much part of the batch
        work = self._apply_unseen(request, lane, chunk) if len(chunk) else Work(lsn=self.lsn)
        work.outputs = [*recorded, *work.outputs]
        if unseen is not None:
            self.counters.replayed += len(unseen) - len(chunk)
        if len(chunk):
            self.counters.rows += len(chunk)
            self.counters.sample(chunk.hashes)
        return work

    def _unseen(self, lane: str, chunk: Chunk) -> Any:
        ended = self.ledger.finished.get(lane)
        if ended is not None and len(chunk) and (last := int(chunk.rows[-1])) >= ended:
            # An attempt that is ended before it comes to its own end (a speculative copy) would not be found out then.
            raise self._spoil(_cut_otherwise(lane, f"had {ended} rows before and now has a row {last}"))
        try:
            return self.ledger.unseen(lane, chunk.rows, chunk.hashes, chunk.checks)
        except NotReplayable as error:
            raise self._spoil(error) from None

    def _spoil(self, error: NotReplayable) -> NotReplayable:
        """Rows of other lanes may have been applied, so nothing more of this batch is taken in this run of the query."""
        error.at(operator=self.spec.name, batch=self.progress.batch)
        if not self.spoiled:
            self.spoiled = error.message
            self.write([self.mark_part()])
        return error

    def follow(self, request: BatchRef, lane: str, chunk: Chunk, times: Times) -> Work:
        """Rows that the owner has applied and answered, applied here too, so that this copy stays the same as the owner's.

        A batch that is over here is committed: nobody asks for its rows again, and what they change is settled at once.
        """
        over = request.batch < self.progress.batch
        record = not over and request.run == self.progress.run  # nor of an attempt that was reverted here
        unseen = self.ledger.unseen(lane, chunk.rows, chunk.hashes, chunk.checks) if record else None
        chunk = chunk if unseen is None else chunk.filter(unseen)
        self.ledger.mixed.add(lane)
        followed = Followed(times, over, record)
        return self._apply_unseen(request, lane, chunk, followed) if len(chunk) else Work(lsn=self.lsn)

    def _check_current(self, request: BatchRef, lane: str) -> None:
        verdict = self.progress.judge(request)
        if verdict is not Verdict.SAME:
            self._refuse(verdict, request, lane)
            raise InvariantBroken("rows came before their batch was opened", operator=self.spec.name, lane=lane)
        if self.spoiled:
            raise NotReplayable(
                f"something of this batch did not replay, so it cannot be completed in this run: {self.spoiled}",
                todo="Start the query again: the batch is then reverted first, and may be cut otherwise",
                operator=self.spec.name,
                batch=request.batch,
                lane=lane,
            )

    def _apply_unseen(self, request: BatchRef, lane: str, chunk: Chunk, followed: Followed | None = None) -> Work:
        late = self.counters.late

        def undo() -> None:
            self.counters.late = late

        return self.change(lambda work: self._prepare_rows(work, request, lane, chunk, followed), undo)

    def _prepare_rows(
        self, work: Work, request: BatchRef, lane: str, chunk: Chunk, followed: Followed | None
    ) -> Callable[[], None]:
        self.ledger.make_room()  # first, because it may fail
        times = self.times if followed is None else followed.times
        kept = self._without_late(chunk, times)
        late = len(chunk) - len(kept)
        self.state.now_ms = times.processing_ms
        keys: list[Key] = []
        if len(kept):
            grouped = group_by_key(kept.batch, kept.rows, self.key_codec)
            keys = grouped.keys
            sifting = self._sifting(request.batch, request.run, lane, times)
            sifting.rows(kept, grouped)
            tagged = in_row_order(sifting.outputs or [_empty(self.spec.output_schema)])
            late += sifting.late_rows
            if self.hot is not None and followed is None:  # rows that are only followed count at their owner
                self.hot.add(grouped, kept.hashes)
        else:
            tagged = _empty(self.spec.output_schema)
        if late:
            self.counters.late += late
            work.parts.append(self.mark_part())
        entry = Entry(chunk.rows, chunk.hashes, tagged, checks=chunk.checks)
        over = followed is not None and followed.over
        record = self._prepare_record(work, lane, entry, followed is None or followed.record, settled=over)
        if followed is not None:
            for info, _ in work.parts:
                if info["kind"] == "ledger":  # the router says to the owner that the lane has ended, perhaps not here
                    info["from"] = "owner"

        def merge() -> None:
            record()
            if over:
                self.state.settle_keys(keys)
            for follower in self.followers:
                follower.applied(request, lane, chunk, times, keys, work)

        return merge

    def _without_late(self, chunk: Chunk, times: Times) -> Chunk:
        """As Spark does, rows at or before the watermark of the batch before are not processed; here they are counted."""
        late_us = self._late_us(times)
        if late_us is None or self.spec.event_time is None:
            return chunk
        return chunk.filter(event_times_us(chunk.batch, self.spec.event_time) > late_us)

    def _late_us(self, times: Times) -> int | None:
        """The newest event time that is late; None where none is."""
        if self.spec.time_mode != "eventTime" or self.spec.event_time is None or self.spec.ephemeral:
            return None
        return (times.late_ms - self.spec.lateness_ms) * 1000

    def _sifting(self, batch: int, run: str, lane: str, times: Times) -> Sifting:
        """How rows or timers go to user code; what it cannot take may be set aside."""

        def process(rows: Rows, times: Times) -> pa.RecordBatch:
            return self._call(lambda adapter: _tagged(adapter.process(rows, times)))

        def expire(timers: Due, times: Times) -> pa.RecordBatch:
            rows = TIMER_ROW + np.array([expiry for expiry, _ in timers], np.int64)
            return self._call(lambda adapter: _tagged(adapter.expire(timers, times), rows))

        def late_rows() -> int:
            return getattr(self.adapter, "late_rows", 0)  # a window decides by itself which rows are too late for it

        calls = Calls(process, expire, late_rows)
        return Sifting(self.spec, self.state, self.key_codec, self.trail, batch, run, lane, times, calls)

    def clear_letters(self) -> int:
        """Forget the dead letters of all keys that are owned here; says how many there were."""
        keys = self.state.letter_keys()
        if keys and self.ownership is not None:
            hashes: Index = np.array([self.key_codec.route_hash(key) for key in keys], np.int64)
            keys = [key for key, own in zip(keys, (self.stands(hashes) == MINE).tolist(), strict=True) if own]
        before = self.state.letter_count

        def prepare(work: Work) -> Callable[[], None]:
            self.state.letter_clear(keys)
            changes = self._prepare_changes(work)

            def merge() -> None:
                changes()
                for follower in self.followers:
                    follower.changed(self.progress.batch, work.changes)

            return merge

        self.change(prepare)
        return before - self.state.letter_count

    def _call(self, call: Callable[[Adapter], pa.RecordBatch]) -> pa.RecordBatch:
        """Run user code on the staged state, which `change` rolls back whatever the code or its outputs do wrong."""
        if self.adapter is None:
            raise DefinitionError(
                "the operator has not been defined since this flock was opened",
                todo="Call flock.transformWithState (or process) for it before the query starts",
                operator=self.spec.name,
            )
        try:
            with self.guard():
                return call(self.adapter)
        except GodwitError as error:
            raise error.at(operator=self.spec.name, batch=self.progress.batch) from error.__cause__
        except (Exception, SystemExit) as error:
            key = self.adapter.current_key
            raise ProcessorFailed(
                f"the processor threw {type(error).__name__}: {error}",
                todo="The batch fails and state is as before; fix the processor or the row and start the query again",
                operator=self.spec.name,
                key=None if key is None else self.key_codec.public(key),
                batch=self.progress.batch,
                trace="".join(traceback.format_exception(error)[-6:]),
            ) from error

    def _prepare_record(
        self, work: Work, lane: str, entry: Entry, record: bool = True, settled: bool = False
    ) -> Callable[[], None]:
        outputs = entry.outputs
        merge_changes = self._prepare_changes(work, settled)
        if record:
            part = entry.part(self.name, self.progress.batch, lane)
            entry = entry.within(part)
            work.parts.append(part)
        if len(outputs):
            work.outputs.append(outputs)

        def merge() -> None:
            merge_changes()
            if record:
                self.ledger.record(lane, entry)
            self.counters.outputs += len(outputs)

        return merge

    def _prepare_changes(self, work: Work, settled: bool = False) -> Callable[[], None]:
        prepared = self.state.prepare()
        work.changes = prepared.changes
        if len(prepared.changes):
            info = {"kind": "state", "op": self.name, "batch": self.progress.batch}
            info |= {"settled": True} if settled else {}
            work.parts.append((info, prepared.changes.to_batch(self.key_codec).serialize()))
        return lambda: self.state.merge(prepared)

    def finish(
        self, request: BatchRef, lane: str, row_count: int | None, event_max_ms: int | None, sent: int | None = None
    ) -> Work:
        """The lane has sent all its rows, `sent` of them to this host; its event time counts from the next batch on."""
        self._check_current(request, lane)
        before = self.ledger.finished.get(lane)
        if before is None and (applied := self.ledger.last_row(lane) + 1) > (row_count or 0):
            before = applied  # by an attempt that did not come to its end
        if before is not None and before != row_count and row_count is not None:
            raise self._spoil(_cut_otherwise(lane, f"had {before} rows before and has {row_count} now"))
        if row_count is not None and sent is not None:
            self._check_sent(lane, sent)
        self._refuse_due_timers()
        if lane in self.ledger.finished:
            return Work(lsn=self.lsn)
        info = {"kind": "ledger", "op": self.name, "batch": request.batch, "lane": lane}
        info |= {"finished": row_count, "event_max_ms": event_max_ms}

        def prepare(work: Work) -> Callable[[], None]:
            work.parts.append((info, b""))
            return lambda: self._finished(info)

        return self.change(prepare)

    def _check_sent(self, lane: str, sent: int) -> None:
        """A row that came with another key may have gone to another host, which did not know it and has applied it."""
        if self.ownership is not None and self.ownership.outgoing:
            return  # rows of keys that were given away are still here
        applied = self.ledger.applied_here(lane)
        if applied is not None and applied > sent:
            raise self._spoil(
                NotReplayable(
                    f"{applied} rows of this partition were applied here, and {sent} came again: others of them have come "
                    "with other keys, so rows cannot be told apart",
                    todo="Name lane and sequence columns for this source, or make the input before the operator "
                    "deterministic",
                    lane=lane,
                )
            )

    def _refuse_due_timers(self) -> None:
        """A batch DataFrame has no batch after it in which a timer could fire; one that is still to come never does."""
        upcoming = self.state.next_timer_ms() if self.spec.ephemeral else None
        due_ms = self._due_ms(self.times)
        if upcoming is not None and upcoming <= due_ms:
            raise DefinitionError(
                f"a timer was set for {upcoming} ms, which is over at {due_ms} ms, and timers do not fire on a batch DataFrame",
                todo="Set timers for times to come, or use a streaming DataFrame",
                operator=self.spec.name,
            )

    def initialise(self, lane: str, batch: pa.RecordBatch, row_index: Index, hashes: Index, now_ms: int) -> Work:
        """Rows of the initial state, before any batch; given again after a failure, they change nothing twice."""
        if self.progress.query is not None:
            raise DefinitionError(
                "initial state was given to an operator that has already processed batches",
                todo="Drop initialState: it was taken up when the operator was new",
                operator=self.spec.name,
            )
        self.ledger.make_room()
        unseen = self.ledger.unseen(lane, row_index, hashes)
        if unseen is not None:
            batch, row_index, hashes = batch.filter(pa.array(unseen)), row_index[unseen], hashes[unseen]
        if not len(row_index):
            return Work(lsn=self.lsn)

        def prepare(work: Work) -> Callable[[], None]:
            rows, times = group_by_key(batch, row_index, self.key_codec), self._times(now_ms)
            self.state.now_ms = now_ms
            self._call(lambda adapter: _initialise(adapter, rows, times, self.spec.output_schema))
            return self._prepare_record(work, lane, Entry(row_index, hashes, _empty(self.spec.output_schema)))

        return self.change(prepare)

    def timers_due(self, now_ms: int) -> bool:
        """Whether a further batch would fire a timer or, as Spark does when nothing else comes, move the watermark."""
        by_event = self.spec.time_mode == "eventTime"
        if by_event and self.watermark.upcoming() > self.watermark.eviction:
            return True
        upcoming = self.state.next_timer_ms()
        if self.spec.time_mode == "none" or upcoming is None:
            return False
        return upcoming <= (self.watermark.eviction if by_event else now_ms)

    def describe(self) -> dict[str, Any]:
        """Where the instance is, for errors about it."""
        key = None if self.adapter is None else self.adapter.current_key
        return {
            "operator": self.spec.name,
            "key": None if key is None else self.key_codec.public(key),
            "batch": self.progress.batch,
        }

    def current_call(self) -> int:
        """Tells the calls of user code that a request needs from each other."""
        return 0 if self.adapter is None else self.adapter.current_call

    def status(self) -> dict[str, Any]:
        counters = self.counters
        return {
            "operator": self.spec.name,
            "instance": self.name,
            "keys": self.state.key_count,
            "bytes": self.state.bytes_estimate,
            "ledger_bytes": self.ledger.memory_bytes,
            "ledger_disk_bytes": self.ledger.disk_bytes,
            "undo_bytes": self.state.undo_bytes,
            "undo_disk_bytes": self.state.undo_disk_bytes,
            "batch": self.progress.batch,
            "query": self.progress.query,
            "watermark_ms": self.watermark.eviction,
            "rows": counters.rows,
            "outputs": counters.outputs,
            "replayed": counters.replayed,
            "late": counters.late,
            "timers_fired": counters.timers_fired,
            "busy_s": counters.busy_s,
            "rows_per_second": counters.rate(),
            "batches": counters.batches(),
            "merges": bool(self.spec.merge),
            "touched_ms": self.times.processing_ms,
            "dead_letters": self.state.letter_count,
        }

    def close(self) -> None:
        self.ledger.clear()
        if self.adapter is not None:
            self.adapter.close()
            self.adapter = None


def _cut_otherwise(lane: str, how: str) -> NotReplayable:
    return NotReplayable(
        f"this partition of the batch {how}, so rows cannot be told apart",
        todo="Start the query again: the batch is then reverted first. Use a source that cuts a batch into the same "
        "partitions whenever it is read, or name lane and sequence columns",
        lane=lane,
    )


def event_times_us(batch: pa.RecordBatch, column: str) -> Index:
    """Event times in microseconds; a row without one is never late, as in Spark."""
    times = batch.column(batch.schema.get_field_index(column))
    micros = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()).fill_null(_END_OF_TIME)
    found: Index = micros.to_numpy(zero_copy_only=False)
    return found


def _initialise(adapter: Adapter, rows: Rows, times: Times, output_schema: pa.Schema) -> pa.RecordBatch:
    adapter.initialise(rows, times)
    return _empty(output_schema)


def _tagged(outputs: Outputs, rows: Index | None = None) -> pa.RecordBatch:
    """Outputs with the row column in front, in row order; `rows` says which rows their indices stand for, if not themselves."""
    batch, row = outputs.batch, outputs.row_index if rows is None else rows[outputs.row_index]
    if len(row) > 1 and (np.diff(row) < 0).any():
        order = np.argsort(row, kind="stable")
        batch, row = batch.take(order), row[order]
    return pa.RecordBatch.from_arrays([pa.array(row, pa.int64()), *batch.columns], schema=with_rows(batch.schema))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    wide = with_rows(schema)
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in wide], schema=wide)


_NO_ROWS: Index = np.empty(0, np.int64)
_END_OF_TIME = 2**62
