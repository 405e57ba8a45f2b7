"""What `godwit.transport.line` promises, over Arrow Flight and over the simulator's network: calls, streams, and their ends.

What Flight does at the end of a stream is not what one would expect. A server cannot tell a client that was killed from a
client that has said all it had to say. A client that writes to a stream which has ended well hears nothing of it, and loses
what it had not read. The simulated network has the same manners, so the product is tried against them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from godwit import ports
from godwit.errors import Bug, HostUnavailable, MalformedRequest, StateUncertain, WrongToken
from godwit.transport import line
from godwit.transport.flight import GONE, ActionHandler, Client, Service, StreamHandler
from tests.contract.worlds import here, in_both_worlds

BIND, TOKEN = "127.0.0.1", "token"
SOON_S = 0.2
SLOW_S = 2.0
LATE_S = 20.0  # never reached, unless something is wrong
SCHEMA = pa.schema([("n", pa.int64())])
REFUSED = (*GONE, pa.ArrowInvalid)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA)


def text(message: Any) -> str:
    return bytes(message.app_metadata).decode()


def read_all(reader: Any) -> list[str]:
    """Until a well-ordered end."""
    texts: list[str] = []
    while True:
        try:
            texts.append(text(reader.read_chunk()))
        except StopIteration:
            return texts


def ends(step: Callable[[], Any]) -> Exception | None:
    """What ends it, if it is something that ends a stream."""
    try:
        step()
    except REFUSED as error:
        return error
    return None


def until_refused(step: Callable[[], Any]) -> Exception:
    """An end takes its time to arrive, and what is written until then is lost without a word."""
    deadline_s = ports.now_s() + LATE_S
    while ports.now_s() < deadline_s:
        error = ends(step)
        if error is not None:
            return error
        ports.sleep(0.01)
    raise AssertionError("it is never refused")


class Open:
    """A service whose handler is given, and a stream to it that has begun."""

    def __init__(self, exchange: StreamHandler, **header: Any) -> None:
        self.service = line.listen(BIND, TOKEN, {}, exchange)
        self.client = connected(self.service)
        self.writer, self.reader = self.client.exchange(**header)
        self.writer.begin(SCHEMA)


def connected(service: Service, token: str = TOKEN) -> Client:
    return line.connect(f"{BIND}:{service.ports}", token)


def says(*words: str) -> StreamHandler:
    def exchange(header: dict[str, Any], reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        for word in words:
            writer.write_metadata(word.encode())

    return exchange


# -- calls -----------------------------------------------------------------------------------------------------------


def _refuse(fields: dict[str, Any]) -> dict[str, Any]:
    raise StateUncertain("not yet", host="host-1")


def _fail(fields: dict[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("oh")


def _slow(fields: dict[str, Any]) -> dict[str, Any]:
    ports.sleep(SLOW_S)
    return {}


def _double(fields: dict[str, Any]) -> dict[str, Any]:
    return {"n": 2 * fields["n"]}


ACTIONS: dict[str, ActionHandler] = {"double": _double, "refuse": _refuse, "fail": _fail, "slow": _slow}


def calls() -> Service:
    return line.listen(BIND, TOKEN, ACTIONS)


@in_both_worlds
def test_call_has_its_answer() -> None:
    client = connected(calls())
    assert client.call("double", n=21)["n"] == 42


@in_both_worlds
def test_error_of_the_service_arrives_as_that_error() -> None:
    with pytest.raises(StateUncertain, match="not yet") as raised:
        connected(calls()).call("refuse")
    assert raised.value.fields["host"] == "host-1"


@in_both_worlds
def test_other_error_of_the_service_arrives_as_a_bug() -> None:
    with pytest.raises(Bug, match=r"ZeroDivisionError.*oh"):
        connected(calls()).call("fail")


@in_both_worlds
def test_unknown_action_is_malformed() -> None:
    with pytest.raises(MalformedRequest, match="nonsense"):
        connected(calls()).call("nonsense")


def _first_word(client: Client) -> str:
    _, reader = client.exchange()
    return text(reader.read_chunk())


@in_both_worlds
def test_wrong_token_is_told() -> None:
    stranger = connected(line.listen(BIND, TOKEN, ACTIONS, says("a")), token="another")
    with pytest.raises(WrongToken):
        stranger.call("double", n=1)
    with pytest.raises(flight.FlightUnauthenticatedError):
        _first_word(stranger)


@in_both_worlds
def test_call_to_nobody_fails() -> None:
    with pytest.raises(HostUnavailable):
        line.connect(f"{BIND}:1", TOKEN).call("double", n=1)


@in_both_worlds
def test_call_that_takes_longer_than_its_timeout_fails_then() -> None:
    client, began_s = connected(calls()), ports.now_s()
    with pytest.raises(HostUnavailable):
        client.call("slow", timeout_s=SOON_S)
    assert SOON_S * 0.9 <= ports.now_s() - began_s < SLOW_S
    assert client.call("double", n=1)["n"] == 2


@in_both_worlds
def test_call_fails_when_its_server_is_killed() -> None:
    victim = here().victim(calls)
    client, failed = line.connect(victim.address, TOKEN), ports.queue()

    def call() -> None:
        try:
            client.call("slow")
        except HostUnavailable as error:
            failed.put(error)

    client.call("double", n=1)
    ports.thread(call, "caller").start()
    ports.sleep(SOON_S / 2)
    victim.kill()
    assert failed.get(timeout=LATE_S)
    with pytest.raises(HostUnavailable):
        client.call("double", n=1)


# -- streams ---------------------------------------------------------------------------------------------------------


def _echo(header: dict[str, Any], reader: Any, writer: Any) -> None:
    writer.begin(SCHEMA)
    writer.write_metadata(header["greeting"].encode())
    for message in iter(lambda: _next(reader), None):
        if message.data is None:
            writer.write_metadata(bytes(message.app_metadata))
        else:
            writer.write_with_metadata(message.data, bytes(message.app_metadata))


def _next(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None


@in_both_worlds
def test_exchange_is_in_order_both_ways_with_metadata_and_batches() -> None:
    stream = Open(_echo, greeting="hello")
    assert text(stream.reader.read_chunk()) == "hello"

    def write() -> None:
        for n in range(10):
            stream.writer.write_with_metadata(batch(n, n + 1), f"batch {n}".encode())
            stream.writer.write_metadata(f"note {n}".encode())
        stream.writer.done_writing()

    ports.thread(write, "writer").start()
    for n in range(10):
        both = stream.reader.read_chunk()
        assert (both.data.to_pydict(), text(both)) == ({"n": [n, n + 1]}, f"batch {n}")
        note = stream.reader.read_chunk()
        assert (note.data, text(note)) == (None, f"note {n}")
    assert read_all(stream.reader) == []


@in_both_worlds
def test_batch_of_another_schema_is_refused() -> None:
    stream = Open(_echo, greeting="hello")
    with pytest.raises(pa.ArrowInvalid, match="schema"):
        stream.writer.write_with_metadata(pa.RecordBatch.from_pydict({"other": [1]}), b"")
    stream.writer.done_writing()
    assert read_all(stream.reader) == ["hello"]


@in_both_worlds
def test_handler_is_called_when_the_client_has_begun() -> None:
    called = ports.event()
    service = line.listen(BIND, TOKEN, {}, lambda *_: called.set())
    writer, reader = connected(service).exchange()
    assert not called.wait(SOON_S)
    writer.begin(SCHEMA)
    assert called.wait(LATE_S)
    assert read_all(reader) == []


@in_both_worlds
def test_exchange_with_nobody_fails_at_once() -> None:
    with pytest.raises(flight.FlightUnavailableError):
        line.connect(f"{BIND}:1", TOKEN).exchange()


# -- streams that end well -------------------------------------------------------------------------------------------


@in_both_worlds
def test_return_of_the_handler_ends_reading_after_all_that_was_said() -> None:
    stream = Open(says("a", "b", "c"))
    assert read_all(stream.reader) == ["a", "b", "c"]
    assert read_all(stream.reader) == []
    stream.reader.cancel()
    assert read_all(stream.reader) == []


@in_both_worlds
def test_client_that_is_done_ends_reading_at_the_server_and_hears_the_rest() -> None:
    def exchange(header: dict[str, Any], reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        writer.write_metadata(",".join(read_all(reader)).encode())

    stream = Open(exchange)
    stream.writer.write_metadata(b"a")
    stream.writer.write_metadata(b"b")
    stream.writer.done_writing()
    stream.writer.done_writing()
    assert read_all(stream.reader) == ["a,b"]


@in_both_worlds
def test_client_that_closes_its_writer_waits_for_the_handler_and_reads_nothing_more() -> None:
    heard = ports.queue()

    def exchange(header: dict[str, Any], reader: Any, writer: Any) -> None:
        says("lost")(header, reader, writer)
        heard.put(read_all(reader))
        ports.sleep(SOON_S)
        heard.put("over")

    stream = Open(exchange)
    stream.writer.write_metadata(b"a")
    stream.writer.close()
    assert [heard.get(block=False) for _ in range(2)] == [["a"], "over"]
    assert read_all(stream.reader) == []


@in_both_worlds
def test_writing_after_the_end_loses_what_was_not_read() -> None:
    stream = Open(says("a", "b", "c"))
    assert text(stream.reader.read_chunk()) == "a"
    assert isinstance(until_refused(lambda: stream.writer.write_with_metadata(batch(1), b"late")), pa.ArrowInvalid)
    assert read_all(stream.reader) == []


@in_both_worlds
def test_batch_after_a_message_that_came_too_late_is_refused() -> None:
    stream = Open(says("a"))
    assert read_all(stream.reader) == ["a"]
    stream.writer.write_metadata(b"")
    with pytest.raises(pa.ArrowInvalid):
        stream.writer.write_with_metadata(batch(2), b"")
    stream.writer.write_metadata(b"")


# -- streams that break ----------------------------------------------------------------------------------------------


@in_both_worlds
def test_error_of_the_handler_ends_the_stream_with_it() -> None:
    def exchange(header: dict[str, Any], reader: Any, writer: Any) -> None:
        says("a")(header, reader, writer)
        raise flight.FlightServerError("oh")

    stream = Open(exchange)
    assert text(stream.reader.read_chunk()) == "a"
    for step in (stream.reader.read_chunk, lambda: stream.writer.write_metadata(b"x"), stream.reader.read_chunk):
        with pytest.raises(flight.FlightServerError, match="oh"):
            step()


class Endless:
    """A handler that reads, and then writes, until its stream is gone."""

    def __init__(self) -> None:
        self.reads, self.writes, self.batches = ports.queue(), ports.queue(), ports.queue()

    def __call__(self, header: dict[str, Any], reader: Any, writer: Any) -> None:
        says("a")(header, reader, writer)
        self.reads.put(until_refused(reader.read_chunk))
        self.writes.put(until_refused(lambda: writer.write_metadata(b"b")))
        self.batches.put(until_refused(lambda: writer.write_with_metadata(batch(1), b"b")))

    def expect_gone(self) -> None:
        """It cannot tell from what it reads that the client is gone, but from what it writes."""
        assert isinstance(self.reads.get(timeout=LATE_S), StopIteration)
        assert isinstance(self.writes.get(timeout=LATE_S), flight.FlightInternalError)
        assert isinstance(self.batches.get(timeout=LATE_S), REFUSED)


@in_both_worlds
def test_cancelled_stream_is_gone_for_both() -> None:
    handler = Endless()
    stream = Open(handler)
    assert text(stream.reader.read_chunk()) == "a"
    stream.reader.cancel()
    for step in (stream.reader.read_chunk, lambda: stream.writer.write_metadata(b"x"), stream.reader.read_chunk):
        with pytest.raises(flight.FlightCancelledError):
            step()
    handler.expect_gone()


@in_both_worlds
def test_cancel_takes_back_what_was_not_read() -> None:
    stream = Open(says("a", "b"))
    assert text(stream.reader.read_chunk()) == "a"
    stream.reader.cancel()
    with pytest.raises(flight.FlightCancelledError):
        stream.reader.read_chunk()


@in_both_worlds
def test_cancel_ends_the_wait_of_another_thread() -> None:
    stream = Open(Endless())
    assert text(stream.reader.read_chunk()) == "a"
    ended = ports.queue()
    ports.thread(lambda: ended.put(ends(stream.reader.read_chunk)), "reader").start()
    ports.sleep(SOON_S / 2)
    stream.reader.cancel()
    assert isinstance(ended.get(timeout=LATE_S), flight.FlightCancelledError)


@in_both_worlds
def test_stream_that_is_cancelled_before_it_begins_has_no_handler() -> None:
    called = ports.event()
    service = line.listen(BIND, TOKEN, {}, lambda *_: called.set())
    writer, reader = connected(service).exchange()
    reader.cancel()
    with pytest.raises(flight.FlightCancelledError):
        writer.begin(SCHEMA)
    assert not called.wait(SOON_S)


def _endless_service() -> Service:
    return line.listen(BIND, TOKEN, {}, Endless())


@in_both_worlds
def test_server_that_is_killed_is_gone_for_the_client() -> None:
    victim = here().victim(_endless_service)
    writer, reader = line.connect(victim.address, TOKEN).exchange()
    writer.begin(SCHEMA)
    assert text(reader.read_chunk()) == "a"
    victim.kill()
    for _ in range(2):
        with pytest.raises(flight.FlightUnavailableError):
            reader.read_chunk()
    assert isinstance(until_refused(lambda: writer.write_metadata(b"x")), flight.FlightUnavailableError)
    assert isinstance(until_refused(lambda: writer.write_with_metadata(batch(1), b"x")), REFUSED)


# -- services --------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_service_answers_until_it_is_stopped() -> None:
    service = calls()
    address = f"{BIND}:{service.ports}"
    assert line.answers(address, LATE_S)
    assert service.stop(LATE_S)
    assert not line.answers(address, LATE_S)
    with pytest.raises(HostUnavailable):
        connected(service).call("double", n=1)


@in_both_worlds
def test_service_that_stops_waits_for_its_streams_and_takes_no_more() -> None:
    go, stopped = ports.event(), ports.queue()

    def exchange(header: dict[str, Any], reader: Any, writer: Any) -> None:
        says("a")(header, reader, writer)
        go.wait(LATE_S)
        writer.write_metadata(b"b")

    stream = Open(exchange)
    assert text(stream.reader.read_chunk()) == "a"
    assert not stream.service.stop(SOON_S)
    with pytest.raises(HostUnavailable):
        stream.client.call("double", n=1)
    ports.thread(lambda: stopped.put(stream.service.stop(LATE_S)), "stop").start()
    go.set()
    assert read_all(stream.reader) == ["b"]
    assert stopped.get(timeout=LATE_S)


# -- datagrams -------------------------------------------------------------------------------------------------------


@in_both_worlds
def test_datagrams_come_whole_or_not_at_all() -> None:
    inbox = line.datagrams_at(BIND)
    sender = line.datagrams_to(f"{BIND}:{inbox.port}")
    sent = {b"%d" % number for number in range(20)}
    for datagram in sorted(sent):
        sender.send(datagram)
    arrived: list[bytes] = []
    while more := inbox.receive(SLOW_S):
        arrived += more
    assert set(arrived) <= sent
    assert len(arrived) == len(set(arrived)) > len(sent) / 2
    sender.close()
    inbox.close()


@in_both_worlds
def test_who_waits_for_a_datagram_waits_no_longer_than_was_said() -> None:
    inbox = line.datagrams_at(BIND)
    began_s = ports.now_s()
    assert inbox.receive(SOON_S) == []
    assert SOON_S <= ports.now_s() - began_s < LATE_S
    assert inbox.receive(-1.0) == []
    inbox.close()


@in_both_worlds
def test_a_datagram_that_nobody_receives_is_no_error() -> None:
    inbox = line.datagrams_at(BIND)
    sender = line.datagrams_to(f"{BIND}:{inbox.port}")
    inbox.close()
    for _ in range(3):
        sender.send(b"to nobody")
    sender.close()
