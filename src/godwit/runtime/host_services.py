"""The services of a host process that the rooms below `host` use: lanes, hand-overs, takeovers and backups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from godwit.errors import HostUnavailable
from godwit.runtime.messages import Admit, RunAdmitted
from godwit.runtime.processor.crash_markers import CrashMarkers
from godwit.state.changelog import Changelog


def no_driver(_: object) -> NoReturn:
    raise HostUnavailable("this host has no driver that it could ask about runs")


@dataclass(frozen=True, slots=True)
class HostServices:
    """Of one host process. Made by the host when its changelog is open.

    `admit`: asks the driver whether a run may work, and raises if not.
    """

    host: str
    checkpoint: str
    token: str
    incarnation: str
    log: Changelog
    clock_ms: Callable[[], int]
    stopping: Callable[[], bool]
    crash_markers: CrashMarkers | None = None
    admit: Callable[[Admit], RunAdmitted] = no_driver
