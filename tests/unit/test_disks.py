"""Hosts that write on disks of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointUnusable, DefinitionError
from godwit.runtime.liveness.leases import drop_failure, end_lease, read_failure, read_lease, read_obituary
from godwit.spark.checkpoint.disks import Disks, checked_disks


def made(tmp_path: Path, count: int = 3) -> tuple[Path, list[Path], Disks]:
    disks = [tmp_path / f"disk-{at}" for at in range(count)]
    for disk in disks:
        disk.mkdir()
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint", disks, Disks(tmp_path / "checkpoint", "flock", disks)


def test_hosts_are_spread_over_the_disks(tmp_path: Path) -> None:
    checkpoint, disks, placing = made(tmp_path)
    for at in range(6):
        placing.place(f"host-{at}")
        (checkpoint / "hosts" / f"host-{at}" / "log").write_text("state")
    assert [len([*disk.glob("flock/*/log")]) for disk in disks] == [2, 2, 2]


def test_a_host_stays_where_it_is(tmp_path: Path) -> None:
    checkpoint, _, placing = made(tmp_path)
    placing.place("host-0")
    (checkpoint / "hosts" / "host-0" / "log").write_text("state")
    placing.place("host-0")
    assert (checkpoint / "hosts" / "host-0" / "log").read_text() == "state"


def test_a_host_whose_disk_is_gone_gets_another(tmp_path: Path) -> None:
    checkpoint, _, placing = made(tmp_path)
    placing.place("host-0")
    lost = placing.of("host-0", "here")
    gone = Path(lost.disk).parent
    shutil.rmtree(gone)
    gone.write_text("a disk that cannot be written any more")
    placing.place("host-0")
    assert [*(checkpoint / "hosts" / "host-0").iterdir()] == []
    assert placing.of("host-0", "here") != lost


def test_without_disks_all_is_in_the_checkpoint(tmp_path: Path) -> None:
    placing = Disks(tmp_path, "flock", ())
    placing.place("host-0")
    assert [*tmp_path.iterdir()] == []
    assert placing.of("host-0", "here") == placing.of("host-1", "here")


def test_hosts_of_one_disk_share_it(tmp_path: Path) -> None:
    _, _, placing = made(tmp_path, 2)
    for at in range(3):
        placing.place(f"host-{at}")
    first, second, third = (placing.of(f"host-{at}", "here") for at in range(3))
    assert first.disk != second.disk
    assert first.disk == third.disk


def test_no_disk_at_all(tmp_path: Path) -> None:
    _, disks, placing = made(tmp_path, 1)
    disks[0].rmdir()
    disks[0].write_text("")
    with pytest.raises(CheckpointUnusable, match="none of the disks"):
        placing.place("host-0")


@pytest.mark.parametrize("disks", ["/a", [], [3], ["relative"], ["/a", "/a"], 7])
def test_what_is_refused(disks: Any) -> None:
    with pytest.raises(DefinitionError, match="disks"):
        checked_disks(disks)


def test_none_is_the_checkpoint_itself() -> None:
    assert checked_disks(None) == ()


def test_a_lease_on_a_disk_that_is_broken_is_as_if_there_were_none(tmp_path: Path) -> None:
    broken = tmp_path / "host-0"
    broken.write_text("not a directory any more")
    assert read_lease(broken) is None
    assert read_obituary(broken, 1) is None
    assert read_failure(broken) is None
    end_lease(broken, 1)
    drop_failure(broken)
