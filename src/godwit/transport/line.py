"""How one process reaches another: `listen` for calls and streams, `connect` to whoever listens.

Over Arrow Flight (`transport.flight`). The simulator puts a network of its own in its place (`use`), in which messages take
their time, connections break and processes are cut off from each other.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from godwit.transport.flight import CONNECT_S, Action, Client, Exchange, Fetch, Service


class Network(Protocol):
    """The simulator's implementation has the same methods."""

    def connect(self, address: str, token: str, connect_s: float) -> Client: ...

    def listen(
        self, bind: str, token: str, actions: Mapping[str, Action], exchange: Exchange | None, fetch: Fetch | None
    ) -> Service: ...

    def answers(self, address: str, timeout_s: float) -> bool: ...


class FlightNetwork:
    """The real one."""

    connect = Client
    listen = Service

    def answers(self, address: str, timeout_s: float) -> bool:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except OSError:
            return False
        return True


_network: Network = FlightNetwork()


@contextmanager
def use(network: Any) -> Iterator[None]:
    """What is connected in here goes over that network."""
    global _network  # noqa: PLW0603 as with the world of `ports`
    before, _network = _network, network
    try:
        yield
    finally:
        _network = before


def connect(address: str, token: str, connect_s: float = CONNECT_S) -> Client:
    """A connection to one service. `connect_s`: how long a process may take to answer that listens but may be stopped."""
    return _network.connect(address, token, connect_s)


def listen(
    bind: str,
    token: str,
    actions: Mapping[str, Action],
    exchange: Exchange | None = None,
    fetch: Fetch | None = None,
) -> Service:
    """A service made of named actions, an optional exchange and an optional fetch; it has begun when this returns."""
    return _network.listen(bind, token, actions, exchange, fetch)


def answers(address: str, timeout_s: float) -> bool:
    """Whether somebody listens there."""
    return _network.answers(address, timeout_s)
