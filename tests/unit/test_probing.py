"""What a mount must keep is tried out, and a mount that does not is refused by the name of the probe."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointUnusable, FileSystemUnsafe
from godwit.state import mounts
from godwit.state.mounts import Mount, mount_of
from godwit.state.probing import probe
from tests.unit.clients import Clients

REAL = {name: getattr(os, name) for name in ("open", "link", "rename", "replace", "mkdir", "rmdir", "write", "fsync")}


def test_a_local_disk_keeps_everything(tmp_path: Path) -> None:
    mount = probe(tmp_path)
    assert not mount.network
    assert list(tmp_path.iterdir()) == []


def test_so_does_a_client_of_a_network_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clients = Clients(monkeypatch, tmp_path, "a")
    assert probe(clients.at("a")) == Mount("nfs4")


def create_anew(path: Any, flags: int, *args: Any, **options: Any) -> int:
    return int(REAL["open"](path, flags & ~os.O_EXCL, *args, **options))


def link_over(source: Path, target: Path) -> None:
    Path(target).write_bytes(Path(source).read_bytes())


def failing(number: int) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def copy(source: Path, target: Path) -> None:
    Path(target).write_bytes(Path(source).read_bytes())


def remove_all(path: Any, **_: Any) -> None:
    for inside in Path(path).iterdir():
        REAL["rmdir"](inside)
    REAL["rmdir"](path)


def make_parents(path: Any, mode: int = 0o777, **_: Any) -> None:
    Path(path).parent.exists() or REAL["mkdir"](Path(path).parent)
    REAL["mkdir"](path, mode)


@pytest.mark.parametrize(
    ("call", "double", "name"),
    [
        ("open", create_anew, "exclusive_create"),
        ("link", link_over, "exclusive_link"),
        ("link", failing(errno.EPERM), "exclusive_link"),
        ("link", failing(errno.ENOTSUP), "exclusive_link"),
        ("replace", copy, "replacing_rename"),
        ("replace", failing(errno.EEXIST), "replacing_rename"),
        ("rmdir", remove_all, "permit"),
        ("mkdir", make_parents, "permit"),
        ("write", lambda fd, data: REAL["write"](fd, data[:-1]), "append"),
        ("fsync", failing(errno.EINVAL), "append"),
        ("fsync", failing(errno.ENOSYS), "append"),
    ],
)
def test_a_mount_that_does_not_keep_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, double: Callable[..., Any], name: str
) -> None:
    monkeypatch.setattr(os, call, double)
    with pytest.raises(
        FileSystemUnsafe, match=r"does not keep what a checkpoint rests on.*Give a checkpoint"
    ) as refused:
        probe(tmp_path)
    monkeypatch.undo()
    assert refused.value.fields["probe"] == name
    assert refused.value.fields["path"] == str(tmp_path)
    assert refused.value.fields["file_system"] == mount_of(tmp_path).file_system
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_what_may_pass_is_not_held_against_the_file_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(CheckpointUnusable, match=os.strerror(number)):
        probe(tmp_path)


def test_directories_need_not_be_synced_where_there_is_no_such_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def files_only(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").resolve().is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        REAL["fsync"](fd)

    monkeypatch.setattr(os, "fsync", files_only)
    probe(tmp_path)


# ---- which mount


TABLE = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:30 / /mnt/shared\\040disk rw - nfs4 server:/export rw
31 22 0:31 / /mnt/fast rw shared:1 master:2 - xfs /dev/vdb rw
32 31 0:32 / /mnt/fast/fuse rw - fuse.sshfs host:/ rw
33 22 0:33 / /mnt/twice rw - ext4 /dev/vdc rw
34 33 0:34 / /mnt/twice rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("place", "file_system", "network"),
    [
        ("/var/lib/godwit", "ext4", False),
        ("/", "ext4", False),
        ("/mnt/shared disk/godwit", "nfs4", True),
        ("/mnt/shared disk", "nfs4", True),
        ("/mnt/shared", "ext4", False),
        ("/mnt/fast/godwit", "xfs", False),
        ("/mnt/fast/fuse/godwit", "fuse.sshfs", True),
        ("/mnt/faster", "ext4", False),
        ("/mnt/twice/godwit", "cifs", True),
    ],
)
def test_the_mount_that_a_path_lies_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, file_system: str, network: bool
) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    monkeypatch.setattr(mounts, "_TABLE", tmp_path / "mountinfo")
    mount = mount_of(Path(place))
    assert (mount.file_system, mount.network) == (file_system, network)


def test_links_are_followed_to_their_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(f"{TABLE}40 22 0:40 / {tmp_path}/disk rw - lustre mds:/ rw\n")
    monkeypatch.setattr(mounts, "_TABLE", tmp_path / "mountinfo")
    (tmp_path / "host").symlink_to(tmp_path / "disk" / "host")
    assert mount_of(tmp_path / "host").file_system == "lustre"


def test_what_is_not_known_counts_as_network_and_is_synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "_TABLE", tmp_path / "missing")
    mount = mount_of(tmp_path)
    assert (mount.file_system, mount.network, mount.durability("process")) == ("unknown", True, "disk")


def test_a_local_mount_leaves_durability_as_it_was_asked_for() -> None:
    assert Mount("ext4").durability("process") == "process"
    assert Mount("ext4").durability("disk") == "disk"
