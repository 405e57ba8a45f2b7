"""Changes of keys that no row makes: state from another host, keys that are dropped, dead letters that are cleared.

Which keys come and go is decided by hand-overs and takeovers. Here their state changes, durably, whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from godwit.runtime.chunk.ownership_columns import MINE
from godwit.runtime.durable.durable_changes import DurableChanges, InstallInMemory
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.durable.memory import Memory
from godwit.runtime.durable.work import Work
from godwit.state.changes import COLUMN_VAR
from godwit.state.keys import Key


class KeyChanges:
    def __init__(self, memory: Memory, durable: DurableChanges) -> None:
        self._memory = memory
        self._durable = durable

    def take(self, rows: pa.RecordBatch, body: Any, settled: bool) -> None:
        """Changes from another host. `settled`: the state that the keys have then is committed."""
        memory = self._memory

        def prepare(work: Work) -> InstallInMemory:
            keys = memory.key_codec.from_arrow(rows.columns[:COLUMN_VAR]) if settled else []
            memory.state.stage(rows)
            prepared = memory.state.prepare()
            work.parts.append((self._info(settled), body))

            def install() -> None:
                memory.state.install(prepared)
                memory.state.settle_keys(keys)

            return install

        self._durable.change(prepare)

    def drop(self, keys: Sequence[Key], settled: bool, *parts: NewPart) -> None:
        """Nothing is left of these keys; the parts are written in the same frame."""
        memory = self._memory

        def prepare(work: Work) -> InstallInMemory:
            memory.state.stage_drop(keys)
            prepared = memory.state.prepare()
            work.parts += parts
            if len(prepared.changes):
                work.parts.append((self._info(settled), prepared.changes.to_batch(memory.key_codec).serialize()))

            def install() -> None:
                memory.state.install(prepared)
                if settled:  # a batch that begins anew must not bring them back
                    memory.state.settle_keys(keys)

            return install

        self._durable.change(prepare)

    def _info(self, settled: bool) -> dict[str, Any]:
        return {"kind": "state", "op": self._memory.name, "batch": self._memory.progress.batch, "settled": settled}

    def clear_letters(self) -> int:
        """Drop the dead letters of all keys that are owned here; returns how many there were."""
        memory = self._memory
        keys = memory.state.letter_keys()
        if keys and memory.ownership is not None:
            mine = memory.stands(memory.hashes_of(keys)) == MINE
            keys = [key for key, own in zip(keys, mine.tolist(), strict=True) if own]
        before = memory.state.letter_count

        def prepare(work: Work) -> InstallInMemory:
            memory.state.letter_clear(keys)
            install_state = self._durable.prepare_state(work)

            def install() -> None:
                install_state()
                for follower in memory.followers:
                    follower.changed(memory.progress.batch, work.changes)

            return install

        self._durable.change(prepare)
        return before - memory.state.letter_count
