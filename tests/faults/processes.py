"""What an application leaves behind: processes, listening ports, files. Found by marks it cannot shake off."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil


def processes_of(folder: Path) -> dict[int, str]:
    """Living processes that were started for this folder: its name is in their environment, which children inherit."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get("GODWIT_TEST_FOLDER") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:
            continue
    return found


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(2.0)
        return probe.connect_ex((host, int(port))) == 0


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
