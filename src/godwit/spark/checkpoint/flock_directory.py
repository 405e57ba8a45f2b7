"""The checkpoint directory of a flock: what it is, which hosts it has, which operators live in it.

Refuses a directory that is not a flock's, is of a newer version, cannot be written, or was made with other groups. Only paths
that every executor sees as files are supported; anything else is refused by its scheme. `flock.json` says how the flock began
and never changes, because hosts start from it what they have no record of; `roster.json` says which hosts there are now.
"""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from godwit.errors import (
    CheckpointCorrupt,
    CheckpointMismatch,
    CheckpointUnusable,
    CheckpointVersion,
    DefinitionError,
)
from godwit.model.routing import Routing
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.checkpoint.run_admission import Binding
from godwit.state.damage import unusable
from godwit.state.documents import GARBLED, make_directory, replace_document
from godwit.state.probing import probe

FORMAT = 1
ROSTER = "roster.json"
_OWN_LEFTOVER = re.compile(
    r"\.probe-[0-9a-f]+|(flock|owner)\.json\..*tmp|owner\..*tmp"
)  # of an opening that was killed


def new_name() -> str:
    """Of a flock, as Spark's job groups know it."""
    return uuid.uuid4().hex[:8]


def checked_path(checkpoint: Any) -> Path:
    if not isinstance(checkpoint, (str, os.PathLike)) or not isinstance(text := os.fspath(checkpoint), str) or not text:
        raise DefinitionError(
            f"checkpoint={checkpoint!r} is not a path", todo="Give the directory that holds the state"
        )
    parsed = urlparse(text)
    if parsed.scheme not in ("", "file"):
        raise CheckpointUnusable(
            f"checkpoint {text!r} is not a path of a file system that hosts can append to",
            todo="Give a directory that the driver and all executors see under the same path (local disk, NFS, ...)",
        )
    return Path(parsed.path if parsed.scheme else text).absolute()


@dataclass(frozen=True, slots=True)
class FlockDirectory:
    """A flock's directory, opened."""

    path: Path
    flock: str
    routing: Routing

    @classmethod
    def open(cls, checkpoint: str | os.PathLike[str], hosts: int, groups: int) -> FlockDirectory:
        path = checked_path(checkpoint)
        _check_writable(path)
        probe(path)
        found = _read_json(path / "flock.json")
        if found is None:
            _check_empty(path)
            directory = cls(path, new_name(), Routing.spread([f"host-{i}" for i in range(hosts)], groups))
            content = {"format": FORMAT, "flock": directory.flock, "routing": directory.routing.to_dict()}
            replace_json(path / "flock.json", content)
            return directory
        directory = _described(path, found)
        directory._check_same("groups", len(directory.routing.owners), groups)
        return directory

    @classmethod
    def existing(cls, checkpoint: str | os.PathLike[str]) -> FlockDirectory:
        """For readers: one that is there, as it is. Nothing is written."""
        path = checked_path(checkpoint)
        described = _read_json(path / "flock.json")
        if described is None:
            raise CheckpointMismatch(f"{path} holds no flock", todo="Give the checkpoint= that a Flock was opened with")
        return _described(path, described)

    def _check_same(self, what: str, held: int, asked: int) -> None:
        if held != asked:
            raise CheckpointMismatch(
                f"the flock in {self.path} has {held} {what}, {asked} were asked for",
                todo=f"Open it with {what}={held}",
            )

    # -- hosts -------------------------------------------------------------------------------------------------------

    def roster(self) -> tuple[str, ...]:
        """The hosts there are now, or that are just joining or leaving."""
        return read_roster(self.path) or self.routing.hosts

    def write_roster(self, hosts: Sequence[str]) -> None:
        """Remember the hosts; a number that was given once is never given again, because a host's log is history."""
        used = max(_number(host) for host in (*self.roster(), *self.routing.hosts, *hosts))
        number = max((_read_json(self.path / ROSTER) or {}).get("next", 0), used + 1)
        replace_json(self.path / ROSTER, {"hosts": list(hosts), "next": number})

    def next_hosts(self, count: int) -> list[str]:
        """Names for so many new hosts."""
        found = _read_json(self.path / ROSTER) or {}
        first = found.get("next", 1 + max(_number(host) for host in self.routing.hosts))
        return [f"host-{first + at}" for at in range(count)]

    # -- operators ---------------------------------------------------------------------------------------------------

    def operators(self) -> list[str]:
        """All that this directory knows, in the order of their names."""
        return sorted(path.stem for path in (self.path / "operators").glob("*.json"))

    def operator(self, name: str) -> tuple[OperatorSpec, Binding | None] | None:
        """What this directory knows of an operator from earlier."""
        found = _read_json(self._operator_path(name))
        if found is None:
            return None
        try:
            binding = found.get("binding")
            return OperatorSpec.from_dict(found["spec"]), Binding(**binding) if binding else None
        except GARBLED as error:
            raise _damaged(self._operator_path(name), error) from error

    def write_operator(self, spec: OperatorSpec, binding: Binding | None, initialised: bool = False) -> None:
        """Remember an operator; what is known already of its binding and initial state stays."""
        path = self._operator_path(spec.name)
        before = _read_json(path) or {}
        bound = {"query": binding.query, "checkpoint": binding.checkpoint} if binding else before.get("binding")
        initialised = initialised or before.get("initialised", False)
        replace_json(path, {"spec": spec.to_dict(), "binding": bound, "initialised": initialised})

    def initialised(self, name: str) -> bool:
        return bool((_read_json(self._operator_path(name)) or {}).get("initialised"))

    def _operator_path(self, name: str) -> Path:
        return self.path / "operators" / f"{name}.json"


