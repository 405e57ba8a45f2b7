"""The inputs and results of an instance: chunks of rows, work, and counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from godwit.control.offered_rate import BATCHES_KEPT
from godwit.errors import GodwitError
from godwit.model.progress import BatchRef
from godwit.runtime.processor.rows import Index, Times
from godwit.state.changes import Changes
from godwit.state.keys import Key
from godwit.state.ledger import Checks

NewPart = tuple[dict[str, Any], Any]  # of a frame of the changelog: a description and a body of bytes
SAMPLE_MAX = 2048


class Journal(Protocol):
    """The log to which an instance appends its changes: the host's changelog."""

    def draft(self, parts: Iterable[NewPart]) -> Any:
        """The parts as one frame; nothing is written yet."""
        ...

    def append(self, draft: Any) -> int:
        """Put the frame in line and return its number."""
        ...

    def fail(self, error: GodwitError) -> None:
        """Accept no more frames, because memory and log may differ."""
        ...


class Unwritten:
    """The journal of an instance that is never recovered."""

    def draft(self, parts: Iterable[NewPart]) -> None:
        return None

    def append(self, draft: Any) -> int:
        return -1

    def fail(self, error: GodwitError) -> None:
        return


class Follower(Protocol):
    """Called after every change of an instance, before the next change: by a hand-over that copies keys."""

    def applied(
        self, request: BatchRef, lane: str, chunk: Chunk, times: Times, keys: Sequence[Key], work: Work
    ) -> None: ...

    def changed(self, batch: int, changes: Changes) -> None:
        """State changed otherwise than by rows of a batch: by timers, expiry, initial rows, or cleared dead letters."""
        ...

    def reverted(self, keys: Sequence[Key], changes: Sequence[pa.RecordBatch]) -> None:
        """The batch in progress begins anew: these changes have brought these keys back to their state before the batch."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows as they came: the user's columns, row numbers, routing hashes, and 32 bits of the content of each row."""

    batch: pa.RecordBatch
    rows: Index
    hashes: Index
    checks: Checks | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def filter(self, mask: Any) -> Chunk:
        if mask.all():
            return self
        checks = None if self.checks is None else self.checks[mask]
        return Chunk(self.batch.filter(pa.array(mask)), self.rows[mask], self.hashes[mask], checks)


@dataclass(frozen=True, slots=True)
class AppliedElsewhere:
    """How rows that their owner has applied are applied to the copies of another instance."""

    times: Times
    over: bool  # the batch is committed, so what the rows change is settled at once
    record: bool  # a router may ask for the rows again, so the ledger keeps them


@dataclass(slots=True)
class Counters:
    """What `status()` shows of an instance."""

    rows: int = 0
    outputs: int = 0
    replayed: int = 0
    late: int = 0
    timers_fired: int = 0
    busy_s: float = 0.0
    # A sample of routing hashes: (rows that each hash stands for, hashes).
    hashes: deque[tuple[int, Index]] = field(default_factory=lambda: deque(maxlen=64))
    # The last batches: (batch, began at ms, rows before it).
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    def sample(self, hashes: Index) -> None:
        """Remember some routing hashes, to find hot keys: copies, because a view would keep its chunk alive."""
        each = -(-len(hashes) // SAMPLE_MAX)
        self.hashes.append((each, hashes[::each].copy()))

    def rate(self) -> float:
        """Rows a second over the last batches."""
        if len(self.recent) < 2 or self.recent[-1][1] == self.recent[0][1]:
            return 0.0
        (_, began_ms, before), (_, ended_ms, after) = self.recent[0], self.recent[-1]
        return (after - before) * 1000 / (ended_ms - began_ms)

    def batches(self) -> list[tuple[int, int, int]]:
        """The last batches: number, when it began, and rows applied."""
        recent = list(self.recent)
        ends = [before for _, _, before in recent[1:]] + [self.rows]
        return [(batch, began_ms, end - before) for (batch, began_ms, before), end in zip(recent, ends, strict=False)]


@dataclass(slots=True)
class Work:
    """Outputs to send back (with the row column) and parts to make durable first."""

    outputs: list[pa.RecordBatch] = field(default_factory=list)
    parts: list[NewPart] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    begun: dict[str, Any] = field(default_factory=dict)  # how the batch was begun: the answer to a lane that opens it
    lsn: int = -1  # the frame of the changelog up to which all of this is written
