"""How far the batches of a run have read each lane, so that a commit says which rows nobody reads again.

Only of use where rows are known by lane and sequence: then the rows of a lane are read in order, whichever hosts apply them.
Knows nothing of entries and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reached:
    """By lane, and by batch of the present run: the last row up to which the batch is known to have read the lane."""

    _lanes: dict[str, dict[int, int]] = field(default_factory=dict)

    def note(self, lane: str, batch: int, row: int) -> None:
        """The batch has read the lane up to this row: all earlier rows of the lane are of this batch or of earlier ones."""
        rows = self._lanes.setdefault(lane, {})
        rows[batch] = max(row, rows.get(batch, row))

    def clear(self) -> None:
        """A later run reads lanes again, and may cut its batches in other places."""
        self._lanes = {}

    def committed(self, batch: int) -> Iterator[tuple[str, int]]:
        """For each lane, the row up to which Spark's log has it, if the log names this batch.

        The row is given again with the next batch that is named: another host may send earlier rows of the lane late.
        """
        for lane, rows in self._lanes.items():
            named = [number for number in rows if number <= batch]
            if named:
                last = max(rows.pop(number) for number in named)
                rows[max(named)] = last
                yield lane, last
