"""The backups that a host keeps for other hosts: it writes what the other host sends to a mirror, then acknowledges it.

The keeper decides one thing only, when a mirror is removed: when the newest record of the backed-up host names another peer. An
error in a backup never ends the host that keeps it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, MalformedRequest
from godwit.runtime.backup.records import Records, backups_directory
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.messages import (
    BackupAcknowledged,
    BackupOpened,
    ClearBackup,
    OpenBackup,
    ReplaceManifest,
    SyncBackup,
    WriteBackup,
)
from godwit.state.mirroring import Mirror
from godwit.transport import bodies, typed, wire
from godwit.transport.flight import GONE
from godwit.transport.typed import Message


class BackupKeeper:
    def __init__(self, checkpoint: str, host: str, stopping: Callable[[], bool]) -> None:
        self._checkpoint = checkpoint
        self._host = host
        self._stopping = stopping
        self._directory = backups_directory(host_directory(checkpoint, host))
        self._mirrors: dict[str, Mirror] = {}  # by backed-up host: the mirror of its newest connection
        self._locks: dict[str, ports.Lock] = {}
        self._lock = ports.lock()

    def tidy(self) -> None:
        """Remove mirrors that are not needed any more: the backup has another peer, or its host has left."""
        for directory in self._mirror_directories():
            newest = Records(self._checkpoint, directory.name).newest()
            with self._lock_of(directory.name):
                if directory.name not in self._mirrors and (newest is None or newest.peer != self._host):
                    shutil.rmtree(directory, ignore_errors=True)

    def bytes_by_origin(self) -> dict[str, int]:
        sizes = {}
        for directory in self._mirror_directories():
            with suppress(OSError):  # a file may be removed while its size is read
                files = [file for file in directory.iterdir() if file.is_file()]
                sizes[directory.name] = sum(file.stat().st_size for file in files)
        return sizes

    def receive(self, first: OpenBackup, reader: Any, writer: Any) -> None:
        """Serve one connection of a backed-up host until the connection ends."""
        writer.begin(pa.schema([]))
        origin = first.origin
        try:
            mirror = self._open_mirror(origin, first.generation)
            try:
                writer.write_metadata(typed.pack(BackupOpened(mirror.have())))
                self._serve(origin, mirror, reader, writer)
            finally:
                self._close_mirror(origin, mirror)
        except GodwitError as error:
            with suppress(*GONE):
                writer.write_metadata(wire.pack_error(error.at(peer=self._host)))
        except GONE:
            return

    def _serve(self, origin: str, mirror: Mirror, reader: Any, writer: Any) -> None:
        while True:
            message = reader.read_chunk()
            if self._stopping():
                raise HostUnavailable(f"{self._host} is being stopped", host=self._host)
            self._take(origin, mirror, message)
            writer.write_metadata(typed.pack(BackupAcknowledged()))

    def _close_mirror(self, origin: str, mirror: Mirror) -> None:
        with self._lock_of(origin):
            if self._mirrors.get(origin) is mirror:
                del self._mirrors[origin]

    def _open_mirror(self, origin: str, generation: int) -> Mirror:
        if origin != Path(origin).name or origin.startswith("."):
            raise MalformedRequest(f"{origin!r} is not the name of a host")
        with self._lock_of(origin):
            mirror = self._mirrors[origin] = Mirror(self._directory / origin, generation)
            return mirror

    def _take(self, origin: str, mirror: Mirror, received: Any) -> None:
        message: Message = typed.unpack(received.app_metadata, WriteBackup, ReplaceManifest, ClearBackup, SyncBackup)
        with self._lock_of(origin):
            if self._mirrors.get(origin) is not mirror:
                raise HostUnavailable(f"{origin} has a newer connection", host=self._host)
            match message:
                case WriteBackup(file, offset, ahead):
                    mirror.write(file, offset, memoryview(bodies.body_of(received)), ahead=ahead)
                case ReplaceManifest():
                    mirror.replace_manifest(bodies.body_of(received).to_pybytes())
                case ClearBackup():
                    mirror.clear()
                case _:
                    mirror.check()
            if isinstance(message, (WriteBackup, ReplaceManifest, SyncBackup)) and message.sync:
                mirror.sync()

    def _lock_of(self, origin: str) -> ports.Lock:
        with self._lock:
            return self._locks.setdefault(origin, ports.lock())

    def _mirror_directories(self) -> list[Path]:
        try:
            return sorted(path for path in self._directory.iterdir() if path.is_dir())
        except OSError:
            return []
