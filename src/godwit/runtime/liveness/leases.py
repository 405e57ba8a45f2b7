"""Where a host can be reached, and why it died: small files beside its changelog, so that routers need no controller.

An owner is the flock that opened the checkpoint last; an application that opened it earlier is fenced, and neither its hosts
nor its routers come back. A lease says which generation of a host serves at which address. An obituary is what a host leaves
when it ends itself because of something a user must know, and a failure is why the last start of a host came to nothing. They
may lie on a disk that is broken: what cannot be read there is as if it were not there, and who asks waits as for any lost host.
Only the owner must be readable: it decides who stops.

A lease is never removed: that could hit the lease of a newer generation which came a moment before. A mark beside it, of one
generation and no other, says that this generation has ended.
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
    """`who`: where the flock can be asked whether it lives, and how people know it."""
    replace_document(Path(checkpoint) / "owner.json", json.dumps({"incarnation": incarnation, "closed": closed, **who}))


def check_owner(checkpoint: str, incarnation: str) -> None:
    """Stop whoever belongs to a flock that is no longer the newest on this checkpoint."""
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
            "this checkpoint has been opened again since, by another application or another Flock of this one",
            todo="Nothing is to be done if that was meant: the newer one goes on. Close this one",
            checkpoint=checkpoint,
        )


def _read_owner(path: Path) -> dict[str, Any] | None:
    try:
        owner: dict[str, Any] = json.loads(path.read_text())
        if isinstance(owner["incarnation"], str):
            return owner
        flaw = "it names no flock"
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", path, error) from error
    except GARBLED as error:
        flaw = str(error)
    raise CheckpointUnusable(
        f"{path.name} does not say which flock owns the checkpoint: {flaw}",
        todo="Open a Flock on the checkpoint: that writes the file anew, and nothing else is lost with it",
        file=str(path),
    )


def write_lease(directory: Path, lease: Lease) -> None:
    with suppress(OSError):
        for mark in directory.glob("lease-*.ended"):
            if mark.name <= _ended(directory, lease.generation).name:
                mark.unlink(missing_ok=True)
    replace_document(directory / "lease.json", json.dumps(asdict(lease)))


def read_lease(directory: Path) -> Lease | None:
    try:
        lease = Lease(**json.loads((directory / "lease.json").read_text()))
        return None if _ended(directory, lease.generation).exists() else lease
    except (OSError, *GARBLED):
        return None


def drop_lease(directory: Path, generation: int) -> None:
    """That generation serves no more; a lease of another one stays as it is."""
    with suppress(OSError):
        _ended(directory, generation).touch()


def _ended(directory: Path, generation: int) -> Path:
    return directory / f"lease-{generation:020d}.ended"


def write_obituary(directory: Path, generation: int, error: GodwitError) -> None:
    replace_document(directory / "obituary.json", json.dumps({"generation": generation, "error": error.to_json()}))


def read_obituary(directory: Path, generation: int) -> GodwitError | None:
    """Why that generation ended itself, if it did."""
    try:
        obituary = json.loads((directory / "obituary.json").read_text())
        return from_json(obituary["error"]) if obituary["generation"] == generation else None
    except (OSError, *GARBLED):
        return None


def write_failure(directory: Path, error: GodwitError) -> None:
    """Best effort: what keeps a host from starting may keep it from saying so too."""
    with suppress(GodwitError):
        replace_document(directory / "failure.json", error.to_json())


def read_failure(directory: Path) -> GodwitError | None:
    """Why the host did not start, unless it has started since."""
    try:
        return from_json((directory / "failure.json").read_text())
    except (OSError, *GARBLED):
        return None


def drop_failure(directory: Path) -> None:
    with suppress(OSError):
        (directory / "failure.json").unlink(missing_ok=True)
