"""The durability of a flock: as given, or as required by where its hosts run and where its checkpoint is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from godwit.errors import CheckpointUnusable
from godwit.state.changelog import Durability
from godwit.state.mounts import Mount, mount_of
from godwit.state.probing import probe
from godwit.transport.addresses import is_loopback

_log = logging.getLogger("godwit.hosts")


@dataclass(frozen=True, slots=True)
class Storage:
    """`durability`: the setting of all hosts. A host on a network file system syncs in any case."""

    mount: Mount
    durability: Durability

    def status(self) -> dict[str, Any]:
        used = self.mount.durability(self.durability)
        return {"file_system": self.mount.file_system, "network": self.mount.network, "durability": used}


def choose_storage(given: Durability | None, bind: str, checkpoint: Path, disks: Sequence[Path]) -> Storage:
    """The default is "process" only if no machine and no cache can be lost without the driver."""
    for disk in disks:
        with suppress(CheckpointUnusable):  # a disk that is gone or full is handled when a host is placed
            if disk.is_dir():
                probe(disk)
    mounts = [mount_of(place) for place in (checkpoint, *disks)]
    mount = next((mount for mount in mounts if mount.network), mounts[0])
    local = is_loopback(bind)
    if given is None:
        return Storage(mount, "process" if local and not mount.network else "disk")
    if given == "process" and not local:
        _log.warning(
            "durability='process' with hosts on other machines (bind=%s): if a machine fails, changes of a batch that Spark"
            " has committed may be lost; leave durability out, or give 'disk'",
            bind,
        )
    if given == "process" and mount.network:
        _log.warning(
            "durability='process' on %s, a network file system: hosts sync as with 'disk', because other machines"
            " do not see data that is not synced",
            mount.file_system,
        )
    return Storage(mount, given)
