"""How many rows go to the hosts at once: at most as many as the hosts apply in a tenth of a second, as far as is known.

A host applies a chunk without a break, and everything else that needs the instance, above all keys that are to move, waits
until the chunk is applied. So slow rows go in smaller chunks, and fast rows are not cut. The measured rate is stored per
process, because Spark runs many tasks in one process.
"""

from __future__ import annotations

from typing import Final

TARGET_S: Final = 0.1
ROWS_MIN: Final = 512  # fewer rows cost more to send than to apply, unless applying them takes very long

_rates: dict[str, float] = {}  # rows a second, by operator


class Pace:
    """The pace of one lane; the time is an argument."""

    def __init__(self, operator: str, rates: dict[str, float] = _rates) -> None:
        self._operator = operator
        self._rates = rates
        self._answered_s = 0.0

    def rows_max(self) -> int | None:
        """None until a rate is known."""
        rate = self._rates.get(self._operator)
        return None if rate is None else max(ROWS_MIN, int(rate * TARGET_S))

    def answered(self, rows: int, sent_s: float, now_s: float) -> None:
        """The hosts have answered so many rows; they began with them when the rows before were done."""
        took_s = now_s - max(sent_s, self._answered_s)
        self._answered_s = now_s
        if rows and took_s > 0:
            self._rates[self._operator] = rows / took_s
