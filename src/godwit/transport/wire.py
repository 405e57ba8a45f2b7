"""What travels beside the rows: small JSON headers with a version, and errors in a form that survives the trip.

A request or reply of another wire version is refused by name; anything that is not such a header is a malformed request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from godwit.errors import GodwitError, MalformedRequest, from_json

WIRE_VERSION = 1
ROW = "__godwit_row"
HASH = "__godwit_hash"
CHECK = "__godwit_check"  # 32 bits of a row's content: where a chunk has it, it stands before the row numbers


def pack(kind: str, **fields: Any) -> bytes:
    return json.dumps({"v": WIRE_VERSION, "kind": kind, **fields}, separators=(",", ":")).encode()


def pack_error(error: GodwitError) -> bytes:
    return pack("error", error=error.to_json())


def unpack(data: bytes | memoryview | None, *expected: str) -> dict[str, Any]:
    """The header, checked; an error that the other side sent is raised here."""
    header = _parse(data)
    if header["kind"] == "error":
        raise _sent(header.get("error"))
    if expected and header["kind"] not in expected:
        raise MalformedRequest(f"got {header['kind']!r} where one of {', '.join(expected)} was expected")
    return header


def _sent(error: Any) -> GodwitError:
    try:
        return from_json(error)
    except (ValueError, TypeError, KeyError):
        return MalformedRequest(f"an error that cannot be read: {error!r}", todo="Speak to hosts through godwit only")


def _parse(data: bytes | memoryview | None) -> dict[str, Any]:
    try:
        header = json.loads(bytes(data or b""))
    except ValueError:
        raise MalformedRequest(
            "a message without a readable header", todo="Speak to hosts through godwit only"
        ) from None
    if not isinstance(header, dict) or "kind" not in header:
        raise MalformedRequest("a message whose header has no kind", todo="Speak to hosts through godwit only")
    if header.get("v") != WIRE_VERSION:
        raise MalformedRequest(
            f"wire version {header.get('v')} where {WIRE_VERSION} is spoken",
            todo="Run the same version of godwit on the driver and on all executors",
        )
    return header


def field(header: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of a request, of the right type."""
    value = header.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise MalformedRequest(f"field {name!r} of a {header.get('kind')!r} request is {value!r}")
    return value
