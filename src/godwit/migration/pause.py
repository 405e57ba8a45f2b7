"""pause: hold the keys, ship all of their state, go on at the target.

The partial pause of Flux, SEEP and StreamCloud, unaware of the order in which rows wait. Rows of other keys go on. The bytes
come from the origin's memory ("live") or from its changelog ("backup"), which spares an overloaded origin the work.
"""

from __future__ import annotations

from godwit.migration.events import Turn
from godwit.migration.origin import COMMON, Phase, Protocol, cut_and_ship, register

PAUSE = register(
    Protocol(
        "pause",
        "hold the keys, ship their state, go on at the target",
        {**COMMON, (Phase.QUEUED, Turn): (Phase.CUT, cut_and_ship)},
    )
)
