"""How many rows a second come in, told from batches: more than are applied while a query falls behind, fewer if it catches up.

The rows of a batch are those that came between the start of the batch before and its own, however long it takes to apply them.
All instances of an operator have parts of the same batches, so these are added up batch by batch: a host that has just joined
has few of them, and what it has, another has not. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

BATCHES_KEPT: Final = 20  # batches that an instance tells of
MS_MIN: Final = 1000  # it is told over a second at least: single batches vary

Batch = Sequence[int]  # its number, when it began in ms, and rows applied of it


def offered(instances: Iterable[Iterable[Batch]]) -> float | None:
    """Rows a second lately; None before there have been batches enough.

    What has been applied of the last batch so far is counted too if that makes it more. The first of all batches is planned
    long before it comes to a host, while Python starts, so what follows it is not counted.
    """
    began, rows = _added_up(instances)
    earliest = 1 if len(began) >= BATCHES_KEPT else 2
    last = len(began) - 1
    if last < earliest + 1:
        return None
    first = last - 1
    while first > earliest and began[last - 1] - began[first - 1] < MS_MIN:
        first -= 1
    spans = ((last, began[last - 1]), (last + 1, began[last]))
    since = began[first - 1]
    rates = [sum(rows[first:end]) * 1000 / (until - since) for end, until in spans if until > since]
    return max(rates, default=None)


def _added_up(instances: Iterable[Iterable[Batch]]) -> tuple[list[int], list[int]]:
    """When batches began, in their order, and their rows."""
    found: dict[int, tuple[int, int]] = {}
    for batches in instances:
        for batch, began_ms, rows in batches:
            before = found.get(batch, (began_ms, 0))
            found[batch] = (min(began_ms, before[0]), rows + before[1])
    ordered = [found[batch] for batch in sorted(found)]
    return [began_ms for began_ms, _ in ordered], [rows for _, rows in ordered]
