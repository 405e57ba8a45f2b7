"""A host's log kept a second time, by another host: the same files under the same names, so a mirror is a log too.

Decides what a mirror lacks, in which order it gets it, and what of it counts meanwhile. It must not know how pieces travel, nor
when a mirror is needed.

The tail of the log goes first: answers wait for it. Files that compaction has made follow when there is no tail, then the
manifest that names them, and only then does the mirror remove the files that they replace. So at every moment a mirror can be
opened like any log. It is fenced like any log, too: after each write, and before it acknowledges the write, the mirror makes
sure that there is no newer generation (see manifest.py and fencing.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from godwit.errors import CheckpointUnusable, GodwitError, MalformedRequest
from godwit.state.changelog import Written
from godwit.state.damage import corrupt, stale, unusable
from godwit.state.fencing import Permit, permit_if_cached
from godwit.state.manifest import Manifest, decode_manifest, newest_manifest, sweep
from godwit.state.segments import FileName, list_names, parse_name, publish, replace_file, sync_directory, sync_path

PIECE_BYTES_MAX: Final = 1 << 20
_UNSYNCED_BYTES_MAX: Final = (
    8 << 20
)  # of a file that a manifest will name: syncing it all at the end would hold up the tail
_TRIES: Final = 20  # a file may be compacted away while it is about to be read; that many times in a row it is not


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a file, from an offset on, or a whole manifest. `ahead`: only a later manifest names the file."""

    file: str
    offset: int
    data: bytes
    ahead: bool = False

    @property
    def manifest(self) -> bool:
        return self.file.startswith("manifest")


