"""A copy of a flock that runs, with Spark's checkpoints of its queries: to go back to, or to start another flock from.

It is what a crash of the whole application would leave at that moment, and starting from it is starting after that crash. For
that, no host begins another batch while Spark's checkpoints are copied first and the hosts' logs after them. So no host is
ahead of what Spark has planned, and what Spark has committed is in the hosts' logs. Rows of the batch in progress go on.
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
ORDER: Final = ("commits", "offsets")  # what is committed has been planned before: never the other way round


class FlockCopier:
    """`bindings`: the query of each operator; `keys_move`: while they do, two hosts may both seem to own them."""

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
            with self._held():
                self._check_still()
                for query, checkpoint in queries.items():
                    _copy_spark(checkpoint, path / SPARK / query)
                copied = {host: self._copied(host, path) for host in self._directory.roster()}
                self._check_still()
            for name in OURS:
                _copy(self._directory.path / name, path / name)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # half a copy looks like a whole one
            raise
        told = {"at": now_text(), "flock": self._directory.flock, "hosts": copied, "queries": sorted(queries)}
        replace_json(path / NOTE, told)
        return told | {"path": str(path), "spark": {query: str(path / SPARK / query) for query in queries}}

    def _copied(self, host: str, path: Path) -> int:
        return self._hosts.ask_now(host, CopyLog(str(path / HOSTS / host))).size_bytes

    def _check_still(self) -> None:
        if self._keys_move():
            raise DefinitionError(
                "keys are being moved, and a copy must not catch them on the way", todo="Try again when that has ended"
            )

    @contextmanager
    def _held(self) -> Iterator[None]:
        """No host begins another batch. One that is lost meanwhile has forgotten it when it is back."""
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
    """Make a checkpoint of a copy; the copy stays as it is, and can be started from again."""
    path = checked_path(copy)
    if not (path / NOTE).exists():
        raise CheckpointUnusable(
            f"{path} is not a copy of a flock", todo=f"Give a directory that Flock.checkpoint has made (it has {NOTE})"
        )
    _check_new(checkpoint)
    for name in (*OURS, HOSTS):
        _copy(path / name, checkpoint / name)
    _rename(checkpoint / "flock.json")
    for kept in sorted((checkpoint / "operators").glob("*.json")):
        _rebind(kept, path)


def _rename(described: Path) -> None:
    """It is another flock: both may be there at once, and what is done to the jobs of one must not hit the other."""
    replace_json(described, read_document(described) | {"flock": new_name()})


def _rebind(kept: Path, copy: Path) -> None:
    """Until the query has started again, what is committed is what Spark's copied checkpoint says, not the first one now."""
    told = read_document(kept)
    if told.get("binding"):
        told["binding"]["checkpoint"] = str(copy / SPARK / told["binding"]["query"])
        replace_json(kept, told)


def _check_new(path: Path) -> None:
    if path.exists() and any(path.iterdir()):
        raise CheckpointUnusable(f"{path} is there already, and not empty", todo="Give a new directory")


def _local(checkpoint: str) -> Path:
    parsed = urlparse(checkpoint)
    if parsed.scheme not in ("", "file"):
        raise CheckpointUnusable(
            f"Spark's checkpoint {checkpoint} is not on a file system that the driver sees as files",
            todo="Stop the query and copy both checkpoints by the means of that file system",
        )
    return Path(parsed.path)


def _copy(path: Path, to: Path) -> None:
    """Routing tables may be missing, and are made anew."""
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
    """Commits before plans. Files that Spark removes or renames meanwhile are of no use to anybody."""
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
