"""The result of a change of an instance, and the hand-overs that follow the changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.processor.rows import Times
from godwit.state.changes import Changes
from godwit.state.keys import Key


@dataclass(slots=True)
class Work:
    """Outputs to send back (with the row column) and parts to make durable first."""

    outputs: list[pa.RecordBatch] = field(default_factory=list)
    parts: list[NewPart] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    begun: dict[str, Any] = field(default_factory=dict)  # how the batch was begun: the answer to a lane that opens it
    lsn: int = -1  # the frame of the changelog up to which all of this is written


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
