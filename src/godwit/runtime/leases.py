"""Where a host can be reached, and why it died: small files beside its changelog, so that routers need no controller.

An owner is the flock that opened the checkpoint last; an application that opened it earlier is fenced, and neither its hosts
nor its routers come back. A lease says which generation of a host serves at which address. An obituary is what a host leaves
when it ends itself because of something a user must know.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from godwit.errors import GodwitError, StaleGeneration, from_json


@dataclass(frozen=True, slots=True)
class Lease:
    generation: int
    address: str
    pid: int
    incarnation: str = ""


def host_directory(checkpoint: str, host: str) -> Path:
    return Path(checkpoint) / "hosts" / host


def write_owner(checkpoint: str, incarnation: str) -> None:
    _replace(Path(checkpoint) / "owner.json", json.dumps({"incarnation": incarnation}))


def check_owner(checkpoint: str, incarnation: str) -> None:
    """Stop whoever belongs to a flock that is no longer the newest on this checkpoint."""
    try:
        owner = json.loads((Path(checkpoint) / "owner.json").read_text())["incarnation"]
    except FileNotFoundError:
        return
    if owner != incarnation:
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
    except FileNotFoundError:
        return None


def drop_lease(directory: Path) -> None:
    (directory / "lease.json").unlink(missing_ok=True)


def write_obituary(directory: Path, generation: int, error: GodwitError) -> None:
    _replace(directory / "obituary.json", json.dumps({"generation": generation, "error": error.to_json()}))


def read_obituary(directory: Path, generation: int) -> GodwitError | None:
    """Why that generation ended itself, if it did."""
    try:
        obituary = json.loads((directory / "obituary.json").read_text())
    except FileNotFoundError:
        return None
    return from_json(obituary["error"]) if obituary["generation"] == generation else None


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
