"""On which disk each host writes its log: a name in the checkpoint that leads there.

Everybody finds a host's log as `hosts/<name>` in the checkpoint; where there are disks of their own, that is a link. A disk
that is gone is noticed when its host is to be started: then the name leads to another, on which there is nothing yet.
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
    """Directories, each on a disk of its own for all that is known here; none: the checkpoint itself."""
    if disks is None:
        return ()
    if isinstance(disks, (str, bytes)) or not isinstance(disks, Sequence) or not disks:
        raise DefinitionError(f"disks={disks!r} is not allowed", todo="Give a list of directories, one on each disk")
    paths = [Path(disk) if isinstance(disk, (str, os.PathLike)) else None for disk in disks]
    for given, path in zip(disks, paths, strict=True):
        if path is None or not path.is_absolute():
            raise DefinitionError(
                f"{given!r} in disks is not an absolute path", todo="Give directories that all executors see"
            )
    found = tuple(path for path in paths if path is not None)
    if len(set(found)) < len(found):
        raise DefinitionError("a directory is named twice in disks", todo="Name each disk once")
    return found


def _is_there(directory: Path) -> bool:
    """A disk that answers with errors is as good as gone."""
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
        """Before the host is started: its name leads to a directory, of which nothing is said but that it can be written."""
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
        """Where it would be lost with others."""
        name = host_directory(self._checkpoint, host)
        return Place(machine, str(name.resolve().parent if name.is_symlink() else name.parent))

    def _emptiest(self, host: str) -> Path:
        """On the disk with the fewest hosts, of those that can be written."""
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
            f"none of the disks can be written ({'; '.join(flaws)})", todo="Bring one of them back", host=host
        )
