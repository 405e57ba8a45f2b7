"""The simulated network: calls and two-way streams with the manners of Flight's, between processes of the kernel.

A stream is in order both ways. Messages take their time. A stream breaks when an end of it is killed, when its reader cancels
it, or by a fault; what is under way then may still arrive, or some of it. Between nodes that are cut off from each other
nothing arrives, and nobody is told: whoever waits goes on waiting, as with a machine that has vanished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight
from greenlet import GreenletExit

from godwit.errors import Bug, GodwitError, HostUnavailable, MalformedRequest
from godwit.transport import wire
from godwit.transport.flight import wrong_token
from tests.sim.kernel import Kernel, Process, SimThread

BIND = "127.0.0.1"
DATAGRAMS_LOST = 0.02


class Message(NamedTuple):
    data: pa.RecordBatch | None
    app_metadata: pa.Buffer | None


BEGIN = Message(None, None)  # the schema, which comes first


class Direction:
    """One way of a stream."""

    def __init__(self, stream: Stream, sender: Process, reader: Process) -> None:
        self.stream, self.sender, self.reader = stream, sender, reader
        self.messages: deque[tuple[float, Message | None]] = deque()  # None: the sender has said that this was all
        self.last_s = 0.0
        self.waiting: list[SimThread] = []  # to read
        self.blocked: list[SimThread] = []  # to write: the other side does not read
        self.end: Exception | None = None  # raised when all that arrives has been read

    def put(self, message: Message | None) -> None:
        kernel = self.stream.network.kernel
        self.last_s = max(self.last_s, kernel.time_s + self.stream.network.latency_s())
        self.messages.append((self.last_s, message))
        kernel.at(self.last_s, self.news)

    def news(self) -> None:
        waiting, self.waiting = self.waiting, []
        for thread in waiting:
            self.stream.network.kernel.wake(thread)

    def room(self) -> None:
        blocked, self.blocked = self.blocked, []
        for thread in blocked:
            self.stream.network.kernel.wake(thread)

    def arrived(self, at: int) -> bool:
        network = self.stream.network
        reached = network.reaches(self.sender.node, self.reader.node)
        return bool(self.messages) and self.messages[at][0] <= network.kernel.time_s and reached

    def read(self) -> Message:
        kernel = self.stream.network.kernel
        kernel.give_way()
        while True:
            if self.arrived(0):
                message = self.messages.popleft()[1]
                self.room()
                if message is not None:
                    return message
                self.end = StopIteration()
            if self.end is not None and not self.messages:
                raise self.end
            self.waiting.append(kernel.current())
            kernel.wait()

    def wait_for_room(self) -> None:
        kernel = self.stream.network.kernel
        kernel.give_way()
        while not self.stream.over and self.full():
            self.blocked.append(kernel.current())
            if self is self.stream.up:
                self.stream.down.room()  # a client that waits to write takes in what has arrived
            kernel.wait()

    def full(self) -> bool:
        taken_in = self is self.stream.down and self.stream.up.blocked
        return len(self.messages) >= self.stream.capacity and not taken_in

    def cut(self, end: Exception, arrive: bool) -> None:
        """Nothing more is written; of what is under way all, some or nothing arrives."""
        dice = self.stream.network.kernel.dice
        if not arrive:
            for _ in range(dice.randint(0, len(self.messages))):
                self.messages.pop()
        self.end = self.end or end
        self.room()
        self.stream.network.kernel.after(self.stream.network.latency_s(), self.news)
        self.news()


class Stream:
    """Both ends of an exchange."""

    def __init__(self, network: Network, client: Process, server: Process, header: dict[str, Any]) -> None:
        self.network, self.client, self.server, self.header = network, client, server, header
        self.capacity = network.kernel.dice.choice((2, 8, 1_000))
        self.up = Direction(self, client, server)
        self.down = Direction(self, server, client)
        self.over = False
        client.at_end.append(self.end_of_client)
        server.at_end.append(self.end_of_server)

    def end_of_client(self) -> None:
        self.snap(flight.FlightUnavailableError("the client is gone"))

    def end_of_server(self) -> None:
        self.snap(flight.FlightUnavailableError("the server is gone"))

    def snap(self, error: Exception) -> None:
        """The client hears what it was. The server cannot tell it from a client that has said all it had to say."""
        if not self.over:
            self._close()
            self.up.cut(StopIteration(), arrive=False)
            self.down.cut(error, arrive=False)

    def cancel(self) -> None:
        """By the client, which then reads nothing more, not even what has arrived."""
        if self.down.end is None:
            error = flight.FlightCancelledError("cancelled")
            self.down.messages.clear()
            self.snap(error)
            self.down.cut(error, arrive=True)

    def returned(self, error: Exception | None = None) -> None:
        """The server's handler has come to its end: the client hears all that was said, and the end."""
        if not self.over:
            self._close()
            if error is None:
                self.down.put(None)
            else:
                self.down.cut(error, arrive=True)
            self.up.cut(StopIteration(), arrive=True)

    def _close(self) -> None:
        self.over = True
        self.network.streams.pop(self, None)

    def client_knows(self) -> bool:
        """That the stream is over."""
        down = self.down
        return down.end is not None or (self.over and down.arrived(-1) and down.messages[-1][1] is None)


