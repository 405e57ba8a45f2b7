"""Which rows a host was working on when its process ended: known to the next generation without costing this one anything.

Before user code runs, a few bytes in a mapped file say on what: the page cache has them, however the process ends. A
generation that finds them there takes those rows for suspect and has the processor work on them one by one, with a crumb for
each. If the process ends again, the row is known, and is not given to the processor a third time. Heirs of a lost host
read what it left. Another opening of the flock forgets everything: by then the processor may have been mended. A lane is
that of one run of the query: in a later run another row may have the number.
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

Kind = Literal["rows", "timers"]

PREFIX: Final = "breadcrumbs-"
SUSPECTS: Final = "suspects.json"
SUSPECTS_MAX: Final = 100  # the newest; older ones are of batches long committed
SLOTS: Final = 64  # instances that can work at once; any beyond that leave no crumbs
SLOT_BYTES: Final = 512
_TEXT_BYTES_MAX: Final = 220  # of a name and of a lane: longer ones are cut, and compared so
_HEAD: Final = struct.Struct("<BBqqqHH")  # state, kind, batch, first, last, name bytes, lane bytes
_IDLE, _SOME, _ONE = 0, 1, 2
_KINDS: Final[tuple[Kind, ...]] = ("rows", "timers")


@dataclass(frozen=True, slots=True)
class Suspect:
    """Rows `first` to `last` of a lane, or timers, that user code was given when the process ended; `sure`: that very one.

    `lane`: of one run of the query, because rows may have other numbers in the next.
    Of a timer, `first` is its time and `last` the hash of its key; its lane says nothing, as timers leave through any.
    """

    name: str
    kind: Kind
    batch: int
    lane: str
    first: int
    last: int
    sure: bool = False


class Trail(Protocol):
    """What an instance says while it runs user code, and may ask."""

    def begin(self, kind: Kind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...

    def suspected(self, kind: Kind, batch: int, lane: str, first: int, last: int) -> bool: ...

    def kills(self, kind: Kind, batch: int, lane: str, first: int, last: int) -> bool: ...


class NoTrail:
    """For instances that no process ends with."""

    def begin(self, kind: Kind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None:
        return

    def end(self) -> None:
        return

    def close(self) -> None:
        return

    def suspected(self, kind: Kind, batch: int, lane: str, first: int, last: int) -> bool:
        return False

    def kills(self, kind: Kind, batch: int, lane: str, first: int, last: int) -> bool:
        return False


class Crumbs:
    """Of one generation of a host. A directory that cannot be mapped leaves no crumbs, and nothing is named then."""

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
        """Also suspect what a host left that ended: this one's predecessor, or one whose keys come here."""
        found = [*self.suspects, *_written(directory, self._incarnation)]
        for path in sorted(directory.glob(f"{PREFIX}*")):
            with suppress(OSError, ValueError, IndexError, struct.error):
                found += _left(path.read_bytes(), self._incarnation)
        self.suspects = list(dict.fromkeys(found))[-SUSPECTS_MAX:]
        if self.suspects:
            self._write()

    def trail(self, name: str) -> Trail:
        """For one instance."""
        return _Trail(self, name, self._free.pop() if self._map is not None and self._free else None)

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def put(self, slot: int, crumb: bytes) -> None:
        """The state comes last: a crumb that was interrupted says nothing."""
        assert self._map is not None, "a slot is given out only with a map"
        at = (slot + 1) * SLOT_BYTES
        self._map[at + 1 : at + len(crumb)] = crumb[1:]
        self._map[at] = crumb[0]

    def clear(self, slot: int) -> None:
        assert self._map is not None, "a slot is given out only with a map"
        self._map[(slot + 1) * SLOT_BYTES] = _IDLE

    def _write(self) -> None:
        data = {"incarnation": self._incarnation, "suspects": [asdict(suspect) for suspect in self.suspects]}
        beside = self._directory / f"{SUSPECTS}.new"
        with suppress(OSError):  # then the next generation has to find out again
            beside.write_text(json.dumps(data))
            beside.replace(self._directory / SUSPECTS)


class _Trail:
    """What one instance is at."""

    def __init__(self, crumbs: Crumbs, name: str, slot: int | None) -> None:
        self._crumbs = crumbs
        self._slot = slot
        self._name = _cut(name)

    def begin(self, kind: Kind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None:
        if self._slot is not None:
            text = _cut(lane)
            state = _ONE if one else _SOME
            head = _HEAD.pack(state, _KINDS.index(kind), batch, first, last, len(self._name), len(text))
            self._crumbs.put(self._slot, head + self._name + text)

    def end(self) -> None:
        if self._slot is not None:
            self._crumbs.clear(self._slot)

    def close(self) -> None:
        """The instance is gone: another may have the slot."""
        if self._slot is not None:
            self._crumbs.give_back(self._slot)
            self._slot = None

    def suspected(self, kind: Kind, batch: int, lane: str, first: int, last: int) -> bool:
        if not self._crumbs.suspects:
            return False
        return any(kind == "timers" or (s.first <= last and first <= s.last) for s in self._of(kind, batch, lane))

    def kills(self, kind: Kind, batch: int, lane: str, first: int, last: int) -> bool:
        return any(s.sure and (s.first, s.last) == (first, last) for s in self._of(kind, batch, lane))

    def _of(self, kind: Kind, batch: int, lane: str) -> Iterator[Suspect]:
        name, lane = self._name.decode(errors="replace"), _cut(lane).decode(errors="replace")
        for s in self._crumbs.suspects:
            if (s.name, s.kind, s.batch) == (name, kind, batch) and (kind == "timers" or s.lane == lane):
                yield s


def _cut(text: str) -> bytes:
    return text.encode()[:_TEXT_BYTES_MAX]


def _mapped(path: Path, incarnation: str) -> mmap.mmap:
    """A file of its own for every generation: one that was taken for lost may still write to its own."""
    with path.open("w+b") as file:
        file.truncate((SLOTS + 1) * SLOT_BYTES)
        found = mmap.mmap(file.fileno(), (SLOTS + 1) * SLOT_BYTES)
    text = _cut(incarnation)
    found[: len(text) + 1] = bytes([len(text)]) + text
    return found


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
