"""How durable a flock is unless told, and what it says where it was told less than fits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from godwit.errors import FileSystemUnsafe
from godwit.spark.checkpoint import durability_choice
from godwit.spark.checkpoint.durability_choice import choose_storage
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.state import mounts, probing

OFF_LOOPBACK = "hosts on other machines"
NETWORK = "a network file system"


@pytest.fixture(params=["ext4", "nfs4"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    name: str = request.param
    (tmp_path / "mountinfo").write_text(f"22 1 254:0 / {tmp_path} rw - {name} /dev/vda rw\n")
    monkeypatch.setattr(mounts, "_TABLE", tmp_path / "mountinfo")
    return name


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_unless_told_only_what_one_machine_holds_is_not_synced(tmp_path: Path, file_system: str, bind: str) -> None:
    told = choose_storage(None, bind, tmp_path, ())
    expected = "process" if (bind, file_system) == ("127.0.0.1", "ext4") else "disk"
    assert told.durability == expected
    network = file_system == "nfs4"
    assert told.status() == {"file_system": file_system, "network": network, "durability": expected}


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_process_is_honoured_with_a_warning(
    tmp_path: Path, file_system: str, bind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="godwit"):
        told = choose_storage("process", bind, tmp_path, ())
    assert told.durability == "process"
    assert (OFF_LOOPBACK in caplog.text) == (bind == "0.0.0.0")
    assert (NETWORK in caplog.text) == (file_system == "nfs4")
    assert told.status()["durability"] == ("disk" if file_system == "nfs4" else "process"), "there it is synced anyway"


def test_disk_is_nothing_to_warn_of(tmp_path: Path, file_system: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="godwit"):
        assert choose_storage("disk", "0.0.0.0", tmp_path, ()).durability == "disk"
    assert caplog.text == ""


def test_one_disk_on_the_network_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = f"22 1 254:0 / {tmp_path} rw - ext4 /dev/vda rw\n23 1 254:0 / {tmp_path}/b rw - cifs //b rw\n"
    (tmp_path / "mountinfo").write_text(table)
    monkeypatch.setattr(mounts, "_TABLE", tmp_path / "mountinfo")
    told = choose_storage(None, "127.0.0.1", tmp_path, (tmp_path / "a", tmp_path / "b"))
    assert (told.durability, told.mount.file_system) == ("disk", "cifs")


def test_a_disk_that_is_away_is_not_probed_and_one_that_is_unsafe_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    probed: list[Path] = []

    def refuse(directory: Path) -> None:
        probed.append(directory)
        raise FileSystemUnsafe("no")

    monkeypatch.setattr(durability_choice, "probe", refuse)
    with pytest.raises(FileSystemUnsafe):
        choose_storage(None, "127.0.0.1", tmp_path, (tmp_path / "away", tmp_path / "a"))
    assert probed == [tmp_path / "a"]


def test_a_checkpoint_that_is_not_safe_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_links(place: Path) -> bool:
        """Links work."""
        return False

    monkeypatch.setattr(probing, "_PROBES", (no_links,))
    with pytest.raises(FileSystemUnsafe, match="links work"):
        FlockDirectory.open(tmp_path / "godwit", 2, 16)
    assert list((tmp_path / "godwit").iterdir()) == []