def read_roster(checkpoint: str | os.PathLike[str]) -> tuple[str, ...]:
    """The hosts of a checkpoint, for whoever asks from outside the driver too; nothing if it has none of its own yet."""
    path = Path(checkpoint) / ROSTER
    found = _read_json(path)
    if found is None:
        return ()
    try:
        return tuple(found["hosts"])
    except GARBLED as error:
        raise _damaged(path, error) from error


def _number(host: str) -> int:
    return int(host.rpartition("-")[2])


def _described(path: Path, found: dict[str, Any]) -> FlockDirectory:
    try:
        if found["format"] > FORMAT:
            raise CheckpointVersion(
                f"{path} was written in format {found['format']}, this version reads up to {FORMAT}",
                todo="Use the godwit version that wrote it, or a newer one",
            )
        return FlockDirectory(path, found["flock"], Routing.from_dict(found["routing"]))
    except GARBLED as error:
        raise _damaged(path / "flock.json", error) from error


def _check_writable(path: Path) -> None:
    probe = path / f".probe-{uuid.uuid4().hex}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"godwit" * 1024)
        probe.unlink()
    except OSError as error:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CheckpointUnusable(
            f"the checkpoint directory {path} {'is full' if full else 'cannot be written'}: {error.strerror}",
            todo="Free some space there" if full else "Give a directory that this user may create and write",
        ) from error


def _check_empty(path: Path) -> None:
    foreign = sorted(entry.name for entry in path.iterdir() if not _OWN_LEFTOVER.fullmatch(entry.name))
    if foreign:
        raise CheckpointMismatch(
            f"{path} is not empty and holds no flock (found {', '.join(foreign[:3])})",
            todo="Give a new or empty directory; Spark's own checkpointLocation must be another one",
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", path, error) from error
    except GARBLED as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, ValueError(f"{content!r:.80} is no description"))
    return content


def read_document(path: Path) -> dict[str, Any]:
    """One that must be there."""
    content = _read_json(path)
    if content is None:
        raise _damaged(path, ValueError("the file is missing"))
    return content


def _damaged(path: Path, error: Exception) -> CheckpointCorrupt:
    flaw = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return CheckpointCorrupt(f"{path} cannot be read: {flaw}", todo="Restore the checkpoint from a copy")


def replace_json(path: Path, content: dict[str, Any]) -> None:
    try:
        make_directory(path.parent)
    except OSError as error:
        raise unusable("create", path.parent, error) from error
    replace_document(path, json.dumps(content))
