"""fetch: rows go to the target at once, and the target fetches their state on demand; the rest follows in the background.

After Meces (USENIX ATC'22). In Meces a target may apply a later row before the origin has applied an earlier one. That cannot
occur here: a router sends rows of a key by a new route only when no older request for that key is under way, and a host that
has refused a key on a stream goes on refusing it until the router has handled the refusal. A unit in flight survives a crash,
because it belongs to the origin until `released`.
"""

from __future__ import annotations

from math import inf

from godwit.migration.events import Turn, UnitsRequested
from godwit.migration.origin import COMMON, OFFERING, Phase, Protocol, cut_and_ship, register

PARCEL_BYTES = 256 << 10  # of background state at a time: a unit that is asked for waits for at most so many bytes

FETCH = register(
    Protocol(
        "fetch",
        "rows go to the target, which fetches state on demand",
        {
            **COMMON,
            **OFFERING,
            (Phase.LENT, UnitsRequested): (Phase.CUT, cut_and_ship),
            (Phase.LENT, Turn): (Phase.CUT, cut_and_ship),
        },
        parcel_bytes=PARCEL_BYTES,
        lead_bytes=inf,
    )
)
