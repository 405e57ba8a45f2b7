"""Which host keeps the backup of which: another host, if possible on another disk and machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from godwit.control.backup_choice import choose_peer
from godwit.runtime.backup.records import Records
from godwit.runtime.controller import Registered
from godwit.spark.checkpoint.disks import Disks


class BackupPeers:
    """`serving`: the hosts that are registered. A host that is down for a moment keeps the backups that it has."""

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
        self._peers: dict[str, str] = {}
        self._lock = threading.Lock()

    def peer_of(self, host: str) -> str | None:
        machines = {name: registered.address.rpartition(":")[0] for name, registered in self._serving().items()}
        places = {name: self._disks.of(name, machines[name]) for name in self._roster() if name in machines}
        with self._lock:
            self._peers = {name: self._peers.get(name) or self._recorded(name) for name in places}
            peer = choose_peer(host, places, self._peers)
            self._peers[host] = peer or ""
        return peer

    def _recorded(self, host: str) -> str:
        """The peer in the last application, which has a copy already."""
        record = Records(self._checkpoint, host).newest()
        return "" if record is None else record.peer or ""
