"""What a router asks of one host, and the host's answer: rows to apply, timers to fire, or the end of a lane.

Hosts answer in the order of the requests, and a router may want the answers in another order; so each request keeps its
answer. Knows nothing of streams, nor who owns which key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from godwit.errors import InvariantBroken
from godwit.runtime.messages import ApplyRows, FinishLane, FireTimers, LaneFinished, OwnerHint, RowsApplied, TimersFired
from godwit.runtime.processor.rows import Index
from godwit.state.ledger import joined


@dataclass(slots=True, eq=False)
class RowsRequest:
    """Rows of one slice of a lane for one host; `again` if another host has refused them."""

    host: str
    lane: str
    batch: pa.RecordBatch
    again: bool = False
    answered: bool = False
    dealt_with: bool = False  # the outputs are taken, and rows that this host did not apply are applied elsewhere
    outputs: pa.RecordBatch | None = None
    refused: pa.RecordBatch | None = None  # by the host
    groups: Sequence[OwnerHint] = ()  # the hints of the refusal
    keys: Sequence[OwnerHint] = ()
    unsent: list[pa.RecordBatch] = field(default_factory=list)  # rows that the host never got, or never answered

    def message(self, seen: int) -> ApplyRows:
        return ApplyRows(self.lane, seen, self.again)

    def answer(self, answer: RowsApplied, outputs: pa.RecordBatch | None) -> None:
        refused = answer.refused
        if refused is not None and refused.rows:
            self.refused = self.batch.take(self._positions(refused.rows))
            self.groups, self.keys = refused.groups, refused.keys
        self.outputs, self.answered = outputs, True
        self.batch = self.batch.slice(0, 0)

    def give_up(self) -> None:
        """No host will answer."""
        self.unsent.append(self.batch)
        self.batch, self.answered = self.batch.slice(0, 0), True

    def hold_back(self, hashes: Index) -> None:
        """Do not send rows of these keys: earlier rows of the same keys have not been applied yet."""
        if not self.again and len(hashes):
            late = np.isin(hashes_of(self.batch), hashes)
            if late.any():
                self.unsent.append(self.batch.filter(pa.array(late)))
                self.batch = self.batch.filter(pa.array(~late))

    def unapplied_hashes(self) -> list[Index]:
        batches = self.unsent if self.refused is None else [*self.unsent, self.refused]
        return [hashes_of(batch) for batch in batches]

    def _positions(self, refused_rows: Sequence[int]) -> Index:
        own, refused = rows_of(self.batch), np.array(refused_rows, np.int64)
        at = np.searchsorted(own, refused)
        if len(refused) and (at.max() >= len(own) or (own[at] != refused).any()):
            raise InvariantBroken("a host refused rows that were not sent to it", host=self.host, lane=self.lane)
        return np.sort(at)


@dataclass(slots=True, eq=False)
class FireRequest:
    """Timers are to fire: all rows of the lane are applied, or rows come in real time."""

    fire: FireTimers = field(default_factory=FireTimers)
    answered: bool = False
    ask_also: Sequence[tuple[str, str]] = ()  # steps by which keys have left before their timers had fired, and whereto

    def message(self, seen: int) -> FireTimers:
        return self.fire

    def answer(self, answer: TimersFired) -> None:
        self.ask_also, self.answered = answer.ask_also, True

    def give_up(self) -> None:
        self.answered = True


@dataclass(slots=True, eq=False)
class FinishRequest:
    """The last request on a stream: the host is to make durable all that it has answered."""

    finish: FinishLane
    answered: bool = False
    further_hosts: Sequence[str] = ()  # have to be finished too

    def message(self, seen: int) -> FinishLane:
        return self.finish

    def answer(self, answer: LaneFinished) -> None:
        self.further_hosts, self.answered = answer.further_hosts, True

    def give_up(self) -> None:
        self.answered = True


HostRequest = RowsRequest | FireRequest | FinishRequest


def rows_of(batch: pa.RecordBatch) -> Index:
    return _integers(batch, -2)


def hashes_of(batch: pa.RecordBatch) -> Index:
    return _integers(batch, -1)


def by_row(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All batches as one, in row order: hosts rely on that order."""
    whole = joined(batches)
    return whole if len(batches) == 1 else whole.take(np.argsort(rows_of(whole), kind="stable"))


def _integers(batch: pa.RecordBatch, at: int) -> Index:
    values: Index = np.ascontiguousarray(batch.column(batch.num_columns + at).to_numpy())
    return values
