"""Where a host can be reached, and why it died: small files beside its changelog, so that routers need no controller.

An owner is the flock that opened the checkpoint last; an application that opened it earlier is fenced, and neither its hosts
nor its routers come back. A lease says which generation of a host serves at which address. An obituary is what a host leaves
when it ends itself because of something a user must know, and a failure is why the last start of a host came to nothing. They
may lie on a disk that is broken: what cannot be read there is as if it were not there, and who asks waits as for any lost host.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from godwit.errors import GodwitError, StaleGeneration, from_json
from godwit.state.damage import unusable


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
    _replace(Path(checkpoint) / "owner.json", json.dumps({"incarnation": incarnation, "closed": closed, **who}))


def check_owner(checkpoint: str, incarnation: str) -> None:
    """Stop whoever belongs to a flock that is no longer the newest on this checkpoint."""
    try:
        owner = json.loads((Path(checkpoint) / "owner.json").read_text())
    except FileNotFoundError:
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


def write_lease(directory: Path, lease: Lease) -> None:
    _replace(directory / "lease.json", json.dumps(asdict(lease)))


def read_lease(directory: Path) -> Lease | None:
    try:
        return Lease(**json.loads((directory / "lease.json").read_text()))
    except OSError:
        return None


def drop_lease(directory: Path) -> None:
    with suppress(OSError):
        (directory / "lease.json").unlink(missing_ok=True)


def write_obituary(directory: Path, generation: int, error: GodwitError) -> None:
    _replace(directory / "obituary.json", json.dumps({"generation": generation, "error": error.to_json()}))


def read_obituary(directory: Path, generation: int) -> GodwitError | None:
    """Why that generation ended itself, if it did."""
    try:
        obituary = json.loads((directory / "obituary.json").read_text())
    except OSError:
        return None
    return from_json(obituary["error"]) if obituary["generation"] == generation else None


def write_failure(directory: Path, error: GodwitError) -> None:
    """Best effort: what keeps a host from starting may keep it from saying so too."""
    with suppress(GodwitError):
        _replace(directory / "failure.json", error.to_json())


def read_failure(directory: Path) -> GodwitError | None:
    """Why the host did not start, unless it has started since."""
    try:
        return from_json((directory / "failure.json").read_text())
    except OSError:
        return None


def drop_failure(directory: Path) -> None:
    with suppress(OSError):
        (directory / "failure.json").unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise unusable("write", path, error) from error
