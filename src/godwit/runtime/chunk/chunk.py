"""A chunk: rows of one lane that an instance applies together. Knows neither lanes nor owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from godwit.runtime.processor.rows import Index
from godwit.state.ledger import Checks


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
