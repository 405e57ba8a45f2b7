"""How durable a flock's work is: as asked for, or as fits where its hosts run and what its checkpoint lies on."""

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

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Storage:
    """`durability`: what hosts are started with; each syncs all the same if its own mount is a network file system."""

    mount: Mount
    durability: Durability

    def status(self) -> dict[str, Any]:
        used = self.mount.durability(self.durability)
        return {"file_system": self.mount.file_system, "network": self.mount.network, "durability": used}


def choose_storage(asked: Durability | None, bind: str, checkpoint: Path, disks: Sequence[Path]) -> Storage:
    """Unless asked for: "process" is enough only where neither a machine nor a cache can be lost without the driver."""
    for disk in disks:
        with suppress(CheckpointUnusable):  # a disk that is away, or full, is dealt with when a host is placed
            if disk.is_dir():
                probe(disk)
    mounts = [mount_of(place) for place in (checkpoint, *disks)]
    mount = next((mount for mount in mounts if mount.network), mounts[0])
    local = is_loopback(bind)
    if asked is None:
        return Storage(mount, "process" if local and not mount.network else "disk")
    if asked == "process" and not local:
        _logger.warning(
            "durability='process' with hosts on other machines (bind=%s): what a batch did is lost with a machine"
            " though Spark has committed it; leave durability out, or give 'disk'",
            bind,
        )
    if asked == "process" and mount.network:
        _logger.warning(
            "durability='process' on %s, a network file system: hosts sync as with 'disk', because nobody else sees"
            " what is not synced there",
            mount.file_system,
        )
    return Storage(mount, asked)
