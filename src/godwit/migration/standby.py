"""standby: the target is sent every change all the time, so that a hand-over ships only the last ones.

After Rhino (SIGMOD'20) and Falcon's hot backups. Unlike `live` it ships changed state, not rows, so it suits processors that
are not deterministic and costs traffic for as long as it stands.
"""

from __future__ import annotations

from godwit.migration.events import Copied, HandoverAsked, Turn
from godwit.migration.origin import COMMON, Phase, Protocol, copy, cut_and_ship, nothing, register

STANDBY = register(
    Protocol(
        "standby",
        "the target is sent every change; a hand-over ships the last",
        {
            **COMMON,
            (Phase.QUEUED, Turn): (Phase.COPYING, copy("changes")),
            (Phase.COPYING, Copied): (Phase.FOLLOWING, nothing),
            (Phase.FOLLOWING, HandoverAsked): (Phase.CUT, cut_and_ship),
        },
        side_by_side=1 << 20,
        kept=True,
    )
)
