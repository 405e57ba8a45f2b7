"""Where a host can be reached, and why it ended: small files beside its changelog, so that routers need no controller.

The owner file names the flock that opened the checkpoint last; an application that opened it earlier is fenced, and neither its
hosts nor its routers come back. A lease names the address at which a generation of a host serves. An obituary holds the error
for which a host ended itself, where a user must know that error. A failure holds the error for which a host could not start.

These files may be on a broken disk. A lease, obituary or failure that cannot be read counts as absent, and its reader waits as
for any lost host. Only the owner file must be readable, because it decides which application stops.

A lease is never removed: the removal could hit the lease of a newer generation, written a moment before. Instead, an empty
file named after one generation says that this generation has ended.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from godwit.errors import CheckpointUnusable, GodwitError, StaleGeneration, from_json
from godwit.state.damage import unusable
from godwit.state.documents import GARBLED, replace_document


@dataclass(frozen=True, slots=True)
class Lease:
    generation: int
    address: str
    pid: int
    incarnation: str = ""


def host_directory(checkpoint: str, host: str) -> Path:
    return Path(checkpoint) / "hosts" / host


def write_owner(checkpoint: str, incarnation: str, closed: bool = False, **who: Any) -> None:
    """`who`: the address at which the flock answers, and the names by which people know it; see `presence.Owner`."""
    replace_document(Path(checkpoint) / "owner.json", json.dumps({"incarnation": incarnation, "closed": closed, **who}))


def check_owner(checkpoint: str, incarnation: str) -> None:
    """Raise if another flock has opened this checkpoint since, or if this flock has been closed."""
    owner = _read_owner(Path(checkpoint) / "owner.json")
    if owner is None:
        return
    if owner["incarnation"] == incarnation and owner.get("closed"):
        raise StaleGeneration(
            "the Flock that this operator was defined on has been closed",
            todo="Open a Flock on the checkpoint and define the operator again",
            checkpoint=checkpoint,
        )
    if owner["incarnation"] != incarnation:
        raise StaleGeneration(
            "this checkpoint has been opened again since, by another application or by another Flock of this application",
            todo="If that was intended, close this Flock: the newer one goes on",
            checkpoint=checkpoint,
        )


def _read_owner(path: Path) -> dict[str, Any] | None:
    try:
        owner: dict[str, Any] = json.loads(path.read_text())
        if isinstance(owner["incarnation"], str):
            return owner
        flaw = "the file names no flock"
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", path, error) from error
    except GARBLED as error:
        flaw = str(error)
    raise CheckpointUnusable(
        f"{path.name} does not say which flock owns the checkpoint: {flaw}",
        todo="Open a Flock on the checkpoint: the Flock writes this file again, and nothing else depends on its content",
        file=str(path),
    )


def write_lease(directory: Path, lease: Lease) -> None:
    with suppress(OSError):
        for ended in directory.glob("lease-*.ended"):
            if ended.name <= _ended(directory, lease.generation).name:
                ended.unlink(missing_ok=True)
    replace_document(directory / "lease.json", json.dumps(asdict(lease)))


def read_lease(directory: Path) -> Lease | None:
    try:
        lease = Lease(**json.loads((directory / "lease.json").read_text()))
        return None if _ended(directory, lease.generation).exists() else lease
    except (OSError, *GARBLED):
        return None


def end_lease(directory: Path, generation: int) -> None:
    """The generation serves no more; a lease of another generation stays valid."""
    with suppress(OSError):
        _ended(directory, generation).touch()


def _ended(directory: Path, generation: int) -> Path:
    return directory / f"lease-{generation:020d}.ended"


def write_obituary(directory: Path, generation: int, error: GodwitError) -> None:
    replace_document(directory / "obituary.json", json.dumps({"generation": generation, "error": error.to_json()}))


def read_obituary(directory: Path, generation: int) -> GodwitError | None:
    """The error for which this generation ended itself; None if it did not."""
    try:
        obituary = json.loads((directory / "obituary.json").read_text())
        return from_json(obituary["error"]) if obituary["generation"] == generation else None
    except (OSError, *GARBLED):
        return None


def write_failure(directory: Path, error: GodwitError) -> None:
    """Best effort: the cause that prevents a host from starting may also prevent this write."""
    with suppress(GodwitError):
        replace_document(directory / "failure.json", error.to_json())


def read_failure(directory: Path) -> GodwitError | None:
    """The error of the last start; None if the host has started since."""
    try:
        return from_json((directory / "failure.json").read_text())
    except (OSError, *GARBLED):
        return None


def drop_failure(directory: Path) -> None:
    with suppress(OSError):
        (directory / "failure.json").unlink(missing_ok=True)