class Mirror:
    """The receiving side, for one generation of the origin.

    A file that came ahead of its manifest has a partial name until then: a reader that saw it earlier could meet a gap.
    """

    def __init__(self, directory: Path, generation: int) -> None:
        self.directory = directory
        self._generation = generation
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._check_newest()
            (directory / str(FileName("claim", generation))).touch()
            Permit(directory, generation).make()
        except OSError as error:
            raise unusable("create", directory, error) from error
        self._permit = permit_if_cached(directory, generation)
        self._unsynced = dict(self.have())  # bytes by name; their writer may have died before it could sync
        self.check()

    def have(self) -> dict[str, int]:
        """Bytes of every file, also of those that no manifest names yet."""
        names = [name for name in list_names(self.directory) if name.kind in ("log", "snap")]
        return {_whole(name): (self.directory / str(name)).stat().st_size for name in names}

    def write(self, file: str, offset: int, data: bytes | memoryview, ahead: bool) -> None:
        """The next bytes of the file."""
        path = self._place(file, ahead)
        try:
            with path.open("ab", buffering=0) as out:
                if out.tell() != offset:
                    raise MalformedRequest(f"{file} has {out.tell()} bytes in the backup; what came begins at {offset}")
                left = memoryview(data)
                while left:
                    left = left[out.write(left) :]
        except OSError as error:
            raise unusable("write", path, error) from error
        self._unsynced[file] = self._unsynced.get(file, 0) + len(data)
        ahead_of_sync = path.name != file and self._unsynced[file] >= _UNSYNCED_BYTES_MAX
        if (
            ahead_of_sync or self._permit is not None
        ):  # other machines do not see bytes that are not synced on a network mount
            self._sync(file)
        self.check()

    def replace_manifest(self, data: bytes) -> None:
        """Replace the manifest. All files that it names are here; files that it does not name are removed."""
        path = self.directory / str(FileName("manifest", self._generation))
        try:
            manifest = decode_manifest(path, data)
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedRequest(f"what came for {path.name} is not a manifest ({error!r})") from error
        for stored in (*manifest.snapshots, *manifest.segments):
            if self._size(stored.file) < stored.bytes:
                raise MalformedRequest(f"{stored.file} is named by a manifest, and the backup lacks bytes of it")
            self._sync(stored.file)
        for name in list_names(self.directory):
            if name.partial and manifest.names(parse_name(_whole(name)) or name):
                publish(self.directory / str(name), self.directory / _whole(name))
        replace_file(path, data)
        self.check()
        sweep(self.directory, manifest)
        self._unsynced = {file: size for file, size in self._unsynced.items() if self._place(file).exists()}

    def sync(self) -> None:
        """Make all written bytes durable."""
        for file in list(self._unsynced):
            self._sync(file)
        sync_directory(self.directory)
        self.check()

    def clear(self) -> None:
        """Remove all files: they do not fit the origin's log."""
        self.check()
        for name in list_names(self.directory):
            if name.kind != "claim":
                (self.directory / str(name)).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise if a newer generation has claimed the mirror, or the mirror was removed: then nothing may be acknowledged."""
        proved = self._permit is None or self._permit.proved()
        self._check_newest()
        if not proved or not (self.directory / str(FileName("claim", self._generation))).exists():
            raise CheckpointUnusable(
                f"the backup in {self.directory} has been removed", todo="Nothing: it is made anew"
            )

    def _check_newest(self) -> None:
        if any(name.generation > self._generation for name in list_names(self.directory)):
            raise stale(self.directory, self._generation)

    def _place(self, file: str, ahead: bool = True) -> Path:
        name = parse_name(file)
        if name is None or name.partial or name.kind not in ("log", "snap") or name.generation > self._generation:
            raise MalformedRequest(f"{file!r} is no file of generation {self._generation} of a log")
        path = self.directory / file
        return path.with_name(f"{file}.tmp") if ahead and not path.exists() else path

    def _size(self, file: str) -> int:
        path = self._place(file)
        return path.stat().st_size if path.exists() else 0

    def _sync(self, file: str) -> None:
        if self._unsynced.pop(file, 0):
            path = self._place(file)
            if path.exists():  # a sweep may have taken it
                sync_path(path)


def _whole(name: FileName) -> str:
    return str(FileName(name.kind, name.generation, name.seq))


class Feed:
    """The sending side: what a mirror lacks of a log that goes on being written, read from the log's own files.

    `have`: what the mirror has. What is sent counts as there when it is acknowledged (`took`), not before.
    """

    def __init__(
        self, directory: Path, generation: int, have: Mapping[str, int], piece_bytes_max: int = PIECE_BYTES_MAX
    ) -> None:
        self._directory = directory
        self._generation = generation
        self._piece_bytes_max = piece_bytes_max
        self._manifest = directory / str(FileName("manifest", generation))
        self._have = dict(have)
        self._placed: Manifest | None = None  # what the mirror goes by, if the tail can be put behind that
        self._placed_as: tuple[int, int] | None = None
        self._seq = 0  # all own segments before it are in the mirror, or merged into what is

    def conflicts(self) -> bool:
        """Whether the mirror has more bytes of a file than the log ever had: then it is the mirror of another log."""
        for file, size in self._have.items():
            name, path = parse_name(file), self._directory / file
            written_here = name is not None and (name.kind == "snap" or name.generation == self._generation)
            if written_here and path.exists() and size > path.stat().st_size:
                return True
        return False

    def have(self) -> dict[str, int]:
        return dict(self._have)

    def next(self, at: Written) -> LogPiece | None:
        """The next bytes to send, of a log that is written up to there; None when the mirror has everything."""
        for _ in range(_TRIES):
            try:
                return self._tail(at) or self._merged(at)
            except FileNotFoundError:
                self._placed_as = None  # merged and swept in between: the newest manifest knows into what
        raise corrupt(self._manifest, "files that it names are missing")

    def took(self, piece: LogPiece) -> None:
        if not piece.manifest:
            self._have[piece.file] = piece.offset + len(piece.data)
            return
        manifest = decode_manifest(self._manifest, piece.data)
        self._placed = manifest
        self._seq = max(self._seq, manifest.own_from)
        self._have = {file: size for file, size in self._have.items() if (n := parse_name(file)) and manifest.names(n)}

    def reaches(self, at: Written) -> bool:
        """Whether the mirror has all bytes up to there."""
        if self._placed is None:
            return False
        return at.seq < max(self._seq, 1) or (at.seq == self._seq and self._size(at.seq) >= at.bytes)

    def lag_bytes(self, at: Written) -> int:
        """The bytes of the tail that the mirror lacks."""
        lag = at.bytes - self._size(at.seq)
        for seq in range(self._seq, at.seq):
            path = self._directory / self._name(seq)
            lag += path.stat().st_size - self._size(seq) if path.exists() else 0
        return max(lag, 0)

    def _tail(self, at: Written) -> LogPiece | None:
        while self._placed is not None and self._seq <= at.seq:
            size = at.bytes
            if self._seq < at.seq:
                path = self._directory / self._name(self._seq)
                if not path.exists():
                    self._placed = None  # merged before it was sent: nothing can be put behind the gap
                    return None
                size = path.stat().st_size
            if self._size(self._seq) < size:
                return self._piece(self._name(self._seq), size)
            if self._seq == at.seq:
                return None
            self._seq += 1
        return None

    def _merged(self, at: Written) -> LogPiece | None:
        """Files that the newest manifest names, then the manifest; the mirror must have the tail that goes with it by then."""
        stat = self._manifest.stat()
        if self._placed is not None and self._placed_as == (stat.st_ino, stat.st_mtime_ns):
            return None
        data = self._manifest.read_bytes()
        manifest = decode_manifest(self._manifest, data)
        for stored in (*manifest.snapshots, *manifest.segments):
            if self._have.get(stored.file, 0) < stored.bytes:
                return self._piece(stored.file, stored.bytes, ahead=True)
        if manifest == self._placed:
            self._placed_as = (stat.st_ino, stat.st_mtime_ns)
            return None
        if manifest.own_from > max(at.seq, 1):
            return None  # the segment behind what was merged is being begun
        for seq in range(manifest.own_from, at.seq + 1) if self._placed is None else ():
            size = at.bytes if seq == at.seq else (self._directory / self._name(seq)).stat().st_size
            if self._size(seq) < size:
                return self._piece(self._name(seq), size, ahead=True)
        return LogPiece(self._manifest.name, 0, data)

    def _piece(self, file: str, end: int, ahead: bool = False) -> LogPiece:
        offset = self._have.get(file, 0)
        try:
            with (self._directory / file).open("rb", buffering=0) as source:
                data = os.pread(source.fileno(), min(end - offset, self._piece_bytes_max), offset)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unusable("read", self._directory / file, error) from error
        if not data:
            raise corrupt(self._directory / file, f"it has {offset} bytes of {end}")
        return LogPiece(file, offset, data, ahead)

    def _name(self, seq: int) -> str:
        return str(FileName("log", self._generation, seq))

    def _size(self, seq: int) -> int:
        return self._have.get(self._name(seq), 0)


def copy_mirror(mirror: Path, to: Path) -> None:
    """Copy the files that the mirror's manifest names into a new directory, durably; the manifest comes last."""
    manifest = newest_manifest(mirror) if mirror.is_dir() else None
    if manifest is None:
        raise corrupt(mirror, "there is no manifest")
    stored = [s.file for s in (*manifest.snapshots, *manifest.segments)]
    own = [str(name) for name in manifest.own_segments(mirror)]
    try:
        to.mkdir(parents=True)
        for file in (*stored, *own, str(FileName("manifest", manifest.generation))):
            shutil.copyfile(mirror / file, to / file)
            sync_path(to / file)
        sync_directory(to)
    except OSError as error:
        raise unusable("copy", mirror, error) from error


def has_log(directory: Path) -> bool:
    """Whether there is a log in the directory."""
    try:
        return any(name.kind == "manifest" and not name.partial for name in list_names(directory))
    except GodwitError:
        if directory.exists():
            raise
        return False
