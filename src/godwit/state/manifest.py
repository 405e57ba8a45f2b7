"""Which files of a host's directory are in use, and which process decides that.

Decides what counts as state (the manifest), who may write (the claim of the newest generation) and what may
be removed. It must not know what is inside the files.

Every generation has a manifest of its own and only the newest one counts. So a process that was taken for
dead and wakes up later replaces a manifest that is not read any more: with one shared name it could replace its
successor's list of files by an old one.

Three rules make that safe without any lock between processes:
- a generation claims its number and removes the permits of older ones first, and only then looks at their files;
- a writer makes sure of its generation after each write and before it says that the write is done: either it finds
  that there is a newer one and fails, or the claim came later and its owner sees the write;
- files are removed only after the manifest that no longer names them is in place, and only if there is no
  newer claim even then: a later claimant reads that manifest, an earlier one keeps its files.
How a writer makes sure of its generation, also where names are cached, is in fencing.py. The changelog makes sure that a
write is seen by others: on a network file system it must be synced.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from godwit.state.damage import corrupt, newer_version, unusable
from godwit.state.fencing import Fence
from godwit.state.segments import FileName, list_names, replace_file, sync_directory

MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Stored:
    """A finished file: only its first `bytes` count. `operators` is kept for error messages."""

    file: str
    bytes: int
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """State is: the snapshots in order, the segments in order, this generation's own from `own_from` on."""

    generation: int
    starts: tuple[tuple[int, int], ...] = ()  # (generation, its first lsn), oldest first
    snapshots: tuple[Stored, ...] = ()  # the base, then what changed since
    segments: tuple[Stored, ...] = ()  # of older generations
    own_from: int = 1

    def names(self, name: FileName) -> bool:
        """Tell whether a file, of this generation or an older one, is in use."""
        if name.partial:
            return False
        if name.kind in ("claim", "manifest"):
            return name.generation == self.generation
        if name.kind == "log" and name.generation == self.generation:
            return name.seq >= self.own_from
        return any(str(name) == stored.file for stored in (*self.snapshots, *self.segments))

    def own_segments(self, directory: Path) -> list[FileName]:
        """The segments of this generation, oldest first."""
        logs = [n for n in list_names(directory) if n.kind == "log" and self.names(n)]
        own = [name for name in logs if name.generation == self.generation]
        for seq, name in enumerate(own, self.own_from):
            if name.seq != seq:
                missing = directory / str(FileName("log", self.generation, seq))
                raise corrupt(missing, "the file is missing, and there are later ones")
        return own


def newest_manifest(directory: Path) -> Manifest | None:
    """What the directory holds, or None if it was never used."""
    names = [name for name in list_names(directory) if not name.partial]
    manifests = [name.generation for name in names if name.kind == "manifest"]
    if manifests:
        return read_manifest(directory, manifests[-1])
    if orphans := [name for name in names if name.kind != "claim"]:
        some = ", ".join(map(str, orphans[:3]))
        raise corrupt(directory, f"there is no manifest, but there are files that one should name ({some})")
    return None


def read_manifest(directory: Path, generation: int) -> Manifest:
    path = directory / str(FileName("manifest", generation))
    try:
        return decode_manifest(path, path.read_bytes())
    except FileNotFoundError:
        raise corrupt(path, "the file is missing") from None
    except OSError as error:
        raise unusable("read", path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        flaw = f"not a manifest ({error!r}); the state of every operator on this host depends on it"
        raise corrupt(path, flaw) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Always synced, whatever the durability: what it names replaces all older files."""
    content = asdict(manifest)
    document = {"version": MANIFEST_VERSION, "crc32": _checksum(content), "content": content}
    path = directory / str(FileName("manifest", manifest.generation))
    replace_file(path, json.dumps(document, indent=1).encode())


def sweep(directory: Path, manifest: Manifest) -> None:
    """Remove what is not in use, of this and older generations; the manifest is in place already.

    Claims go last and oldest first (see `Fence.down` in fencing.py). A file that cannot be removed stays until the next
    sweep: it does no harm.
    """
    Fence(directory, manifest.generation).check()
    names = [name for name in list_names(directory) if name.generation <= manifest.generation]
    unused = [name for name in names if not manifest.names(name)]
    for name in sorted(unused, key=lambda name: (name.kind == "claim", name)):
        try:
            (directory / str(name)).unlink(missing_ok=True)
        except OSError:
            if name.kind == "claim":
                break
    if unused:
        sync_directory(directory)


def decode_manifest(path: Path, data: bytes) -> Manifest:
    document = json.loads(data)
    if document["version"] > MANIFEST_VERSION:
        raise newer_version(path, document["version"], MANIFEST_VERSION)
    content = document["content"]
    if _checksum(content) != document["crc32"]:
        raise ValueError("the checksum does not match")
    return Manifest(
        generation=content["generation"],
        starts=tuple((generation, lsn) for generation, lsn in content["starts"]),
        snapshots=_stored(content["snapshots"]),
        segments=_stored(content["segments"]),
        own_from=content["own_from"],
    )


def _stored(rows: Iterable[dict[str, Any]]) -> tuple[Stored, ...]:
    return tuple(Stored(row["file"], row["bytes"], tuple(row["operators"])) for row in rows)


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
