"""Two-way streams over TCP: a header, then messages of Arrow record batches with metadata, in order, until one side ends.

A stream carries rows many times in a second, a few at a time, and a message costs about half of what it costs over Flight
(design/023). Errors are those of Flight, which requests and fetches use. What a message means is not known here.

Every frame begins with its kind and the lengths of its metadata and its body; the body is an Arrow message. The first frame has
the token, and no other frame is read before the token has been checked.
"""

from __future__ import annotations

import hmac
import json
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from godwit import ports
from godwit.errors import DefinitionError, GodwitError
from godwit.transport import wire

StreamHandler = Callable[[dict[str, Any], Any, Any], None]  # header, reader, writer

HELLO, SCHEMA, MESSAGE, END, FAILED, REFUSED = range(6)
_PREFIX: Final = struct.Struct("<BxxxIQ")  # kind, bytes of the metadata, bytes of the body
HELLO_BYTES_MAX: Final = 1 << 16  # of a stranger, who has not shown the token yet
RECEIVE_BYTES: Final = 1 << 16
LARGE_BYTES: Final = 1 << 16  # a body from here on is received into memory of its own
LINGER_S: Final = 2.0  # after the end, for a client that has not heard of it yet
HELLO_S: Final = 20.0
BACKLOG: Final = 256
# A connection to a machine that has vanished ends some time. Those who wait for that machine are told before (liveness/waits).
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
BROKEN: Final = (OSError, EOFError)
Bytes = bytes | bytearray | memoryview | pa.Buffer


class Frame(NamedTuple):
    kind: int
    metadata: bytes
    body: bytes | bytearray


class Message(NamedTuple):
    data: pa.RecordBatch | None
    app_metadata: bytes


# -- bytes -----------------------------------------------------------------------------------------------------------


def prepared(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


class Frames:
    """The frames that arrive on a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._bytes = bytearray()
        self._arrived: deque[Frame] = deque()
        self._prefix: tuple[int, int, int] | None = None  # of the frame that is arriving
        self._large: memoryview | None = None  # the body of that frame, and how much of it has arrived
        self._large_size = 0
        self._metadata = b""

    def next(self, bytes_max: int | None = None) -> Frame:
        """Wait for a frame of at most so many bytes; frames behind it may be larger. EOFError if the connection has ended."""
        while not self._arrived:
            if not self._take(bytes_max):
                self._receive(0)
        return self._arrived.popleft()

    def receive(self) -> None:
        """Take what has arrived, without waiting."""
        self._receive(socket.MSG_DONTWAIT)
        while self._take(None):
            pass

    def _receive(self, flags: int) -> None:
        if self._large is not None:
            count = self._connection.recv_into(self._large[self._large_size :], 0, flags)
            self._large_size += count
        else:
            some = self._connection.recv(RECEIVE_BYTES, flags)
            count = len(some)
            self._bytes += some
        if not count:
            raise EOFError("the connection has ended")

    def _take(self, bytes_max: int | None) -> bool:
        """Whether something was there to be taken: a whole frame, or the beginning of a large one."""
        if self._large is not None:
            if self._large_size < len(self._large):
                return False
            whole, self._large, self._large_size = self._large.obj, None, 0
            self._finish(whole)
            return True
        if self._prefix is None:
            if len(self._bytes) < _PREFIX.size:
                return False
            kind, metadata, body = _PREFIX.unpack_from(self._bytes)
            self._prefix = kind, metadata, body
            if bytes_max is not None and metadata + body > bytes_max:
                raise EOFError("a stranger sends too much")
        _, metadata, body = self._prefix
        begin, end = _PREFIX.size + metadata, _PREFIX.size + metadata + body
        if body >= LARGE_BYTES and len(self._bytes) >= begin:
            self._begin_large(begin, body)
            return True
        if len(self._bytes) < end:
            return False
        self._metadata = bytes(self._bytes[_PREFIX.size : begin])
        small = bytes(self._bytes[begin:end])
        del self._bytes[:end]
        self._finish(small)
        return True

    def _begin_large(self, begin: int, size: int) -> None:
        self._metadata = bytes(self._bytes[_PREFIX.size : begin])
        body = bytearray(size)
        self._large, self._large_size = memoryview(body), min(len(self._bytes) - begin, size)
        body[: self._large_size] = self._bytes[begin : begin + self._large_size]
        del self._bytes[: begin + self._large_size]

    def _finish(self, body: Any) -> None:
        assert self._prefix is not None, "a frame was arriving"
        self._arrived.append(Frame(self._prefix[0], self._metadata, body))
        self._prefix = None


def frame(kind: int, metadata: bytes = b"", body: Bytes = b"") -> list[Bytes]:
    size = body.size if isinstance(body, pa.Buffer) else len(body)
    return [_PREFIX.pack(kind, len(metadata), size), metadata, body]


def send_all(connection: socket.socket, parts: Sequence[Bytes], wait: Callable[[], None] | None = None) -> None:
    """Send all bytes. `wait`: called instead of waiting in the system when the other side does not read."""
    flags = 0 if wait is None else socket.MSG_DONTWAIT
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        try:
            sent = connection.sendmsg(left, [], flags)
        except BlockingIOError:
            assert wait is not None, "the call does not block"
            wait()
            continue
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


# -- both sides ------------------------------------------------------------------------------------------------------


class Writer:
    """What both sides write with. Not for several threads at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._schema: pa.Schema | None = None

    def begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._send(frame(SCHEMA, b"", schema.serialize()))

    def write_metadata(self, metadata: bytes) -> None:
        self._send(frame(MESSAGE, metadata))

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: bytes) -> None:
        if self._schema is None or not batch.schema.equals(self._schema):
            raise pa.ArrowInvalid("the batch does not have the schema of the stream")
        self._send(frame(MESSAGE, metadata, batch.serialize()))

    def _send(self, parts: Sequence[Bytes]) -> None:
        raise NotImplementedError


