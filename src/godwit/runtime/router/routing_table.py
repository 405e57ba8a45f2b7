"""The routing table as routers use it: a file that the driver replaces, and a fast copy that learns from refusals.

A table is a hint and may be old; only the hosts know who owns a key. The file is read again only when a refusal shows that the
copy is old. A copy has an epoch for every owner, and the greater epoch is the newer.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgpack
import numpy as np
import numpy.typing as npt

from godwit.model.routing import Routing
from godwit.runtime.messages import OwnerHint
from godwit.runtime.processor.rows import Index
from godwit.state.damage import corrupt, unusable
from godwit.state.documents import GARBLED


class _CachedFile(NamedTuple):
    signature: tuple[int, int, int]
    routing: Routing
    table: OwnerTable


_cache: dict[Path, _CachedFile] = {}  # a process runs many tasks of the same query


def routing_path(checkpoint: str, operator: str) -> Path:
    return Path(checkpoint) / "routing" / f"{operator}.mp"


def read_routing(checkpoint: str, operator: str) -> Routing | None:
    """The newest table that the driver has written, if any."""
    cached = _read(routing_path(checkpoint, operator))
    return None if cached is None else cached.routing


def write_routing(checkpoint: str, operator: str, routing: Routing) -> None:
    path = routing_path(checkpoint, operator)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            file.write(msgpack.packb(routing.packed()))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unusable("write", path, error) from error


def _read(path: Path) -> _CachedFile | None:
    """The file is always replaced as a whole, so its inode, time and size show whether it has changed."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            cached = _cache.get(path)
            if cached is None or cached.signature != signature:
                routing = Routing.unpacked(msgpack.unpackb(file.read()))
                cached = _cache[path] = _CachedFile(signature, routing, OwnerTable(routing))
            return cached
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", path, error) from error
    except (*GARBLED, msgpack.UnpackException) as error:
        raise corrupt(path, f"it is no routing table: {error}") from error


@dataclass(frozen=True, slots=True)
class RoutingFile:
    """An operator's table on disk. An operator whose keys never move has no file: the table of its definition holds."""

    checkpoint: str
    operator: str
    moves: bool = True

    def read(self) -> Routing | None:
        return read_routing(self.checkpoint, self.operator) if self.moves else None

    def table(self) -> OwnerTable | None:
        cached = _read(routing_path(self.checkpoint, self.operator)) if self.moves else None
        return None if cached is None else cached.table.copy()


