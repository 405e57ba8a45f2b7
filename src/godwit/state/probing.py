"""Tries out whether a file system does what checkpoints rely on, before a checkpoint is used.

Decides whether a directory may hold a checkpoint. Each probe does what some part of Godwit does later, in files of its own that
it removes. What only another machine could see is not probed: that is decided by the kind of file system (mounts.py).
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from godwit.errors import FileSystemUnsafe
from godwit.state.damage import unusable
from godwit.state.mounts import Mount, mount_of
from godwit.state.segments import NO_DIRECTORY_SYNC

PREFIX: Final = ".probe-"
# Errors that the user can remove; they do not show that the file system lacks something.
_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


def probe(directory: Path) -> Mount:
    """The mount of the directory, if it passes all probes; else an error that names the probe that failed."""
    mount = mount_of(directory)
    place = directory / f"{PREFIX}{uuid.uuid4().hex}"
    try:
        place.mkdir()
        for tried in _PROBES:
            _run(tried, place, mount)
    except OSError as error:
        raise unusable("probe", directory, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return mount


def _run(tried: Callable[[Path], bool], place: Path, mount: Mount) -> None:
    try:
        if tried(place):
            return
        flaw = "it did not"
    except OSError as error:
        if error.errno in _PASSING:
            raise
        flaw = error.strerror or str(error)
    needed = (tried.__doc__ or "").rstrip(".").lower().replace("o_excl", "O_EXCL")
    raise FileSystemUnsafe(
        f"the file system of {place.parent} does not keep what a checkpoint rests on: {needed} ({flaw})",
        todo="Give a checkpoint (or disks=) on a local disk, NFS 4 or another file system that does",
        probe=tried.__name__.strip("_"),
        path=str(place.parent),
        file_system=mount.file_system,
    )


def _refused(call: Callable[[], object], *numbers: int) -> bool:
    try:
        call()
    except OSError as error:
        if error.errno in numbers:
            return True
        raise
    return False


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _exclusive_create(place: Path) -> bool:
    """A file that is there is not created again by O_EXCL."""
    _create(place / "claim")
    return _refused(lambda: _create(place / "claim"), errno.EEXIST)


def _exclusive_link(place: Path) -> bool:
    """A hard link shows the same file and never replaces one."""
    (place / "record").write_bytes(b"record")
    os.link(place / "record", place / "link")
    same = (place / "link").read_bytes() == b"record"
    return same and _refused(lambda: os.link(place / "record", place / "link"), errno.EEXIST)


def _replacing_rename(place: Path) -> bool:
    """A rename replaces the file of that name, and takes the old name away."""
    (place / "new").write_bytes(b"new")
    (place / "old").write_bytes(b"old, and longer")
    (place / "new").replace(place / "old")
    return (place / "old").read_bytes() == b"new" and not (place / "new").exists()


def _permit(place: Path) -> bool:
    """A directory is removed only when it is empty, and nothing can be made in it after that."""
    permit, mark = place / "permit", place / "permit" / "mark"
    permit.mkdir()
    mark.mkdir()
    stands = _refused(permit.rmdir, errno.ENOTEMPTY, errno.EEXIST) and _refused(mark.mkdir, errno.EEXIST)
    mark.rmdir()
    permit.rmdir()
    return stands and _refused(mark.mkdir, errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def _append(place: Path) -> bool:
    """What is appended and synced is read back through another descriptor, and bytes once written stay."""
    written = b""
    writer = os.open(place / "log", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
    reader = os.open(place / "log", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for piece in (b"first" * 1000, b"second" * 1000):
            written += piece
            os.write(writer, piece)
            os.fsync(writer)
            if os.pread(reader, len(written) + 1, 0) != written or os.fstat(reader).st_size != len(written):
                return False
    finally:
        os.close(reader)
        os.close(writer)
    return True


def _directory_sync(place: Path) -> bool:
    """Names can be synced, or there is no such call."""
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)
    return True


_PROBES: Final = (_exclusive_create, _exclusive_link, _replacing_rename, _permit, _append, _directory_sync)
