"""The checkpoint directory of a flock: its name, its hosts and its operators.

Refuses a directory that is not a flock's, is of a newer version, cannot be written, or was made with another number of groups,
and paths that executors do not see as files. `flock.json` has the first routing table and never changes, because a host without
a record of an operator starts from it; `roster.json` has the hosts of now.
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
)  # left by an opening that was killed


def new_name() -> str:
    """A name for a flock, which Spark's job groups contain."""
    return uuid.uuid4().hex[:8]


def checked_path(checkpoint: Any) -> Path:
    if not isinstance(checkpoint, (str, os.PathLike)) or not isinstance(text := os.fspath(checkpoint), str) or not text:
        raise DefinitionError(
            f"checkpoint={checkpoint!r} is not a path", todo="Give the directory that holds the state"
        )
    parsed = urlparse(text)
    if parsed.scheme not in ("", "file"):
        raise CheckpointUnusable(
            f"checkpoint {text!r} is not on a file system whose files hosts can append to",
            todo="Give a directory that the driver and all executors see under the same path (local disk, NFS, ...)",
        )
    return Path(parsed.path if parsed.scheme else text).absolute()


@dataclass(frozen=True, slots=True)
class FlockDirectory:
    """An open checkpoint directory. `routing`: the first routing table of every operator."""

    path: Path
    flock: str
    routing: Routing

    @classmethod
    def open(cls, checkpoint: str | os.PathLike[str], hosts: int, groups: int) -> FlockDirectory:
        path = checked_path(checkpoint)
        _check_writable(path)
        probe(path)
        content = _read_json(path / "flock.json")
        if content is None:
            _check_empty(path)
            directory = cls(path, new_name(), Routing.spread([f"host-{i}" for i in range(hosts)], groups))
            content = {"format": FORMAT, "flock": directory.flock, "routing": directory.routing.to_dict()}
            replace_json(path / "flock.json", content)
            return directory
        directory = _described(path, content)
        directory._check_same("groups", len(directory.routing.owners), groups)
        return directory

    @classmethod
    def existing(cls, checkpoint: str | os.PathLike[str]) -> FlockDirectory:
        """An existing directory, for readers: nothing is written."""
        path = checked_path(checkpoint)
        described = _read_json(path / "flock.json")
        if described is None:
            raise CheckpointMismatch(
                f"{path} is not the checkpoint of a flock",
                todo="Give the directory that a Flock was opened with as checkpoint=",
            )
        return _described(path, described)

    def _check_same(self, what: str, recorded: int, given: int) -> None:
        if recorded != given:
            raise CheckpointMismatch(
                f"the flock in {self.path} has {recorded} {what}, and {given} were given",
                todo=f"Open it with {what}={recorded}",
            )

    # -- hosts -------------------------------------------------------------------------------------------------------

    def roster(self) -> tuple[str, ...]:
        """The hosts of now, and those that are joining or leaving."""
        return read_roster(self.path) or self.routing.hosts

    def write_roster(self, hosts: Sequence[str]) -> None:
        """Write the roster. The number of a host is never used again, because its log stays."""
        used = max(_number(host) for host in (*self.roster(), *self.routing.hosts, *hosts))
        number = max((_read_json(self.path / ROSTER) or {}).get("next", 0), used + 1)
        replace_json(self.path / ROSTER, {"hosts": list(hosts), "next": number})

    def next_hosts(self, count: int) -> list[str]:
        """Names for `count` new hosts."""
        content = _read_json(self.path / ROSTER) or {}
        first = content.get("next", 1 + max(_number(host) for host in self.routing.hosts))
        return [f"host-{first + at}" for at in range(count)]

    # -- operators ---------------------------------------------------------------------------------------------------

    def operators(self) -> list[str]:
        """The names of all recorded operators, sorted."""
        return sorted(path.stem for path in (self.path / "operators").glob("*.json"))

    def operator(self, name: str) -> tuple[OperatorSpec, Binding | None] | None:
        """The record of an operator; None if there is none."""
        content = _read_json(self._operator_path(name))
        if content is None:
            return None
        try:
            binding = content.get("binding")
            return OperatorSpec.from_dict(content["spec"]), Binding(**binding) if binding else None
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

    def begin_anew(self, spec: OperatorSpec) -> None:
        """Record that the state of the operator is dropped; `write_operator` follows when all hosts have dropped it."""
        content = {"spec": spec.to_dict(), "binding": None, "initialised": False, "dropping": True}
        replace_json(self._operator_path(spec.name), content)

    def dropping(self, name: str) -> bool:
        """Whether hosts may still have state of the operator that was to be dropped."""
        return bool((_read_json(self._operator_path(name)) or {}).get("dropping"))

    def _operator_path(self, name: str) -> Path:
        return self.path / "operators" / f"{name}.json"


def read_roster(checkpoint: str | os.PathLike[str]) -> tuple[str, ...]:
    """The hosts of a checkpoint, also for readers outside of the driver; empty before the roster is first written."""
    path = Path(checkpoint) / ROSTER
    content = _read_json(path)
    if content is None:
        return ()
    try:
        return tuple(content["hosts"])
    except GARBLED as error:
        raise _damaged(path, error) from error


def _number(host: str) -> int:
    return int(host.rpartition("-")[2])


def _described(path: Path, content: dict[str, Any]) -> FlockDirectory:
    try:
        if content["format"] > FORMAT:
            raise CheckpointVersion(
                f"{path} was written in format {content['format']}, and this version reads up to {FORMAT}",
                todo="Use the version of Godwit that wrote it, or a newer one",
            )
        return FlockDirectory(path, content["flock"], Routing.from_dict(content["routing"]))
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
            f"{path} is not empty, and not the checkpoint of a flock (it has {', '.join(foreign[:3])})",
            todo="Give a new or empty directory, and not the checkpointLocation of Spark",
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
        raise _damaged(path, ValueError(f"{content!r:.80} is not a JSON object"))
    return content


def read_document(path: Path) -> dict[str, Any]:
    """A document that must exist."""
    content = _read_json(path)
    if content is None:
        raise _damaged(path, ValueError("the file is missing"))
    return content


def _damaged(path: Path, error: Exception) -> CheckpointCorrupt:
    flaw = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return CheckpointCorrupt(f"{path} cannot be read: {flaw}", todo="Restore the checkpoint from a copy of it")


def replace_json(path: Path, content: dict[str, Any]) -> None:
    try:
        make_directory(path.parent)
    except OSError as error:
        raise unusable("create", path.parent, error) from error
    replace_document(path, json.dumps(content))
