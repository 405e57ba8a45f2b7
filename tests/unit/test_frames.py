"""Frames: what is written comes back, a torn tail is told from corruption, and no damage goes unseen."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.errors import CheckpointCorrupt, CheckpointVersion
from godwit.state.frames import FILE_HEADER, FORMAT_VERSION, Body, Draft, Frame, FrameReader, Info, Part


def part(op: str, body: Body = b"", **info: object) -> tuple[Info, Body]:
    return {"kind": "state", "op": op, **info}, body


def frame_bytes(lsn: int, *parts: tuple[Info, Body]) -> bytes:
    return b"".join(bytes(buffer) for buffer in Draft(parts).numbered(lsn))


def write(path: Path, *frames: bytes) -> list[int]:
    """Write a file of frames and say where each ends, the file header first."""
    path.write_bytes(FILE_HEADER + b"".join(frames))
    ends = [len(FILE_HEADER)]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    return ends


def read(path: Path, end: int | None = None, block_bytes: int = 1 << 20) -> list[Frame]:
    with FrameReader(path, end, block_bytes) as reader:
        return list(reader.frames())


def sound_end(path: Path) -> tuple[int, int | None]:
    with FrameReader(path) as reader:
        return reader.sound_end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log-00000001-00000001"


THREE = [
    frame_bytes(7, part("count", b"first")),
    frame_bytes(8, part("mean", b"second"), part("mean", b"more")),
    frame_bytes(9, part("sum", b"third" * 30)),
]


def test_parts_come_back_as_they_were_written(path: Path) -> None:
    bodies: list[Body] = [
        b"",
        b"\x00\xff",
        bytearray(b"abc"),
        memoryview(array("q", [1, -2])),
        pa.py_buffer(b"x" * 50_000),
        pa.py_buffer(b""),
    ]
    write(path, frame_bytes(1, *(part("op é", body, batch=n, list=[1, None]) for n, body in enumerate(bodies))))
    [frame] = read(path)
    assert frame.lsn == 1
    assert [bytes(p.body) for p in frame.parts] == [memoryview(body).tobytes() for body in bodies]
    assert [p.info for p in frame.parts] == [part("op é", batch=n, list=[1, None])[0] for n in range(6)]


def test_info_given_by_the_caller_is_left_alone() -> None:
    info: Info = {"kind": "mark", "op": "a"}
    Draft([(info, b"xyz")]).numbered(1)
    assert info == {"kind": "mark", "op": "a"}


def test_frame_without_parts_is_a_frame(path: Path) -> None:
    write(path, frame_bytes(1))
    assert [(frame.lsn, frame.parts) for frame in read(path)] == [(1, [])]


def test_layout_is_the_documented_one() -> None:
    data = frame_bytes(3, part("a", b"BODY"))
    magic, header_bytes, body_bytes, crc = struct.unpack_from("<4sIQI", data)
    header, body = data[20 : 20 + header_bytes], data[20 + header_bytes :]
    assert (magic, body_bytes, body) == (b"GWF1", 4, b"BODY")
    assert json.loads(header) == {"lsn": 3, "parts": [{"kind": "state", "op": "a", "bytes": 4}]}
    assert crc == zlib.crc32(b"BODY" + header)
    assert FILE_HEADER == b"GODWIT\x00\x01"


@pytest.mark.parametrize("body_bytes", [0, 100, 100_000])
def test_size_is_known_before_the_lsn_is(body_bytes: int) -> None:
    draft = Draft([part("a", bytes(body_bytes), text="é")])
    for lsn in (1, 2**62):
        size = sum(len(memoryview(buffer)) for buffer in draft.numbered(lsn))
        assert size <= draft.size_bytes_max <= size + 40


def test_frames_are_read_whatever_the_size_of_the_read_block(path: Path) -> None:
    frames = [frame_bytes(lsn, part("a", bytes([lsn]) * lsn * 7)) for lsn in range(1, 60)]
    write(path, *frames)
    for block_bytes in (1, 64, 1000, 1 << 20):
        found = read(path, block_bytes=block_bytes)
        assert [frame.lsn for frame in found] == list(range(1, 60))
        assert all(bytes(f.parts[0].body) == bytes([f.lsn]) * f.lsn * 7 for f in found)


def test_reading_stops_at_the_end_that_counts(path: Path) -> None:
    ends = write(path, *THREE)
    assert [frame.lsn for frame in read(path, ends[2])] == [7, 8]
    with pytest.raises(CheckpointCorrupt, match="cut short"):
        read(path, ends[2] + 5)


def test_file_shorter_than_what_counts_is_corrupt(path: Path) -> None:
    ends = write(path, *THREE)
    with pytest.raises(CheckpointCorrupt, match="cut short"):
        read(path, ends[3] + 1)


def test_tail_torn_at_any_byte_is_cut_off(path: Path) -> None:
    ends = write(path, *THREE)
    whole = path.read_bytes()
    for size in range(ends[2], ends[3]):
        path.write_bytes(whole[:size])
        assert sound_end(path) == (ends[2], 8)
    path.write_bytes(whole)
    assert sound_end(path) == (ends[3], 9)


def test_last_frame_with_a_wrong_checksum_is_cut_off(path: Path) -> None:
    ends = write(path, *THREE)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert sound_end(path) == (ends[2], 8)


def test_zeros_after_the_last_frame_are_cut_off(path: Path) -> None:
    ends = write(path, *THREE)
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert sound_end(path) == (ends[3], 9)


def test_file_that_was_being_begun_holds_nothing(path: Path) -> None:
    for begun in [FILE_HEADER[:n] for n in range(8)] + [bytes(100), FILE_HEADER + THREE[0][:30]]:
        path.write_bytes(begun)
        assert sound_end(path) == (0, None)
    path.write_bytes(FILE_HEADER)
    assert sound_end(path) == (8, None)


def test_any_changed_byte_before_the_last_frame_is_corruption(path: Path) -> None:
    ends = write(path, *THREE)
    whole = path.read_bytes()
    for at in range(ends[0], ends[2]):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(CheckpointCorrupt):
            sound_end(path)
        with pytest.raises(CheckpointCorrupt):
            read(path)


def test_corruption_is_reported_with_file_offset_lsn_and_neighbours(path: Path) -> None:
    ends = write(path, *THREE)
    data = bytearray(path.read_bytes())
    data[ends[2] - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointCorrupt) as caught:
        read(path)
    assert caught.value.fields == {"file": str(path), "offset": ends[1], "lsn": 8, "operators": "count, sum"}
    assert path.name in str(caught.value)
    assert caught.value.todo


def test_lost_frame_is_corruption(path: Path) -> None:
    write(path, THREE[0], THREE[2])
    with pytest.raises(CheckpointCorrupt, match="lsn 9 stands where lsn 8 is expected"):
        read(path)


def test_first_lsn_is_checked_when_it_is_known(path: Path) -> None:
    write(path, *THREE)
    with FrameReader(path) as reader:
        assert [frame.lsn for frame in reader.frames(first_lsn=7)] == [7, 8, 9]
    with FrameReader(path) as reader, pytest.raises(CheckpointCorrupt, match="lsn 6 is expected"):
        next(reader.frames(first_lsn=6))


def test_bytes_of_a_frame_inside_a_body_do_not_make_a_torn_tail_corrupt(path: Path) -> None:
    older = frame_bytes(2, part("copied"))
    ends = write(path, THREE[0], frame_bytes(8, part("a", older + b"x" * 50))[:-10])
    assert sound_end(path) == (ends[1], 7)


def test_newer_format_is_refused_with_both_versions(path: Path) -> None:
    path.write_bytes(FILE_HEADER[:-1] + bytes([FORMAT_VERSION + 1]) + THREE[0])
    for attempt in (read, sound_end):
        with pytest.raises(CheckpointVersion) as caught:
            attempt(path)
        assert caught.value.fields == {"file": str(path), "version": 2, "supported": 1}


def test_file_of_another_kind_is_corrupt(path: Path) -> None:
    path.write_bytes(b"PAR1 and more of that kind")
    with pytest.raises(CheckpointCorrupt, match="no changelog file"):
        read(path)


def test_outlines_tell_what_is_where_without_bodies(path: Path) -> None:
    ends = write(path, *THREE)
    with FrameReader(path, block_bytes=16) as reader:
        outlines = list(reader.outlines())
        assert [(offset, end) for offset, end, _ in outlines] == list(pairwise(ends))
        assert [info["bytes"] for _, _, infos in outlines for info in infos] == [5, 6, 4, 150]
        assert reader.sound_frame_at(ends[1]).parts[1] == Part({"kind": "state", "op": "mean"}, b"more")


def test_frame_read_by_its_place_is_checked(path: Path) -> None:
    ends = write(path, *THREE)
    data = bytearray(path.read_bytes())
    data[ends[3] - 1] ^= 1
    path.write_bytes(data)
    with FrameReader(path) as reader, pytest.raises(CheckpointCorrupt, match="checksum"):
        reader.sound_frame_at(ends[2])
