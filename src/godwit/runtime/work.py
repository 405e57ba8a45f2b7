"""What goes into an instance and what comes out of it: chunks, work, and what is counted on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from godwit.model.progress import BatchRef
from godwit.runtime.rows import Index, Times
from godwit.state.changes import Changes
from godwit.state.keys import Key

Part = tuple[dict[str, Any], Any]  # what the changelog keeps: a description and a body of bytes
# Asks whether a run not seen before is the newest: request, last batch, fresh.
Admit = Callable[[BatchRef, int, bool], None]
SAMPLE_MAX = 2048
OFFERED_MS_MIN = 1000  # what comes in is told over a second at least: single batches vary


class Follower(Protocol):
    """Somebody who is told what was applied, after it was applied and before anything else is."""

    def applied(
        self, request: BatchRef, lane: str, chunk: Chunk, times: Times, keys: Sequence[Key], work: Work
    ) -> None: ...

    def changed(self, batch: int, changes: Changes) -> None:
        """State changed otherwise than by rows: timers fired, or something outlived its time."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows as they came: the user's columns, row numbers, routing hashes."""

    batch: pa.RecordBatch
    rows: Index
    hashes: Index

    def __len__(self) -> int:
        return len(self.rows)

    def filter(self, mask: Any) -> Chunk:
        if mask.all():
            return self
        return Chunk(self.batch.filter(pa.array(mask)), self.rows[mask], self.hashes[mask])


@dataclass(slots=True)
class Counters:
    """What `status()` shows of an instance."""

    rows: int = 0
    outputs: int = 0
    replayed: int = 0
    late: int = 0
    timers_fired: int = 0
    busy_s: float = 0.0
    hashes: deque[tuple[int, Index]] = field(
        default_factory=lambda: deque(maxlen=64)
    )  # (each stands for, some of late)
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=20))  # (batch began at ms, rows so far)

    def sample(self, hashes: Index) -> None:
        """Remember some routing hashes, for telling what is hot: copies, because a view would keep its chunk alive."""
        each = -(-len(hashes) // SAMPLE_MAX)
        self.hashes.append((each, hashes[::each].copy()))

    def rate(self) -> float:
        """Rows a second over the last batches."""
        if len(self.recent) < 2 or self.recent[-1][0] == self.recent[0][0]:
            return 0.0
        (began_ms, before), (ended_ms, after) = self.recent[0], self.recent[-1]
        return (after - before) * 1000 / (ended_ms - began_ms)

    def offered(self) -> float | None:
        """Rows a second that came in lately, applied yet or not; None before there have been batches enough.

        The rows of a batch are those that came between the starts of the two batches before it, however long it takes to apply
        them. What has been applied of the last batch so far is counted too if that makes it more. The first of all batches is
        planned long before it comes here, while Python starts, so what follows it is not counted.
        """
        recent = list(self.recent)
        earliest = 1 if len(recent) == self.recent.maxlen else 2
        if len(recent) < earliest + 2:
            return None
        last = len(recent) - 1
        first = next(
            (
                at
                for at in range(last - 1, earliest - 1, -1)
                if recent[last - 1][0] - recent[at - 1][0] >= OFFERED_MS_MIN
            ),
            earliest,
        )
        began_ms = recent[first - 1][0]
        spans = ((recent[last][1], recent[last - 1][0]), (self.rows, recent[last][0]))
        rates = [(rows - recent[first][1]) * 1000 / (until - began_ms) for rows, until in spans if until > began_ms]
        return max(rates, default=None)


@dataclass(slots=True)
class Work:
    """Outputs to send back (with the row column) and parts to make durable first."""

    outputs: list[pa.RecordBatch] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    begun: dict[str, Any] = field(default_factory=dict)  # what holds for the whole batch, told to a lane that opens it
    lsn: int = -1  # the host's: where in the changelog all of this and all before it is
