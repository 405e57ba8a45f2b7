"""The address under which other machines reach a service: usually the address it listens on.

A service that listens on all addresses of its machine needs one of them that other machines can reach. It has a port for
requests and one for streams: as text, machine:requests/streams.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final, NamedTuple

from godwit.errors import HostUnavailable

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
    service = ServiceAddress.of(towards)
    name = service.machine.strip("[]")
    family, kind, protocol, _, address = socket.getaddrinfo(name, service.requests_port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return f"[{own}]" if family == socket.AF_INET6 else own


class ServiceAddress(NamedTuple):
    machine: str
    requests_port: int
    streams_port: int

    @classmethod
    def of(cls, text: str) -> ServiceAddress:
        machine, _, both = text.rpartition(":")
        requests, _, streams = both.partition("/")
        try:
            return cls(machine, int(requests), int(streams or 0))
        except ValueError:
            raise HostUnavailable(f"{text!r} is not the address of a service") from None

    @property
    def calls(self) -> str:
        return f"{self.machine}:{self.requests_port}"

    @property
    def streams(self) -> tuple[str, int]:
        return self.machine.strip("[]"), self.streams_port
