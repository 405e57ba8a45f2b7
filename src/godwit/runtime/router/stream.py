"""One Flight stream to one generation of a host. A stream that has broken never comes back; the link opens another one.

The caller writes the messages and a thread of the stream reads the answers, so that neither side waits for the other to read.
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
from godwit.runtime.messages import OpenLane
from godwit.runtime.router.host_requests import HostRequest, RowsRequest
from godwit.transport import line, typed
from godwit.transport.flight import GONE, wrong_token
from godwit.transport.typed import Some

CONNECT_S = 2.0  # connecting cannot be cancelled, and a host that was stopped may have a successor soon
ENDED = (*GONE, flight.FlightError, pa.ArrowInvalid)
ENDED_S = 1.0  # within which the reading thread has seen the end of a stream that can no longer be written


class Stream:
    """`directory`: the host's. Its files say when this generation is over, even if the connection does not break."""

    def __init__(self, directory: Path, lease: Lease, slot: TaskSlot, schema: pa.Schema, first: OpenLane) -> None:
        self._directory, self._lease, self._slot = directory, lease, slot
        self._address = address = lease.address
        self._client = line.connect(address, slot.token, CONNECT_S)
        self._inbox: ports.Queue[Any] = ports.queue()
        try:
            self._writer, self._reader = typed.open_stream(self._client, first)
            with self._waiting():
                self._writer.begin(schema)
        except flight.FlightUnauthenticatedError as error:
            self._client.close()
            raise wrong_token(address) from error
        except GONE:
            self._client.close()
            raise
        self._reading = ports.thread(self._read_all, f"godwit-stream-{address}")
        self._reading.start()

    def _waiting(self) -> AbstractContextManager[None]:
        return waits().over(self._directory, self._lease, self._reader.cancel, self._slot)

    def _read_all(self) -> None:
        while True:
            try:
                message = self._reader.read_chunk()
            except BaseException as error:  # noqa: BLE001 `read` raises it
                self._inbox.put(error)
                return
            self._inbox.put(message)

    def read(self, expected: type[Some]) -> tuple[Some, pa.RecordBatch | None]:
        """The next answer and its Arrow data."""
        with self._waiting():
            message = self._inbox.get()
        if isinstance(message, BaseException):
            self._inbox.put(message)  # the stream stays ended
            if isinstance(message, flight.FlightUnauthenticatedError):
                raise wrong_token(self._address) from message
            raise message
        return typed.unpack(message.app_metadata, expected), message.data

    def write(self, request: HostRequest, seen: int) -> None:
        header = typed.pack(request.message(seen))
        try:
            # If the host does not read, this call waits, and nothing cancels it: cancelling would let the reading thread end
            # the stream during the write, and some writes of gRPC never return from that. The end of the host's process ends
            # the write; if its machine has vanished, TCP ends it after VANISHED_S.
            if isinstance(request, RowsRequest):
                self._writer.write_with_metadata(request.batch, header)
            else:
                self._writer.write_metadata(header)
        except pa.ArrowInvalid as error:  # Arrow raises this for a stream that the host has ended, and for bad data
            self._reading.join(ENDED_S)
            if self._reading.is_alive():
                raise
            raise flight.FlightUnavailableError("the host has ended the stream") from error

    def close(self) -> None:
        """After the last answer: wait until the host ends the stream."""
        with self._waiting():
            self._end()

    def hang_up(self) -> None:
        """Cancel a stream that the host may be ending at the same moment."""
        self._reader.cancel()
        self._end()

    def _end(self) -> None:
        """Wait for the end of the stream, then release it.

        Arrow answers the end of a stream by ending its own side, in the thread that reads. If another thread ends the stream
        at the same time, gRPC ends the process. So the stream is never closed here before the reading thread has returned.
        """
        self._reading.join()
        with suppress(*ENDED):  # all answers of the host have been read
            self._writer.close()
        self._client.close()
