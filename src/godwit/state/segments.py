"""The files of a host's checkpoint directory: their names, and how bytes get into them.

Decides what a file is called and how a new file is made, written and made durable. It must not know which
files are in use (the manifest) nor what order frames have (the changelog).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from godwit import ports
from godwit.state.damage import unusable
from godwit.state.frames import FILE_HEADER, Body

Durability: TypeAlias = Literal["process", "disk"]
FileKind: TypeAlias = Literal["claim", "manifest", "log", "snap"]

NO_DIRECTORY_SYNC: Final = (errno.EINVAL, errno.ENOTSUP)  # answers of network file systems that cannot sync a directory
_BUFFERS_MAX: Final = 1024  # IOV_MAX of Linux and macOS
_NAME: Final = re.compile(
    r"(?P<kind>claim|manifest|log|snap)-(?P<generation>\d{8,})(-(?P<seq>\d{8,}))?(\.json)?(?P<partial>\.tmp)?"
)


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """What a file is, by its name. `seq` counts the files of a kind and generation, from 1."""

    kind: FileKind
    generation: int
    seq: int = 0
    partial: bool = False  # being written: of no use to anyone else

    def __str__(self) -> str:
        name = f"{self.kind}-{self.generation:08d}"
        name += f"-{self.seq:08d}" if self.kind in ("log", "snap") else ""
        name += ".json" if self.kind == "manifest" else ""
        return name + (".tmp" if self.partial else "")


def parse_name(text: str) -> FileName | None:
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    kind: FileKind = match["kind"]  # type: ignore[assignment]
    name = FileName(kind, int(match["generation"]), int(match["seq"] or 0), bool(match["partial"]))
    return name if str(name) == text else None


def list_names(directory: Path) -> list[FileName]:
    """Every file of ours in the directory, sorted; what others put there is not seen."""
    try:
        return sorted(name for path in directory.iterdir() if (name := parse_name(path.name)))
    except OSError as error:
        raise unusable("list", directory, error) from error


class FileWriter:
    """A new file, written from its start to its end."""

    def __init__(self, path: Path, header: bytes = FILE_HEADER, fresh: bool = True) -> None:
        self.path = path
        self.size_bytes = 0
        self._fd = self._create(os.O_EXCL if fresh else os.O_TRUNC)
        try:
            self.write([header])
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def _create(self, how: int) -> int:
        try:
            return os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | how, 0o644)
        except OSError as error:
            raise unusable("create", self.path, error) from error

    def write(self, buffers: Iterable[Body]) -> None:
        views = [view for buffer in buffers if len(view := memoryview(buffer).cast("B"))]
        try:
            for begin in range(0, len(views), _BUFFERS_MAX):
                self.size_bytes += _write_all(self._fd, views[begin : begin + _BUFFERS_MAX])
        except OSError as error:
            raise unusable("write", self.path, error) from error

    def sync(self) -> None:
        try:
            ports.fsync(self._fd)
        except OSError as error:
            raise unusable("sync", self.path, error) from error

    def close(self) -> None:
        try:
            os.close(self._fd)
        except OSError as error:  # where writes are buffered by a server, this may be the first to fail
            raise unusable("close", self.path, error) from error


def _write_all(fd: int, views: Sequence[memoryview]) -> int:
    """Write every byte, however little of it the system takes at once."""
    total = left = sum(map(len, views))
    while left:
        written = ports.writev(fd, views)
        if written == 0:
            raise OSError(errno.EIO, "nothing could be written")
        left -= written
        views = _after(views, written) if left else ()
    return total


def _after(views: Sequence[memoryview], count: int) -> Sequence[memoryview]:
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return ()


def replace_file(path: Path, data: bytes) -> None:
    """The file holds this from now on, or what it held before if a crash comes between."""
    partial = path.with_name(path.name + ".tmp")
    writer = FileWriter(partial, header=data, fresh=False)
    try:
        writer.sync()
    finally:
        writer.close()
    publish(partial, path)


def publish(partial: Path, path: Path) -> None:
    """Give a finished file its name."""
    try:
        partial.replace(path)
    except OSError as error:
        raise unusable("rename", partial, error) from error
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make new, renamed and removed names durable."""
    sync_path(directory, tolerated=NO_DIRECTORY_SYNC)


def sync_path(path: Path, tolerated: Sequence[int] = ()) -> None:
    """Make durable what anyone wrote there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ports.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in tolerated:
            raise unusable("sync", path, error) from error
