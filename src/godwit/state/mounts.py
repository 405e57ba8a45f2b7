"""The kind of file system of a directory, and when files that are written there are durable.

Decides whether other machines may see the directory through caches of their own. Only file systems that are known to belong to
one machine count as local. An unknown file system counts as a network file system, which costs time and loses nothing. This
module must not know what the files mean.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from godwit.state.segments import Durability

# One kernel serves all processes that see a local mount: names and writes of one process are visible to all others at once.
LOCAL: Final = frozenset(
    "apfs bcachefs btrfs exfat ext2 ext3 ext4 f2fs fuseblk hfs hfsplus jfs nilfs2 ntfs ntfs3 overlay ramfs reiserfs"
    " rootfs tmpfs ubifs ufs vfat xfs zfs".split()
)
_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """`file_system`: as the system calls its type, or "unknown"."""

    file_system: str

    @property
    def network(self) -> bool:
        return self.file_system not in LOCAL

    def durability(self, asked: Durability) -> Durability:
        """What others see of a file on a network mount is what was synced, so "process" is not enough there."""
        return "disk" if self.network else asked


def mount_of(directory: Path) -> Mount:
    """The mount on which the directory lies, or will lie when it is created."""
    place = os.path.realpath(directory)
    try:
        lines = _TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return Mount("unknown")  # not Linux
    file_system, longest = "unknown", -1
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        if len(point) >= longest and _contains(point, place):  # of two on one point, the later one is on top
            file_system, longest = after.split(" ")[0], len(point)
    return Mount(file_system)


def _contains(point: str, place: str) -> bool:
    return place == point or place.startswith(point.rstrip("/") + "/")
