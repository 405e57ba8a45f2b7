"""How one process reaches another: a service calls `listen`, its clients call `connect`. Heartbeats go as datagrams.

Over Arrow Flight and TCP (`transport.flight`), and UDP (`transport.datagrams`). The simulator uses its own network instead
(`use`), in which messages take time, connections break and processes are cut off from each other.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from godwit.transport.addresses import ServiceAddress
from godwit.transport.datagrams import DatagramReceiver, DatagramSender
from godwit.transport.flight import CONNECT_S, ActionHandler, Client, FetchHandler, Service
from godwit.transport.streams import StreamHandler


class Network(Protocol):
    """Implemented by `FlightNetwork` and by the simulator."""

    def connect(self, address: str, token: str, connect_s: float) -> Client: ...

    def listen(
        self,
        bind: str,
        token: str,
        actions: Mapping[str, ActionHandler],
        exchange: StreamHandler | None,
        fetch: FetchHandler | None,
    ) -> Service: ...

    def answers(self, address: str, timeout_s: float) -> bool: ...

    def datagrams_to(self, address: str) -> DatagramSender: ...

    def datagrams_at(self, bind: str) -> DatagramReceiver: ...


class FlightNetwork:
    """Arrow Flight over TCP, and UDP."""

    connect = Client
    listen = Service
    datagrams_to = DatagramSender
    datagrams_at = DatagramReceiver

    def answers(self, address: str, timeout_s: float) -> bool:
        service = ServiceAddress.of(address)
        try:
            socket.create_connection((service.machine.strip("[]"), service.requests_port), timeout_s).close()
        except OSError:
            return False
        return True


_network: Network = FlightNetwork()


@contextmanager
def use(network: Any) -> Iterator[None]:
    """Connections that are made in this block go over this network."""
    global _network  # noqa: PLW0603 as with the world of `ports`
    before, _network = _network, network
    try:
        yield
    finally:
        _network = before


def connect(address: str, token: str, connect_s: float = CONNECT_S) -> Client:
    """A connection to one service. `connect_s`: how long to wait for a process that listens and may be stopped (SIGSTOP)."""
    return _network.connect(address, token, connect_s)


def listen(
    bind: str,
    token: str,
    actions: Mapping[str, ActionHandler],
    exchange: StreamHandler | None = None,
    fetch: FetchHandler | None = None,
) -> Service:
    """A service made of named actions, an optional exchange and an optional fetch; it serves when this returns."""
    return _network.listen(bind, token, actions, exchange, fetch)


def answers(address: str, timeout_s: float) -> bool:
    """Whether a process listens at this address."""
    return _network.answers(address, timeout_s)


def datagrams_to(address: str) -> DatagramSender:
    """A way to send datagrams to this address; OSError if the address is not known now."""
    return _network.datagrams_to(address)


def datagrams_at(bind: str) -> DatagramReceiver:
    """A new port for datagrams."""
    return _network.datagrams_at(bind)
