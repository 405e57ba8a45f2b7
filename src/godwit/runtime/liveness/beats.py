"""Heartbeats on the wire: a host says every 0.2 s that it runs, the driver takes note. What silence means is not decided here.

Datagrams, not calls: nobody waits for an answer, so neither a busy driver nor a broken connection holds up the next beat; and
one costs 7 us to send and 13 us to take, where a call costs 450. One that is lost costs nothing, and where none gets through
nothing is concluded. Each bears a code made with the flock's token, and a number, so that none is made up or said twice.
"""

from __future__ import annotations

import hmac
import select
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgpack

from godwit import ports
from godwit.control.heartbeats import TICK_S
from godwit.errors import DefinitionError

CODE_BYTES: Final = 16
DATAGRAM_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Beat:
    incarnation: str
    host: str
    generation: int
    number: int

    def packed(self, token: str) -> bytes:
        body: bytes = msgpack.packb([self.incarnation, self.host, self.generation, self.number])
        return _code(token, body) + body


def unpacked(datagram: bytes, token: str) -> Beat | None:
    """None if whoever sent it does not know the token."""
    code, body = datagram[:CODE_BYTES], datagram[CODE_BYTES:]
    if not hmac.compare_digest(code, _code(token, body)):
        return None
    return Beat(*msgpack.unpackb(body))


def _code(token: str, body: bytes) -> bytes:
    return hmac.digest(token.encode(), b"beat" + body, "sha256")[:CODE_BYTES]


class Heart:
    """The host's side: a thread that waits for nothing but the time, and takes no lock that work may hold."""

    def __init__(self, to: str, token: str, incarnation: str, host: str, generation: int) -> None:
        self._to = to
        self._token = token
        self._first = Beat(incarnation, host, generation, 0)
        self._stop = ports.event()
        self._thread = ports.thread(self._run, "godwit-heart")

    def start(self) -> None:
        if self._to:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        name, _, port = self._to.rpartition(":")
        beat = self._first
        while not self._stop.is_set():
            with suppress(OSError):  # the network is away: a later one may get through
                family, kind, protocol, _, address = _resolved(name, int(port))
                with socket.socket(family, kind, protocol) as sending:
                    sending.setblocking(False)
                    while not self._stop.is_set():
                        beat = replace(beat, number=beat.number + 1)
                        sending.sendto(beat.packed(self._token), address)
                        self._stop.wait(TICK_S)
            self._stop.wait(TICK_S)


class Ear:
    """The driver's side: a socket, read by whoever wants to know. `address`: under which hosts reach it, if not `bind`."""

    def __init__(self, bind: str, token: str, incarnation: str, address: str | None = None) -> None:
        self._token = token
        self._incarnation = incarnation
        self._numbers: dict[tuple[str, int], int] = {}
        try:
            self._socket = _bound(bind)
        except OSError as error:
            raise DefinitionError(
                f"cannot listen on {bind}: {error.strerror}", todo="Give bind= an address that this machine has"
            ) from error
        self._socket.setblocking(False)
        self._comes = (
            select.poll()
        )  # select() itself cannot wait for a file with a high number, and a driver may have many
        self._comes.register(self._socket, select.POLLIN)
        self.address = f"{address or bind}:{self._socket.getsockname()[1]}"

    def hear(self, timeout_s: float) -> list[Beat]:
        """What has come; if nothing has, what comes first within this time."""
        self._comes.poll(max(0.0, 1000 * timeout_s))
        heard = []
        with suppress(BlockingIOError):
            while True:
                beat = unpacked(self._socket.recv(DATAGRAM_BYTES_MAX), self._token)
                if beat is not None and self._is_new(beat):
                    heard.append(beat)
        return heard

    def _is_new(self, beat: Beat) -> bool:
        if beat.incarnation != self._incarnation or beat.number <= self._numbers.get((beat.host, beat.generation), 0):
            return False
        self._numbers[beat.host, beat.generation] = beat.number
        return True

    def close(self) -> None:
        self._socket.close()


def _bound(bind: str) -> socket.socket:
    family, kind, protocol, _, address = _resolved(bind, 0)
    made = socket.socket(family, kind, protocol)
    try:
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _resolved(name: str, port: int) -> tuple[int, int, int, str, tuple[object, ...]]:
    found = socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    return found[0], found[1], found[2], found[3], found[4]
