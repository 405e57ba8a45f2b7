"""A service and its callers, ours and plain Flight clients that know nothing of godwit: every refusal has a name."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from godwit.errors import Bug, HostUnavailable, MalformedRequest, NullKey, WrongToken, from_json
from godwit.transport import streams, typed, wire
from godwit.transport.addresses import ServiceAddress
from godwit.transport.flight import GONE, Client, Service

TOKEN = "the-right-one"
SCHEMA = pa.schema({"n": pa.int64()})


@dataclass(frozen=True, slots=True)
class Said(typed.Message):
    said: str


@dataclass(frozen=True, slots=True)
class Echo(typed.Request[Said]):
    text: str


@dataclass(frozen=True, slots=True)
class Fetch(typed.Message):
    count: int


def echo(request: Echo) -> Said:
    return Said(request.text)


def refuse(request: dict[str, Any]) -> dict[str, Any]:
    raise NullKey("key column 'car' is null", operator="speed", key=("C1", None))


def crash(request: dict[str, Any]) -> dict[str, Any]:
    return {"never": 1 // 0}


def fetch(request: dict[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    count = typed.from_header(request, Fetch).count
    return SCHEMA, iter([pa.record_batch([pa.array(range(count))], schema=SCHEMA)])


def repeat(header: dict[str, Any], reader: Any, writer: Any) -> None:
    writer.begin(SCHEMA)
    while True:  # until StopIteration
        chunk = reader.read_chunk()
        writer.write_with_metadata(chunk.data, wire.pack("outputs", lane=header["lane"]))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    service = Service(
        "127.0.0.1", TOKEN, {**typed.actions({Echo: echo}), "refuse": refuse, "crash": crash}, repeat, fetch
    )
    yield service
    assert service.stop(10.0)


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    client = Client(f"127.0.0.1:{service.ports}", TOKEN)
    yield client
    client.close()


@pytest.fixture
def plain(service: Service) -> Iterator[flight.FlightClient]:
    """A client that knows Flight and nothing of our headers."""
    with flight.connect(f"grpc+tcp://127.0.0.1:{service.port}") as plain:
        yield plain


def bearing(token: str) -> flight.FlightCallOptions:
    headers: Any = [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(headers=headers, timeout=20.0)


def acted(plain: flight.FlightClient, action: str, body: bytes) -> dict[str, Any]:
    (result,) = plain.do_action(flight.Action(action, body), bearing(TOKEN))
    return wire.unpack(result.body.to_pybytes())


def stream_of(service: Service, header: bytes, token: str = TOKEN) -> streams.ClientStream:
    return streams.ClientStream(ServiceAddress.of(f"127.0.0.1:{service.ports}").streams, token, header, 5.0)


def exchanged(service: Service, header: bytes) -> Any:
    stream = stream_of(service, header)
    stream.begin(SCHEMA)
    stream.write_with_metadata(pa.record_batch([pa.array([1, 2])], schema=SCHEMA), b"")
    stream.done_writing()
    return stream.read_chunk()


def test_an_action_answers(client: Client) -> None:
    assert client.call("echo", text="hello")["said"] == "hello"


def test_an_error_of_an_action_comes_back_as_itself(client: Client) -> None:
    with pytest.raises(NullKey, match=r"key column 'car' is null \(operator=speed, key=\('C1', None\)\)"):
        client.call("refuse")


def test_a_crash_in_an_action_is_a_bug_with_its_words(client: Client) -> None:
    with pytest.raises(Bug, match="ZeroDivisionError in action 'crash': integer division"):
        client.call("crash")


def test_an_exchange_and_a_fetch_carry_rows(client: Client) -> None:
    writer, reader = client.exchange(lane="3")
    writer.begin(SCHEMA)
    writer.write_with_metadata(pa.record_batch([pa.array([1, 2])], schema=SCHEMA), b"")
    chunk = reader.read_chunk()
    assert (chunk.data.to_pydict(), wire.unpack(chunk.app_metadata, "outputs")["lane"]) == ({"n": [1, 2]}, "3")
    writer.close()
    assert [batch.num_rows for batch in client.fetch(count=5)[1]] == [5]


@pytest.mark.parametrize("token", ["guessed", "", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper()])
def test_a_wrong_token_is_refused_and_its_address_named(service: Service, token: str) -> None:
    client = Client(f"127.0.0.1:{service.port}", token)
    with pytest.raises(
        WrongToken, match=rf"127\.0\.0\.1:{service.port} does not accept this token\. Give Flock\(token"
    ):
        client.call("echo", text="hello")
    client.close()


def test_no_token_is_refused_on_every_path(service: Service, plain: flight.FlightClient) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError, match="wrong token"):
        list(plain.do_action(flight.Action("echo", wire.pack("request", text="hello"))))
    with pytest.raises(flight.FlightUnauthenticatedError, match="wrong token"):
        plain.do_get(flight.Ticket(wire.pack("fetch", count=1))).read_all()
    with pytest.raises(flight.FlightUnauthenticatedError, match="wrong token"):
        list(plain.list_actions())
    with pytest.raises(flight.FlightUnauthenticatedError, match="wrong token"):
        stream_of(service, wire.pack("exchange", lane="0"), token="").read_chunk()


@pytest.mark.parametrize(
    "said", [b"", b"x" * 8, b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00" + b"\xff" * 12]
)
def test_a_stranger_who_does_not_speak_as_we_do_is_hung_up_on(service: Service, said: bytes) -> None:
    """Nothing is read of what a stranger announces to send."""
    with socket.create_connection(ServiceAddress.of(f"127.0.0.1:{service.ports}").streams, 5.0) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert len(stranger.recv(1_000)) in (0, 16), "at most the word that the token is wrong"
    assert exchanged(service, wire.pack("exchange", lane="0")).data.num_rows == 2


def test_a_stranger_cannot_have_much_read(service: Service) -> None:
    with socket.create_connection(ServiceAddress.of(f"127.0.0.1:{service.ports}").streams, 5.0) as stranger:
        stranger.sendall(struct.pack("<BxxxIQ", streams.HELLO, streams.HELLO_BYTES_MAX, 1) + b"x" * 1_000)
        with suppress(ConnectionResetError):
            assert stranger.recv(1_000) == b""


def arrived_at_once(*frames: list[Any]) -> streams.ServerStream:
    """A server's end at which all of this has arrived before the server reads."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.sendall(b"".join(bytes(part) for parts in frames for part in parts))
    return streams.ServerStream(theirs)


