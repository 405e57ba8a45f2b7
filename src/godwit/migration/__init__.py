"""The protocols, one file each: tables of (phase, event) -> (phase, effects), with no I/O, no clock and no random numbers."""

from godwit.migration import fetch, live, live_unordered, pause, push, standby
from godwit.migration.origin import PROTOCOLS, Protocol, register

BUILT_IN = frozenset(PROTOCOLS)  # the protocols that every host knows

__all__ = [
    "BUILT_IN",
    "PROTOCOLS",
    "Protocol",
    "fetch",
    "live",
    "live_unordered",
    "pause",
    "push",
    "register",
    "standby",
]
