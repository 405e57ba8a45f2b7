"""The bytes of a message header: JSON with a version and a kind; errors travel as JSON too.

A header of another wire version is refused with both versions; bytes that are no header are a malformed request.
"""

from __future__ import annotations

import json
from typing import Any

from godwit.errors import GodwitError, MalformedRequest, from_json

WIRE_VERSION = 2
ROW = "__godwit_row"
HASH = "__godwit_hash"
STATE_COLUMNS = ("__godwit_var", "__godwit_sub", "__godwit_value")  # behind the key: state that is ready to be stored
CHECK = "__godwit_check"  # 32 bits of a row's content; if a chunk has this column, it comes before the row numbers


# Made once: `json.dumps` and `json.loads` make an encoder, and look for the encoding, in every call.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def pack(kind: str, **fields: Any) -> bytes:
    return _encode({"v": WIRE_VERSION, "kind": kind, **fields}).encode()


def pack_error(error: GodwitError) -> bytes:
    return pack("error", error=error.to_json())


def unpack(data: bytes | memoryview | None, *expected: str) -> dict[str, Any]:
    """The header, checked; an error that the other side sent is raised here."""
    header = _parse(data)
    if header["kind"] == "error":
        raise _error_of(header.get("error"))
    if expected and header["kind"] not in expected:
        raise MalformedRequest(f"got {header['kind']!r} where one of {', '.join(expected)} was expected")
    return header


def _error_of(error: Any) -> GodwitError:
    try:
        return from_json(error)
    except (ValueError, TypeError, KeyError):
        return MalformedRequest(f"an error that cannot be read: {error!r}", todo="Speak to hosts through godwit only")


def _parse(data: bytes | memoryview | None) -> dict[str, Any]:
    try:
        header = _decode(str(data or b"", "utf-8"))
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
