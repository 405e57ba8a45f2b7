"""Committed state, read from the hosts' logs: for whoever looks at a checkpoint without owning it, open or not.

Nobody is asked, fenced or held up, and nothing is written. The owner of the checkpoint goes on meanwhile: files that were
merged are looked for again under their new names, and groups that have moved are read from the log of the host they moved to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa

from godwit import ports
from godwit.errors import CheckpointCorrupt, StaleGeneration
from godwit.model.ownership import Ownership
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import Instances
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.reading.state_reader import StateReader
from godwit.state.recovery import looked_into

LOOKS_MAX: Final = 10
PAUSE_S: Final = 0.1
MEMORY_MAX_BYTES: Final = 512 << 20  # of one host's state; what is beyond goes to the local disk


@dataclass(frozen=True, slots=True)
class LogReader(StateReader):
    """A state reader without a flock."""

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
                    instances.recover(dict(part.info), memoryview(part.body))
            shared = instances.get(self.spec.name)
            return None if shared is None else self._committed(shared.instance)
        finally:
            instances.close()

    def _committed(self, instance: Instance) -> tuple[Ownership | None, list[pa.RecordBatch]]:
        """Every batch before the one in progress is committed; of that one, only Spark knows."""
        settled = instance.progress.batch <= self.committed_batch
        return instance.ownership, list(instance.state.export(committed=not settled))
