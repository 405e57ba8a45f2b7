"""The part of an operator on one host: takes requests one at a time and passes each to the module that carries it out.

- `lane_requests`: a lane opens or finishes a batch
- `chunk_applier`: rows are applied
- `timer_firing`: timers fire
- `batches`: the next batch begins, or the batch in progress begins anew
- `initial_rows`: initial state is loaded
- `key_changes`: keys come from other hosts, or are dropped
- `user_code`: the processor is called

All of them change one `Memory`, and all in the same way: `DurableChanges.change`. An instance has no threads, sockets, files or
clock: the host holds the lock and passes the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef, Progress
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.chunk.ownership_columns import Stands
from godwit.runtime.durable import changelog_parts
from godwit.runtime.durable.batch_in_progress import BatchInProgress
from godwit.runtime.durable.durable_changes import DurableChanges
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.batch_checks import BatchChecks
from godwit.runtime.instance.batches import Batches
from godwit.runtime.instance.chunk_applier import ChunkApplier
from godwit.runtime.instance.initial_rows import InitialRows
from godwit.runtime.instance.key_changes import KeyChanges
from godwit.runtime.instance.lane_requests import AdmitRun, AskWatermark, LaneEnd, LaneRequests
from godwit.runtime.instance.timer_firing import TimerFiring
from godwit.runtime.instance.user_code import UserCode
from godwit.runtime.processor.rows import Adapter, Index, Times
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec


class Instance:
    def __init__(self, name: str, spec: OperatorSpec, state: KeyedState, key_codec: KeyCodec) -> None:
        self.memory = memory = Memory(name, spec, state, key_codec)
        self.name, self.state, self.key_codec = name, state, key_codec
        self.definition = ""  # identifies the definition whose code this instance has
        self.ledger, self.counters, self.followers = memory.ledger, memory.counters, memory.followers
        self.recovery = changelog_parts.Recovery(memory)
        self.durable = durable = DurableChanges(memory)
        self.code = UserCode(memory)
        self.keys = KeyChanges(memory, durable)
        self.timers = TimerFiring(memory, durable, self.code)
        self._checks = checks = BatchChecks(memory, durable)
        self.batches = Batches(memory, durable, checks)
        self._lanes = LaneRequests(memory, durable, checks, self.batches, self.timers)
        self._chunks = ChunkApplier(memory, durable, checks, self.code)
        self._initial = InitialRows(memory, durable, self.code)

    # -- requests ----------------------------------------------------------------------------------------------------

    def open(
        self,
        request: BatchRef,
        lane: str,
        now_ms: int,
        admit: AdmitRun,
        carries: bool = True,
        batch_ms: int | None = None,
        ask_watermark: AskWatermark | None = None,
    ) -> Work:
        """Open a lane of a batch; see `LaneRequests.open`."""
        return self._lanes.open(request, lane, now_ms, admit, carries, batch_ms, ask_watermark)

    def apply(self, request: BatchRef, lane: str, chunk: Chunk) -> Work:
        """Apply rows of a lane, ascending by number. Rows that were applied before are answered from the ledger."""
        return self._chunks.apply(request, lane, chunk)

    def follow(self, request: BatchRef, lane: str, chunk: Chunk, times: Times) -> Work:
        """Replay rows that their owner has applied, on the copies here."""
        return self._chunks.follow(request, lane, chunk, times)

    def fire_due(
        self, request: BatchRef, lane: str, now_ms: int, event_max_ms: int | None, known: Mapping[str, int]
    ) -> Work:
        """In real time: fire the timers that are due now."""
        return self._lanes.fire_due(request, lane, now_ms, event_max_ms, known)

    def finish(
        self, request: BatchRef, lane: str, row_count: int | None, event_max_ms: int | None, sent: int | None = None
    ) -> Work:
        """The lane has sent all its rows, `sent` of them to this host."""
        return self._lanes.finish(request, lane, LaneEnd(row_count, event_max_ms, sent))

    def fire(self, request: BatchRef, lane: str) -> Work:
        """The lane has no more rows, and its timers fire; see `LaneRequests.fire`."""
        return self._lanes.fire(request, lane)

    def begin_initial(self, run: str) -> None:
        """A job loads initial state: initial state of an earlier job is dropped."""
        self.batches.begin_initial(run)

    def initialise(self, lane: str, batch: pa.RecordBatch, row_index: Index, hashes: Index, now_ms: int) -> Work:
        """Apply rows of the initial state, before any batch."""
        return self._initial.apply(lane, batch, row_index, hashes, now_ms)

    def is_of(self, definition: str) -> bool:
        """Whether the instance has the code of this definition; True if the definition is not known."""
        return not definition or self.definition == definition

    def redefine(self, spec: OperatorSpec) -> None:
        """Take the form of a later definition. The changelog says so before anything is written in that form."""
        if spec.same_forms(self.spec):
            return
        self.memory.check_successor(spec)
        try:
            self.memory.redefine(spec)
        except BaseException as error:
            raise self.durable.uncertain(error) from error
        self.write([self.define_part()])

    def attach(self, spec: OperatorSpec, adapter: Adapter) -> None:
        """Give the instance its code."""
        self.code.attach(spec, adapter)

    def close(self) -> None:
        self.ledger.clear()
        self.code.close()

    # -- the changelog -----------------------------------------------------------------------------------------------

    @property
    def lsn(self) -> int:
        """The number of the newest frame with a change of the instance."""
        return self.durable.lsn

    def write(self, parts: Sequence[NewPart]) -> int:
        """Append parts that describe a change which memory has already."""
        return self.durable.write(parts)

    def define_part(self) -> NewPart:
        return changelog_parts.define_part(self.memory)

    def mark_part(self) -> NewPart:
        return changelog_parts.mark_part(self.memory)

    def own_part(self) -> NewPart:
        return changelog_parts.own_part(self.memory)

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> OperatorSpec:
        return self.memory.spec

    @property
    def batch(self) -> BatchInProgress:
        return self.memory.batch

    @property
    def progress(self) -> Progress:
        return self.memory.batch.progress

    @property
    def ownership(self) -> Ownership | None:
        return self.memory.ownership

    def stands(self, hashes: Index) -> Stands:
        """The stand of this instance to the key of every row; see `model.ownership`."""
        return self.memory.stands(hashes)

    def status(self) -> dict[str, Any]:
        counters, state, ledger = self.counters, self.state, self.ledger
        return {
            "operator": self.spec.name,
            "instance": self.name,
            "keys": state.key_count,
            "bytes": state.bytes_estimate,
            "ledger_bytes": ledger.memory_bytes,
            "ledger_disk_bytes": ledger.disk_bytes,
            "undo_bytes": state.undo_bytes,
            "undo_disk_bytes": state.memory_limit.undo_disk_bytes,
            "batch": self.progress.batch,
            "query": self.progress.query,
            "watermark_ms": self.batch.watermark.eviction,
            "rows": counters.rows,
            "outputs": counters.outputs,
            "replayed": counters.replayed,
            "late": counters.late,
            "timers_fired": counters.timers_fired,
            "busy_s": counters.busy_s,
            "rows_per_second": counters.rate(),
            "batches": counters.batches(),
            "merges": bool(self.spec.merge),
            "touched_ms": self.batch.times.processing_ms,
            "dead_letters": state.letter_count,
        }
