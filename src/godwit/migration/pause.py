"""pause: rows of the keys wait, the origin ships all of their state, and the target goes on.

The partial pause of Flux, SEEP and StreamCloud, which ignores how many rows wait for which key. Rows of other keys go on. The
state comes from the origin's memory (`source="live"`) or from its changelog (`"backup"`), which saves an overloaded origin the
work.
"""

from __future__ import annotations

from godwit.migration.events import Turn
from godwit.migration.origin import COMMON, Phase, Protocol, cut_and_ship, register

PAUSE = register(
    Protocol(
        "pause",
        "rows of the keys wait, their state is shipped, the target goes on",
        {**COMMON, (Phase.QUEUED, Turn): (Phase.CUT, cut_and_ship)},
    )
)
