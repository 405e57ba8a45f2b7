"""What goes to one host at a time and what came back for it: rows, their outputs, and the rows that were refused.

Answers come in the order in which pieces were sent, which need not be the order in which they are wanted; so an answer stays
with its piece. Knows nothing of streams or of who owns what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import InvariantBroken
from godwit.runtime.processor.rows import Index
from godwit.state.ledger import joined
from godwit.transport import wire


@dataclass(slots=True, eq=False)
class Piece:
    """Rows of one window for one host; `again` if they are sent round after a refusal."""

    host: str
    lane: str
    batch: pa.RecordBatch
    again: bool = False
    answered: bool = False
    dealt_with: bool = False  # its outputs are taken, and what it left unapplied has been applied elsewhere
    outputs: pa.RecordBatch | None = None
    refused: pa.RecordBatch | None = None  # by the host
    groups: Sequence[Sequence[Any]] = ()  # the refusal's hints: [group, host, epoch]
    keys: Sequence[Sequence[Any]] = ()  # and [routing hash, host, epoch]
    unsent: list[pa.RecordBatch] = field(default_factory=list)  # rows of which the host knows nothing, or says nothing

    def note(self, seen: int) -> bytes:
        return wire.pack("rows", lane=self.lane, seen=seen, again=self.again)

    def answer(self, header: Mapping[str, Any], outputs: pa.RecordBatch | None) -> None:
        said = header.get("refused")
        if said is not None and said["rows"]:
            self.refused = self.batch.take(self._positions(said["rows"]))
            self.groups, self.keys = said["groups"], said["keys"]
        self.outputs, self.answered = outputs, True
        self.batch = self.batch.slice(0, 0)

    def give_up(self) -> None:
        """Nobody will answer."""
        self.unsent.append(self.batch)
        self.batch, self.answered = self.batch.slice(0, 0), True

    def hold_back(self, hashes: Index) -> None:
        """Keep rows of these keys here: earlier rows of theirs have not been applied yet."""
        if not self.again and len(hashes):
            late = np.isin(hashes_of(self.batch), hashes)
            if late.any():
                self.unsent.append(self.batch.filter(pa.array(late)))
                self.batch = self.batch.filter(pa.array(~late))

    def unapplied_hashes(self) -> list[Index]:
        batches = self.unsent if self.refused is None else [*self.unsent, self.refused]
        return [hashes_of(batch) for batch in batches]

    def _positions(self, rows: Sequence[int]) -> Index:
        own, asked = rows_of(self.batch), np.array(rows, np.int64)
        at = np.searchsorted(own, asked)
        if len(asked) and (at.max() >= len(own) or (own[at] != asked).any()):
            raise InvariantBroken("a host refused rows that were not sent to it", host=self.host, lane=self.lane)
        return np.sort(at)


@dataclass(slots=True, eq=False)
class Finish:
    """The last message on a stream: all that was answered is to be made durable."""

    packed: bytes
    answered: bool = False
    also: Sequence[str] = ()  # hosts that have to be finished too

    def note(self, seen: int) -> bytes:
        return self.packed

    def answer(self, header: Mapping[str, Any]) -> None:
        self.also, self.answered = header.get("also") or (), True

    def give_up(self) -> None:
        self.answered = True


def rows_of(batch: pa.RecordBatch) -> Index:
    return _ints(batch, -2)


def hashes_of(batch: pa.RecordBatch) -> Index:
    return _ints(batch, -1)


def by_row(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """As one, in row order, which hosts rely on."""
    whole = joined(batches)
    return whole if len(batches) == 1 else whole.take(np.argsort(rows_of(whole), kind="stable"))


def _ints(batch: pa.RecordBatch, at: int) -> Index:
    values: Index = np.ascontiguousarray(batch.column(batch.num_columns + at).to_numpy())
    return values
