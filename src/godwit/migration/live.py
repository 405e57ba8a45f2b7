"""live: the target gets a copy of the state and silently replays later rows, until it lacks only the last few rows.

After Falcon (SEC'24): from the start cut on, rows go to origin and target; the target replays them and suppresses its outputs;
at the end cut the target takes over, in order, as soon as the origin has released the step. Here the origin forwards the rows,
in the order in which it applied them, on the stream that carries the state. The start marker of a key is its position in that
stream, so copy and replay can neither overlap nor leave a gap, and lanes interleave at the target as they did at the origin.
Replay builds the target's ledger too, so the target can answer a row that is sent again after the hand-over.

The processor must be `deterministic`: equal rows on equal state give equal results. `check` compares origin and target row by
row.
"""

from __future__ import annotations

from godwit.migration.events import CaughtUp, Copied, Turn
from godwit.migration.origin import COMMON, Phase, Protocol, copy, cut_and_ship, nothing, register

LIVE = register(
    Protocol(
        "live",
        "the target gets a copy and replays rows silently, then takes over",
        {
            **COMMON,
            (Phase.QUEUED, Turn): (Phase.COPYING, copy("rows")),
            (Phase.COPYING, Copied): (Phase.FOLLOWING, nothing),
            (Phase.FOLLOWING, CaughtUp): (Phase.CUT, cut_and_ship),
        },
        deterministic=True,
    )
)