class Writer(ABC):
    """One end's way to speak. `_refuse`: what comes of writing to a stream that is over."""

    def __init__(self, way: Direction) -> None:
        self._way, self._stream = way, way.stream
        self._schema: pa.Schema | None = None
        self._closed = False  # a message was refused: from then on batches are not even tried

    def begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._write(BEGIN)

    def write_metadata(self, note: bytes) -> None:
        self._write(Message(None, pa.py_buffer(note)))

    def write_with_metadata(self, batch: pa.RecordBatch, note: bytes) -> None:
        if batch.schema != self._schema:
            raise pa.ArrowInvalid("Tried to write record batch with different schema")
        if self._closed:
            raise pa.ArrowInvalid("Destination already closed")
        self._write(Message(batch, pa.py_buffer(note)))

    def _write(self, message: Message) -> None:
        self._way.wait_for_room()
        if self._open():
            self._way.put(message)
            self._tell(message)
        else:
            self._refuse()

    def _tell(self, message: Message) -> None:
        """A point has the name of what hosts say to each other, once it has been said."""
        migration = self._stream.header.get("migration")
        if migration is not None and message.app_metadata is not None:
            kind = wire._parse(message.app_metadata)["kind"]
            self._stream.network.kernel.points.reach(f"{self._way.sender.node} {migration} says {kind}")

    def _open(self) -> bool:
        return not self._stream.over

    @abstractmethod
    def _refuse(self) -> None: ...


class ServerWriter(Writer):
    def begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._stream.network.kernel.give_way()
        if not self._open():
            self._refuse()

    def _refuse(self) -> None:
        self._closed = True
        raise flight.FlightInternalError("Could not write to stream (client disconnect?)")


class ClientWriter(Writer):
    """It may write without an error to a stream that has ended well: then what had not been read is lost."""

    _done = False

    def done_writing(self) -> None:
        if self._open():
            self._way.put(None)
        self._done = True

    def close(self) -> None:
        self.done_writing()
        self._drain()

    def _open(self) -> bool:
        return not self._done and super()._open()

    def _refuse(self) -> None:
        if self._done or self._stream.client_knows():
            self._closed = True
            self._drain()

    def _drain(self) -> None:
        """Until the end of the server's handler, as Arrow does it to have the status."""
        with suppress(StopIteration):
            while True:
                self._stream.down.read()


class Reader:
    """The server's."""

    def __init__(self, way: Direction) -> None:
        self._way = way

    def read_chunk(self) -> Message:
        return self._way.read()


class ClientReader(Reader):
    def cancel(self) -> None:
        self._way.stream.cancel()


