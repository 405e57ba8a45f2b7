"""Named moments of a schedule: a host carries out an effect, a message leaves, a batch begins, a host is gone.

A name means the same moment after the product has changed, which a number of turns does not: recorded schedules put their
faults and moves at names. Which actions wait at a point is decided elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple


class Point(NamedTuple):
    """The `nth` time that the name came, and so much later."""

    name: str
    nth: int = 1
    after_s: float = 0.0


class Points:
    """`after`: lets an action happen later."""

    def __init__(self, after: Callable[[float, Callable[[], None]], None], now_s: Callable[[], float]) -> None:
        self._after, self._now_s = after, now_s
        self.counts: Counter[str] = Counter()
        self._actions: dict[tuple[str, int], list[tuple[float, Callable[[], None]]]] = {}
        self._last, self._last_s = Point("start"), now_s()

    def at(self, point: Point, action: Callable[[], None]) -> None:
        if point.name == "start":
            self._after(point.after_s, action)
        else:
            self._actions.setdefault((point.name, point.nth), []).append((point.after_s, action))

    def reach(self, name: str) -> None:
        self.counts[name] += 1
        self._last, self._last_s = Point(name, self.counts[name]), self._now_s()
        for after_s, action in self._actions.pop((name, self.counts[name]), ()):
            if after_s:
                self._after(after_s, action)
            else:
                action()

    def now(self) -> Point:
        """The present moment, by the last point that was reached."""
        return self._last._replace(after_s=round(self._now_s() - self._last_s, 6))
