"""Which generation may write in a host's directory: the newest, and how an older one notices that it is not.

Decides the number of a generation (its claim) and whether that is still the newest (its permit). It must not know what is
written, nor why a generation takes over.

On a local file system two look-ups are enough: one kernel answers all processes. A client of a network file system answers
look-ups from its cache, for a minute or longer, also that a name is *not* there. It cannot answer calls that change a directory
from its cache. So each generation has a permit: a directory that the next generation removes before it reads anything. In this
directory a generation makes and removes a mark by turns: the server does so, or answers that the permit is gone. A call is
proof only if it succeeded. If the answer to a call is lost, the second attempt of the call fails ("exists already", "does not
exist"), and then the opposite call decides. The permit is certainly gone when its removal has succeeded: a mark that is made
meanwhile makes the removal fail, and the removal is tried again.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit import ports
from godwit.state.damage import stale, unusable
from godwit.state.mounts import mount_of
from godwit.state.segments import FileName, list_names

_PERMIT: Final = re.compile(r"serving-(\d{8,})")
_MARK: Final = "mark"
_ATTEMPTS: Final = 4
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

_proving = ports.lock()  # several threads of a host prove the same permit, each for its own writes


def claim(directory: Path) -> int:
    """Take the next generation. All older generations are fenced when this returns."""
    generation = _numbered(directory)
    permit = Permit(directory, generation)
    _remove_permits(directory, generation)
    permit.make()
    # What was listed before the claim may have been old: a process that is stopped there wakes up to a number long passed.
    # The permit was made by this client, so the listing is a new one.
    if any(name.generation > generation for name in list_names(directory)):
        permit.remove()
        raise stale(directory, generation)
    return generation


def _numbered(directory: Path) -> int:
    generation = 0
    while True:
        newest = max((name.generation for name in list_names(directory)), default=0)
        generation = 1 + max(newest, generation)  # a cached listing would give the same number again and again
        path = directory / str(FileName("claim", generation))
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            continue  # another process took the number in between
        except OSError as error:
            raise unusable("create", path, error) from error
        return generation


def _remove_permits(directory: Path, before: int) -> None:
    """Remove the permits of all earlier generations, also those that a takeover left when it crashed after its claim."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError as error:
        raise unusable("list", directory, error) from error
    for name in names:
        match = _PERMIT.fullmatch(name)
        if match and int(match[1]) < before:
            Permit(directory, int(match[1])).remove()


class Permit:
    """Proof that a generation is the newest: the next generation removes it."""

    def __init__(self, directory: Path, generation: int) -> None:
        self._path = directory / f"serving-{generation:08d}"
        self._mark = self._path / _MARK
        self._marked = False  # as far as this object knows

    def make(self) -> None:
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as error:
            raise unusable("create", self._path, error) from error

    def remove(self) -> None:
        """Remove the permit, and return when it is certainly gone; its owner may go on making marks meanwhile."""
        while True:
            try:
                with suppress(FileNotFoundError):
                    self._mark.rmdir()
                self._path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise unusable("remove", self._path, error) from error
            with suppress(OSError):  # a cache may say that there is no mark; making one corrects the cache
                self._mark.mkdir()

    def proved(self) -> bool:
        """Whether the permit existed after this call began, as the file server answers, not a cache."""
        with _proving:
            for _ in range(_ATTEMPTS):
                try:
                    (self._mark.rmdir if self._marked else self._mark.mkdir)()
                except OSError as error:
                    if error.errno not in (errno.EEXIST, *_GONE):
                        raise unusable("change", self._path, error) from error
                    self._marked = error.errno == errno.EEXIST
                else:
                    self._marked = not self._marked
                    return True
        return False


def permit_if_cached(directory: Path, generation: int) -> Permit | None:
    """The permit of the generation, if the file system may answer look-ups from a cache; else None: look-ups are enough."""
    return Permit(directory, generation) if mount_of(directory).network else None


class Fence:
    """Tells the owner of a generation whether a newer one exists. Others must not use it: they would prove for the owner."""

    def __init__(self, directory: Path, generation: int) -> None:
        self._directory = directory
        self._generation = generation
        self._next = str(directory / str(FileName("claim", generation + 1)))
        self._own = str(directory / str(FileName("claim", generation)))
        self._permit = permit_if_cached(directory, generation)

    @property
    def looks_are_cached(self) -> bool:
        return self._permit is not None

    def down(self) -> bool:
        """Whether a newer generation exists. If a still newer one has removed the next claim, it has removed ours before."""
        if self._permit is not None:
            return not self._permit.proved()
        return os.access(self._next, os.F_OK) or not os.access(self._own, os.F_OK)

    def check(self) -> None:
        if self.down():
            raise stale(self._directory, self._generation)


def listed(directory: Path) -> list[str]:
    """The names in the directory, not from a cache: a client lists a directory anew after it has changed it."""
    passing = directory / f".look-{uuid.uuid4().hex}"
    try:
        if mount_of(directory).network:
            passing.mkdir()
            passing.rmdir()
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unusable("list", directory, error) from error


def check_newest(directory: Path, generation: int) -> None:
    """For a reader that misses a file: raise if a newer generation may have removed the file."""
    names = list_names(directory)
    if any(name.generation > generation for name in names) or FileName("claim", generation) not in names:
        raise stale(directory, generation)
