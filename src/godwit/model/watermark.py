"""Event time per lane, and the operator's watermark made of it, as Spark's micro-batches would see it.

While batch b runs, timers fire up to `eviction` = W(b), made of the event times of batches before b, and rows are late at
or below `late` = W(b - 1). A lane reports its greatest event time when it finishes a batch; the report counts from the
next batch on, so a replay of the batch meets the same watermark. Policy "max" is Spark's (the fastest lane leads), "min"
lets the slowest lane hold time back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Policy = Literal["max", "min"]


@dataclass(slots=True)
class Watermark:
    delay_ms: int
    policy: Policy = "max"
    eviction: int = 0
    late: int = 0
    lanes: dict[str, int] = field(default_factory=dict)
    reported: dict[str, int] = field(default_factory=dict)

    def report(self, lane: str, event_max_ms: int | None) -> None:
        """A lane finished the current batch; None when it brought no event time."""
        if event_max_ms is not None:
            self.reported[lane] = max(event_max_ms, self.reported.get(lane, event_max_ms))

    def next_batch(self) -> None:
        """The batch in progress is committed: what its lanes reported counts now."""
        for lane, event_max_ms in self.reported.items():
            self.lanes[lane] = max(event_max_ms, self.lanes.get(lane, event_max_ms))
        self.reported = {}
        self.late = self.eviction
        self.eviction = max(self.eviction, self._lead() - self.delay_ms)

    def merge(self, other: Mapping[str, Any], same_batch: bool = True) -> None:
        """What another instance knows, too: it may have heard from lanes that had not heard of this one.

        If it has not come to this batch yet, what was reported to it counts already, and its own watermark is the one before.
        """
        _merge(self.lanes, other["lanes"])
        if same_batch:
            _merge(self.reported, other["reported"])
            self.eviction, self.late = max(self.eviction, other["eviction"]), max(self.late, other["late"])
        else:
            _merge(self.lanes, other["reported"])
            self.late = max(self.late, other["eviction"])
            self.eviction = max(self.eviction, self.late, self._lead() - self.delay_ms)

    def upcoming(self) -> int:
        """The watermark after the batch in progress, for telling whether another batch would fire timers."""
        lanes = dict(self.lanes)
        for lane, event_max_ms in self.reported.items():
            lanes[lane] = max(event_max_ms, lanes.get(lane, event_max_ms))
        return max(self.eviction, self._lead(lanes) - self.delay_ms)

    def _lead(self, lanes: Mapping[str, int] | None = None) -> int:
        times = (self.lanes if lanes is None else lanes).values()
        if not times:
            return 0
        return max(times) if self.policy == "max" else min(times)

    def to_dict(self) -> dict[str, Any]:
        return {"eviction": self.eviction, "late": self.late, "lanes": self.lanes, "reported": self.reported}

    def restore(self, data: Mapping[str, Any]) -> None:
        self.eviction, self.late = data["eviction"], data["late"]
        self.lanes, self.reported = dict(data["lanes"]), dict(data["reported"])


def _merge(lanes: dict[str, int], others: Mapping[str, int]) -> None:
    for lane, event_max_ms in others.items():
        lanes[lane] = max(event_max_ms, lanes.get(lane, event_max_ms))
