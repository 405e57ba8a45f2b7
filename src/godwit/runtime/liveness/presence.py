"""Whether the flock that opened a checkpoint last is still alive: it answers on a port of its own, named in `owner.json`.

The flock sends its incarnation to every client that connects. The incarnation is also in `owner.json`, so no secret is needed,
and another program that has since got the port is not mistaken for the flock. What follows from the answer is decided in
`spark.checkpoint.checkpoint_in_use`, not here.
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

ANSWER_S: Final = 3.0  # for a machine that cannot be reached; a machine with nothing on the port refuses at once
ANSWER_BYTES_MAX: Final = 64
LOOPBACK: Final = ("127.", "localhost", "[::1]", "::1")

PresenceAnswer = Literal["lives", "silent", "gone", "unreachable", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The flock that opened a checkpoint. `machine` and `pid`: of its driver. `presence`: where the driver answers."""

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
    """None if no flock has opened the checkpoint, or only an older version of Godwit, which has no port to ask."""
    try:
        document = json.loads((checkpoint / "owner.json").read_text())
        return Owner(**{name: document[name] for name in Owner.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Presence:
    """Answers for as long as the flock is open. `address`: the name under which others reach it, if that is not `bind`."""

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
            with suppress(OSError):  # the client has hung up
                client, _ = self._socket.accept()
                with client:
                    client.sendall(self._answer)

    def close(self) -> None:
        self._closing = True
        with suppress(OSError), socket.create_connection(self._socket.getsockname()[:2], ANSWER_S):
            pass  # wakes the thread, which then sees `_closing`
        self._thread.join()
        self._socket.close()


def ask_owner(owner: Owner) -> PresenceAnswer:
    name, _, port = owner.presence.rpartition(":")
    here = socket.gethostname() == owner.machine
    if not here and name.startswith(LOOPBACK):
        return "elsewhere"  # the owner listens on the loopback address of another machine
    answer = _answer(name.strip("[]"), int(port), owner.incarnation.encode())
    return "gone" if answer == "silent" and here and not _runs(owner.pid) else answer


def _answer(name: str, port: int, incarnation: bytes) -> PresenceAnswer:
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
    """Needed because a port may stay open after its process has ended, in a child process that inherited it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
