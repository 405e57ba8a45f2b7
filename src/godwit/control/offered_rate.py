"""Estimates how many rows a second come in, from batches: more than are applied while a query falls behind.

The rows of a batch came in between the start of the previous batch and its own start, however long their processing takes. All
instances of an operator have parts of the same batches, so the parts are added up batch by batch; a host that has just joined
has few. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

BATCHES_MAX: Final = 20  # the number of batches that an instance reports
MS_MIN: Final = 1000  # the estimate covers a second at least, because single batches vary

Batch = Sequence[int]  # its number, when it began in ms, and rows applied of it


def offered(instances: Iterable[Iterable[Batch]]) -> float | None:
    """Rows a second, recently; None before there are enough batches.

    The rows of the last batch so far count too, if that makes the rate greater. The first batch does not count: it is planned
    long before it reaches a host, while Python starts.
    """
    began, rows = _added_up(instances)
    earliest = 1 if len(began) >= BATCHES_MAX else 2
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
    """The start times of the batches, in order, and their rows."""
    by_batch: dict[int, tuple[int, int]] = {}
    for batches in instances:
        for batch, began_ms, rows in batches:
            before = by_batch.get(batch, (began_ms, 0))
            by_batch[batch] = (min(began_ms, before[0]), rows + before[1])
    ordered = [by_batch[batch] for batch in sorted(by_batch)]
    return [began_ms for began_ms, _ in ordered], [rows for _, rows in ordered]
