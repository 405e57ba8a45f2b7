"""Crash markers: they show the next generation of a host which rows user code was working on when the process ended.

Before user code runs, a few bytes in a mapped file name the rows. The page cache keeps these bytes, however the process ends.
The next generation suspects the rows of a marker: the processor gets them one by one, with a marker for each. If the process
ends again, the marker names one row, and the processor does not get that row a third time. Heirs of a lost host read its
markers. Another opening of the flock drops all markers: by then the processor may have been fixed. A lane is that of one run
of the query, because another row may have the number in a later run.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

WorkKind = Literal["rows", "timers"]

PREFIX: Final = "breadcrumbs-"
SUSPECTS: Final = "suspects.json"
SUSPECTS_MAX: Final = 100  # the newest; older ones are of batches long committed
SLOTS: Final = 64  # instances that can work at once; any beyond that have no marker
SLOT_BYTES: Final = 512
_TEXT_BYTES_MAX: Final = 220  # of a name and of a lane: longer ones are cut, and compared so
_HEAD: Final = struct.Struct("<BBqqqHH")  # state, kind, batch, first, last, name bytes, lane bytes
_IDLE, _SOME, _ONE = 0, 1, 2
_KINDS: Final[tuple[WorkKind, ...]] = ("rows", "timers")


@dataclass(frozen=True, slots=True)
class Suspect:
    """Rows `first` to `last` of a lane, or timers, that user code was given when the process ended.

    `sure`: user code had only this row or timer.

    `lane`: of one run of the query, because rows may have other numbers in the next.
    Of a timer, `first` is its time and `last` the hash of its key. Its lane has no meaning: timers leave through any lane.
    """

    name: str
    kind: WorkKind
    batch: int
    lane: str
    first: int
    last: int
    sure: bool = False


class CrashMarker(Protocol):
    """Of one instance: what it writes while it runs user code, and what earlier generations have left."""

    def begin(self, kind: WorkKind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...

    def is_suspect(self, kind: WorkKind, batch: int, lane: str, first: int, last: int) -> bool: ...

    def is_deadly(self, kind: WorkKind, batch: int, lane: str, first: int, last: int) -> bool: ...


class NoCrashMarker:
    """For an instance that has no next generation."""

    def begin(self, kind: WorkKind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None:
        return

    def end(self) -> None:
        return

    def close(self) -> None:
        return

    def is_suspect(self, kind: WorkKind, batch: int, lane: str, first: int, last: int) -> bool:
        return False

    def is_deadly(self, kind: WorkKind, batch: int, lane: str, first: int, last: int) -> bool:
        return False


class CrashMarkers:
    """Of one generation of a host. If the file cannot be mapped, there are no markers, and no row is suspected later."""

    def __init__(self, directory: Path, generation: int, incarnation: str) -> None:
        self._directory = directory
        self._incarnation = incarnation
        self._free = list(range(SLOTS))
        self.suspects: list[Suspect] = []
        self._map: mmap.mmap | None = None
        self.inherit(directory)
        for old in directory.glob(f"{PREFIX}*"):
            old.unlink(missing_ok=True)
        with suppress(OSError, ValueError):
            self._map = _mapped(directory / f"{PREFIX}{generation}", incarnation)

    def inherit(self, directory: Path) -> None:
        """Also suspect the rows of another host's markers: of the predecessor, or of a lost host whose keys come here."""
        suspects = [*self.suspects, *_written(directory, self._incarnation)]
        for path in sorted(directory.glob(f"{PREFIX}*")):
            with suppress(OSError, ValueError, IndexError, struct.error):
                suspects += _left(path.read_bytes(), self._incarnation)
        self.suspects = list(dict.fromkeys(suspects))[-SUSPECTS_MAX:]
        if self.suspects:
            self._write()

    def marker(self, name: str) -> CrashMarker:
        """For one instance."""
        return _MappedMarker(self, name, self._free.pop() if self._map is not None and self._free else None)

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def put(self, slot: int, marker: bytes) -> None:
        """The state is written last: a marker that was interrupted counts as idle."""
        assert self._map is not None, "a slot is given out only with a map"
        at = (slot + 1) * SLOT_BYTES
        self._map[at + 1 : at + len(marker)] = marker[1:]
        self._map[at] = marker[0]

    def clear(self, slot: int) -> None:
        assert self._map is not None, "a slot is given out only with a map"
        self._map[(slot + 1) * SLOT_BYTES] = _IDLE

    def _write(self) -> None:
        data = {"incarnation": self._incarnation, "suspects": [asdict(suspect) for suspect in self.suspects]}
        beside = self._directory / f"{SUSPECTS}.new"
        with suppress(OSError):  # then the next generation has to suspect them again
            beside.write_text(json.dumps(data))
            beside.replace(self._directory / SUSPECTS)


