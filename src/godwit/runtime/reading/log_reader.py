"""Committed state, read from the hosts' logs: for whoever looks at a checkpoint without owning it, open or not.

Nobody is asked, fenced or held up, and nothing is written. The owner of the checkpoint goes on meanwhile: files that were
merged are looked for again under their new names, and groups that have moved are read from the log of the host they moved to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

import pyarrow as pa

from godwit import ports
from godwit.errors import CheckpointCorrupt, StaleGeneration
from godwit.model.ownership import Ownership
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import Instances
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.reading.state_reader import StateReader
from godwit.state.changes import changes_schema
from godwit.state.frames import Part
from godwit.state.keys import KeyCodec
from godwit.state.recovery import looked_into

LOOKS_MAX: Final = 10
PAUSE_S: Final = 0.1
MEMORY_MAX_BYTES: Final = 512 << 20  # of one host's state; what is beyond goes to the local disk


class KeysWanted(Protocol):
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...

    def groups(self, spec: OperatorSpec, count: int) -> frozenset[int] | None: ...


Select = Callable[[pa.RecordBatch], pa.RecordBatch]


def every(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True, slots=True)
class LogReader(StateReader):
    """A state reader without a flock. `selected`: the rows of a batch of changes whose keys are read."""

    selected: Select = every

    def only(self, keys: KeysWanted) -> LogReader:
        """The same, for these keys: a host that owns none of their groups is not read."""
        groups = keys.groups(self.spec, sum(len(groups) for _, groups in self.parts))
        parts = self.parts if groups is None else tuple((host, owned & groups) for host, owned in self.parts)
        return replace(self, selected=keys, parts=parts)

    def _check_owner(self) -> None:
        """It does not matter whose it is."""

    def _fetch(self, host: str) -> tuple[Ownership | None, list[pa.RecordBatch]] | None:
        for left in reversed(range(LOOKS_MAX)):
            try:
                return self._looked(host)
            except (CheckpointCorrupt, StaleGeneration):
                if not left:
                    raise
                ports.sleep(PAUSE_S)
        raise AssertionError("the last look returns or raises")

    def _looked(self, host: str) -> tuple[Ownership | None, list[pa.RecordBatch]] | None:
        log = looked_into(host_directory(self.checkpoint, host))
        if log is None:
            return None
        instances = Instances(
            host, cast(Any, None), Watch(lambda _: None), lambda: 0, set, None, MEMORY_MAX_BYTES
        )  # no log to write
        try:
            for part in log.parts():
                if part.info.get("op") == self.spec.name:
                    instances.recover(dict(part.info), self._body(part))
            shared = instances.get(self.spec.name)
            return None if shared is None else self._committed(shared.instance)
        finally:
            instances.close()

    def _body(self, part: Part) -> memoryview:
        """Without the rows of keys that are not read."""
        if self.selected is every or part.info["kind"] not in ("state", "committed"):
            return memoryview(part.body)
        schema = changes_schema(KeyCodec(self.spec.key_schema, self.spec.tz))
        batch = pa.ipc.read_record_batch(pa.py_buffer(part.body), schema)
        return memoryview(self.selected(batch).serialize())

    def _committed(self, instance: Instance) -> tuple[Ownership | None, list[pa.RecordBatch]]:
        """Every batch before the one in progress is committed; of that one, only Spark knows."""
        settled = instance.progress.batch <= self.committed_batch
        return instance.ownership, list(instance.state.export(committed=not settled))
