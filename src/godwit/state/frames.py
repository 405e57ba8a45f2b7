r"""The bytes of a changelog or snapshot file: a file header, then checksummed frames of parts.

Decides how parts become bytes, when bytes are a whole frame, and whether damage is a torn tail (a write that
a crash interrupted) or corruption. It must not know what a part means, beyond the operator that it names for
an error message, nor which files there are.

    file   "GODWIT\0", u8 format version, frames
    frame  "GWF1", u32 header bytes, u64 body bytes, u32 crc, header, body        (little-endian)
    header {"lsn": n, "parts": [{"kind": ..., "op": ..., "bytes": body bytes of this part, ...}, ...]}

The crc is taken over the body and then the header: a writer can then sum the (large) body before it knows
the lsn, and so before it takes the lock that orders frames.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from godwit.errors import CheckpointCorrupt
from godwit.state.damage import corrupt, newer_version, unusable

FORMAT_VERSION: Final = 1
FILE_MAGIC: Final = b"GODWIT\x00"
FILE_HEADER: Final = FILE_MAGIC + bytes([FORMAT_VERSION])
FRAME_MAGIC: Final = b"GWF1"

_PREFIX: Final = struct.Struct("<4sIQI")
_HEADER_REST_BYTES_MAX: Final = 40  # the header without its parts: the lsn and the punctuation
_JOIN_BYTES_MAX: Final = 16 << 10  # below this, one copy is cheaper than one more buffer in a gathered write
BLOCK_BYTES: Final = 4 << 20  # read at once: large enough that small frames cost no system call of their own

Info: TypeAlias = dict[str, Any]
_Extent: TypeAlias = tuple[memoryview, memoryview, int]  # a sound frame's header and body, and where it ends
Body: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


class Part(NamedTuple):
    """A piece of a frame: JSON-able facts, and bytes. The info key "bytes" is the frame's own."""

    info: Info
    body: Body = b""


class Frame(NamedTuple):
    """Parts that were written together, and their place in the file."""

    lsn: int
    parts: list[Part]
    offset: int
    end: int


class Draft:
    """A frame that only lacks its lsn. Whatever is costly is done here, outside any lock."""

    __slots__ = ("_bodies", "_body_bytes", "_crc", "_infos", "parts", "size_bytes_max")

    def __init__(self, parts: Iterable[tuple[Info, Body]]) -> None:
        self.parts = [Part(info, body) for info, body in parts]
        self._bodies = [memoryview(part.body).cast("B") for part in self.parts]
        self._body_bytes = sum(map(len, self._bodies))
        sized = zip(self.parts, self._bodies, strict=True)
        self._infos = _encode_json([part.info | {"bytes": len(body)} for part, body in sized]).encode()
        self._crc = 0
        for body in self._bodies:
            self._crc = zlib.crc32(body, self._crc)
        self.size_bytes_max = _PREFIX.size + len(self._infos) + self._body_bytes + _HEADER_REST_BYTES_MAX

    def numbered(self, lsn: int) -> list[Body]:
        """The frame as buffers to be written one after the other."""
        header = b'{"lsn":%d,"parts":%s}' % (lsn, self._infos)
        prefix = _PREFIX.pack(FRAME_MAGIC, len(header), self._body_bytes, zlib.crc32(header, self._crc))
        if self._body_bytes <= _JOIN_BYTES_MAX:
            return [b"".join((prefix, header, *self._bodies))]
        return [prefix + header, *self._bodies]


