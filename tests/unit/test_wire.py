"""Headers on the wire: what is packed comes out, and everything else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from godwit.errors import GodwitError, MalformedRequest, NullKey
from godwit.transport import wire


def test_a_header_comes_out_as_it_went_in() -> None:
    header = wire.unpack(wire.pack("rows", lane="0", rows=5, none=None, text="ünï"))
    assert header == {"v": wire.WIRE_VERSION, "kind": "rows", "lane": "0", "rows": 5, "none": None, "text": "ünï"}


@pytest.mark.parametrize("form", [bytes, memoryview, bytearray])
def test_a_header_may_be_any_kind_of_bytes(form: Any) -> None:
    assert wire.unpack(form(wire.pack("rows")), "rows")["kind"] == "rows"


@pytest.mark.parametrize("data", [None, b"", b"\x00\xff", b"not json", b"{"])
def test_what_is_not_json_is_malformed(data: bytes | None) -> None:
    with pytest.raises(MalformedRequest, match=r"without a readable header\. Speak to hosts through godwit only"):
        wire.unpack(data)


@pytest.mark.parametrize("data", [b"[]", b"5", b"null", b'"kind"', b'{"v": 1}'])
def test_json_without_a_kind_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="no kind"):
        wire.unpack(data)


@pytest.mark.parametrize("version", [0, wire.WIRE_VERSION + 1, "1", None])
def test_another_version_is_refused_with_both_versions(version: Any) -> None:
    data = json.dumps({"v": version, "kind": "rows"}).encode()
    said = rf"wire version {version} where {wire.WIRE_VERSION} is spoken\. Run the same version of godwit"
    with pytest.raises(MalformedRequest, match=said):
        wire.unpack(data)


def test_an_error_of_another_version_is_a_version_error_and_not_a_crash() -> None:
    data = json.dumps({"v": 99, "kind": "error", "what": "ever"}).encode()
    with pytest.raises(MalformedRequest, match="wire version 99"):
        wire.unpack(data)


def test_an_unexpected_kind_is_refused_with_what_was_expected() -> None:
    with pytest.raises(MalformedRequest, match="got 'sing' where one of rows, finish was expected"):
        wire.unpack(wire.pack("sing"), "rows", "finish")


def test_an_error_of_the_other_side_is_raised_here_whole() -> None:
    sent = NullKey("key column 'car' is null", todo="Filter it", operator="speed", row=5)
    with pytest.raises(NullKey) as caught:
        wire.unpack(wire.pack_error(sent), "rows")
    assert str(caught.value) == str(sent)


@pytest.mark.parametrize("error", [None, 5, "oops", "{}", "[]"])
def test_an_error_that_cannot_be_read_is_malformed(error: Any) -> None:
    with pytest.raises(MalformedRequest, match="error"):
        wire.unpack(wire.pack("error", error=error))


def test_malformed_requests_are_bad_input_and_not_retried() -> None:
    with pytest.raises(GodwitError) as caught:
        wire.unpack(b"?")
    assert caught.value.code == "GODWIT-MALFORMED-REQUEST"
