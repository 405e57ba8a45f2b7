"""The origin's connection to its target: what is sent, in order, and what is heard, as events.

Knows how to reach a host that restarts and how fast it may send; what is said is decided elsewhere. A connection that breaks
takes with it what was in line for it, because the next one begins with what the machine says then.
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
from godwit.migration.events import Declined, Event, Missing, Offered, Prepared, Served, Wanted
from godwit.migration.origin import PROTOCOLS
from godwit.runtime import messages
from godwit.runtime.handover import parcels
from godwit.runtime.handover.order import Port
from godwit.runtime.liveness.leases import Lease, check_owner, host_directory, read_lease
from godwit.runtime.liveness.waits import waits
from godwit.transport import line, typed
from godwit.transport.flight import GONE, Client

RETRY_S = 0.02
CONNECT_S = 2.0  # as for routers: it may be stopped, and have a successor soon
BYE_S = 1.0
PACE_S = 0.005  # of sending owed to a bandwidth limit before a pause is worth its while

GONE_PEER = (*GONE, pa.ArrowInvalid)


@dataclass(slots=True)
class Queued:
    """A message in line for the target, sent once for each of its bodies; a body is made when it is sent."""

    message: messages.FromOrigin
    bodies: Iterator[Any] | None = None
    forwarded: int = 0  # rows, if these are rows that the origin has applied


class LostPeer(Exception):
    """The connection to the target broke."""


@dataclass(frozen=True, slots=True)
class Broken(Event):
    """A connection has ended; only the newest matters."""

    error: BaseException
    connection: int


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The target cannot go on, for a reason that somebody must know."""

    error: GodwitError


@dataclass(frozen=True, slots=True)
class Reached(Event):
    """The target has come to a marker, which was put in line when so many rows had been forwarded."""

    step: int
    rows: int


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """What the target has said on a connection. What it said on an older one it may not hold to any more."""

    answer: Event
    connection: int


Line = ports.Queue["Queued | Event"]


def event_of(answer: typed.Message) -> Event:
    """What the target's answer means to the origin."""
    match answer:
        case messages.UnitsExpected(units):
            return Offered(units)
        case messages.UnitsWanted(units):
            return Wanted(units)
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
        case messages.TargetFailed(error):
            return Failed(error)
        case _:
            raise MalformedRequest(f"a target answers with {answer.kind!r}")


class Peer:
    def __init__(self, port: Port, order: messages.StartMigration, line: Line) -> None:
        self._port = port
        self._order = order
        self._line = line
        self._client: Client | None = None
        self._writer: Any = None
        self._reader: Any = None
        self._listening: ports.Thread | None = None
        self._owed_s = 0.0
        self.connection = 0
        self.idle = ports.event()  # set when there is nothing to wait for any more

    def connect(self) -> bool:
        """To whichever generation of the target serves; False after a short while if none does."""
        directory = host_directory(self._port.checkpoint, self._order.target)
        lease = read_lease(directory)
        if lease is None or lease.incarnation != self._port.incarnation:
            check_owner(self._port.checkpoint, self._port.incarnation)
            self.idle.wait(RETRY_S)
            return False
        self._client = line.connect(lease.address, self._port.token, CONNECT_S)
        self.connection += 1
        try:
            self._writer, self._reader = typed.open_stream(self._client, self._header())
            with waits().over(directory, lease, self._reader.cancel):
                self._writer.begin(parcels.SCHEMA)
                parcels.write(self._writer, typed.pack(messages.Hello()))
                typed.unpack(self._reader.read_chunk().app_metadata, messages.Hello)
        except GONE_PEER:
            self.disconnect()
            self.idle.wait(RETRY_S)
            return False
        listened_to = (self._reader, self.connection, directory, lease)
        self._listening = ports.thread(self._listen, "godwit-mover-in", listened_to)
        self._listening.start()
        return True

    def _header(self) -> messages.OpenMigration:
        order, kept = self._order, PROTOCOLS[self._order.protocol].until_asked
        return messages.OpenMigration(order.id, order.operator, self._port.host, self._port.log.generation, kept)

    def disconnect(self) -> None:
        """The target ends the stream when it has heard that this was all; one that does not is not waited for.

        Never from here: if it is being ended at that moment by the thread that listens, gRPC ends the process.
        """
        if self._client is None:
            return
        if self._listening is not None:
            with suppress(*GONE_PEER):
                parcels.write(self._writer, typed.pack(messages.Bye()))
            self._listening.join(BYE_S)
            if self._listening.is_alive():
                self._reader.cancel()
                self._listening.join()
        self._client.close()
        self._client = self._writer = self._reader = self._listening = None

    def purge(self) -> list[Event]:
        """Empty the line: what was to be sent is not, what was heard is given back."""
        kept: list[Event] = []
        while not self._line.empty():
            item = self._line.get()
            if isinstance(item, Event):
                kept.append(item)
        return kept

    def _listen(self, reader: Any, connection: int, directory: Path, lease: Lease) -> None:
        """The target's answers as events; the end of the stream is one too."""
        try:
            with waits().over(directory, lease, reader.cancel):  # writing waits for the same stream
                while True:
                    answer = typed.unpack(reader.read_chunk().app_metadata, *messages.FROM_TARGET)
                    self._line.put(Answered(event_of(answer), connection))
        except (GodwitError, *GONE_PEER) as error:
            self._line.put(Broken(error, connection))

    def send(self, queued: Queued) -> int:
        """Gives the bytes sent; none where there is no connection."""
        if self._writer is None:
            return 0
        if queued.bodies is None:
            parcels.write(self._writer, typed.pack(queued.message))
            return 0
        header = typed.pack(queued.message)
        sent = sum(parcels.write(self._writer, header, body) for body in queued.bodies)
        self._pace(sent)
        return sent

    def _pace(self, sent: int) -> None:
        if self._order.rate_bytes_per_s:
            self._owed_s += sent / self._order.rate_bytes_per_s
            if self._owed_s > PACE_S:
                self.idle.wait(self._owed_s)
                self._owed_s = 0.0
