"""push: the origin pushes units in the order of the rows that wait for them; rows go to the target shortly before their state.

After PAM: the origin decides alone, the target requests nothing, and the target serves a unit as soon as its state has arrived.
The origin goes on applying rows of all units except the few that come next, so a row waits for those few units at most. The
origin knows the backlog exactly, because it has refused every row that waits at the target. The order is Smith's rule: on one
link, the total waiting time of rows is least when the unit with the most waiting rows per byte goes first. Of units without
waiting rows, the smallest goes first; among equals, the unit whose rows have waited longest.
"""

from __future__ import annotations

from collections.abc import Sequence

from godwit.migration.events import Turn
from godwit.migration.origin import COMMON, OFFERING, Phase, Protocol, Step, cut_and_ship, register

FRAME_BYTES = 512  # of a step on the wire besides its state
PARCEL_BYTES = 1 << 20  # smaller: the fixed cost of a hand-over is paid more often; larger: rows wait longer
LEAD_BYTES = 1 << 20  # of state that is lent: its rows go to the target ahead of it


def by_backlog(steps: Sequence[Step]) -> Step:
    return max(steps, key=urgency)


def urgency(step: Step) -> tuple[float, float, float, int]:
    cost = step.size_bytes + FRAME_BYTES
    since_s = float("inf") if step.waiting_since_s is None else step.waiting_since_s
    return step.waiting_rows / cost, -since_s, -cost, -step.number


PUSH = register(
    Protocol(
        "push",
        "rows go to the target, the origin pushes state in the order of the backlog",
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
