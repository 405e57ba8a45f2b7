"""What is said about a checkpoint file that cannot be read or written: which file, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from godwit.errors import CheckpointCorrupt, CheckpointUnusable, CheckpointVersion, StaleGeneration


def corrupt(path: Path, flaw: str, *, operators: Iterable[str] = (), **fields: Any) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"checkpoint file {path.name} is damaged: {flaw}",
        todo="Put back the file from a copy, or start the query with a new checkpoint directory",
        file=str(path),
        operators=", ".join(sorted(set(operators))) or None,
        **fields,
    )


def unusable(doing: str, path: Path, error: OSError) -> CheckpointUnusable:
    reason = error.strerror or str(error)
    return CheckpointUnusable(
        f"cannot {doing} checkpoint file {path.name}: {reason}",
        todo="Make room or give access there; the query goes on from its checkpoint when it is started again",
        file=str(path),
        reason=reason,
    )


def newer_version(path: Path, version: int, supported: int) -> CheckpointVersion:
    return CheckpointVersion(
        f"checkpoint file {path.name} has format version {version}; this Godwit reads up to {supported}",
        todo="Use the Godwit release that wrote the checkpoint, or a newer one",
        file=str(path),
        version=version,
        supported=supported,
    )


def stale(directory: Path, generation: int) -> StaleGeneration:
    return StaleGeneration(
        "a newer generation of this host has taken over its checkpoint",
        todo="Nothing is to be done: the newer one goes on, this one stops",
        directory=str(directory),
        generation=generation,
    )
