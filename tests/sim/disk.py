"""A host's disk: what is durable, and records that are written but not flushed. A crash keeps a beginning of those."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

Row = tuple[int, int, int]  # batch, lane, number in the lane
Record = tuple[Any, ...]


@dataclass(slots=True)
class Image:
    """What a recovery finds. A key's state is the rows applied to it, in order; its count is their number."""

    state: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    ledger: dict[Row, tuple[int, int]] = field(default_factory=dict)  # row -> key, count
    batch: int = -1
    own: dict[str, Any] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        match record:
            case ("row", key, rows, row, count):
                self.state[key] = rows
                self.ledger[row] = (key, count)
            case ("put", key, rows):
                self.state[key] = rows
            case ("ledger", entries):
                self.ledger.update(entries)
            case ("drop", keys):
                for key in keys:
                    self.state.pop(key, None)
            case ("batch", batch):
                self.batch = batch
                self.ledger = {row: entry for row, entry in self.ledger.items() if row[0] >= batch}
            case ("own", own):
                self.own = own
            case _:
                raise AssertionError(record)


class Disk:
    def __init__(self, own: dict[str, Any]) -> None:
        self.image = Image(own=own)
        self.pending: list[Record] = []

    def flush(self) -> bool:
        """Whether what is owned may have changed by it."""
        owned = False
        for record in self.pending:
            self.image.take(record)
            owned = owned or record[0] == "own"
        self.pending.clear()
        return owned

    def crash(self, dice: Random) -> int:
        """A torn tail: some first part of what was not flushed has reached the disk all the same."""
        kept = dice.randint(0, len(self.pending))
        del self.pending[kept:]
        torn = len(self.pending)
        self.flush()
        return torn
