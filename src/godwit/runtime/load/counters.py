"""What `status()` shows of an instance: rows, outputs, late rows, the last batches, and a sample of routing hashes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from godwit.control.offered_rate import BATCHES_MAX
from godwit.runtime.processor.rows import Index

SAMPLE_MAX = 2048


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
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_MAX))

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
