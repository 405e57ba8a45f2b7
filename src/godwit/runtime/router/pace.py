"""How many rows go to the hosts at once: no more than they apply in a tenth of a second, as far as is known here.

A host applies a chunk alone, so whatever waits for the instance, keys that are to move above all, waits as long as that takes.
So rows that take long are sent in smaller chunks; those that are quick are not cut at all. What was learnt stays with the
process, which Spark uses for many tasks.
"""

from __future__ import annotations

from typing import Final

TARGET_S: Final = 0.1
ROWS_MIN: Final = 512  # fewer cost more to send than to apply, unless applying takes very long

_known: dict[str, float] = {}  # rows a second, by operator


class Pace:
    """Of one lane; the time is an argument."""

    def __init__(self, operator: str, known: dict[str, float] = _known) -> None:
        self._operator = operator
        self._known = known
        self._answered_s = 0.0

    def rows_max(self) -> int | None:
        """None as long as nothing is known."""
        rate = self._known.get(self._operator)
        return None if rate is None else max(ROWS_MIN, int(rate * TARGET_S))

    def answered(self, rows: int, sent_s: float, now_s: float) -> None:
        """So many rows that were sent then have been answered; hosts had begun with them when those before were done."""
        took_s = now_s - max(sent_s, self._answered_s)
        self._answered_s = now_s
        if rows and took_s > 0:
            self._known[self._operator] = rows / took_s
