"""Initial state: rows that set up the state of an operator before its first batch. Given again, they change nothing twice."""

from __future__ import annotations

import pyarrow as pa

from godwit.errors import DefinitionError
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.user_code import UserCode
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Index
from godwit.state.ledger import Entry, no_tagged_outputs


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
            rows = group_by_key(batch, row_index, memory.key_codec)
            memory.state.now_ms = now_ms
            self._code.initialise(rows, memory.batch.times_at(now_ms, memory.spec))
            no_outputs = no_tagged_outputs(memory.spec.output_schema)
            install_entry = self._durable.prepare_entry(work, lane, Entry(row_index, hashes, no_outputs))

            def install() -> None:
                install_entry()
                for follower in memory.followers:  # keys may move already
                    follower.changed(memory.progress.batch, work.changes)

            return install

        return self._durable.change(prepare)