class SimService:
    def __init__(self, network: Network, token: str, actions: Mapping[str, Any], exchange: Any, fetch: Any) -> None:
        self._network, self.token = network, token
        self.process = network.kernel.current().process
        self.port = network.kernel.next_id() + 1_000
        self.ports = str(self.port)  # streams come in at the same one
        self.actions, self.exchange, self.fetch = dict(actions), exchange, fetch
        self.listening = True
        self.busy = 0
        network.services[f"{BIND}:{self.port}"] = self
        self.process.at_end.append(self._gone)

    def _gone(self) -> None:
        self.listening = False

    def stop(self, grace_s: float) -> bool:
        """As with Flight: no new calls; those that run come to their end, or have not by then."""
        self.listening = False
        kernel = self._network.kernel
        deadline_s = kernel.time_s + grace_s
        while self.busy and kernel.time_s < deadline_s:
            kernel.sleep(0.01)
        return not self.busy

    def run(self, job: Any) -> None:
        self.busy += 1
        try:
            job()
        finally:
            self.busy -= 1

    def spawn(self, name: str, job: Any) -> None:
        self._network.kernel.spawn(self.process, lambda: self.run(job), name)


class SimClient:
    def __init__(self, network: Network, address: str, token: str, connect_s: float) -> None:
        self.address = address
        self._network, self._token, self._connect_s = network, token, connect_s

    def reach(self, connect_s: float) -> SimService:
        kernel = self._network.kernel
        kernel.sleep(self._network.latency_s())
        service = self._network.services.get(self.address)
        if service is None or not service.listening:
            raise flight.FlightUnavailableError(f"nobody listens at {self.address}")
        me, other = kernel.current().process.node, service.process.node
        deadline_s = kernel.time_s + connect_s
        while not self._network.reaches(me, other):
            if kernel.time_s >= deadline_s:
                raise flight.FlightUnavailableError(f"{self.address} is out of reach")
            kernel.sleep(0.2)
        return service

    def _service(self, connect_s: float) -> SimService:
        service = self.reach(connect_s)
        if self._token != service.token:
            raise flight.FlightUnauthenticatedError("wrong token")
        return service

    def call(self, action: str, timeout_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        kernel = self._network.kernel
        deadline_s = kernel.time_s + timeout_s
        try:
            service = self._service(min(timeout_s, self._connect_s))
        except flight.FlightUnauthenticatedError as error:
            raise wrong_token(self.address) from error
        except flight.FlightUnavailableError as error:
            raise HostUnavailable(f"{action!r} at {self.address} failed: {error}") from error
        request = wire.pack("request", **fields)
        call = Call(self._network, kernel.current(), service.process)
        service.spawn(f"action {action}", lambda: call.answer(answered(service, action, request)))
        result = call.wait(deadline_s)
        if result is None:
            raise HostUnavailable(f"{action!r} at {self.address} failed: no answer")
        return wire.unpack(result)

    def exchange(self, kind: str = "exchange", /, **fields: Any) -> tuple[ClientWriter, ClientReader]:
        service = self._service(self._connect_s)
        header = wire.unpack(wire.pack(kind, **fields))
        stream = Stream(self._network, self._network.kernel.current().process, service.process, header)
        self._network.streams[stream] = None
        self._network.ever.append(stream)
        service.spawn("exchange", lambda: _served(service, stream))
        return ClientWriter(stream.up), ClientReader(stream.down)

    def fetch(self, kind: str = "fetch", /, **fields: Any) -> tuple[pa.Schema, Any]:
        raise NotImplementedError("state is looked at in the hosts themselves")

    def close(self) -> None:
        return


class Call:
    """One question and its answer."""

    def __init__(self, network: Network, waiter: SimThread, server: Process) -> None:
        self._network, self._server = network, server
        self.waiter: SimThread | None = waiter
        self.result: bytes | None = None
        self.lost = False
        server.at_end.append(self._server_gone)

    def _server_gone(self) -> None:
        self.lost = True
        if self.waiter is not None and self.result is None:
            self._network.kernel.wake(self.waiter)

    def wait(self, deadline_s: float) -> bytes | None:
        kernel = self._network.kernel
        while self.result is None and self._server.alive and not self.lost and kernel.time_s < deadline_s:
            kernel.wait(deadline_s)
        self.waiter = None
        return self.result

    def answer(self, result: bytes) -> None:
        self._network.kernel.after(self._network.latency_s(), lambda: self._arrive(result))

    def _arrive(self, result: bytes) -> None:
        if self.waiter is None or self.lost:
            return
        if self._network.reaches(self._server.node, self.waiter.process.node):
            self.result = result
            self._network.kernel.wake(self.waiter)
        else:
            self.answer(result)


def answered(service: SimService, action: str, request: bytes) -> bytes:
    """As Flight's service does it."""
    try:
        handler = service.actions.get(action)
        if handler is None:
            raise MalformedRequest(f"unknown action {action!r}")
        return wire.pack("result", **handler(wire.unpack(request)))
    except GodwitError as error:
        return wire.pack_error(error)
    except GreenletExit:
        raise
    except Exception as error:  # noqa: BLE001 the caller must hear of it
        return wire.pack_error(Bug(f"{type(error).__name__} in action {action!r}: {error}"))


def _served(service: SimService, stream: Stream) -> None:
    """Once the client has begun."""
    try:
        stream.up.read()
    except StopIteration:
        stream.returned()
        return
    try:
        service.exchange(stream.header, Reader(stream.up), ServerWriter(stream.down))
    except flight.FlightError as error:
        stream.returned(error)
    else:
        stream.returned()


class SimDatagramReceiver:
    def __init__(self, network: Network) -> None:
        self._network = network
        self.node = network.kernel.current().process.node
        self.port = network.kernel.next_id() + 1_000
        self._arrived: list[bytes] = []
        self._waiting: list[SimThread] = []
        network.inboxes[f"{BIND}:{self.port}"] = self

    def arrive(self, datagram: bytes) -> None:
        self._arrived.append(datagram)
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            self._network.kernel.wake(thread)

    def receive(self, timeout_s: float) -> list[bytes]:
        kernel = self._network.kernel
        kernel.give_way()
        deadline_s = kernel.time_s + max(0.0, timeout_s)
        if not self._arrived and timeout_s > 0:
            self._waiting.append(kernel.current())
            kernel.wait(deadline_s)
        received, self._arrived = self._arrived, []
        return received

    def close(self) -> None:
        self._network.inboxes.pop(f"{BIND}:{self.port}", None)


class SimDatagramSender:
    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address

    def send(self, datagram: bytes) -> None:
        """Some are lost, and nobody is told."""
        kernel, inbox = self._network.kernel, self._network.inboxes.get(self._address)
        reached = inbox is not None and self._network.reaches(kernel.current().process.node, inbox.node)
        if inbox is not None and reached and kernel.dice.random() >= DATAGRAMS_LOST:
            kernel.after(self._network.latency_s(), lambda: inbox.arrive(datagram))

    def close(self) -> None:
        return


class Network:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.services: dict[str, SimService] = {}
        self.inboxes: dict[str, SimDatagramReceiver] = {}
        self.streams: dict[Stream, None] = {}  # that are open
        self.ever: list[Stream] = []
        self._cut_off: set[frozenset[str]] = set()

    def latency_s(self) -> float:
        """Mostly short, now and then long."""
        chance = self.kernel.dice.random()
        return 0.0002 + chance * 0.001 if chance < 0.93 else 0.002 + self.kernel.dice.random() * 0.2

    def reaches(self, a: str, b: str) -> bool:
        return not self._cut_off or frozenset((a, b)) not in self._cut_off

    def part(self, a: str, b: str, duration_s: float) -> None:
        """They do not hear each other for a while. Streams stay open, and what was sent arrives late."""
        pair = frozenset((a, b))
        self._cut_off.add(pair)

        def heal() -> None:
            self._cut_off.discard(pair)
            for stream in self.ever:  # also what has broken: some of it may still arrive
                stream.up.news()
                stream.down.news()

        self.kernel.after(duration_s, heal)

    # -- the port ----------------------------------------------------------------------------------------------------

    def connect(self, address: str, token: str, connect_s: float) -> Any:
        return SimClient(self, address, token, connect_s)

    def listen(self, bind: str, token: str, actions: Mapping[str, Any], exchange: Any, fetch: Any) -> Any:
        return SimService(self, token, actions, exchange, fetch)

    def datagrams_to(self, address: str) -> Any:
        return SimDatagramSender(self, address)

    def datagrams_at(self, bind: str) -> Any:
        return SimDatagramReceiver(self)

    def answers(self, address: str, timeout_s: float) -> bool:
        try:
            SimClient(self, address, "", timeout_s).reach(timeout_s)
        except flight.FlightUnavailableError:
            return False
        return True
