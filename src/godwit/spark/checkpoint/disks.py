"""The disk on which each host writes its log: a link in the checkpoint leads to it.

The log of a host is always reached as `hosts/<name>` in the checkpoint; with `disks=` that is a symbolic link. When a host is
started and its disk is gone, the link is set to a directory on another disk, which is empty at first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from godwit.control.backup_choice import Place
from godwit.errors import CheckpointUnusable, DefinitionError
from godwit.runtime.liveness.leases import host_directory
from godwit.state.damage import unusable


def checked_disks(disks: Any) -> tuple[Path, ...]:
    """The directories of `disks=`; none if the logs are in the checkpoint itself."""
    if disks is None:
        return ()
    if isinstance(disks, (str, bytes)) or not isinstance(disks, Sequence) or not disks:
        raise DefinitionError(
            f"disks={disks!r} is not a list of directories", todo="Give a list of directories, one on each disk"
        )
    paths = [Path(disk) if isinstance(disk, (str, os.PathLike)) else None for disk in disks]
    for given, path in zip(disks, paths, strict=True):
        if path is None or not path.is_absolute():
            raise DefinitionError(
                f"{given!r} in disks= is not an absolute path", todo="Give absolute paths that all executors see"
            )
    directories = tuple(path for path in paths if path is not None)
    if len(set(directories)) < len(directories):
        raise DefinitionError("a directory is in disks= twice", todo="Name each disk once")
    return directories


def _is_there(directory: Path) -> bool:
    """A disk that answers with errors counts as gone."""
    try:
        return directory.exists()
    except OSError:
        return False


class Disks:
    def __init__(self, checkpoint: Path, flock: str, disks: Sequence[Path]) -> None:
        self._checkpoint = str(checkpoint)
        self._flock = flock
        self._disks = tuple(disks)

    def place(self, host: str) -> None:
        """Called before the host is started: its link leads to a directory that can be written, perhaps an empty one."""
        if not self._disks:
            return
        name = host_directory(self._checkpoint, host)
        if _is_there(name):
            return
        try:
            name.parent.mkdir(exist_ok=True)
            target = self._emptiest(host)
            link = name.with_name(f".{host}.link")
            with suppress(FileNotFoundError):
                link.unlink()
            link.symlink_to(target, target_is_directory=True)
            link.replace(name)
        except OSError as error:
            raise unusable("create", name, error) from error

    def of(self, host: str, machine: str) -> Place:
        """The machine and disk of a host."""
        name = host_directory(self._checkpoint, host)
        return Place(machine, str(name.resolve().parent if name.is_symlink() else name.parent))

    def _emptiest(self, host: str) -> Path:
        """A directory on the writable disk with the fewest hosts."""
        hosts = Path(self._checkpoint) / "hosts"
        counts = Counter(str(path.readlink().parent) for path in hosts.iterdir() if path.is_symlink())
        flaws = []
        for disk in sorted(self._disks, key=lambda disk: counts[str(disk / self._flock)]):
            target = disk / self._flock / host
            try:
                target.mkdir(parents=True, exist_ok=True)
                return target
            except OSError as error:
                flaws.append(f"{disk}: {error.strerror}")
        raise CheckpointUnusable(
            f"none of the disks can be written ({'; '.join(flaws)})", todo="Repair or mount one of them", host=host
        )
