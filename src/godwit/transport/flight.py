"""Services and their clients: requests and fetches over Arrow Flight, two-way streams over TCP (`transport.streams`).

A token on every call, errors as values, servers that can be stopped. Must not know operators or state: a service brings the
handlers of its actions, streams and fetches.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from godwit import ports
from godwit.errors import Bug, DefinitionError, GodwitError, HostUnavailable, MalformedRequest, WrongToken
from godwit.transport import wire
from godwit.transport.addresses import ServiceAddress
from godwit.transport.streams import ClientStream, StreamHandler, StreamListener

ActionHandler = Callable[[dict[str, Any]], dict[str, Any]]
FetchHandler = Callable[[dict[str, Any]], tuple[pa.Schema, Iterator[pa.RecordBatch]]]

CONNECT_S = 20.0  # the default of gRPC
VANISHED_S = 3.0  # a connection ends if the other machine (not its process) acknowledges nothing for so long
PING_S = 400.0  # servers treat more than one ping in 300 s as an attack
GONE = (
    flight.FlightUnavailableError,
    flight.FlightInternalError,
    flight.FlightCancelledError,
    flight.FlightTimedOutError,
    flight.FlightServerError,
    pa.ArrowIOError,
    StopIteration,
)


class _Token(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"

    def start_call(self, info: Any, headers: Any) -> None:
        sent = headers.get("authorization") or [""]
        if not hmac.compare_digest(sent[0].encode(), self._expected.encode()):
            raise flight.FlightUnauthenticatedError("wrong token")


class Service(flight.FlightServerBase):
    """A server made of named actions, an optional exchange and an optional fetch. `ports`: as clients need them."""

    def __init__(
        self,
        bind: str,
        token: str,
        actions: Mapping[str, ActionHandler],
        exchange: StreamHandler | None = None,
        fetch: FetchHandler | None = None,
    ) -> None:
        try:
            super().__init__(f"grpc+tcp://{bind}:0", middleware={"token": _Token(token)})
        except (pa.ArrowException, OSError) as error:
            raise DefinitionError(
                f"cannot listen on {bind}: {_first_line(error)}", todo="Give bind= an address that this machine has"
            ) from error
        self._actions = dict(actions)
        self._fetch = fetch
        self._streams = None if exchange is None else StreamListener(bind, token, exchange)
        self.ports = f"{self.port}/{0 if self._streams is None else self._streams.port}"

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        try:
            yield wire.pack("result", **self._run(action))
        except GodwitError as error:
            yield wire.pack_error(error)
        except Exception as error:  # noqa: BLE001 the caller gets every error
            yield wire.pack_error(Bug(f"{type(error).__name__} in action {action.type!r}: {error}"))

    def _run(self, action: Any) -> dict[str, Any]:
        handler = self._actions.get(action.type)
        if handler is None:
            raise MalformedRequest(f"unknown action {action.type!r}")
        return handler(wire.unpack(action.body.to_pybytes()))

    def do_get(self, context: Any, ticket: Any) -> Any:
        if self._fetch is None:
            raise flight.FlightServerError("this service has nothing to fetch")
        try:
            schema, batches = self._fetch(wire.unpack(ticket.ticket))
        except GodwitError as error:
            raise flight.FlightServerError(error.to_json()) from error
        return flight.GeneratorStream(schema, batches)

    def stop(self, grace_s: float) -> bool:
        """Shut down. False if a call still runs after the grace time; only the end of the process ends that call."""
        until_s = ports.now_s() + grace_s
        thread = ports.thread(self.shutdown, "godwit-shutdown")
        thread.start()
        streams_ended = self._streams is None or self._streams.stop(grace_s)
        thread.join(max(0.0, until_s - ports.now_s()))
        return streams_ended and not thread.is_alive()


class Client:
    """A connection to one service. `connect_s`: how long to wait for a process that listens and may be stopped (SIGSTOP)."""

    def __init__(self, address: str, token: str, connect_s: float = CONNECT_S) -> None:
        self.address = address
        self._service = ServiceAddress.of(address)
        self._token, self._connect_s = token, connect_s
        self._headers: Any = [(b"authorization", f"Bearer {token}".encode())]  # gRPC wants bytes

    @cached_property
    def _client(self) -> flight.FlightClient:
        options: Any = [
            # Despite its name, this is the time for a connection attempt.
            ("grpc.min_reconnect_backoff_ms", int(self._connect_s * 1000)),
            # Without these, TCP tries to reach a vanished machine for a quarter of an hour.
            ("grpc.keepalive_time_ms", int(PING_S * 1000)),
            ("grpc.keepalive_timeout_ms", int(VANISHED_S * 1000)),
        ]
        return flight.connect(f"grpc+tcp://{self._service.calls}", generic_options=options)

    def call(self, action: str, timeout_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        request = flight.Action(action, wire.pack("request", **fields))
        try:
            results = list(self._client.do_action(request, options))
        except flight.FlightUnauthenticatedError as error:
            raise wrong_token(self.address) from error
        except GONE as error:
            raise HostUnavailable(f"{action!r} at {self.address} failed: {_first_line(error)}") from error
        return wire.unpack(results[0].body.to_pybytes())

    def exchange(self, kind: str = "exchange", /, **fields: Any) -> tuple[Any, Any]:
        """A two-way stream: (writer, reader)."""
        stream = ClientStream(self._service.streams, self._token, wire.pack(kind, **fields), self._connect_s)
        return stream, stream

    def fetch(self, kind: str = "fetch", /, **fields: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        options = flight.FlightCallOptions(headers=self._headers)
        reader = self._client.do_get(flight.Ticket(wire.pack(kind, **fields)), options)
        return reader.schema, (chunk.data for chunk in reader if chunk.data is not None)

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()


def wrong_token(address: str) -> WrongToken:
    return WrongToken(
        f"the service at {address} does not accept this token",
        todo="Give Flock(token=...) the same value on all sides, or leave it out everywhere",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
