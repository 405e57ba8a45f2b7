"""Takes over a host's checkpoint directory: which frames are in it, and where the log of each older generation ends.

Decides which bytes of older generations count (everything written before the takeover, up to a torn tail)
and writes that down in the new generation's manifest, so that a fenced writer can append what it likes. It
must not know how state is kept nor how frames are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

from godwit.errors import CheckpointCorrupt, GodwitError
from godwit.state.damage import corrupt, unusable
from godwit.state.documents import make_directory
from godwit.state.fencing import Fence, check_newest, claim
from godwit.state.frames import BLOCK_BYTES, Frame, FrameReader, Part
from godwit.state.manifest import Manifest, Stored, newest_manifest, read_manifest, sweep, write_manifest
from godwit.state.mounts import mount_of
from godwit.state.segments import Durability, FileName, sync_directory, sync_path

_STANDING: Final = frozenset(("define", "mark", "own", "drop"))


class Standing:
    """The newest define, mark and own part of every operator: what each new segment begins with."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], Part] = {}

    def observe(self, part: Part) -> bool:
        """Note a part, in log order; False if it only repeats the newest one."""
        kind = part.info.get("kind")
        if kind not in _STANDING:
            return True
        operator = str(part.info.get("op"))
        if kind != "drop":
            copy = Part(dict(part.info), bytes(part.body))
            if self._parts.get((operator, kind)) == copy:
                return False
            self._parts[operator, kind] = copy
        else:
            for standing in _STANDING:
                self._parts.pop((operator, standing), None)
        return True

    def parts(self) -> list[Part]:
        return [part for _, part in sorted(self._parts.items())]


class Recovered:
    """The log in a directory, as of its takeover."""

    def __init__(self, directory: Path, manifest: Manifest, next_lsn: int) -> None:
        self.generation = manifest.generation
        self.starts = list(manifest.starts)
        self.next_lsn = next_lsn
        self.standing = Standing()
        self.read_to_end = not (manifest.snapshots or manifest.segments)
        self._directory = directory
        self._manifest = manifest

    def ends(self) -> dict[int, int]:
        """By generation, the end of its frames: those before this lsn are in the log, later ones are not."""
        return {generation: end for (generation, _), (_, end) in pairwise(self.starts)}

    def parts(self) -> Iterator[Part]:
        """All parts in the order in which they count, to be read to the end before the log is used.

        A define or mark that only repeats the newest one (as at the head of every segment) is left out. Bodies
        are views of a buffer: copy a body that is to stay.
        """
        observe = self.standing.observe
        for frame in self._frames():
            for part in frame.parts:
                if part.info.get("kind") not in _STANDING or observe(part):
                    yield part
        self.read_to_end = True

    def newest_parts(self) -> list[Part]:
        """The newest define, mark and own parts, read from the last segment only: every segment begins with them."""
        standing = Standing()
        stored = self._manifest.segments[-1:] or self._manifest.snapshots
        for each in stored:
            with self._open(each) as reader:
                for _, _, infos in reader.outlines():
                    for info in infos:
                        if info.get("kind") in _STANDING:
                            standing.observe(Part(info, b""))
        return standing.parts()

    def tail(self, batches: Mapping[str, int]) -> Iterator[Part] | None:
        """All parts of these operators' batches, or later ones; None if some of them have been merged into snapshots."""
        begin = next(
            (
                at
                for at, stored in reversed([*enumerate(self._manifest.segments)])
                if self._begins_before(stored, batches)
            ),
            None,
        )
        if begin is None:
            return None
        return (part for stored in self._manifest.segments[begin:] for part in self._parts_of(stored))

    def _begins_before(self, stored: Stored, batches: Mapping[str, int]) -> bool:
        with self._open(stored) as reader:
            first = next(reader.outlines(), None)
        infos = [] if first is None else first[2]
        marks = {info["op"]: info["batch"] for info in infos if info.get("kind") == "mark"}
        return all(marks.get(operator, -1) < batch for operator, batch in batches.items())

    def _parts_of(self, stored: Stored) -> Iterator[Part]:
        with self._open(stored) as reader:
            for frame in reader.frames():
                yield from frame.parts

    def _frames(self) -> Iterator[Frame]:
        for stored in self._manifest.snapshots:
            with self._open(stored) as reader:
                yield from reader.frames()
        lsn = None
        for stored in self._manifest.segments:
            with self._open(stored) as reader:
                for frame in reader.frames(lsn):
                    yield frame
                    lsn = frame.lsn + 1
        if lsn not in (None, self.next_lsn):
            raise corrupt(self._directory, f"the log ends before lsn {lsn}, not before lsn {self.next_lsn}")

    def _open(self, stored: Stored) -> FrameReader:
        try:
            return open_reader(self._directory / stored.file, stored.bytes, stored.operators)
        except CheckpointCorrupt:
            check_newest(self._directory, self.generation)  # a newer generation may have removed the file
            raise


