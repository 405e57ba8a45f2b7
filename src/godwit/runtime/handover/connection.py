"""The origin's connection to its target: what is sent, in order, and what is heard, as events.

Knows how to reach a host that restarts and how fast it may send; what is said is decided elsewhere. A connection that breaks
takes with it what was in line for it, because the next one begins with what the machine says then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import GodwitError, from_json
from godwit.migration.events import Declined, Event, Missing, Offered, Prepared, Served, Wanted
from godwit.migration.origin import PROTOCOLS
from godwit.runtime.handover import parcels
from godwit.runtime.handover.order import Order, Port
from godwit.runtime.liveness.leases import Lease, check_owner, host_directory, read_lease
from godwit.runtime.liveness.waits import waits
from godwit.transport import line, wire
from godwit.transport.flight import GONE, Client

RETRY_S = 0.02
CONNECT_S = 2.0  # as for routers: it may be stopped, and have a successor soon
BYE_S = 1.0
PACE_S = 0.005  # of sending owed to a bandwidth limit before a pause is worth its while

GONE_PEER = (*GONE, pa.ArrowInvalid)


@dataclass(slots=True)
class Out:
    """Something in line for the target: parts of it are made when it is sent."""

    kind: str
    bodies: Iterator[Any] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
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


Line = ports.Queue["Out | Event"]

HEARD: dict[str, Callable[[dict[str, Any]], Event]] = {
    "offered": lambda note: Offered(parcels.units_in(note)),
    "wanted": lambda note: Wanted(parcels.units_in(note)),
    "prepared": lambda note: Prepared(note["step"]),
    "declined": lambda note: Declined(note["step"]),
    "missing": lambda note: Missing(note["step"]),
    "served": lambda note: Served(note["step"]),
    "caught_up": lambda note: Reached(note["step"], note["rows"]),
    "failed": lambda note: Failed(from_json(note["error"])),
}


class Peer:
    def __init__(self, port: Port, order: Order, line: Line) -> None:
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
            self._writer, self._reader = self._client.exchange(
                migration=self._order.id,
                operator=self._order.operator,
                origin=self._port.host,
                generation=self._port.log.generation,
                kept=PROTOCOLS[self._order.protocol].until_asked,
            )
            with waits().over(directory, lease, self._reader.cancel):
                self._writer.begin(parcels.SCHEMA)
                parcels.write(self._writer, "hello")
                wire.unpack(self._reader.read_chunk().app_metadata, "hello")
        except GONE_PEER:
            self.disconnect()
            self.idle.wait(RETRY_S)
            return False
        listened_to = (self._reader, self.connection, directory, lease)
        self._listening = ports.thread(self._listen, "godwit-mover-in", listened_to)
        self._listening.start()
        return True

    def disconnect(self) -> None:
        """The target ends the stream when it has heard that this was all; one that does not is not waited for.

        Never from here: if it is being ended at that moment by the thread that listens, gRPC ends the process.
        """
        if self._client is None:
            return
        if self._listening is not None:
            with suppress(*GONE_PEER):
                parcels.write(self._writer, "bye")
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
                    note = wire.unpack(reader.read_chunk().app_metadata)
                    self._line.put(Answered(HEARD[note["kind"]](note), connection))
        except (GodwitError, *GONE_PEER) as error:
            self._line.put(Broken(error, connection))

    def send(self, out: Out) -> int:
        """Gives the bytes sent; none where there is no connection."""
        if self._writer is None:
            return 0
        if out.bodies is None:
            parcels.write(self._writer, out.kind, **out.fields)
            return 0
        sent = sum(parcels.write(self._writer, out.kind, body, **out.fields) for body in out.bodies)
        self._pace(sent)
        return sent

    def _pace(self, sent: int) -> None:
        if self._order.rate_bytes_per_s:
            self._owed_s += sent / self._order.rate_bytes_per_s
            if self._owed_s > PACE_S:
                self.idle.wait(self._owed_s)
                self._owed_s = 0.0
