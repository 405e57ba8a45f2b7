"""Under which address a service is announced."""

from __future__ import annotations

import socket

import pytest

from godwit.transport.addresses import ALL, is_loopback, reachable


def test_the_address_that_was_given_is_announced() -> None:
    assert reachable("127.0.0.1", "10.1.2.3:4711") == "127.0.0.1"


@pytest.mark.parametrize("bind", ALL)
def test_of_all_addresses_the_one_that_leads_to_the_driver(bind: str) -> None:
    assert reachable(bind, "127.0.0.1:4711") == "127.0.0.1"
    assert reachable(bind, f"{socket.gethostname()}:4711") not in ALL


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_of_one_machine_only(bind: str) -> None:
    assert is_loopback(bind)


@pytest.mark.parametrize("bind", [*ALL, "10.0.0.7", "edge-1", "2001:db8::1"])
def test_of_other_machines_too(bind: str) -> None:
    assert not is_loopback(bind)
