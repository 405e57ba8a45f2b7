"""fetch: rows go to the target at once, which fetches the state they need on demand; the rest follows in the background.

After Meces (USENIX ATC'22). Its hole, a later row applied at the target before an earlier one at the origin, cannot occur
here: a router sends rows of a key by a new route only when no older request for that key is under way, and a host that has
refused rows of a key on a stream refuses what follows on it until the router has caught up. A unit in flight survives a
crash, because it stays with the origin until `released`.
"""

from __future__ import annotations

from math import inf

from godwit.migration.events import Turn, Wanted
from godwit.migration.origin import COMMON, OFFERING, Phase, Protocol, cut_and_ship, register

PARCEL_BYTES = 256 << 10  # of what nobody asks for, at a time: what is asked for then waits for no more than that

FETCH = register(
    Protocol(
        "fetch",
        "rows go to the target, which fetches state on demand",
        {
            **COMMON,
            **OFFERING,
            (Phase.LENT, Wanted): (Phase.CUT, cut_and_ship),
            (Phase.LENT, Turn): (Phase.CUT, cut_and_ship),
        },
        parcel_bytes=PARCEL_BYTES,
        lead_bytes=inf,
    )
)
