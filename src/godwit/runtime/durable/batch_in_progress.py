"""The batch in progress of one instance: run, watermark, times, timers. A mark in the changelog describes all of it.

Decides what a mark says and what a mark that is read again means. Knows nothing of state, rows and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from godwit.model.fired_lanes import FiredLanes
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.model.watermark import Watermark
from godwit.runtime.processor.merging import Merge
from godwit.runtime.processor.rows import Times
from godwit.runtime.processor.spec import OperatorSpec, merge_of
from godwit.state.ledger import Entry


@dataclass(slots=True)
class BatchInProgress:
    watermark: Watermark
    merge: Merge  # as the batch was begun; a later definition counts from the next batch on
    progress: Progress = field(default_factory=Progress)
    times: Times = field(default_factory=lambda: Times(0, 0))
    before: int | None = None  # the batch before this one; None if there may have been another one between the two
    joined: bool = False  # the host joined in this batch, so it may not have seen the batches before the next one
    spoiled: str = ""  # why this batch must not be committed: something in it did not replay
    late_before: int = 0  # late rows that had been counted when this batch began
    began_at: dict[str, Any] | None = (
        None  # in real time: the watermark with which this batch began, which goes on since
    )

    due: Times | None = None  # timers up to these times fire in this batch; None: no timer does
    fired: bool = True  # the timers of this instance have fired in this batch
    firings: int = 0  # how often timers have fired here in this batch
    fired_elsewhere: list[Units] = field(default_factory=list)  # their previous owner has fired their timers
    # Keys of groups in `fired_elsewhere` that were apart from the group when its timers fired: theirs have not fired.
    unfired_keys: frozenset[int] = frozenset()
    unfired: Units = field(default_factory=Units)  # of a lost owner that had not fired, after this instance had
    # If timers fire at the end of lanes: which lanes have fired. Of the fields above, `fired` alone counts then, for state that
    # has outlived its time.
    fired_lanes: FiredLanes = field(default_factory=FiredLanes)
    # By step of a hand-over: outputs of timers fired by the previous owner. Counted when the step is served.
    pending_outputs: dict[str, list[tuple[str, Entry]]] = field(default_factory=dict)

    @classmethod
    def first(cls, spec: OperatorSpec) -> BatchInProgress:
        return cls(first_watermark(spec), spec.merge)

    @property
    def has_unfired_timers(self) -> bool:
        """Whether timers that are due in this batch may not have fired yet."""
        return not self.fired or bool(self.unfired)

    def times_at(self, now_ms: int, spec: OperatorSpec) -> Times:
        """A batch DataFrame has no watermark: PySpark shows -1."""
        if spec.ephemeral:
            return Times(now_ms, -1)
        return Times(now_ms, self.watermark.eviction, self.watermark.late)

    # -- as a mark ---------------------------------------------------------------------------------------------------

    @property
    def completed_before(self) -> int | None:
        """The batch before this one, which all hosts have completed. None if nobody can say.

        Where rows outlast their batch, a run may begin before batches that another run has completed at some hosts only.
        """
        return None if self.progress.lasting else self.before

    def to_mark(self) -> dict[str, Any]:
        return {
            "batch": self.progress.batch,
            "progress": self.progress.to_dict(),
            "watermark": self.watermark.to_dict(),
            "attempt": self.progress.attempt,
            "processing_ms": self.times.processing_ms,
            # Also where all have fired: this host may become the heir of one that has not.
            "due": None if self.due is None else [self.due.processing_ms, self.due.watermark_ms, self.due.late_ms],
            "fired": self.fired,
            "fired_elsewhere": [units.to_dict() for units in self.fired_elsewhere],
            "unfired_keys": sorted(self.unfired_keys),
            "unfired": self.unfired.to_dict(),
            "firings": self.firings,
            "fired_lanes": self.fired_lanes.to_dict(),
            "before": self.before,
            "joined": self.joined,
            "late_before": self.late_before,
            "spoiled": self.spoiled,
            "merge": self.merge,
            **({} if self.began_at is None else {"began_at": self.began_at}),
        }

    def restore(self, mark: Mapping[str, Any], spec: OperatorSpec) -> None:
        """Be as the mark says. Marks of earlier versions lack some of the fields."""
        self.progress = Progress.from_dict(mark["progress"])
        self.watermark.restore(mark["watermark"])
        self.late_before = mark.get("late_before", mark["late"])
        self.spoiled = mark.get("spoiled", "")
        self.began_at = mark.get("began_at")
        self.times = self.times_at(mark["processing_ms"], spec)
        self.merge = merge_of(mark.get("merge"))
        self.due = self._restored_due(mark, spec)
        self.fired = mark["fired"]
        self.fired_elsewhere = [Units.from_dict(units) for units in mark.get("fired_elsewhere", ())]
        self.unfired_keys = frozenset(mark.get("unfired_keys", ()))
        self.unfired = Units.from_dict(mark["unfired"]) if "unfired" in mark else Units()
        self.firings = mark.get("firings", 0)
        self.fired_lanes = FiredLanes.from_dict(mark.get("fired_lanes"))
        self.before, self.joined = mark.get("before"), mark.get("joined", False)

    def _restored_due(self, mark: Mapping[str, Any], spec: OperatorSpec) -> Times | None:
        """A mark without `unfired` does not say up to when timers have fired: the watermark and the batch's time do."""
        if mark["due"] is None and mark["fired"] and "unfired" not in mark and spec.time_mode != "none":
            return Times(mark["processing_ms"], self.watermark.late, self.watermark.late)
        return None if mark["due"] is None else Times(*mark["due"])


def first_watermark(spec: OperatorSpec) -> Watermark:
    """The watermark of an operator that has had no batch."""
    if spec.start is None:
        return Watermark(spec.delay_ms, spec.watermark_policy)
    return spec.start.watermark(spec.delay_ms, spec.watermark_policy)


def fired_of(units: Units, mark: Mapping[str, Any]) -> Units:
    """The units among these whose timers have fired in the batch of the mark, at the host that wrote the mark."""
    if mark["fired"]:
        return units - Units.from_dict(mark["unfired"]) if "unfired" in mark else units
    fired = Units()
    for elsewhere in mark.get("fired_elsewhere", ()):
        fired |= units & Units.from_dict(elsewhere)
    return fired
