"""The address under which other machines reach a service: usually the address it listens on.

A service that listens on all addresses of its machine needs one of them that other machines can reach.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

ALL: Final = ("0.0.0.0", "::", "[::]")


def is_loopback(bind: str) -> bool:
    """Whether only processes of this machine can reach the address."""
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


def reachable(bind: str, towards: str) -> str:
    """The address of this machine from which packets go to the service `towards` (host:port); nothing is sent."""
    if bind not in ALL:
        return bind
    name, _, port = towards.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return f"[{own}]" if family == socket.AF_INET6 else own
