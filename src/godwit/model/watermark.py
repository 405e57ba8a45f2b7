"""The watermark of an operator: Spark's own, or one computed from the event times of its lanes.

While batch b runs, timers fire up to `eviction` = W(b), and a row is late if its event time is at or below `late` = W(b - 1).

With policy "query" both come from Spark, which computes the watermark of a query behind every `withWatermark`: rows count that
no operator gets to see. With the other two policies a lane reports its greatest event time when it finishes a batch; the report
counts from the next batch on, so a replay of the batch sees the same watermark. With "max" the fastest lane determines the
watermark; with "min", the slowest lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Policy = Literal["max", "min", "query"]


@dataclass(frozen=True, slots=True)
class BatchWatermark:
    """What Spark says of a batch: its watermark, and the watermark of the batch before, up to which rows are late."""

    eviction: int
    late: int


@dataclass(slots=True)
class Watermark:
    delay_ms: int
    policy: Policy = "max"
    eviction: int = 0
    late: int = 0
    lanes: dict[str, int] = field(default_factory=dict)
    reported: dict[str, int] = field(default_factory=dict)
    known: bool = True  # False: the batch has begun with another host, and what Spark says of it is not known here yet

    def report(self, lane: str, event_max_ms: int | None) -> None:
        """A lane has finished the current batch. `event_max_ms`: None if the lane had no event times."""
        if event_max_ms is not None and self.policy != "query":
            self.reported[lane] = max(event_max_ms, self.reported.get(lane, event_max_ms))

    def next_batch(self, given: BatchWatermark | None = None) -> None:
        """The batch in progress is committed: the reports of its lanes count from now on. `given`: what Spark says instead."""
        if given is not None:
            self.take(given)
            return
        self.known = self.policy != "query"
        for lane, event_max_ms in self.reported.items():
            self.lanes[lane] = max(event_max_ms, self.lanes.get(lane, event_max_ms))
        self.reported = {}
        self.late = self.eviction
        self.eviction = max(self.eviction, self._lead() - self.delay_ms)

    def take(self, given: BatchWatermark) -> None:
        """Take what Spark says of the batch in progress."""
        self.late, self.eviction = max(self.late, given.late), max(self.eviction, given.eviction)
        self.known = True

    def merge(self, other: Mapping[str, Any], same_batch: bool = True) -> None:
        """Add the watermark of another instance, which may have reports of lanes that never sent rows to this instance.

        If the other instance is still in the batch before (`same_batch` is False), the reports made to it count already, and
        its `eviction` is this instance's `late`.
        """
        _merge(self.lanes, other["lanes"])
        if same_batch:
            _merge(self.reported, other["reported"])
            self.eviction, self.late = max(self.eviction, other["eviction"]), max(self.late, other["late"])
            self.known = self.known or other.get("known", True)
        else:
            _merge(self.lanes, other["reported"])
            self.late = max(self.late, other["eviction"])
            self.eviction = max(self.eviction, self.late, self._lead() - self.delay_ms)

    def upcoming(self) -> int:
        """The watermark after the batch in progress; it tells whether another batch would fire timers."""
        lanes = dict(self.lanes)
        for lane, event_max_ms in self.reported.items():
            lanes[lane] = max(event_max_ms, lanes.get(lane, event_max_ms))
        return max(self.eviction, self._lead(lanes) - self.delay_ms)

    def _lead(self, lanes: Mapping[str, int] | None = None) -> int:
        times = (self.lanes if lanes is None else lanes).values()
        if not times or self.policy == "query":
            return 0
        return max(times) if self.policy == "max" else min(times)

    def copy(self) -> Watermark:
        return replace(self, lanes=dict(self.lanes), reported=dict(self.reported))

    def to_dict(self) -> dict[str, Any]:
        data = {"eviction": self.eviction, "late": self.late, "lanes": self.lanes, "reported": self.reported}
        return data if self.known else data | {"known": False}

    def restore(self, data: Mapping[str, Any]) -> None:
        self.eviction, self.late = data["eviction"], data["late"]
        self.lanes, self.reported = dict(data["lanes"]), dict(data["reported"])
        self.known = data.get("known", True)


def _merge(lanes: dict[str, int], others: Mapping[str, int]) -> None:
    for lane, event_max_ms in others.items():
        lanes[lane] = max(event_max_ms, lanes.get(lane, event_max_ms))
