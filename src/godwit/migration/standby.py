"""standby: the origin sends every change to the target all the time, so that a hand-over ships only the last changes.

After Rhino (SIGMOD'20) and Falcon's hot backups. Unlike `live`, standby ships changed state, not rows: so it suits processors
that are not deterministic, and it costs traffic for as long as the standby exists.
"""

from __future__ import annotations

from godwit.migration.events import Copied, HandoverRequested, Turn
from godwit.migration.origin import COMMON, Phase, Protocol, copy, cut_and_ship, nothing, register

STANDBY = register(
    Protocol(
        "standby",
        "the origin sends every change; a hand-over ships the last changes",
        {
            **COMMON,
            (Phase.QUEUED, Turn): (Phase.COPYING, copy("changes")),
            (Phase.COPYING, Copied): (Phase.FOLLOWING, nothing),
            (Phase.FOLLOWING, HandoverRequested): (Phase.CUT, cut_and_ship),
        },
        side_by_side=1 << 20,
        until_asked=True,
    )
)
