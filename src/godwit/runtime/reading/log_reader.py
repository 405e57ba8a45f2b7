"""Committed state, read from the hosts' logs, by a process that does not own the checkpoint; a flock may be open on it.

No host is asked, fenced or delayed, and nothing is written. The owner of the checkpoint goes on meanwhile: if files were
compacted in between, the log is read again, and groups that have moved are read from the log of their new owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

import pyarrow as pa

from godwit import ports
from godwit.errors import CheckpointCorrupt, CheckpointMismatch, StaleGeneration
from godwit.runtime.durable.changelog_parts import life_of
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.reading.export import rows_of_state
from godwit.runtime.reading.group_reader import PATIENCE_S, GroupReader, HostState, Parts, RowsOf
from godwit.state.changes import changes_schema
from godwit.state.frames import Part
from godwit.state.keys import KeyCodec
from godwit.state.recovery import readable_log

ATTEMPTS_MAX: Final = 10
PAUSE_S: Final = 0.1
MEMORY_MAX_BYTES: Final = 512 << 20  # for the state of one host; the rest goes to the local disk


class KeysWanted(Protocol):
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...

    def groups(self, spec: OperatorSpec, count: int) -> frozenset[int] | None: ...


SelectRows = Callable[[pa.RecordBatch], pa.RecordBatch]


def _any_owner() -> None:
    """A checkpoint of any owner may be read."""


def every(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True, slots=True)
class LogReader:
    """`read` reads one of the `parts`. `rows_of`: as for a `GroupReader`.

    `selected`: the rows of a batch of changes whose keys are read. `asked`: the committed batch is one that a user asks for; it
    must not be older than the state that there is. `at_commit`: the state must have no rows of later batches.
    """

    spec: OperatorSpec
    checkpoint: str
    parts: Parts
    committed_batch: int
    patience_s: float = PATIENCE_S
    selected: SelectRows = every
    rows_of: RowsOf = rows_of_state
    asked: bool = False
    at_commit: bool = False

    def read(self, position: int, attempt: int | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of the keys of one part, with their owners and epochs. No task slot is offered: no host is waited for."""
        given = (self.spec, self.checkpoint, self.parts, self._fetch, _any_owner, self.patience_s, self.rows_of)
        reader = GroupReader(*given)
        return reader.read(position)

    def only(self, keys: KeysWanted) -> LogReader:
        """A reader of these keys only: the log of a host that owns none of their groups is not read."""
        groups = keys.groups(self.spec, sum(len(groups) for _, groups in self.parts))
        parts = self.parts if groups is None else tuple((host, owned & groups) for host, owned in self.parts)
        return replace(self, selected=keys, parts=parts)

    def _fetch(self, host: str) -> HostState | None:
        for left in reversed(range(ATTEMPTS_MAX)):
            try:
                return self._read_log(host)
            except (CheckpointCorrupt, StaleGeneration):
                if not left:
                    raise
                ports.sleep(PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _read_log(self, host: str) -> HostState | None:
        log = readable_log(host_directory(self.checkpoint, host))
        if log is None:
            return None
        no_log = cast(Any, None)  # nothing is written
        resources = HostResources(no_log, Watch(lambda _: None), lambda: 0, set, MEMORY_MAX_BYTES)
        instances = Instances(host, resources)
        try:
            select = self._select
            for part in log.parts():
                if part.info.get("op") == self.spec.name:
                    if part.info["kind"] == "define":  # keys of an earlier life may have other columns
                        select = self._select if life_of(part.info) == self.spec.life else _whole
                    instances.recover(dict(part.info), select(part))
            shared = instances.get(self.spec.name)
            return None if shared is None else self._committed(shared.instance)
        finally:
            instances.close()

    def _select(self, part: Part) -> memoryview:
        """The part without the rows of other keys."""
        if self.selected is every or part.info["kind"] not in ("state", "committed"):
            return memoryview(part.body)
        schema = changes_schema(KeyCodec(self.spec.key_schema, self.spec.tz))
        batch = pa.ipc.read_record_batch(pa.py_buffer(part.body), schema)
        return memoryview(self.selected(batch).serialize())

    def _committed(self, instance: Instance) -> HostState:
        """Every batch before the one in progress is committed; whether that one is, only Spark knows."""
        newest = instance.progress.current
        if self.at_commit:
            self._check_at_commit(instance)
        if self.asked and newest > self.committed_batch + 1:
            raise self._gone(newest)
        settled = newest <= self.committed_batch
        return instance.ownership, list(instance.state.export(committed=not settled))

    def _check_at_commit(self, instance: Instance) -> None:
        """With asynchronous progress, the state may have rows of batches that Spark's log does not name."""
        instance.ledger.drop_committed(self.committed_batch)
        if instance.progress.lasting and instance.ledger.lanes:
            raise CheckpointMismatch(
                "the query ran with asyncProgressTrackingEnabled, and the state has rows of batches after "
                f"{self.committed_batch}, the newest that Spark's log names",
                todo="Start the query again with asyncProgressTrackingCheckpointIntervalMs=0, and stop it when it has read all",
                operator=self.spec.name,
            )

    def _gone(self, newest: int) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"the checkpoint does not have the state as of batch {self.committed_batch} any more, but as of {newest - 1} or "
            f"{newest}",
            todo="Give one of these batches as committedBatch, or read a copy of the checkpoint that was made earlier",
            operator=self.spec.name,
        )


def _whole(part: Part) -> memoryview:
    return memoryview(part.body)