class FrameReader:
    """Frames of one open file, up to `end` bytes of it (None: all that it holds now)."""

    def __init__(self, path: Path, end: int | None = None, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self._block_bytes = block_bytes
        self._block = memoryview(b"")
        self._block_offset = 0
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size
        self.end = self.size_bytes if end is None else end
        self._stop = min(self.end, self.size_bytes)

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def frames(self, first_lsn: int | None = None) -> Iterator[Frame]:
        """All frames up to the end; anything that is not a whole and sound frame is corruption."""
        if flaw := self._file_flaw():
            raise self._corrupt(0, flaw, None)
        offset, last, lsn = len(FILE_HEADER), None, first_lsn
        while offset < self.end:
            frame = self.frame_at(offset)
            if isinstance(frame, str):
                raise self._corrupt(offset, frame, last)
            if lsn is not None and frame.lsn != lsn:
                raise self._corrupt(offset, f"lsn {frame.lsn} stands where lsn {lsn} is expected", last)
            yield frame
            offset, last, lsn = frame.end, frame, frame.lsn + 1

    def sound_end(self) -> tuple[int, int | None]:
        """Where the sound frames end, and the last lsn. What follows is torn, or it is corruption."""
        flaw, last, offset = self._file_flaw(), None, len(FILE_HEADER)
        while flaw is None and offset < self.end:
            extent = self._extent_at(offset)
            if isinstance(extent, str):
                flaw = extent
            else:
                last, offset = offset, extent[2]
        frame = None if last is None else self.sound_frame_at(last)
        if flaw is not None and self._next_sound(offset, frame) is not None:
            raise self._corrupt(offset, flaw, frame)
        if frame is None:
            return (0 if flaw else offset), None  # no frame yet; with a flaw, the file was still being begun
        return offset, frame.lsn

    def frame_at(self, offset: int) -> Frame | str:
        """The frame that begins there, or what is wrong with it."""
        extent = self._extent_at(offset)
        if isinstance(extent, str):
            return extent
        try:
            return _parsed(extent, offset)
        except (ValueError, KeyError, TypeError):
            return "the header is not readable"

    def outlines(self) -> Iterator[tuple[int, int, list[Info]]]:
        """(offset, end, infos) of every frame, bodies not read and so not checked: for large files."""
        offset = len(FILE_HEADER)
        if flaw := self._file_flaw():
            raise self._corrupt(0, flaw, None)
        while offset < self.end:
            sizes = self._sizes_at(offset)
            if isinstance(sizes, str):
                raise self._corrupt(offset, sizes, None)
            header = self._view(offset + _PREFIX.size, sizes[0])
            end = offset + _PREFIX.size + sizes[0] + sizes[1]
            try:
                infos = _decode_json(str(header, "utf-8"))[0]["parts"]
            except (ValueError, KeyError, TypeError):
                raise self._corrupt(offset, "the header is not readable", None) from None
            yield offset, end, infos
            offset = end

    def sound_frame_at(self, offset: int) -> Frame:
        frame = self.frame_at(offset)
        if isinstance(frame, str):
            raise self._corrupt(offset, frame, None)
        return frame

    def _file_flaw(self) -> str | None:
        header = self._view(0, min(len(FILE_HEADER), self._stop))
        if len(header) < len(FILE_HEADER):
            return "the file header is cut short"
        if bytes(header[:-1]) != FILE_MAGIC or header[-1] == 0:
            return "this is no changelog file"
        if header[-1] > FORMAT_VERSION:
            raise newer_version(self.path, header[-1], FORMAT_VERSION)
        return None

    def _sizes_at(self, offset: int) -> tuple[int, int, int] | str:
        room = self._stop - offset
        if room < _PREFIX.size:
            return "the frame is cut short"
        begin = self._load(offset, _PREFIX.size)
        magic, header_bytes, body_bytes, crc = _PREFIX.unpack_from(self._block, begin)
        if magic != FRAME_MAGIC:
            return "no frame begins here"
        if _PREFIX.size + header_bytes + body_bytes > room:
            return "the frame is cut short"
        return header_bytes, body_bytes, crc

    def _extent_at(self, offset: int) -> _Extent | str:
        sizes = self._sizes_at(offset)
        if isinstance(sizes, str):
            return sizes
        header_bytes, body_bytes, crc = sizes
        size = _PREFIX.size + header_bytes + body_bytes
        begin = self._load(offset, size)
        middle = begin + _PREFIX.size + header_bytes
        header, body = self._block[begin + _PREFIX.size : middle], self._block[middle : begin + size]
        if zlib.crc32(header, zlib.crc32(body)) != crc:
            return "the checksum does not match"
        return header, body, offset + size

    def _next_sound(self, offset: int, last: Frame | None) -> Frame | None:
        """The first whole frame after a flawed one, of a later lsn than the last sound one before."""
        for candidate in self._magics(offset + 1):
            frame = self.frame_at(candidate)
            if isinstance(frame, Frame) and (last is None or frame.lsn > last.lsn):
                return frame
        return None

    def _magics(self, offset: int) -> Iterator[int]:
        for begin in range(offset, self._stop, BLOCK_BYTES):
            chunk = bytes(self._view(begin, min(BLOCK_BYTES + len(FRAME_MAGIC) - 1, self._stop - begin)))
            position = chunk.find(FRAME_MAGIC)
            while position >= 0:
                yield begin + position
                position = chunk.find(FRAME_MAGIC, position + 1)

    def _view(self, offset: int, count: int) -> memoryview:
        """Bytes of the file, which the caller knows to be there."""
        begin = self._load(offset, count)
        return self._block[begin : begin + count]

    def _load(self, offset: int, count: int) -> int:
        """Load these bytes into the block, and return where they are."""
        begin = offset - self._block_offset
        if begin < 0 or begin + count > len(self._block):
            self._block = memoryview(self._read(offset, max(count, self._block_bytes), count))
            self._block_offset, begin = offset, 0
        return begin

    def _read(self, offset: int, wanted: int, needed: int) -> bytes:
        """At least `needed` bytes (one call reads 2 GiB at most), and whatever comes for free with them."""
        try:
            data = os.pread(self._fd, wanted, offset)
            while len(data) < needed and (more := os.pread(self._fd, needed - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise unusable("read", self.path, error) from error
        if len(data) < needed:
            raise corrupt(self.path, "it became shorter while it was read", offset=offset)
        return data

    def _corrupt(self, offset: int, flaw: str, last: Frame | None) -> CheckpointCorrupt:
        after = self._next_sound(offset, last)
        named = [part.info.get("op") for frame in (last, after) if frame for part in frame.parts]
        lsn = last.lsn + 1 if last else None
        return corrupt(self.path, flaw, offset=offset, lsn=lsn, operators=[op for op in named if op])


def _parsed(extent: _Extent, offset: int) -> Frame:
    header, body, frame_end = extent
    data, _ = _decode_json(str(header, "utf-8"))
    parts, begin = [], 0
    for info in data["parts"]:
        end = begin + info.pop("bytes")
        parts.append(Part(info, body[begin:end]))
        begin = end
    return Frame(data["lsn"], parts, offset, frame_end)


_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode_json = json.JSONDecoder().raw_decode
