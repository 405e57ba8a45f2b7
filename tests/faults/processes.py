"""What an application leaves behind: processes, listening ports, files. Found by marks it cannot shake off."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil

from godwit.transport.addresses import ServiceAddress


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
    """Whether anybody listens at one of its ports."""
    service = ServiceAddress.of(address)
    return any(map(_answers, {(service.machine, service.requests_port), service.streams} - {(service.machine, 0)}))


def _answers(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2.0)
        return probe.connect_ex(address) == 0


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
