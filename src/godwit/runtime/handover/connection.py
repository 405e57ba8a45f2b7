"""The origin's connection to its target: sends messages in order, and makes events of the target's answers.

Knows how to reach a host that restarts and how fast it may send; does not decide what is sent. When a connection breaks, the
messages that wait for it are dropped: what the next connection begins with is decided by the machine then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import GodwitError, MalformedRequest
from godwit.migration.events import Declined, Event, Missing, Offered, Prepared, Served, UnitsRequested
from godwit.migration.origin import PROTOCOLS
from godwit.runtime import messages
from godwit.runtime.host_services import HostServices
from godwit.runtime.liveness.leases import Lease, check_owner, host_directory, read_lease
from godwit.runtime.liveness.waits import waits
from godwit.transport import bodies, line, typed
from godwit.transport.flight import GONE, Client

RETRY_S = 0.02
CONNECT_S = 2.0  # as for routers: a target that was stopped may have a successor soon
BYE_S = 1.0
PACE_S = 0.005  # a bandwidth limit makes pauses of at least this length

CONNECTION_ERRORS = (*GONE, pa.ArrowInvalid)


@dataclass(slots=True)
class Queued:
    """A message in line for the target, sent once for each of its bodies; a body is made when it is sent."""

    message: messages.FromOrigin
    bodies: Iterator[Any] | None = None
    forwarded: int = 0  # how many rows or changes, if the message forwards them


class ConnectionLost(Exception):
    """The connection to the target broke."""


@dataclass(frozen=True, slots=True)
class Broken(Event):
    """A connection has ended; ignored unless it is the newest connection."""

    error: BaseException
    connection: int


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The target cannot go on. The user gets the error."""

    error: GodwitError


@dataclass(frozen=True, slots=True)
class Reached(Event):
    """The target has reached a marker. `rows`: how many rows had been forwarded when the marker was queued."""

    step: int
    rows: int


@dataclass(frozen=True, slots=True)
class Taken(Event):
    """The target has taken up a slice of a copy, after so much work. `crowded`: rows left it no time."""

    took_s: float
    crowded: bool


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """The target's answer on a connection. An answer on an older connection may not be true any more."""

    answer: Event
    connection: int


SendQueue = ports.Queue["Queued | Event"]  # messages for the target, and events for the machine


def event_of(answer: typed.Message) -> Event:
    """The event that the target's answer is for the origin's machine."""
    match answer:
        case messages.UnitsExpected(units):
            return Offered(units)
        case messages.UnitsWanted(units):
            return UnitsRequested(units)
        case messages.StepPrepared(step):
            return Prepared(step)
        case messages.StepDeclined(step):
            return Declined(step)
        case messages.StepMissing(step):
            return Missing(step)
        case messages.StepServed(step):
            return Served(step)
        case messages.MarkerReached(step, rows):
            return Reached(step, rows)
        case messages.SliceTaken(_, took_ms, crowded):
            return Taken(took_ms / 1000, crowded)
        case messages.TargetFailed(error):
            return Failed(error)
        case _:
            raise MalformedRequest(f"a target answers with {answer.kind!r}")


class TargetConnection:
    def __init__(self, services: HostServices, request: messages.StartMigration, queue: SendQueue) -> None:
        self._services = services
        self._request = request
        self._queue = queue
        self._client: Client | None = None
        self._writer: Any = None
        self._reader: Any = None
        self._listening: ports.Thread | None = None
        self._owed_s = 0.0
        self.number = 0  # of the present connection, counted from 1
        self.idle = ports.event()  # set when the mover must not pause any more

    def connect(self) -> bool:
        """Connect to the generation of the target that serves; False after a short pause if none does."""
        directory = host_directory(self._services.checkpoint, self._request.target)
        lease = read_lease(directory)
        if lease is None or lease.incarnation != self._services.incarnation:
            check_owner(self._services.checkpoint, self._services.incarnation)
            self.idle.wait(RETRY_S)
            return False
        self._client = line.connect(lease.address, self._services.token, CONNECT_S)
        self.number += 1
        try:
            self._writer, self._reader = typed.open_stream(self._client, self._header())
            with waits().over(directory, lease, self._reader.cancel):
                self._writer.begin(bodies.SCHEMA)
                bodies.write(self._writer, typed.pack(messages.Hello()))
                typed.unpack(self._reader.read_chunk().app_metadata, messages.Hello)
        except CONNECTION_ERRORS:
            self.disconnect()
            self.idle.wait(RETRY_S)
            return False
        listened_to = (self._reader, self.number, directory, lease)
        self._listening = ports.thread(self._listen, "godwit-mover-in", listened_to)
        self._listening.start()
        return True

    def _header(self) -> messages.OpenMigration:
        request, until_asked = self._request, PROTOCOLS[self._request.protocol].until_asked
        return messages.OpenMigration(
            request.id, request.operator, self._services.host, self._services.log.generation, until_asked
        )

    def disconnect(self) -> None:
        """Say `Bye`, and wait for a moment until the target ends the stream; then cancel the stream.

        The stream is never closed here: if the listening thread ends the stream at the same moment, gRPC ends the process.
        """
        if self._client is None:
            return
        if self._listening is not None:
            with suppress(*CONNECTION_ERRORS):
                bodies.write(self._writer, typed.pack(messages.Bye()))
            self._listening.join(BYE_S)
            if self._listening.is_alive():
                self._reader.cancel()
                self._listening.join()
        self._client.close()
        self._client = self._writer = self._reader = self._listening = None

    def empty_queue(self) -> list[Event]:
        """Drop the messages in the queue and return its events."""
        events: list[Event] = []
        while not self._queue.empty():
            item = self._queue.get()
            if isinstance(item, Event):
                events.append(item)
        return events

    def _listen(self, reader: Any, connection: int, directory: Path, lease: Lease) -> None:
        """Put the target's answers, and the end of the stream, into the queue as events."""
        try:
            with waits().over(directory, lease, reader.cancel):  # this also ends writes to the same stream
                while True:
                    answer = typed.unpack(reader.read_chunk().app_metadata, *messages.FROM_TARGET)
                    self._queue.put(Answered(event_of(answer), connection))
        except (GodwitError, *CONNECTION_ERRORS) as error:
            self._queue.put(Broken(error, connection))

    def send(self, queued: Queued) -> int:
        """Returns the number of bytes sent: 0 if there is no connection."""
        if self._writer is None:
            return 0
        if queued.bodies is None:
            bodies.write(self._writer, typed.pack(queued.message))
            return 0
        header = typed.pack(queued.message)
        sent = sum(bodies.write(self._writer, header, body) for body in queued.bodies)
        self._pace(sent)
        return sent

    def _pace(self, sent: int) -> None:
        if self._request.rate_bytes_per_s:
            self._owed_s += sent / self._request.rate_bytes_per_s
            if self._owed_s > PACE_S:
                self.idle.wait(self._owed_s)
                self._owed_s = 0.0
