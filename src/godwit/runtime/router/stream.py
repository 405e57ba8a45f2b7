"""One stream to one generation of a host. A stream that has broken never comes back; the link opens another one."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from godwit.runtime.liveness.leases import Lease
from godwit.runtime.liveness.slot_offers import TaskSlot
from godwit.runtime.liveness.waits import waits
from godwit.runtime.messages import OpenLane
from godwit.runtime.router.host_requests import HostRequest, RowsRequest
from godwit.transport import line, typed
from godwit.transport.flight import GONE, wrong_token
from godwit.transport.typed import Some

CONNECT_S = 2.0  # connecting cannot be cancelled, and a host that was stopped may have a successor soon
ENDED = (*GONE, flight.FlightError, pa.ArrowInvalid)


class Stream:
    """`directory`: the host's. Its files say when this generation is over, even if the connection does not break."""

    def __init__(self, directory: Path, lease: Lease, slot: TaskSlot, schema: pa.Schema, first: OpenLane) -> None:
        self._directory, self._lease, self._slot = directory, lease, slot
        self._address = address = lease.address
        client = line.connect(address, slot.token, CONNECT_S)
        self._writer, self._reader = typed.open_stream(client, first)
        try:
            with self._waiting():
                self._writer.begin(schema)
        except flight.FlightUnauthenticatedError as error:
            raise wrong_token(address) from error

    def _waiting(self) -> AbstractContextManager[None]:
        return waits().over(self._directory, self._lease, self._reader.cancel, self._slot)

    def read(self, expected: type[Some]) -> tuple[Some, pa.RecordBatch | None]:
        """The next answer and its Arrow data."""
        try:
            with self._waiting():
                message = self._reader.read_chunk()
        except flight.FlightUnauthenticatedError as error:
            raise wrong_token(self._address) from error
        return typed.unpack(message.app_metadata, expected), message.data

    def write(self, request: HostRequest, seen: int) -> None:
        header = typed.pack(request.message(seen))
        try:
            with self._waiting():  # a host that does not read may be lost
                if isinstance(request, RowsRequest):
                    self._writer.write_with_metadata(request.batch, header)
                else:
                    self._writer.write_metadata(header)
        except pa.ArrowInvalid as error:  # all rows have the schema of the stream
            raise flight.FlightUnavailableError("the host has ended the stream") from error

    def close(self) -> None:
        """After the last answer: wait until the host ends the stream."""
        with self._waiting(), suppress(*ENDED):
            self._writer.close()

    def hang_up(self) -> None:
        """Break a stream that the host may be ending at the same moment."""
        self._reader.cancel()
        with suppress(*ENDED):
            self._writer.close()
