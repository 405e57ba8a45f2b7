"""Heartbeats over real sockets: what is heard, and of whom nothing is believed."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from godwit.errors import DefinitionError
from godwit.runtime.liveness.heartbeat_datagrams import Heartbeat, HeartbeatReceiver, HeartbeatSender, unpacked

TOKEN = "secret"
BEAT = Heartbeat("flock-1", "host-3", 2, 1)
NUMBERS = itertools.count(1)


@pytest.fixture
def receiver() -> Iterator[HeartbeatReceiver]:
    receiver = HeartbeatReceiver("127.0.0.1", TOKEN, "flock-1")
    yield receiver
    receiver.close()


def send(receiver: HeartbeatReceiver, *datagrams: bytes) -> list[Heartbeat]:
    """What is heard of these, sent before one that is always heard."""
    host, _, port = receiver.address.rpartition(":")
    last = replace(BEAT, host="last", number=next(NUMBERS))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        for datagram in (*datagrams, last.packed(TOKEN)):
            sending.sendto(datagram, (host, int(port)))
    heard: list[Heartbeat] = []
    while last not in heard:
        more = receiver.receive(10.0)
        assert more, "nothing for 10 s"
        heard += more
    return heard[:-1]


def test_a_heart_beats_until_it_is_stopped(receiver: HeartbeatReceiver) -> None:
    heart = HeartbeatSender(receiver.address, TOKEN, "flock-1", "host-3", 2)
    heart.start()
    heard: list[Heartbeat] = []
    while len(heard) < 3:
        more = receiver.receive(10.0)
        assert more, "nothing for 10 s"
        heard += more
    heart.stop()
    assert heard == [replace(BEAT, number=n + 1) for n in range(len(heard))]
    receiver.receive(0.0)
    assert receiver.receive(0.5) == []


def test_a_heart_to_which_nobody_listens_does_nothing() -> None:
    heart = HeartbeatSender("", TOKEN, "flock-1", "host-3", 2)
    heart.start()
    heart.stop()


def test_only_beats_of_this_flock_are_heard_and_each_once(receiver: HeartbeatReceiver) -> None:
    good, second = BEAT.packed(TOKEN), replace(BEAT, number=2).packed(TOKEN)
    assert send(receiver, good, good, second, good) == [BEAT, replace(BEAT, number=2)]
    assert send(receiver, replace(BEAT, incarnation="flock-0", number=9).packed(TOKEN)) == []
    assert send(receiver, replace(BEAT, generation=3).packed(TOKEN)) == [replace(BEAT, generation=3)]


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"x",
        bytes(16),
        bytes(16) + b"\xc1",
        BEAT.packed("guessed"),
        BEAT.packed(TOKEN)[:-1] + b"\x05",
        BEAT.packed(TOKEN) + b"\x00",
        bytes(60_000),
    ],
    ids=["empty", "short", "code only", "no code", "other token", "other number", "longer", "huge"],
)
def test_what_does_not_know_the_token_is_not_heard(receiver: HeartbeatReceiver, datagram: bytes) -> None:
    assert unpacked(datagram, TOKEN) is None
    assert send(receiver, datagram, BEAT.packed(TOKEN)) == [BEAT]


def test_an_address_of_another_machine() -> None:
    with pytest.raises(DefinitionError, match=r"cannot listen on 203\.0\.113\.7.*an address that this machine has"):
        HeartbeatReceiver("203.0.113.7", TOKEN, "flock-1")