def taken_over_log(directory: Path, generation: int, next_lsn: int) -> Recovered:
    """The log that this generation has taken over, for readers; nothing is written to it any more."""
    return Recovered(directory, read_manifest(directory, generation), next_lsn)


def readable_log(directory: Path) -> Recovered | None:
    """The log in a directory, for a reader: no writer is fenced and nothing is written. None if there is no log.

    The writer goes on meanwhile, so a file may be gone when it is read. Then an error says so, and the reader tries again.
    """
    newest = newest_manifest(directory)
    if newest is None:
        return None
    manifest, next_lsn = _succeed(directory, newest.generation)
    return Recovered(directory, manifest, next_lsn)


def take_over(directory: Path, durability: Durability) -> tuple[Manifest, Recovered]:
    """Fence all earlier generations and decide which of their frames count."""
    try:
        make_directory(directory)
    except OSError as error:
        raise unusable("create", directory, error) from error
    generation = claim(directory)
    try:
        manifest, next_lsn = _succeed(directory, generation)
        if mount_of(directory).durability(durability) == "disk":
            _sync(directory, manifest)
        write_manifest(directory, manifest)
    except GodwitError:
        Fence(directory, generation).check()  # a still newer generation may have removed a missing file
        raise
    sweep(directory, manifest)
    return manifest, Recovered(directory, manifest, next_lsn)


def _succeed(directory: Path, generation: int) -> tuple[Manifest, int]:
    old = newest_manifest(directory)
    if old is None:
        return Manifest(generation, starts=((generation, 1),)), 1
    ended, next_lsn = _end_of(directory, old)
    segments = (*old.segments, *ended)
    for position, stored in enumerate(old.snapshots):
        _check_there(directory, old.snapshots, position, stored)
    for position, stored in enumerate(segments):
        _check_there(directory, segments, position, stored)
    starts = (*old.starts, (generation, next_lsn))
    return Manifest(generation, starts, old.snapshots, segments), next_lsn


def _end_of(directory: Path, old: Manifest) -> tuple[list[Stored], int]:
    """The segments that the last generation wrote, without a torn tail, and the lsn that comes next."""
    own = [directory / str(name) for name in old.own_segments(directory)]
    ended = [Stored(path.name, size_bytes_of(path)) for path in own[:-1]]
    last_lsn = None
    for path in own[-1:]:
        with open_reader(path) as reader:
            end, last_lsn = reader.sound_end()
        if last_lsn is not None:
            ended.append(Stored(path.name, end))
    if last_lsn is None and ended:  # a crash came before the first frame of the newest segment was whole
        with open_reader(directory / ended[-1].file) as reader:
            last_lsn = max(frame.lsn for frame in reader.frames())
    return ended, old.starts[-1][1] if last_lsn is None else last_lsn + 1


def _check_there(directory: Path, row: Sequence[Stored], position: int, stored: Stored) -> None:
    path = directory / stored.file
    size = path.stat().st_size if path.exists() else None
    if size is not None and size >= stored.bytes:
        return
    flaw = "the file is missing" if size is None else f"it has {size} bytes of {stored.bytes}"
    beside = [*row[max(position - 1, 0) : position], *row[position + 1 : position + 2]]
    operators = {op for neighbour in (stored, *beside) for op in _operators(directory, neighbour)}
    raise corrupt(path, f"{flaw}; the state of the named operators in it is lost", operators=operators)


def _operators(directory: Path, stored: Stored) -> set[str]:
    """Operators named by a file: every segment names all of them in its first frame."""
    named = set(stored.operators)
    with suppress(GodwitError, OSError), FrameReader(directory / stored.file, stored.bytes) as reader:
        first = [info for _, _, infos in islice(reader.outlines(), 2) for info in infos]
        named |= {info["op"] for info in first if "op" in info}
    return named


def _sync(directory: Path, manifest: Manifest) -> None:
    """Sync all segments: the last writer may have ended between a write and its sync."""
    for stored in manifest.segments:
        sync_path(directory / stored.file)
    sync_directory(directory)


def open_reader(
    path: Path, end: int | None = None, operators: Sequence[str] = (), block_bytes: int = BLOCK_BYTES
) -> FrameReader:
    try:
        return FrameReader(path, end, block_bytes)
    except FileNotFoundError:
        raise corrupt(path, "the file is missing", operators=operators) from None
    except OSError as error:
        raise unusable("read", path, error) from error


def size_bytes_of(path: Path) -> int:
    with open_reader(path) as reader:
        return reader.size_bytes


def sealed_segments(directory: Path, manifest: Manifest, open_seq: int) -> list[Path]:
    """Segments that are complete, oldest first."""
    own = [FileName("log", manifest.generation, seq) for seq in range(manifest.own_from, open_seq)]
    return [directory / name for name in (*(s.file for s in manifest.segments), *map(str, own))]
