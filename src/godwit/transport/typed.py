"""Messages as dataclasses: how a message becomes a JSON header, and how a header becomes a checked message.

A message class declares its fields once; the sender constructs it and the receiver gets an equal one, or
`MalformedRequest`. Knows the types that a field may have, not what a message means: all messages are in `runtime/messages.py`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from godwit.errors import GodwitError, MalformedRequest, from_json
from godwit.model.units import Unit
from godwit.transport import wire

Epochs = dict[Unit, int]
Reply = TypeVar("Reply", bound="Message")
Some = TypeVar("Some", bound="Message")


class Message:
    """A frozen dataclass. Its `kind` on the wire is the name of its class: `OpenLane` travels as `open_lane`."""

    __slots__ = ()
    kind: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class Request(Message, Generic[Reply]):
    """A message with an answer; the class in brackets is that of the answer: `class GetStatus(Request[HostStatus])`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The answer to a request that has no result."""


class Caller(Protocol):
    def call(self, action: str, timeout_s: float = ..., **fields: Any) -> dict[str, Any]: ...


class Streams(Protocol):
    def exchange(self, kind: str = ..., /, **fields: Any) -> tuple[Any, Any]: ...

    def fetch(self, kind: str = ..., /, **fields: Any) -> tuple[Any, Any]: ...


def ask(client: Caller, request: Request[Reply], timeout_s: float = 30.0) -> Reply:
    """Send the request and wait for its answer."""
    answer = client.call(request.kind, timeout_s, **to_fields(request))
    return cast(Reply, from_fields(_reply_of(cast(Any, type(request))), answer))


def actions(handlers: Mapping[type[Request[Any]], Callable[[Any], Message]]) -> dict[str, Callable[[Any], Any]]:
    """Handlers of typed requests, as a service takes them."""

    def action(request: type[Message], handle: Callable[[Any], Message]) -> Callable[[Any], Any]:
        return lambda header: to_fields(handle(from_fields(request, header)))

    return {request.kind: action(request, handle) for request, handle in handlers.items()}


def open_stream(client: Streams, first: Message) -> tuple[Any, Any]:
    """A two-way stream that begins with this message: (writer, reader)."""
    return client.exchange(first.kind, **to_fields(first))


def fetch(client: Streams, request: Message) -> tuple[Any, Any]:
    """The schema and the batches that the service sends for this request."""
    return client.fetch(request.kind, **to_fields(request))


def pack(message: Message) -> bytes:
    return wire.pack(message.kind, **to_fields(message))


def unpack(data: bytes | memoryview | None, *expected: type[Some]) -> Some:
    """One of the expected messages; an error that the other side sent is raised here."""
    return from_header(wire.unpack(data), *expected)


def from_header(header: Mapping[str, Any], *expected: type[Some]) -> Some:
    """The message whose header was unpacked already, such as the first one of a stream."""
    for message in expected:
        if message.kind == header["kind"]:
            return from_fields(message, header)
    names = ", ".join(message.kind for message in expected)
    raise MalformedRequest(f"got {header['kind']!r} where one of {names} was expected")


def to_fields(message: Message) -> dict[str, Any]:
    """Fields that have their default value do not travel."""
    header: dict[str, Any] = {}
    for name, column in _wire_fields(cast(Any, type(message))).items():
        value = getattr(message, name)
        if column.default is MISSING or value != column.default:
            header[name] = column.encode(value)
    return header


def from_fields(message: type[Some], header: Mapping[str, Any]) -> Some:
    values: dict[str, Any] = {}
    for name, column in _wire_fields(cast(Any, message)).items():
        if name in header:
            values[name] = _decoded(message, name, column, header[name])
        elif column.default is MISSING:
            raise MalformedRequest(f"a {message.kind!r} message without its field {name!r}")
    return message(**values)


def _decoded(message: type[Message], name: str, column: WireField, value: Any) -> Any:
    try:
        return column.decode(value)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise MalformedRequest(f"field {name!r} of a {message.kind!r} message is {value!r}") from None


@dataclass(frozen=True, slots=True)
class WireField:
    """How the values of one field travel."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    default: Any


@cache
def _wire_fields(message: Any) -> dict[str, WireField]:
    hints = get_type_hints(message)
    columns: dict[str, WireField] = {}
    for field in fields(message):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        columns[field.name] = WireField(*_codec(hints[field.name]), default)
    return columns


@cache
def _reply_of(request: Any) -> Any:
    (base,) = (base for base in request.__orig_bases__ if get_origin(base) is Request)
    return get_args(base)[0]


FieldConversion = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # encode, decode


def _codec(hint: Any) -> FieldConversion:
    if hint == Epochs:
        return _epochs_to_list, _epochs_from_list
    if hint is bytes:
        return _text_of_bytes, base64.b64decode
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _optional(hint)
    if isinstance(hint, type) and issubclass(hint, (Message, GodwitError, tuple)) and origin is None:
        return _class_codec(hint)
    if hasattr(hint, "from_dict"):
        return lambda value: value.to_dict(), hint.from_dict
    if origin is tuple and arguments[1:] == (...,):
        encode, decode = _codec(arguments[0])
        return lambda value: [encode(item) for item in value], lambda value: tuple(decode(item) for item in value)
    if origin is tuple:
        return list, tuple
    if origin is dict:
        encode, decode = _codec(arguments[1])
        return (
            lambda value: {name: encode(item) for name, item in value.items()},
            lambda value: {name: decode(item) for name, item in value.items()},
        )
    return _same, _checked(origin or hint)


def _class_codec(hint: Any) -> FieldConversion:
    """Of a message within a message, an error, or a named tuple."""
    if issubclass(hint, Message):
        return to_fields, lambda header: from_fields(hint, header)
    if issubclass(hint, GodwitError):
        return lambda error: error.to_json(), from_json
    return list, hint._make


def _text_of_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _optional(hint: Any) -> FieldConversion:
    """`X | None`, the only union that a field may have."""
    (inner,) = (part for part in get_args(hint) if part is not NoneType)
    encode, decode = _codec(inner)
    return (
        lambda value: None if value is None else encode(value),
        lambda value: None if value is None else decode(value),
    )


def _same(value: Any) -> Any:
    return value


def _checked(kind: Any) -> Callable[[Any], Any]:
    if kind is Any:
        return _same
    allowed = (int, float) if kind is float else kind

    def check(value: Any) -> Any:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(kind)
        return value

    return check


def _epochs_to_list(epochs: Epochs) -> list[list[Any]]:
    return [[unit.kind, unit.id, epoch] for unit, epoch in epochs.items()]


def _epochs_from_list(data: list[list[Any]]) -> Epochs:
    return {Unit(kind, number): epoch for kind, number, epoch in data}