def message_of(arrived: Frame, schema: pa.Schema) -> Message:
    if not len(arrived.body):
        return Message(None, arrived.metadata)
    return Message(pa.ipc.read_record_batch(pa.py_buffer(arrived.body), schema), arrived.metadata)


def schema_of(arrived: Frame) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(arrived.body))


# -- client ----------------------------------------------------------------------------------------------------------


class ClientStream(Writer):
    """The client's end: writer and reader in one. One thread may write while another one reads.

    A write never waits for a server that waits for this client to read: what has arrived is taken in meanwhile.
    """

    def __init__(self, address: tuple[str, int], token: str, header: bytes, connect_s: float) -> None:
        try:
            connection = prepared(socket.create_connection(address, connect_s))
        except OSError as error:
            raise flight.FlightUnavailableError(f"nobody answers at {address[0]}:{address[1]}: {error}") from error
        super().__init__(connection)
        self._frames = Frames(connection)
        self._reading = ports.lock()
        self._ended: Exception | None = None  # what every further step raises
        self._cancelled = self._done = False
        self._theirs: pa.Schema | None = None
        self._send(frame(HELLO, json.dumps({"token": token}).encode(), header))

    # -- reading

    def read_chunk(self) -> Message:
        """The next message. StopIteration if the server has said all."""
        while True:
            if self._ended is not None:
                raise self._ended
            try:
                if self._cancelled:
                    raise EOFError
                with self._reading:
                    arrived = self._frames.next()
            except BROKEN as error:
                raise self._broken(error) from error
            if arrived.kind == MESSAGE:
                assert self._theirs is not None, "a server begins before it writes"
                return message_of(arrived, self._theirs)
            if arrived.kind == SCHEMA:
                self._theirs = schema_of(arrived)
            else:
                self._ended = _end_of(arrived)
                self._close()

    def _broken(self, error: BaseException) -> Exception:
        if self._ended is None:
            self._ended = (
                flight.FlightCancelledError("the stream was cancelled")
                if self._cancelled
                else flight.FlightUnavailableError(f"the connection broke: {error}")
            )
            self._close()
        return self._ended

    # -- writing

    def begin(self, schema: pa.Schema) -> None:
        self._check()
        super().begin(schema)

    def write_metadata(self, metadata: bytes) -> None:
        if not isinstance(self._ended, StopIteration):  # nobody reads it any more
            self._check()
            super().write_metadata(metadata)

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: bytes) -> None:
        self._check()
        super().write_with_metadata(batch, metadata)

    def _check(self) -> None:
        if self._cancelled and self._ended is None:
            self._ended = flight.FlightCancelledError("the stream was cancelled")
        if isinstance(self._ended, StopIteration):
            raise pa.ArrowInvalid("the server has ended the stream")
        if self._ended is not None:
            raise self._ended

    def _send(self, parts: Sequence[Bytes]) -> None:
        try:
            send_all(self._connection, parts, self._wait_to_write)
        except BROKEN as error:
            raise self._refused(error) from error

    def _wait_to_write(self) -> None:
        """Until the server has read. It may wait for this client to read what it has written."""
        number = self._connection.fileno()
        if number < 0:
            raise EOFError("the thread that reads has closed the connection")
        poll = select.poll()
        poll.register(number, select.POLLOUT | select.POLLIN)
        for _, events in poll.poll():
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and self._reading.acquire(blocking=False):
                try:
                    with suppress(BlockingIOError):
                        self._frames.receive()
                finally:
                    self._reading.release()
            elif not events & select.POLLOUT:
                poll.modify(number, select.POLLOUT)
                poll.poll()

    def _refused(self, error: BaseException) -> Exception:
        """Why nothing can be written: the server may have ended the stream well, or with an error, and said so."""
        if self._ended is None and not self._cancelled and self._reading.acquire(blocking=False):
            try:
                while self._ended is None:
                    arrived = self._frames.next()
                    self._ended = _end_of(arrived) if arrived.kind in (END, FAILED, REFUSED) else None
            except BROKEN:
                pass
            finally:
                self._reading.release()
        if isinstance(self._ended, StopIteration):
            self._close()
            return pa.ArrowInvalid("the server has ended the stream")
        return self._broken(error)

    # -- the end

    def done_writing(self) -> None:
        if not self._done and self._ended is None:
            self._done = True
            with suppress(*BROKEN, flight.FlightError, pa.ArrowInvalid):
                self._send(frame(END))

    def close(self) -> None:
        """Say that this was all, and wait until the server has ended the stream, too."""
        self.done_writing()
        with suppress(StopIteration, flight.FlightError, pa.ArrowInvalid):
            while True:
                self.read_chunk()
        self._ended = self._ended or StopIteration()

    def cancel(self) -> None:
        """Break the stream, from any thread: threads that write or wait here get an error."""
        if self._ended is None:
            self._cancelled = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()


