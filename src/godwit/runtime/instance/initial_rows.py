"""Initial state: rows that set up the state of an operator before its first batch. Given again, they change nothing twice.

The rows are rows of the user, which go to the processor, or state that is ready (`STATE_COLUMNS`), which is stored as it is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.user_code import UserCode
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Index
from godwit.state.changes import PUT, changes_schema
from godwit.state.keys import KeyCodec
from godwit.state.ledger import Entry, no_tagged_outputs
from godwit.transport.wire import STATE_COLUMNS


class InitialRows:
    def __init__(self, memory: Memory, durable: DurableChanges, code: UserCode) -> None:
        self._memory = memory
        self._durable = durable
        self._code = code

    def apply(self, lane: str, batch: pa.RecordBatch, row_index: Index, hashes: Index, now_ms: int) -> Work:
        memory = self._memory
        if memory.progress.query is not None:
            raise DefinitionError(
                "initial state was given to an operator that has already processed batches",
                todo="Drop initialState: it was taken up when the operator was new",
                operator=memory.spec.name,
            )
        memory.ledger.make_room()
        unseen = memory.ledger.unseen(lane, row_index, hashes)
        if unseen is not None:
            batch, row_index, hashes = batch.filter(pa.array(unseen)), row_index[unseen], hashes[unseen]
        if not len(row_index):
            return Work(lsn=self._durable.lsn)

        def prepare(work: Work) -> InstallInMemory:
            memory.state.now_ms = now_ms
            self._stage(batch, row_index, now_ms)
            no_outputs = no_tagged_outputs(memory.spec.output_schema)
            install_entry = self._durable.prepare_entry(work, lane, Entry(row_index, hashes, no_outputs))

            def install() -> None:
                install_entry()
                for follower in memory.followers:  # keys may move already
                    follower.changed(memory.progress.batch, work.changes)

            return install

        return self._durable.change(prepare)

    def _stage(self, batch: pa.RecordBatch, row_index: Index, now_ms: int) -> None:
        memory = self._memory
        if tuple(batch.schema.names[-len(STATE_COLUMNS) :]) == STATE_COLUMNS:
            memory.state.stage(_changes(batch, memory.key_codec))
            return
        rows = group_by_key(batch, row_index, memory.key_codec)
        self._code.initialise(rows, memory.batch.times_at(now_ms, memory.spec))


def _changes(batch: pa.RecordBatch, key_codec: KeyCodec) -> pa.RecordBatch:
    keys = key_codec.from_arrow(batch.columns[: -len(STATE_COLUMNS)])
    var, sub, value = batch.columns[-len(STATE_COLUMNS) :]
    puts = pa.array(np.full(len(keys), PUT, np.int8))
    columns = [*key_codec.to_arrow(keys), var, puts, sub, value]
    return pa.RecordBatch.from_arrays(columns, schema=changes_schema(key_codec))
