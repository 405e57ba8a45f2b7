"""The routing table as routers use it: a file that the driver replaces, and a fast copy that learns from refusals.

A table is a hint and may be as old as it likes; who really owns a key is known to the hosts alone. The file is read again only
when something shows that a copy is old. A copy keeps what it knows with epochs, and the greater epoch is the newer.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgpack
import numpy as np
import numpy.typing as npt

from godwit.model.routing import Routing
from godwit.runtime.processor.rows import Index
from godwit.state.damage import corrupt, unusable
from godwit.state.documents import GARBLED

GroupHint = Sequence[Any]  # [group, host, epoch]; host and epoch are None where the host does not know either
KeyHint = Sequence[Any]  # [routing hash, host, epoch]


# -- the file --------------------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    signature: tuple[int, int, int]
    routing: Routing
    table: OwnerTable


_kept: dict[Path, _Kept] = {}  # a process runs many tasks of the same query, one after another or at once


def routing_path(checkpoint: str, operator: str) -> Path:
    return Path(checkpoint) / "routing" / f"{operator}.mp"


def read_routing(checkpoint: str, operator: str) -> Routing | None:
    """The newest table that the driver has written, if any."""
    kept = _read(routing_path(checkpoint, operator))
    return None if kept is None else kept.routing


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


def _read(path: Path) -> _Kept | None:
    """The file is always replaced whole, so its inode, time and size tell whether it is the one that was read before."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            signature = (found.st_mtime_ns, found.st_size, found.st_ino)
            kept = _kept.get(path)
            if kept is None or kept.signature != signature:
                routing = Routing.unpacked(msgpack.unpackb(file.read()))
                kept = _kept[path] = _Kept(signature, routing, OwnerTable(routing))
            return kept
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", path, error) from error
    except (*GARBLED, msgpack.UnpackException) as error:
        raise corrupt(path, f"it is no routing table: {error}") from error


@dataclass(frozen=True, slots=True)
class RoutingFile:
    """An operator's table on disk. An operator that never moves has none: it goes by the table it was defined with."""

    checkpoint: str
    operator: str
    moves: bool = True

    def read(self) -> Routing | None:
        return read_routing(self.checkpoint, self.operator) if self.moves else None

    def table(self) -> OwnerTable | None:
        kept = _read(routing_path(self.checkpoint, self.operator)) if self.moves else None
        return None if kept is None else kept.table.copy()


# -- the copy --------------------------------------------------------------------------------------------------------


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

    def hints(self, groups: Iterable[GroupHint], keys: Iterable[KeyHint]) -> Self:
        """Only what these hints say; nobody (-1) owns the rest."""
        said = self.copy()
        said._owners, said._epochs = np.full_like(self._owners, -1), np.full_like(self._epochs, -1)
        said._keys, said._key_owners, said._key_epochs = said._keys[:0], said._key_owners[:0], said._key_epochs[:0]
        said.learn(groups, keys)
        return said

    # -- looking -----------------------------------------------------------------------------------------------------

    def group(self, hashes: Index) -> Index:
        return hashes % len(self._owners)

    def owners(self, hashes: Index) -> npt.NDArray[np.int32]:
        found: npt.NDArray[np.int32] = self._owners[self.group(hashes)]
        if len(self._keys):
            at, apart = self._find(hashes)
            found[apart] = self._key_owners[at[apart]]
        return found

    def epochs(self, hashes: Index) -> Index:
        """In which epoch each is thought to have the owner that it is thought to have."""
        found: Index = self._epochs[self.group(hashes)]
        if len(self._keys):
            at, apart = self._find(hashes)
            found[apart] = self._key_epochs[at[apart]]
        return found

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

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, groups: Iterable[GroupHint], keys: Iterable[KeyHint]) -> None:
        """Take what is newer; hints that name nobody say nothing."""
        for group, host, epoch in groups:
            if host is not None and epoch > self._epochs[group]:
                self._owners[group], self._epochs[group] = self.position(host), epoch
        named = [(key, self.position(host), epoch) for key, host, epoch in keys if host is not None]
        if named:
            self._merge(*(np.array(column, np.int64) for column in zip(*named, strict=True)))

    def _merge(self, keys: Index, owners: Index, epochs: Index) -> None:
        """Of several lines for a key the one with the greatest epoch stays; of equal ones, the one that was here."""
        here = np.repeat([False, True], [len(keys), len(self._keys)])
        keys, epochs = np.concatenate((keys, self._keys)), np.concatenate((epochs, self._key_epochs))
        owners = np.concatenate((owners, self._key_owners))
        order = np.lexsort((here, epochs, keys))
        last = order[np.append(np.diff(keys[order]) != 0, True)]
        self._keys, self._key_owners, self._key_epochs = keys[last], owners[last].astype(np.int32), epochs[last]

    def forget_apart(self, hashes: Index, epochs: int | Index) -> None:
        """Keys of which a host says that they go with their group: what is known of them from before is over."""
        if len(self._keys) and len(hashes):
            at, apart = self._find(hashes)
            over = at[apart & (self._key_epochs[at] < epochs)]
            self._keep(~np.isin(np.arange(len(self._keys)), over))

    def absorb(self, other: OwnerTable) -> None:
        """All that another table has newer. A key that it has not apart goes with its group, if its group is as new."""
        place = np.array([self.position(host) for host in other.hosts], np.int32)
        newer = other._epochs > self._epochs
        self._owners[newer], self._epochs[newer] = place[other._owners[newer]], other._epochs[newer]
        if len(self._keys):
            covered = other._epochs[self.group(self._keys)] >= self._key_epochs
            self._keep(other.apart(self._keys) | ~covered)
        if len(other._keys):
            self._merge(other._keys, place[other._key_owners].astype(np.int64), other._key_epochs)
        self.version = max(self.version, other.version)

    def correct(self, hashes: Index, denied: Sequence[int], said: OwnerTable) -> None:
        """Go by what is `said` of these, also if it is older, because the hosts that were thought to own them deny it."""
        owners, epochs, apart = said.owners(hashes), said.epochs(hashes), said.apart(hashes)
        place = np.array([self.position(host) for host in said.hosts], np.int64)
        self._keep(~np.isin(self._keys, hashes))
        if apart.any():
            self._merge(hashes[apart], place[owners[apart]], epochs[apart])
        groups = self.group(hashes[~apart])
        wrong = np.isin(self._owners[groups], denied)
        self._owners[groups[wrong]] = place[owners[~apart][wrong]]
        self._epochs[groups[wrong]] = epochs[~apart][wrong]

    def _keep(self, these: npt.NDArray[np.bool_]) -> None:
        if not these.all():
            self._keys, self._key_owners = self._keys[these], self._key_owners[these]
            self._key_epochs = self._key_epochs[these]
