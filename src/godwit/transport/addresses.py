"""Under which address others reach a service: the one it listens on, unless that is all of the machine's."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

ALL: Final = ("0.0.0.0", "::", "[::]")


def is_loopback(bind: str) -> bool:
    """Whether only processes of this machine can reach it."""
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


def reachable(bind: str, towards: str) -> str:
    """Of all addresses of this machine, the one from which packets go to that service (host:port); nothing is sent."""
    if bind not in ALL:
        return bind
    name, _, port = towards.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
    return f"[{found}]" if family == socket.AF_INET6 else found