def _end_of(arrived: Frame) -> Exception:
    if arrived.kind == REFUSED:
        return flight.FlightUnauthenticatedError("wrong token")
    if arrived.kind == FAILED:
        return flight.FlightServerError(arrived.metadata.decode(errors="replace"))
    return StopIteration()


# -- server ----------------------------------------------------------------------------------------------------------


class ServerStream(Writer):
    """The server's end. It cannot tell a client that was lost from a client that has said all."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._frames = Frames(connection)
        self._over = False
        self._theirs: pa.Schema | None = None

    def hello(self, token: str) -> bytes | None:
        """The header, when the client has begun. None: the client has left, or is a stranger."""
        try:
            first = self._frames.next(HELLO_BYTES_MAX)
            if first.kind != HELLO or not _same_token(first.metadata, token):
                self._send(frame(REFUSED))
                return None
            begun = self._frames.next()
        except (*BROKEN, flight.FlightError):
            return None
        if begun.kind != SCHEMA:
            return None
        self._theirs = schema_of(begun)
        return bytes(first.body)

    def read_chunk(self) -> Message:
        if self._over:
            raise StopIteration
        try:
            arrived = self._frames.next()
        except BROKEN:
            arrived = Frame(END, b"", b"")
        if arrived.kind != MESSAGE:
            self._over = True
            raise StopIteration
        assert self._theirs is not None, "a client begins before it writes"
        return message_of(arrived, self._theirs)

    def _send(self, parts: Sequence[Bytes]) -> None:
        try:
            send_all(self._connection, parts)
        except OSError as error:
            raise flight.FlightInternalError(f"the client is gone: {error}") from error

    def end(self, failure: str | None = None) -> None:
        """The client hears all that was written, and the end. It is waited for a while, because what it writes is lost."""
        with suppress(OSError, flight.FlightError):
            self._send(frame(END) if failure is None else frame(FAILED, failure.encode()))
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(LINGER_S)
            deadline_s = ports.now_s() + LINGER_S
            while self._connection.recv(RECEIVE_BYTES) and ports.now_s() < deadline_s:
                pass

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _same_token(metadata: bytes, token: str) -> bool:
    try:
        sent = str(json.loads(metadata)["token"])
    except (ValueError, KeyError, TypeError):
        return False
    return hmac.compare_digest(sent.encode(), token.encode())


class StreamListener:
    """Takes connections on a port of its own; each stream has a thread."""

    def __init__(self, bind: str, token: str, handler: StreamHandler) -> None:
        self._token, self._handler = token, handler
        self._changed = ports.condition(ports.lock())
        self._streams: set[ServerStream] = set()
        self._stopping = False
        name = bind.strip("[]")
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        try:
            self._listening = socket.create_server((name, 0), family=family, backlog=BACKLOG)
        except OSError as error:
            raise DefinitionError(
                f"cannot listen on {bind}: {error}", todo="Give bind= an address that this machine has"
            ) from error
        self.port: int = self._listening.getsockname()[1]
        ports.thread(self._accept, "godwit-streams").start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._stopping:
                    return
                ports.sleep(0.05)  # too many open files, for a moment
                continue
            ports.thread(self._serve, "godwit-stream", (connection,)).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = ServerStream(prepared(connection))
        connection.settimeout(HELLO_S)  # a stranger may say nothing
        header = stream.hello(self._token)
        connection.settimeout(None)
        try:
            if header is not None and self._enter(stream):
                try:
                    stream.end(self._handled(header, stream))
                finally:
                    self._leave(stream)
        finally:
            stream.close()

    def _handled(self, header: bytes, stream: ServerStream) -> str | None:
        """The error with which the stream ends."""
        try:
            self._handler(wire.unpack(header), stream, stream)
        except GodwitError as error:
            return error.to_json()
        except StopIteration:
            return None
        except Exception as error:  # noqa: BLE001 the client gets every error
            return str(error) or type(error).__name__
        return None

    def _enter(self, stream: ServerStream) -> bool:
        with self._changed:
            if not self._stopping:
                self._streams.add(stream)
            return not self._stopping

    def _leave(self, stream: ServerStream) -> None:
        with self._changed:
            self._streams.discard(stream)
            self._changed.notify_all()

    def stop(self, grace_s: float) -> bool:
        """Take no more connections. False if a stream has not ended within the grace time."""
        self._stopping = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._changed:
            return self._changed.wait_for(lambda: not self._streams, grace_s)
