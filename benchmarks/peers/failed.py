"""The error of a peer: a system that is measured beside Godwit."""

from __future__ import annotations

from godwit.errors import GodwitError


class PeerFailed(GodwitError):
    """A peer did not do what it was asked; the message has the peer's own words."""

    code = "PEER-FAILED"
