"""Fencing on a real mount whose kernel caches names: two mounts of one directory stand for two machines.

FUSE keeps what it was told of a name, also that there is none, for as long as the mount asks for. Needs `bindfs` (Debian's
package of that name) and the right to mount.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from godwit.errors import StaleGeneration
from godwit.runtime.messages import GetStatus
from godwit.state.changelog import Changelog
from godwit.state.mounts import mount_of
from godwit.state.probing import probe
from godwit.transport import typed
from tests.integration.nest import Nest, rows
from tests.integration.test_stopped_hosts import continued, stopped
from tests.unit.test_fencing import answered, opened

CACHES = "negative_timeout=600,entry_timeout=600,attr_timeout=600"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    if shutil.which("bindfs") is None or shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("bindfs, fusermount3 and a writable /dev/fuse are needed")
    (tmp_path / "server").mkdir()
    mounted = []
    try:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            command = ["bindfs", "-o", CACHES, str(tmp_path / "server"), str(tmp_path / name)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
            mounted.append(tmp_path / name)
        yield tmp_path / "a", tmp_path / "b"
    finally:
        for point in mounted:
            subprocess.run(["fusermount3", "-u", "-z", str(point)], check=False)


def test_a_paused_host_answers_nothing_though_its_kernel_says_there_is_no_newer_claim(
    machines: tuple[Path, Path],
) -> None:
    here, there = machines
    assert mount_of(here).network
    paused, _ = opened(here / "host")
    answered(paused, 1)
    assert not os.access(here / "host" / "claim-00000002", os.F_OK)
    successor, seen = opened(there / "host")
    assert seen == [1]
    assert not os.access(here / "host" / "claim-00000002", os.F_OK), "this mount caches nothing, and shows nothing"
    with pytest.raises(StaleGeneration):
        answered(paused, 2)
    assert paused.fenced()
    answered(successor, 3)
    paused.close()
    successor.close()


def test_a_real_host_that_was_stopped_ends_itself_when_it_is_continued(machines: tuple[Path, Path]) -> None:
    here, there = machines
    nest = Nest(here / "godwit", hosts=2).start_all()
    try:
        assert len(list(nest.run(0, "0", [rows(range(500))]))) == 500
        client = nest.client("host-0")
        assert typed.ask(client, GetStatus()).storage == {"file_system": "fuse", "network": True, "durability": "disk"}
        client.close()
        process = stopped(nest, "host-0")
        successor, seen = Changelog.open(there / "godwit" / "hosts" / "host-0")
        assert len(list(seen.parts())) > 0
        continued(process)
        assert not successor.fenced()
        successor.close()
    finally:
        nest.close()


def test_takeovers_go_to_and_fro(machines: tuple[Path, Path]) -> None:
    logs: list[Changelog] = []
    for number in range(10):
        log, seen = opened(machines[number % 2] / "host")
        assert seen == list(range(number))
        assert all(old.fenced() for old in logs)
        answered(log, number)
        logs.append(log)
    for log in logs:
        log.close()


def test_such_a_mount_keeps_what_is_needed(machines: tuple[Path, Path]) -> None:
    assert probe(machines[0]).network
