"""What the reader of a benchmark notes arrives whole at the process that measures."""

from __future__ import annotations

import io

from benchmarks.running.reader import packed, unpacked

CAME = [(1.5, [b"a", b"", b"longer"]), (2.25, []), (3.0, [b"\x00" * 70_000])]


def test_what_came_is_what_was_noted() -> None:
    stream = io.BytesIO(b"".join(packed(at_s, records) for at_s, records in CAME))
    assert list(unpacked(stream)) == CAME


def test_a_reader_that_was_killed_while_it_wrote_is_read_up_to_there() -> None:
    whole = b"".join(packed(at_s, records) for at_s, records in CAME[:2])
    assert list(unpacked(io.BytesIO(whole + whole[:5]))) == CAME[:2]
    assert list(unpacked(io.BytesIO(whole + whole[:14]))) == CAME[:2]
