"""live-unordered: as live, but the origin lets go before the target says that it has everything.

After Falcon's out-of-order variant, which skips the wait for the other side. There outputs may overtake each other; here the
router puts a lane's outputs in order anyway, so what is skipped is only a round trip. The origin keeps the state as it was
cut until the target has confirmed, and ships it again if the target restarts without it: `released` is still the one commit
point, and nothing is lost.
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
        "as live, without waiting for the target's word before letting go",
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