def greeting(header: bytes = b"header") -> list[Any]:
    return streams.frame(streams.HELLO, json.dumps({"token": TOKEN}).encode(), header)


def test_a_schema_of_many_columns_may_arrive_together_with_the_token() -> None:
    wide = pa.schema([pa.field(f"a column with a long name, number {at}", pa.int64()) for at in range(1_000)])
    assert wide.serialize().size > streams.HELLO_BYTES_MAX
    stream = arrived_at_once(greeting(), streams.frame(streams.SCHEMA, b"", wide.serialize()))
    assert stream.hello(TOKEN) == b"header"
    stream.close()


def test_many_rows_may_arrive_together_with_the_token() -> None:
    """As when the rows of initial state are sent again on a new connection: nothing is waited for before."""
    rows = pa.record_batch([pa.array(range(10_000))], schema=SCHEMA)
    begun = streams.frame(streams.SCHEMA, b"", SCHEMA.serialize())
    stream = arrived_at_once(
        greeting(), begun, streams.frame(streams.MESSAGE, b"a", rows.serialize()), streams.frame(streams.MESSAGE, b"b")
    )
    assert stream.hello(TOKEN) == b"header"
    first, second = stream.read_chunk(), stream.read_chunk()
    assert (first.data, first.app_metadata, second.data, second.app_metadata) == (rows, b"a", None, b"b")
    with pytest.raises(StopIteration):
        stream.read_chunk()
    stream.close()


