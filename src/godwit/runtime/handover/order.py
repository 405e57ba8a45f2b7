"""What is asked of a host that is to move keys, and what it needs of its host for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from godwit.model.units import Units
from godwit.runtime.processor.black_box import Crumbs
from godwit.state.changelog import Changelog


@dataclass(frozen=True, slots=True)
class Port:
    """What movers and receivers need from their host."""

    host: str
    checkpoint: str
    token: str
    incarnation: str
    log: Changelog
    clock_ms: Callable[[], int]
    stopping: Callable[[], bool]
    crumbs: Crumbs | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    id: str
    operator: str
    target: str
    protocol: str
    steps: tuple[Units, ...]
    side_by_side: int | None = None
    rate_bytes_per_s: float | None = None
    gap_ms: float = 0.0
    source: str = "live"
    check: bool = False
