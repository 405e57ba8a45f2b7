"""push: the origin pushes state in the order in which it is waited for, and rows go to the target a little ahead of it.

After PAM: the origin alone decides, no message asks for anything, and the target resumes a unit as soon as it is there. The
origin goes on working on all but the few units that come next, so no row waits for more than those. It sees the backlog
exactly, because every row that waits at the target was sent on by it. The order is Smith's rule: on one link, the total time
that rows wait is least when units go by rows waiting per byte to send, greatest first. Of units that nothing waits for yet,
the smallest go first; among equals, the one waited for longest.
"""

from __future__ import annotations

from collections.abc import Sequence

from godwit.migration.events import Turn
from godwit.migration.origin import COMMON, OFFERING, Phase, Protocol, Step, cut_and_ship, register

FRAME_BYTES = 512  # what a step costs on the wire besides its state
PARCEL_BYTES = 1 << 20  # less makes the fixed cost of a hand-over felt, more makes rows wait longer
LEAD_BYTES = 1 << 20  # of state whose rows go to the target ahead of it


def by_backlog(steps: Sequence[Step]) -> Step:
    return max(steps, key=urgency)


def urgency(step: Step) -> tuple[float, float, float, int]:
    cost = step.size_bytes + FRAME_BYTES
    since_s = float("inf") if step.waiting_since_s is None else step.waiting_since_s
    return step.waiting_rows / cost, -since_s, -cost, -step.number


PUSH = register(
    Protocol(
        "push",
        "rows go to the target, state is pushed in the order of the backlog",
        {
            **COMMON,
            **OFFERING,
            (Phase.LENT, Turn): (Phase.CUT, cut_and_ship),
        },
        choose=by_backlog,
        parcel_bytes=PARCEL_BYTES,
        lead_bytes=LEAD_BYTES,
        side_by_side=2,
    )
)