def test_writing_ends_as_a_broken_stream_if_another_thread_has_closed_it_meanwhile() -> None:
    """The writer has filled the connection and is about to wait; at this moment the reader hears that the server is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stream = streams.ClientStream(listening.getsockname(), TOKEN, b"", 5.0)
        stream.begin(SCHEMA)
        reader = threading.Thread(target=stream.close)

        def then_wait(write: Any = stream._wait_to_write) -> None:
            listening.accept()[0].close()
            reader.start()
            reader.join()
            write()

        stream._wait_to_write = then_wait  # type: ignore[method-assign]
        rows = pa.record_batch([pa.array(range(4_000_000))], schema=SCHEMA)
        with pytest.raises(flight.FlightUnavailableError, match="broke"):
            stream.write_with_metadata(rows, b"")


def test_another_scheme_of_authorization_is_refused(plain: flight.FlightClient) -> None:
    headers: Any = [(b"authorization", f"Basic {TOKEN}".encode())]
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(plain.do_action(flight.Action("echo", b""), flight.FlightCallOptions(headers=headers)))


def test_the_token_is_in_no_error(service: Service) -> None:
    client = Client(f"127.0.0.1:{service.port}", "guessed")
    with pytest.raises(WrongToken) as caught:
        client.call("echo")
    client.close()
    assert TOKEN not in str(caught.value)
    assert "guessed" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "without a readable header"),
        (b"\x00\xff\xfe", "without a readable header"),
        (b"{}", "no kind"),
        (
            json.dumps({"v": wire.WIRE_VERSION + 1, "kind": "request"}).encode(),
            f"wire version {wire.WIRE_VERSION + 1} where",
        ),
        (wire.pack("request"), "a 'echo' message without its field 'text'"),
        (wire.pack("request", text=5), "field 'text' of a 'echo' message is 5"),
    ],
)
def test_a_malformed_action_is_refused_by_name(plain: flight.FlightClient, body: bytes, said: str) -> None:
    with pytest.raises(MalformedRequest, match=said):
        acted(plain, "echo", body)
    assert acted(plain, "echo", wire.pack("request", text="still"))["said"] == "still"


def test_an_unknown_action_is_refused_by_name(plain: flight.FlightClient) -> None:
    with pytest.raises(MalformedRequest, match="unknown action 'dance'"):
        acted(plain, "dance", wire.pack("request"))


@pytest.mark.parametrize(
    ("command", "said"),
    [(b"\x00\xff", "readable header"), (b"[]", "no kind"), (b'{"v": 99, "kind": "x"}', "wire version 99")],
)
def test_a_malformed_exchange_is_refused_by_name(service: Service, command: bytes, said: str) -> None:
    with pytest.raises(flight.FlightServerError, match=f"GODWIT-MALFORMED-REQUEST.*{said}"):
        exchanged(service, command)
    assert exchanged(service, wire.pack("exchange", lane="0")).data.num_rows == 2


@pytest.mark.parametrize(
    ("ticket", "said"),
    [
        (b"?", "readable header"),
        (b'{"v": 99, "kind": "x"}', "wire version 99"),
        (wire.pack("fetch"), "its field 'count'"),
    ],
)
def test_a_malformed_fetch_is_refused_by_name(plain: flight.FlightClient, ticket: bytes, said: str) -> None:
    with pytest.raises(flight.FlightServerError, match=f"GODWIT-MALFORMED-REQUEST.*{said}"):
        plain.do_get(flight.Ticket(ticket), bearing(TOKEN)).read_all()


def test_what_a_service_has_not_is_refused() -> None:
    bare = Service("127.0.0.1", TOKEN, {})
    with flight.connect(f"grpc+tcp://127.0.0.1:{bare.port}") as plain:
        with pytest.raises(flight.FlightUnavailableError, match="nobody answers"):
            exchanged(bare, wire.pack("exchange"))
        with pytest.raises(flight.FlightServerError, match="nothing to fetch"):
            plain.do_get(flight.Ticket(wire.pack("fetch")), bearing(TOKEN)).read_all()
    assert bare.stop(10.0)


class NewerService(Service):
    """Answers in a wire version that is not spoken yet."""

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        yield b'{"v": 99, "kind": "result"}'


def test_an_answer_of_another_version_is_refused_by_the_caller() -> None:
    newer = NewerService("127.0.0.1", TOKEN, {})
    client = Client(f"127.0.0.1:{newer.port}", TOKEN)
    with pytest.raises(MalformedRequest, match=r"wire version 99 where 2 is spoken\. Run the same version of godwit"):
        client.call("echo")
    client.close()
    assert newer.stop(10.0)


def test_a_service_that_is_gone_is_unavailable_and_its_address_named() -> None:
    gone = Service("127.0.0.1", TOKEN, {"echo": echo})
    address = f"127.0.0.1:{gone.port}"
    assert gone.stop(10.0)
    client = Client(address, TOKEN)
    with pytest.raises(HostUnavailable, match=f"'echo' at {address} failed"):
        client.call("echo", text="hello", timeout_s=5.0)
    client.close()


def test_an_error_keeps_its_form_in_a_stream() -> None:
    error = from_json(NullKey("no key", row=1).to_json())
    with pytest.raises(NullKey, match="no key"):
        wire.unpack(wire.pack_error(error))


class Wire:
    """A connection to a service that can be cut in the middle: nothing passes any more, and neither end is told."""

    def __init__(self, port: int) -> None:
        self.cut = threading.Event()
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that it is soon full
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._connect, args=(port,), daemon=True).start()

    def _connect(self, port: int) -> None:
        self._ends = self._listening.accept()[0], socket.create_connection(("127.0.0.1", port))
        for one, other in (self._ends, self._ends[::-1]):
            threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while (data := one.recv(4096)) and not self.cut.is_set():
                other.sendall(data)

    def close(self) -> None:
        for end in (*self._ends, self._listening):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes threads that are sending
            end.close()


def test_writing_to_a_machine_that_has_vanished_ends_when_it_is_cancelled(service: Service) -> None:
    """TCP alone would wait for a quarter of an hour; whoever knows that the machine is gone cancels the stream."""
    ours = ServiceAddress.of(f"127.0.0.1:{service.ports}")
    between = Wire(ours.streams_port)
    there = ServiceAddress.of(between.address)
    stream = streams.ClientStream((there.machine, there.requests_port), TOKEN, wire.pack("exchange", lane="0"), 5.0)
    stream.begin(SCHEMA)
    batch = pa.record_batch([pa.array(range(100_000))], schema=SCHEMA)
    failed = threading.Event()

    def write() -> None:
        try:
            while True:
                stream.write_with_metadata(batch, b"")
                between.cut.set()
        except GONE:
            failed.set()

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    assert not failed.wait(1.0), "it is written to as long as its buffers have room"
    stream.cancel()
    assert failed.wait(60), "it is written to for ever"
    writing.join()
    between.close()
