"""live-unordered: as live, but the origin releases a step before the target has acknowledged that it has the whole step.

After Falcon's out-of-order variant, in which neither side waits for the other. In Falcon outputs may overtake each other; here
the router orders a lane's outputs anyway, so the variant only saves a round trip. The origin retains the state of the cut until
the target has confirmed, and ships it again if the target restarts without it: `released` is still the only commit point, and
nothing is lost.
"""

from __future__ import annotations

from godwit.migration.events import CaughtUp, Copied, Released, Turn
from godwit.migration.origin import (
    COMMON,
    Phase,
    Protocol,
    copy,
    cut_and_release,
    nothing,
    register,
    ship_and_tell,
)

LIVE_UNORDERED = register(
    Protocol(
        "live-unordered",
        "as live, but the origin releases a step without waiting for the target",
        {
            **COMMON,
            (Phase.QUEUED, Turn): (Phase.COPYING, copy("rows")),
            (Phase.COPYING, Copied): (Phase.FOLLOWING, nothing),
            (Phase.FOLLOWING, CaughtUp): (Phase.RELEASING, cut_and_release),
            (Phase.RELEASING, Released): (Phase.SHIPPED, ship_and_tell),
        },
        deterministic=True,
    )
)
