"""Who keeps whose backup, told to hosts that ask: another host, on another disk and machine if there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from godwit.control.backup_choice import keeper_of
from godwit.runtime.backup.records import Records
from godwit.runtime.controller import Registered
from godwit.spark.checkpoint.disks import Disks


class BackupPeers:
    """`serving`: the hosts as they announced themselves. One that is only away for a moment keeps what it keeps."""

    def __init__(
        self,
        checkpoint: str,
        disks: Disks,
        roster: Callable[[], tuple[str, ...]],
        serving: Callable[[], Mapping[str, Registered]],
    ) -> None:
        self._checkpoint = checkpoint
        self._disks = disks
        self._roster = roster
        self._serving = serving
        self._kept_by: dict[str, str] = {}
        self._lock = threading.Lock()

    def keeper_of(self, host: str) -> str | None:
        machines = {name: seen.address.rpartition(":")[0] for name, seen in self._serving().items()}
        places = {name: self._disks.of(name, machines[name]) for name in self._roster() if name in machines}
        with self._lock:
            self._kept_by = {name: self._kept_by.get(name) or self._recorded(name) for name in places}
            keeper = keeper_of(host, places, self._kept_by)
            self._kept_by[host] = keeper or ""
        return keeper

    def _recorded(self, host: str) -> str:
        """Where the last application had it: what is there need not be sent again."""
        record = Records(self._checkpoint, host).newest()
        return "" if record is None else record.peer or ""
