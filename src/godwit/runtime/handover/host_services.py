"""What those who move keys need of their host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from godwit.runtime.processor.crash_markers import CrashMarkers
from godwit.state.changelog import Changelog


@dataclass(frozen=True, slots=True)
class HostServices:
    """What movers and receivers need from their host."""

    host: str
    checkpoint: str
    token: str
    incarnation: str
    log: Changelog
    clock_ms: Callable[[], int]
    stopping: Callable[[], bool]
    crash_markers: CrashMarkers | None = None
