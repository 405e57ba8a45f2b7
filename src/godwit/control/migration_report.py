"""The progress and the report of a request, from the reports of the origins of its moves.

Waiting times of rows come as (milliseconds, rows), so that percentiles over several hosts are percentiles of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from godwit.control.moves import Move
from godwit.model.units import Unit

COUNTED = ("keys", "bytes", "rows_forwarded", "bytes_forwarded", "rows_applied")


@dataclass(slots=True)
class MoveProgress:
    """The progress of a move, over all its tries."""

    move: Move
    phase: str = "waiting"
    over: bool = False
    stood: bool = False  # of a standby: whether the copies of the current try are complete
    attempt: str = ""  # the name of the current try
    moved: dict[Unit, int] = field(default_factory=dict)
    keys_total: int = 0
    tries: int = 0
    reason: str = ""
    phases: list[list[Any]] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)  # counts of the earlier tries
    counts: dict[str, int] = field(default_factory=dict)
    waits: list[list[float]] = field(default_factory=list)
    waits_before: list[list[float]] = field(default_factory=list)

    def take_report(self, answer: Mapping[str, Any]) -> None:
        """Take a report of the origin on the current try, from its beginning."""
        self.counts = {name: self.before.get(name, 0) + int(answer.get(name) or 0) for name in COUNTED}
        self.keys_total = max(self.keys_total, int(answer.get("keys_total") or 0))
        self.moved |= {Unit(kind, id_): epoch for kind, id_, epoch in answer.get("moved", ())}
        self.phases = [list(phase) for phase in answer.get("phases", ())] or self.phases
        self.waits = [*self.waits_before, *answer.get("waits", ()), *answer.get("target_waits", ())]
        if self.phases:
            self.phase = str(self.phases[-1][0])

    def try_ended(self) -> None:
        self.before, self.waits_before = dict(self.counts), list(self.waits)

    @property
    def left(self) -> int:
        return sum(unit not in self.moved for unit in self.move.units)

    def to_dict(self) -> dict[str, Any]:
        return {
            "operator": self.move.operator,
            "origin": self.move.origin,
            "target": self.move.target,
            "phase": self.phase,
            "units": len(self.move.units),
            "units_moved": len(self.move.units) - self.left,
            **{name: self.counts.get(name, 0) for name in COUNTED},
            "tries": self.tries,
            "reason": self.reason,
            "phases": self.phases,
        }


def progress(moves: Sequence[MoveProgress], state: str) -> dict[str, Any]:
    """The progress of a request."""
    units = sum(len(each.move.units) for each in moves)
    return {
        "phase": state,
        "units": units,
        "units_moved": units - sum(each.left for each in moves),
        "keys": sum(each.counts.get("keys", 0) for each in moves),
        "keys_total": sum(max(each.keys_total, each.counts.get("keys", 0)) for each in moves),
        "bytes": sum(each.counts.get("bytes", 0) for each in moves),
        "moves": [each.to_dict() for each in moves],
    }


def totals(moves: Sequence[MoveProgress]) -> dict[str, Any]:
    """The cost of a request: sums over its moves, and how long rows waited."""
    counted = {name: sum(each.counts.get(name, 0) for each in moves) for name in COUNTED}
    moved = [unit for each in moves for unit in each.moved]
    return {
        "keys": counted["keys"],
        "bytes": counted["bytes"],
        "rows_sent_twice": counted["rows_forwarded"],
        "bytes_sent_twice": counted["bytes_forwarded"],
        "stall": stall([wait for each in moves for wait in each.waits], counted["rows_applied"]),
        "groups_moved": sum(unit.kind == "group" for unit in moved),
        "keys_moved_apart": sum(unit.kind == "key" for unit in moved),
        "moves": [each.to_dict() for each in moves],
    }


def stall(waits: Iterable[Sequence[float]], at_once: int = 0) -> dict[str, Any]:
    """How long rows of moving keys waited: over all rows, of which `at_once` did not wait, and over those that waited."""
    ordered = sorted((ms, int(rows)) for ms, rows in waits)
    waited = sum(rows for _, rows in ordered)
    every = [(0.0, at_once), *ordered]
    return {
        "rows": at_once + waited,
        "p50_ms": _percentile(every, at_once + waited, 0.50),
        "p99_ms": _percentile(every, at_once + waited, 0.99),
        "max_ms": ordered[-1][0] if ordered else 0.0,
        "rows_waited": waited,
        "waited_p50_ms": _percentile(ordered, waited, 0.50),
        "waited_p99_ms": _percentile(ordered, waited, 0.99),
    }


def _percentile(ordered: Sequence[tuple[float, int]], rows_all: int, part: float) -> float:
    seen = 0
    for ms, rows in ordered:
        seen += rows
        if seen >= part * rows_all:
            return ms
    return 0.0
