"""What `Migration.progress()` and `Migration.report()` return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from godwit.spark.results.result_record import ResultRecord, aligned

Phases = tuple[tuple[str, float], ...]  # names, and when each began


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSummary(ResultRecord):
    """One pair of hosts. `units`: groups and single keys. `tries`: more than one if a host was lost. `phases`: in ms."""

    operator: str
    origin: str
    target: str
    phase: str
    units: int
    units_moved: int
    keys: int
    bytes: int
    rows_forwarded: int
    bytes_forwarded: int
    rows_applied: int
    tries: int
    reason: str
    phases: Phases


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MigrationProgress(ResultRecord):
    """How far a migration is. `units`: groups and single keys."""

    id: str
    phase: str
    units: int
    units_moved: int
    keys: int
    keys_total: int
    bytes: int
    moves: tuple[MoveSummary, ...]

    def __repr__(self) -> str:
        units = f"{self.units_moved:,} of {self.units:,} units moved"
        return f"{self.id}: {self.phase}, {units}, {self.keys:,} of {self.keys_total:,} keys, {self.bytes:,} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(ResultRecord):
    """How long rows of moving keys waited: over all `rows`, and (`waited_...`) over those that waited at all."""

    rows: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    rows_waited: int
    waited_p50_ms: float
    waited_p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MigrationSummary(ResultRecord):
    """What a migration has done. `reconfiguration_s`: from the request until the last key served at its target."""

    id: str
    kind: str
    protocol: str
    order: str
    outcome: str
    reason: str
    started: str
    ended: str | None
    reconfiguration_s: float
    phases: Phases
    groups_minimum: int | None
    keys: int
    bytes: int
    rows_sent_twice: int
    bytes_sent_twice: int
    stall: Stall
    groups_moved: int
    keys_moved_apart: int
    moves: tuple[MoveSummary, ...]

    def __repr__(self) -> str:
        how = f"{self.kind} {self.id} by {self.protocol}, {self.order}"
        lines = [
            f"{how}: {self.outcome} after {self.reconfiguration_s:.3g} s{f' ({self.reason})' if self.reason else ''}"
        ]
        moved = f"{self.keys:,} keys ({self.bytes:,} bytes) in {self.groups_moved:,} groups"
        lines.append(f"{moved} and {self.keys_moved_apart:,} single keys; {self.rows_sent_twice:,} rows sent twice")
        stall = self.stall
        waits = f"p50 {stall.p50_ms:.3g} ms, p99 {stall.p99_ms:.3g} ms, max {stall.max_ms:.3g} ms"
        lines.append(f"rows of moving keys: {stall.rows:,}, of which {stall.rows_waited:,} waited; {waits}")
        rows = [
            (move.operator, move.origin, move.target, move.units_moved, move.units, move.phase, move.reason)
            for move in self.moves
        ]
        if rows:
            lines += aligned(("operator", "from", "to", "moved", "of", "phase", "reason"), rows)
        return "\n".join(lines)


def progress_of(fields: dict[str, Any]) -> MigrationProgress:
    return MigrationProgress(**fields | {"moves": _moves(fields["moves"])})


def summary_of(fields: dict[str, Any]) -> MigrationSummary:
    parts = {
        "moves": _moves(fields["moves"]),
        "stall": Stall(**fields["stall"]),
        "phases": _phases(fields["phases"]),
    }
    return MigrationSummary(**fields | parts)


def _moves(moves: list[dict[str, Any]]) -> tuple[MoveSummary, ...]:
    return tuple(MoveSummary(**move | {"phases": _phases(move["phases"])}) for move in moves)


def _phases(phases: list[list[Any]]) -> Phases:
    return tuple((str(name), float(at)) for name, at in phases)