class _MappedMarker:
    """A slot of the mapped file."""

    def __init__(self, crash_markers: CrashMarkers, name: str, slot: int | None) -> None:
        self._crash_markers = crash_markers
        self._slot = slot
        self._name = _cut(name)

    def begin(self, kind: WorkKind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None:
        if self._slot is not None:
            text = _cut(lane)
            state = _ONE if one else _SOME
            head = _HEAD.pack(state, _KINDS.index(kind), batch, first, last, len(self._name), len(text))
            self._crash_markers.put(self._slot, head + self._name + text)

    def end(self) -> None:
        if self._slot is not None:
            self._crash_markers.clear(self._slot)

    def close(self) -> None:
        """The instance is gone: another may have the slot."""
        if self._slot is not None:
            self._crash_markers.give_back(self._slot)
            self._slot = None

    def is_suspect(self, kind: WorkKind, batch: int, lane: str, first: int, last: int) -> bool:
        if not self._crash_markers.suspects:
            return False
        return any(kind == "timers" or (s.first <= last and first <= s.last) for s in self._of(kind, batch, lane))

    def is_deadly(self, kind: WorkKind, batch: int, lane: str, first: int, last: int) -> bool:
        return any(s.sure and (s.first, s.last) == (first, last) for s in self._of(kind, batch, lane))

    def _of(self, kind: WorkKind, batch: int, lane: str) -> Iterator[Suspect]:
        name, lane = self._name.decode(errors="replace"), _cut(lane).decode(errors="replace")
        for s in self._crash_markers.suspects:
            if (s.name, s.kind, s.batch) == (name, kind, batch) and (kind == "timers" or s.lane == lane):
                yield s


def _cut(text: str) -> bytes:
    return text.encode()[:_TEXT_BYTES_MAX]


def _mapped(path: Path, incarnation: str) -> mmap.mmap:
    """Every generation has its own file: an older generation that was taken for lost may still write to its file."""
    with path.open("w+b") as file:
        file.truncate((SLOTS + 1) * SLOT_BYTES)
        mapped = mmap.mmap(file.fileno(), (SLOTS + 1) * SLOT_BYTES)
    text = _cut(incarnation)
    mapped[: len(text) + 1] = bytes([len(text)]) + text
    return mapped


def _left(data: bytes, incarnation: str) -> Iterator[Suspect]:
    if data[1 : 1 + data[0]] != _cut(incarnation):
        return
    for at in range(SLOT_BYTES, len(data), SLOT_BYTES):
        state, kind, batch, first, last, name_bytes, lane_bytes = _HEAD.unpack_from(data, at)
        if state != _IDLE:
            start = at + _HEAD.size
            name = data[start : start + name_bytes].decode(errors="replace")
            lane = data[start + name_bytes : start + name_bytes + lane_bytes].decode(errors="replace")
            yield Suspect(name, _KINDS[kind], batch, lane, first, last, state == _ONE)


def _written(directory: Path, incarnation: str) -> list[Suspect]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads((directory / SUSPECTS).read_text())
        if data["incarnation"] == incarnation:
            return [Suspect(**suspect) for suspect in data["suspects"]]
    return []