class OwnerTable:
    """Owners of whole columns of routing hashes, as positions in `hosts`.

    The arrays of the keys routed apart are replaced, never changed, so that copies share them.
    """

    def __init__(self, routing: Routing) -> None:
        self.version = routing.version
        self.hosts = list(routing.hosts)
        self._owners = np.array(routing.owners, np.int32)
        self._epochs = np.array(routing.epochs, np.int64)
        keys = sorted(routing.apart)
        self._keys: Index = np.array(keys, np.int64)
        self._key_owners = np.array([routing.apart[key][0] for key in keys], np.int32)
        self._key_epochs = np.array([routing.apart[key][1] for key in keys], np.int64)

    def copy(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.hosts = list(self.hosts)
        twin._owners, twin._epochs = self._owners.copy(), self._epochs.copy()
        return twin

    def hints(self, groups: Iterable[OwnerHint], keys: Iterable[OwnerHint]) -> Self:
        """A table of these hints alone; all other units have no owner (-1)."""
        hints = self.copy()
        hints._owners, hints._epochs = np.full_like(self._owners, -1), np.full_like(self._epochs, -1)
        hints._keys, hints._key_owners, hints._key_epochs = self._keys[:0], self._key_owners[:0], self._key_epochs[:0]
        hints.learn(groups, keys)
        return hints

    def group(self, hashes: Index) -> Index:
        return hashes % len(self._owners)

    def owners(self, hashes: Index) -> npt.NDArray[np.int32]:
        owners: npt.NDArray[np.int32] = self._owners[self.group(hashes)]
        if len(self._keys):
            at, apart = self._find(hashes)
            owners[apart] = self._key_owners[at[apart]]
        return owners

    def epochs(self, hashes: Index) -> Index:
        """The epoch of each owner in this table."""
        epochs: Index = self._epochs[self.group(hashes)]
        if len(self._keys):
            at, apart = self._find(hashes)
            epochs[apart] = self._key_epochs[at[apart]]
        return epochs

    def apart(self, hashes: Index) -> npt.NDArray[np.bool_]:
        return self._find(hashes)[1] if len(self._keys) else np.zeros(len(hashes), np.bool_)

    def _find(self, hashes: Index) -> tuple[Index, npt.NDArray[np.bool_]]:
        at = np.searchsorted(self._keys, hashes)
        at[at == len(self._keys)] = 0
        return at, self._keys[at] == hashes

    def position(self, host: str) -> int:
        if host not in self.hosts:
            self.hosts.append(host)
        return self.hosts.index(host)

    def learn(self, groups: Iterable[OwnerHint], keys: Iterable[OwnerHint]) -> None:
        """Take the owners of a greater epoch; hints without a host are ignored."""
        for group, host, epoch in groups:
            if host is not None and epoch is not None and epoch > self._epochs[group]:
                self._owners[group], self._epochs[group] = self.position(host), epoch
        named = [(key, self.position(host), epoch) for key, host, epoch in keys if host is not None]
        if named:
            self._merge(*(np.array(column, np.int64) for column in zip(*named, strict=True)))

    def _merge(self, keys: Index, owners: Index, epochs: Index) -> None:
        """For each key the owner of the greatest epoch stays; of equal epochs, the owner of this table."""
        here = np.repeat([False, True], [len(keys), len(self._keys)])
        keys, epochs = np.concatenate((keys, self._keys)), np.concatenate((epochs, self._key_epochs))
        owners = np.concatenate((owners, self._key_owners))
        order = np.lexsort((here, epochs, keys))
        last = order[np.append(np.diff(keys[order]) != 0, True)]
        self._keys, self._key_owners, self._key_epochs = keys[last], owners[last].astype(np.int32), epochs[last]

    def forget_apart(self, hashes: Index, epochs: int | Index) -> None:
        """A host reports that these keys go with their group: older owners of the single keys are dropped."""
        if len(self._keys) and len(hashes):
            at, apart = self._find(hashes)
            over = at[apart & (self._key_epochs[at] < epochs)]
            self._keep(~np.isin(np.arange(len(self._keys)), over))

    def absorb(self, other: OwnerTable) -> None:
        """Take all newer owners of another table. A key that is not apart there goes with its group, if its group is as new."""
        position = np.array([self.position(host) for host in other.hosts], np.int32)
        newer = other._epochs > self._epochs
        self._owners[newer], self._epochs[newer] = position[other._owners[newer]], other._epochs[newer]
        if len(self._keys):
            covered = other._epochs[self.group(self._keys)] >= self._key_epochs
            self._keep(other.apart(self._keys) | ~covered)
        if len(other._keys):
            self._merge(other._keys, position[other._key_owners].astype(np.int64), other._key_epochs)
        self.version = max(self.version, other.version)

    def correct(self, hashes: Index, denied: Sequence[int], other: OwnerTable) -> None:
        """Take the owners of these keys from the other table, even older ones: the `denied` hosts refuse the keys."""
        owners, epochs, apart = other.owners(hashes), other.epochs(hashes), other.apart(hashes)
        position = np.array([self.position(host) for host in other.hosts], np.int64)
        self._keep(~np.isin(self._keys, hashes))
        if apart.any():
            self._merge(hashes[apart], position[owners[apart]], epochs[apart])
        groups = self.group(hashes[~apart])
        wrong = np.isin(self._owners[groups], denied)
        self._owners[groups[wrong]] = position[owners[~apart][wrong]]
        self._epochs[groups[wrong]] = epochs[~apart][wrong]

    def _keep(self, these: npt.NDArray[np.bool_]) -> None:
        if not these.all():
            self._keys, self._key_owners = self._keys[these], self._key_owners[these]
            self._key_epochs = self._key_epochs[these]
