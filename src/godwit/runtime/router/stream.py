"""One Flight stream to one generation of a host, from its beginning to its end. It never comes back; a link opens another.

Messages are written by whoever sends and read by a thread of the stream's own, so that neither side ever waits for the other
to read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from godwit import ports
from godwit.runtime.liveness.leases import Lease
from godwit.runtime.liveness.slot_offers import TaskSlot
from godwit.runtime.liveness.waits import waits
from godwit.runtime.router.pieces import Finish, Piece
from godwit.transport import line, wire
from godwit.transport.flight import GONE, wrong_token

CONNECT_S = 2.0  # nothing can cancel it, and a host that was stopped may have a successor soon
ENDED = (*GONE, flight.FlightError, pa.ArrowInvalid)
ENDED_S = 1.0  # within which the reading thread has seen the end of a stream that can no longer be written


class Stream:
    """`directory` is the host's: there it is told when this generation is over, should the stream not show it."""

    def __init__(self, directory: Path, lease: Lease, slot: TaskSlot, schema: pa.Schema, **header: Any) -> None:
        self._directory, self._lease, self._slot = directory, lease, slot
        self._address = address = lease.address
        self._client = line.connect(address, slot.token, CONNECT_S)
        self._inbox: ports.Queue[Any] = ports.queue()
        try:
            self._writer, self._reader = self._client.exchange(**header)
            with self._waiting():
                self._writer.begin(schema)
        except flight.FlightUnauthenticatedError as error:
            self._client.close()
            raise wrong_token(address) from error
        except GONE:
            self._client.close()
            raise
        self._draining = ports.thread(self._drain, f"godwit-stream-{address}")
        self._draining.start()

    def _waiting(self) -> AbstractContextManager[None]:
        return waits().over(self._directory, self._lease, self._reader.cancel, self._slot)

    def _drain(self) -> None:
        while True:
            try:
                message = self._reader.read_chunk()
            except BaseException as error:  # noqa: BLE001 whoever reads the inbox raises it
                self._inbox.put(error)
                return
            self._inbox.put(message)

    def read(self, kind: str) -> tuple[dict[str, Any], pa.RecordBatch | None]:
        with self._waiting():
            message = self._inbox.get()
        if isinstance(message, BaseException):
            self._inbox.put(message)  # it stays ended
            if isinstance(message, flight.FlightUnauthenticatedError):
                raise wrong_token(self._address) from message
            raise message
        return wire.unpack(message.app_metadata, kind), message.data

    def write(self, message: Piece | Finish, seen: int) -> None:
        note = message.note(seen)
        try:
            # Where the host does not read this waits, and is not cancelled: the reading thread would then end the stream
            # under the writer's hands, and gRPC has writes that never return from that. The end of the process ends it, and
            # if its machine has vanished, TCP does, soon.
            if isinstance(message, Piece):
                self._writer.write_with_metadata(message.batch, note)
            else:
                self._writer.write_metadata(note)
        except pa.ArrowInvalid as error:  # what Arrow calls a stream that the host has ended, but bad data too
            self._draining.join(ENDED_S)
            if self._draining.is_alive():
                raise
            raise flight.FlightUnavailableError("the host has ended the stream") from error

    def close(self) -> None:
        """All has been said and answered: the host ends the stream."""
        with self._waiting():
            self._end()

    def hang_up(self) -> None:
        """Cancel a stream that the host may be ending at this very moment."""
        self._reader.cancel()
        self._end()

    def _end(self) -> None:
        """Wait for its end, and let go of it.

        Arrow answers the end of a stream by ending its own side, in the thread that reads; if another thread does so too at
        that time, gRPC ends the process. So it is never ended from here before the reading thread is done.
        """
        self._draining.join()
        with suppress(*ENDED):  # what the host had to say has been read
            self._writer.close()
        self._client.close()
