"""The data of an instance: definition, state, ledger, batch in progress, ownership.

Only data and queries. Other modules decide how a request changes the data (`runtime/instance`) and how changes become durable
(`durable_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from godwit.errors import InvariantBroken
from godwit.model.ownership import Ownership
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.runtime.chunk.ownership_columns import OwnershipColumns, Stands
from godwit.runtime.durable.batch_in_progress import BatchInProgress, first_watermark
from godwit.runtime.durable.work import Follower
from godwit.runtime.load.counters import Counters
from godwit.runtime.load.sketch import HotKeys
from godwit.runtime.processor.rows import Index
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key, KeyCodec
from godwit.state.ledger import Ledger, memory_bytes_max


class Memory:
    def __init__(self, name: str, spec: OperatorSpec, state: KeyedState, key_codec: KeyCodec) -> None:
        self.name = name
        self.spec = spec
        self.key_codec = key_codec
        self.state = state
        self.ledger = Ledger(spec.output_schema, memory_bytes_max(state.memory_limit.max_bytes))
        state.memory_limit.beside_bytes = lambda: self.ledger.memory_bytes
        self.batch = BatchInProgress.first(spec)
        self.counters = Counters()
        self.ownership: Ownership | None = None  # None: this instance owns all keys, as for a batch DataFrame
        self._columns: OwnershipColumns | None = None
        self.staged = Units()  # units of which this instance may have copies that it does not own
        self.followers: list[Follower] = []
        self.hot: HotKeys | None = None  # counts the rows of hot keys; None: they are not counted

    @property
    def progress(self) -> Progress:
        return self.batch.progress

    def redefine(self, spec: OperatorSpec) -> None:
        """Take a later definition of the same state: state and ledger take its form.

        If this fails half-way, only the changelog is valid.
        """
        self.check_successor(spec)
        self.state.redefine(spec.layout)
        if spec.outputs != self.spec.outputs:
            self.ledger.redefine(spec.output_schema)
            for entries in self.batch.pending_outputs.values():
                entries[:] = [(lane, entry.without_outputs(spec.output_schema)) for lane, entry in entries]
        if spec.start != self.spec.start and self.progress.query is None:
            self.batch.watermark = first_watermark(spec)
        self.spec = spec
        watermark = self.batch.watermark
        watermark.delay_ms, watermark.policy = spec.delay_ms, spec.watermark_policy

    def check_successor(self, spec: OperatorSpec) -> None:
        if not spec.succeeds(self.spec):
            raise InvariantBroken(
                "this host has state of a definition that the new definition does not know", operator=self.name
            )

    # -- ownership ---------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> OwnershipColumns | None:
        """The present ownership, in a form that is fast for whole chunks."""
        if self.ownership is None:
            return None
        if self._columns is None or not self._columns.shows(self.ownership):
            self._columns = OwnershipColumns(self.ownership)
        return self._columns

    def stands(self, hashes: Index) -> Stands:
        """The stand of this instance to the key of every row; see `model.ownership`."""
        columns = self.columns
        assert columns is not None, "only an instance with an ownership is asked"
        return columns.stands(hashes)

    @property
    def between_owners(self) -> bool:
        """Whether some unit is between two owners: then a batch that may fire timers waits, so that both hosts fire alike."""
        columns = self.columns
        return columns is not None and columns.between

    def hashes_of(self, keys: Sequence[Key]) -> Index:
        return np.array([self.key_codec.route_hash(key) for key in keys], np.int64)

    def select_keys(self, keys: Sequence[Key], select: Callable[[Index], Any]) -> list[Key]:
        """The keys whose routing hashes are selected."""
        return [keys[i] for i in np.flatnonzero(select(self.hashes_of(keys))).tolist()]

    # -- the batch in progress ---------------------------------------------------------------------------------------

    @property
    def applied(self) -> bool:
        """Whether the batch in progress has changed anything here."""
        ledger = self.ledger
        return bool(ledger.lanes or ledger.begun or ledger.finished or self.batch.spoiled or self.state.touched())

    @property
    def incomplete(self) -> str:
        """Why the batch in progress is incomplete here; empty if nothing shows that it is."""
        if self.batch.spoiled:
            return f"rows of it were refused: {self.batch.spoiled}"
        lanes = self.ledger.unfinished
        return (
            f"partitions of it were applied in part and never read to their end ({', '.join(lanes)})" if lanes else ""
        )
