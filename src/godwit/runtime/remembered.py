"""What an instance is between two requests: state, ledger, progress, watermark, ownership; and how it comes back from the log.

Decides which parts say it, and what a part that is read again means. What requests do to it is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import BatchIncomplete
from godwit.model.ownership import Ownership, Stand
from godwit.model.progress import BatchRef, Progress
from godwit.model.units import Units
from godwit.model.watermark import Watermark
from godwit.runtime.rows import Adapter, Index, Times
from godwit.runtime.shares import Shares, selects
from godwit.runtime.sketch import HotKeys
from godwit.runtime.spec import OperatorSpec, merge_of, schema_text
from godwit.runtime.work import Counters, Follower, Part
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
        self.unlogged: list[Part] = []  # to be written down even if the request that led to it fails
        self.guard: Callable[[], AbstractContextManager[None]] = nullcontext  # the host watches user code through this

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
        """Whether some unit is: then a new batch waits, so that both ends of a hand-over stay in the same one."""
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

    def keep_up(self, progress: Progress, now_ms: int) -> list[Part]:
        """Another instance of the operator is in this batch, so those before it are committed. Nothing if that is no news.

        If it has begun the batch anew, in a later run of the query, so does this one.
        """
        request = BatchRef(progress.query or "", progress.run or "", progress.batch)
        if progress.query is not None and self.progress.behind(progress):
            self.progress = self.progress.admit(request)
            return self.revert()
        if progress.query is None or progress.batch <= self.progress.batch:
            return []
        self.check_complete(request)
        if self.progress.query is None:
            self.progress = Progress(progress.query, progress.run, -1, progress.fenced)
        elif self.progress.run != progress.run:
            self.progress = self.progress.admit(request)
        self._next_batch(request, now_ms)
        return [self.mark_part()]

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

    def revert(self) -> list[Part]:
        """The batch in progress begins anew: everything is as it was when the batch began. Gives what says so in the log.

        Its timers fire again with the times they had, as a batch of Spark keeps its timestamp.
        """
        keys = self._answered_for(list(self.state.touched()))
        changes = self.state.revert(keys)
        parts = self._settled_parts(changes)
        self.ledger.clear()
        self.fired = self.progress.batch < 0
        self.fired_elsewhere, self.held, self.unfired = [], {}, Units()
        self.watermark.reported = {}
        self.counters.late = self.late_before
        self.spoiled = ""
        self.merge = self.spec.merge
        self.progress = self.progress.again()
        for follower in self.followers:
            follower.reverted(keys, changes)
        return [*parts, self.mark_part()]

    def revert_units(self, units: Units) -> list[Part]:
        """Keys of an origin that has not begun the batch anew yet: what it has applied of the batch counts no more."""
        assert self.ownership is not None, "keys came from another owner"
        keys = list(self.state.touched())
        hashes: Index = np.array([self.key_codec.route_hash(key) for key in keys], np.int64)
        chosen = np.flatnonzero(selects(units, self.ownership)(hashes)).tolist()
        return self._settled_parts(self.state.revert([keys[i] for i in chosen]))

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
        return bool(self.ledger.lanes or self.ledger.finished or self.spoiled or self.state.touched())

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

    def _next_batch(self, request: BatchRef, now_ms: int) -> None:
        """The batch before is committed: forget how to answer for it. Stays so even if a timer's code then throws."""
        self.state.settle()
        self.ledger.clear()
        # Timers from initial state wait for the rows of the first batch, as in Spark.
        is_first = self.times.processing_ms == 0
        self.due = None if self.spec.time_mode == "none" or is_first else self._times(now_ms)
        self.fired = False
        self.fired_elsewhere, self.held = [], {}
        self.unfired, self.firings = Units(), 0  # what is left of it is due in the new batch, too
        self.before = None if self.joined or self.progress.batch < 0 else self.progress.batch
        self.joined = False
        self.progress = self.progress.advance(request.batch)
        self.watermark.next_batch()
        self.times = self._times(now_ms)
        self.merge = self.spec.merge
        self.late_before = self.counters.late
        self.spoiled = ""
        self.counters.recent.append((request.batch, now_ms, self.counters.rows))

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
