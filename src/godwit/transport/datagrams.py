"""Datagrams over UDP: the sender waits for nobody, and the receiver gets those that come through.

What a datagram means is not known here.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Final

DATAGRAM_BYTES_MAX: Final = 1024


class DatagramSender:
    """Raises OSError while the network is down."""

    def __init__(self, address: str) -> None:
        name, _, port = address.rpartition(":")
        family, kind, protocol, self._to = _resolved(name, int(port))
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)

    def send(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self._to)

    def close(self) -> None:
        self._socket.close()


class DatagramReceiver:
    """Raises OSError if this machine does not have the address."""

    def __init__(self, bind: str) -> None:
        family, kind, protocol, address = _resolved(bind, 0)
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        # select() cannot wait for a file descriptor of 1024 or more, and a driver may have many open files.
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.port: int = self._socket.getsockname()[1]

    def receive(self, timeout_s: float) -> list[bytes]:
        """All datagrams that have arrived; waits up to `timeout_s` for the first one."""
        self._poll.poll(max(0.0, 1000 * timeout_s))
        received = []
        with suppress(BlockingIOError):
            while True:
                received.append(self._socket.recv(DATAGRAM_BYTES_MAX))
        return received

    def close(self) -> None:
        self._socket.close()


def _resolved(name: str, port: int) -> tuple[int, int, int, tuple[object, ...]]:
    family, kind, protocol, _, address = socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    return family, kind, protocol, address
