"""live: the target copies the state and silently replays what follows, until only the last few rows are between them.

After Falcon (SEC'24): tuples go to both ends from the start cut on, the target replays them with its outputs kept back, and
at the end cut it takes over, in order, as soon as the origin has let go. Here the origin forwards the rows, in the order in
which it applied them, on the stream that carries the state: the start marker of a key is its place in that stream, so copy
and replay can neither overlap nor leave a gap, and lanes interleave at the target as they did at the origin. Replay makes
the target's ledger too, so a row that is sent again after the hand-over is answered by it.

Needs processors that do the same to the same rows (`deterministic`); `check` compares both ends row by row.
"""

from __future__ import annotations

from godwit.migration.events import CaughtUp, Copied, Turn
from godwit.migration.origin import COMMON, Phase, Protocol, copy, cut_and_ship, nothing, register

LIVE = register(
    Protocol(
        "live",
        "the target copies and replays silently, then takes over",
        {
            **COMMON,
            (Phase.QUEUED, Turn): (Phase.COPYING, copy("rows")),
            (Phase.COPYING, Copied): (Phase.FOLLOWING, nothing),
            (Phase.FOLLOWING, CaughtUp): (Phase.CUT, cut_and_ship),
        },
        deterministic=True,
    )
)
