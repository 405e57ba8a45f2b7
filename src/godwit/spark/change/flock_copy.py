"""Copies a running flock, with Spark's checkpoints of its queries: to return to, or to start another flock from.

The copy is what a crash of the whole application would leave at that moment; a start from it is a recovery from that crash. So
no host begins a batch during the copy, and Spark's checkpoints are copied before the logs of the hosts: no host is ahead of the
batches that Spark has planned, and the logs have every batch that Spark has committed. Rows of the batch in progress go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse

from godwit.errors import CheckpointUnusable, DefinitionError, HostUnavailable
from godwit.runtime.messages import CopyLog, HoldBatches
from godwit.spark.checkpoint.flock_directory import FlockDirectory, checked_path, new_name, read_document, replace_json
from godwit.spark.checkpoint.history import now_text
from godwit.spark.checkpoint.run_admission import Binding
from godwit.spark.hosts.flock_hosts import Hosts
from godwit.state.damage import unusable

NOTE: Final = "copy.json"
SPARK: Final = "spark"
HOSTS: Final = "hosts"
OURS: Final = ("flock.json", "roster.json", "history.jsonl", "operators", "routing")
ORDER: Final = (
    "commits",
    "offsets",
)  # Spark plans a batch before it commits it, so a copied commit must have its copied plan


class FlockCopier:
    """`bindings`: the query of each operator. `keys_move`: whether keys move: then two logs may both name a key."""

    def __init__(
        self,
        directory: FlockDirectory,
        hosts: Hosts,
        bindings: Callable[[], Mapping[str, Binding]],
        keys_move: Callable[[], bool],
    ) -> None:
        self._directory = directory
        self._hosts = hosts
        self._bindings = bindings
        self._keys_move = keys_move

    def copy(self, to: Any) -> dict[str, Any]:
        path = checked_path(to)
        _check_new(path)
        queries = {binding.query: _local(binding.checkpoint) for binding in self._bindings().values()}
        try:
            with self._batches_paused():
                self._check_still()
                for query, checkpoint in queries.items():
                    _copy_spark(checkpoint, path / SPARK / query)
                copied = {host: self._copied(host, path) for host in self._directory.roster()}
                self._check_still()
            for name in OURS:
                _copy(self._directory.path / name, path / name)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # half a copy would look like a whole one
            raise
        record = {"at": now_text(), "flock": self._directory.flock, "hosts": copied, "queries": sorted(queries)}
        replace_json(path / NOTE, record)
        return record | {"path": str(path), "spark": {query: str(path / SPARK / query) for query in queries}}

    def _copied(self, host: str, path: Path) -> int:
        return self._hosts.ask_now(host, CopyLog(str(path / HOSTS / host))).size_bytes

    def _check_still(self) -> None:
        if self._keys_move():
            raise DefinitionError(
                "a flock cannot be copied while keys are being moved",
                todo="Wait until flock.history() shows the end of the move",
            )

    @contextmanager
    def _batches_paused(self) -> Iterator[None]:
        """No host begins a batch inside this context. A host that restarts meanwhile does not know of the pause."""
        asked: list[str] = []
        try:
            for host in self._directory.roster():
                asked.append(host)
                self._hosts.ask_now(host, HoldBatches(True))
            yield
        finally:
            for host in asked:
                with suppress(HostUnavailable):
                    self._hosts.ask_now(host, HoldBatches(False))


def start_from_copy(copy: Any, checkpoint: Path) -> None:
    """Make a new checkpoint from a copy. The copy stays as it is."""
    path = checked_path(copy)
    if not (path / NOTE).exists():
        raise CheckpointUnusable(
            f"{path} is not a copy of a flock", todo=f"Give a directory that Flock.checkpoint has made (it has {NOTE})"
        )
    _check_new(checkpoint)
    for name in (*OURS, HOSTS):
        _copy(path / name, checkpoint / name)
    _rename(checkpoint / "flock.json")
    for operator_file in sorted((checkpoint / "operators").glob("*.json")):
        _rebind(operator_file, path)


def _rename(described: Path) -> None:
    """Give the new flock a name of its own: both flocks may run at once, and their Spark jobs must not be confused."""
    replace_json(described, read_document(described) | {"flock": new_name()})


def _rebind(operator_file: Path, copy: Path) -> None:
    """Until the query has started, Spark's copied checkpoint tells which batches are committed, not the original."""
    record = read_document(operator_file)
    if record.get("binding"):
        record["binding"]["checkpoint"] = str(copy / SPARK / record["binding"]["query"])
        replace_json(operator_file, record)


def _check_new(path: Path) -> None:
    if path.exists() and any(path.iterdir()):
        raise CheckpointUnusable(f"{path} exists already and is not empty", todo="Give a new directory")


def _local(checkpoint: str) -> Path:
    parsed = urlparse(checkpoint)
    if parsed.scheme not in ("", "file"):
        raise CheckpointUnusable(
            f"Spark's checkpoint {checkpoint} is not on a file system that the driver sees as files",
            todo="Stop the query, and copy both checkpoints with the tools of that file system",
        )
    return Path(parsed.path)


def _copy(path: Path, to: Path) -> None:
    """Copy a file or directory, if it exists: routing tables may be missing, and are rebuilt."""
    if not path.exists():
        return
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, to)
        else:
            shutil.copyfile(path, to)
    except OSError as error:
        raise unusable("copy", path, error) from error


def _copy_spark(checkpoint: Path, to: Path) -> None:
    """Commits first, then offsets. A file that Spark removes or renames meanwhile is not needed."""
    parts = sorted(checkpoint.iterdir(), key=lambda part: (part.name not in ORDER, part.name))
    try:
        for part in parts:
            for file in [part] if part.is_file() else sorted(part.rglob("*")):
                place = to / file.relative_to(checkpoint)
                if file.is_file() and not file.name.endswith(".tmp"):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileNotFoundError):
                        shutil.copyfile(file, place)
    except OSError as error:
        raise unusable("copy", checkpoint, error) from error
