"""Whether the flock that opened a checkpoint last still lives: it answers on a port of its own, and `owner.json` says where.

Whoever connects is sent the flock's incarnation, which stands in `owner.json` too, so no secret is needed and another program
that got the port since is not taken for the flock. What follows from the answer is decided by whoever opens the checkpoint.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from godwit import ports
from godwit.errors import DefinitionError

ANSWER_S: Final = 3.0  # for a machine that is away; one that is there and has nobody on the port says so at once
ANSWER_BYTES_MAX: Final = 64
LOOPBACK: Final = ("127.", "localhost", "[::1]", "::1")

Answer = Literal["lives", "silent", "gone", "unreachable", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who opened a checkpoint. `machine` and `pid` are of the driver, `presence` is where it answers."""

    incarnation: str
    presence: str
    machine: str
    pid: int
    application: str
    since: str
    closed: bool = False

    def __str__(self) -> str:
        return f"application {self.application} (pid {self.pid} on {self.machine}, {self.presence}) since {self.since}"


def read_owner(checkpoint: Path) -> Owner | None:
    """None if nobody opened it, or an older version of Godwit did, which cannot be asked."""
    try:
        found = json.loads((checkpoint / "owner.json").read_text())
        return Owner(**{name: found[name] for name in Owner.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Presence:
    """Answers for as long as the flock is open. `address`: under which others reach it, if not `bind`."""

    def __init__(self, bind: str, incarnation: str, address: str | None = None) -> None:
        self._answer = incarnation.encode()
        name = bind.strip("[]")
        try:
            family = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((name, 0), family=family)
        except OSError as error:
            raise DefinitionError(
                f"cannot listen on {bind}: {error.strerror}", todo="Give bind= an address that this machine has"
            ) from error
        self.address = f"{address or bind}:{self._socket.getsockname()[1]}"
        self._closing = False
        self._thread = ports.thread(self._run, "godwit-presence")
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            with suppress(OSError):  # whoever asked has gone
                asking, _ = self._socket.accept()
                with asking:
                    asking.sendall(self._answer)

    def close(self) -> None:
        self._closing = True
        with suppress(OSError), socket.create_connection(self._socket.getsockname()[:2], ANSWER_S):
            pass  # so that the thread sees it
        self._thread.join()
        self._socket.close()


def asked(owner: Owner) -> Answer:
    """What the owner of a checkpoint answers."""
    name, _, port = owner.presence.rpartition(":")
    here = socket.gethostname() == owner.machine
    if not here and name.startswith(LOOPBACK):
        return "elsewhere"  # it listens to its own machine only
    answer = _answer(name.strip("[]"), int(port), owner.incarnation.encode())
    return "gone" if answer == "silent" and here and not _runs(owner.pid) else answer


def _answer(name: str, port: int, incarnation: bytes) -> Answer:
    try:
        connection = socket.create_connection((name, port), ANSWER_S)
    except ConnectionRefusedError:
        return "gone"
    except OSError:
        return "unreachable"
    with connection:
        try:
            return "lives" if connection.recv(ANSWER_BYTES_MAX) == incarnation else "gone"
        except TimeoutError:
            return "silent"
        except OSError:
            return "gone"


def _runs(pid: int) -> bool:
    """A port may be open without its process: by a child that has got it from it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
