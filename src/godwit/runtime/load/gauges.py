"""What an instance has been doing lately: how much of the time it worked, on how many rows, and how long chunks waited for it.

Counts by second, so that the last seconds and the last minute can be reported at any time. Costs a few additions per chunk and
nothing per row. The time is an argument. Who reads the numbers and what follows from them is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from godwit.runtime.load.sketch import Heavy, HotKeys
from godwit.state.keys import Key

SHORT_S: Final = 5
LONG_S: Final = 60
SLOTS: Final = LONG_S + 2  # the current second, and one more because a window begins inside a second
TURN_S: Final = 30.0  # hot keys are those of the last half minute to minute
SUM_S: Final = 1.0
HOT_REPORTED: Final = 8

Hot = tuple[int, Sequence[tuple[Key, Heavy]]]


@dataclass(slots=True)
class SecondOfWork:
    """A second of an instance's life."""

    second: int = -1
    useful_s: float = 0.0
    rows: float = 0.0
    chunks: int = 0
    waited_s: float = 0.0
    waited_s_max: float = 0.0


@dataclass(slots=True)
class Gauges:
    """Of one instance. Written by the thread that holds the instance's lock, read by any thread."""

    began_s: float
    hot: HotKeys = field(default_factory=HotKeys)
    _slots: list[SecondOfWork] = field(default_factory=lambda: [SecondOfWork() for _ in range(SLOTS)])
    _working_s: float | None = None  # since when, while it works
    _turned_s: float = field(init=False)
    _summed_s: float = field(init=False)
    _hot_reported: Hot = (0, ())

    def __post_init__(self) -> None:
        self._turned_s = self._summed_s = self.began_s

    # -- what happens ------------------------------------------------------------------------------------------------

    def begins(self, now_s: float) -> None:
        self._working_s = now_s

    def ends(self, now_s: float, rows: int) -> None:
        """The work that began last has ended, with this many rows applied."""
        began_s, self._working_s = self._working_s, None
        if began_s is None:
            return
        per_s = rows / max(now_s - began_s, 1e-9)
        for second in range(max(int(began_s), int(now_s) - SLOTS + 1), int(now_s) + 1):
            slot, part_s = self._slot(second), min(now_s, second + 1) - max(began_s, second)
            slot.useful_s += part_s
            slot.rows += part_s * per_s
        if now_s - self._turned_s >= TURN_S:
            self._turned_s = now_s
            self.hot.turn()
        if now_s - self._summed_s >= SUM_S:  # here, under the lock, so that a reader need not wait for the lock
            self._summed_s = now_s
            self._hot_reported = self.hot.top(HOT_REPORTED)

    def waited(self, now_s: float, waited_s: float) -> None:
        """A chunk is let in, this long after it came."""
        slot = self._slot(int(now_s))
        slot.chunks += 1
        slot.waited_s += waited_s
        slot.waited_s_max = max(slot.waited_s_max, waited_s)

    def _slot(self, second: int) -> SecondOfWork:
        slot = self._slots[second % SLOTS]
        if slot.second != second:
            slot.second, slot.useful_s, slot.rows = second, 0.0, 0.0
            slot.chunks, slot.waited_s, slot.waited_s_max = 0, 0.0, 0.0
        return slot

    # -- reports ------------------------------------------------------------------------------------------------

    def window(self, now_s: float, seconds: int) -> dict[str, float | None]:
        """Averages over this many whole seconds before the current one, and the current one so far."""
        first = int(now_s) - seconds
        slots = [slot for slot in self._slots if first <= slot.second <= now_s]
        span_s = max(1e-3, now_s - max(float(first), self.began_s))
        working_s = self._working_s
        under_way_s = 0.0 if working_s is None else max(0.0, now_s - max(working_s, float(first)))
        useful_s = sum(slot.useful_s for slot in slots)
        rows = sum(slot.rows for slot in slots)
        chunks = sum(slot.chunks for slot in slots)
        return {
            "useful": min(1.0, (useful_s + under_way_s) / span_s),
            "rows_per_s": rows / span_s,
            "true_rows_per_s": rows / useful_s if rows and useful_s else None,
            "wait_ms": 1000 * sum(slot.waited_s for slot in slots) / chunks if chunks else 0.0,
            "wait_ms_max": 1000 * max((slot.waited_s_max for slot in slots), default=0.0),
        }

    def report(self, now_s: float) -> dict[str, Any]:
        """The last seconds, the last minute, and the keys that have most of the rows of the last minute or so."""
        rows, hottest = self._hot_reported
        keys = [
            {"key": key, "hash": heavy.hash, "rows_at_least": heavy.at_least, "rows_at_most": heavy.at_most}
            for key, heavy in hottest
        ]
        return {
            "short": self.window(now_s, SHORT_S),
            "long": self.window(now_s, LONG_S),
            "hot": {"rows": rows, "keys": keys},
        }
