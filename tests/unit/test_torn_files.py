"""The small files of a checkpoint, torn or garbled at every place: an error that names the file, or as if there were none."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointCorrupt, CheckpointUnusable, GodwitError, ProcessorTimeout
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.runtime.backup.records import Records
from godwit.runtime.liveness.leases import (
    Lease,
    check_owner,
    end_lease,
    read_failure,
    read_lease,
    read_obituary,
    write_failure,
    write_lease,
    write_obituary,
    write_owner,
)
from godwit.runtime.liveness.wills import read_will, write_will
from godwit.runtime.router.routing_table import read_routing, write_routing
from godwit.spark.checkpoint.flock_directory import FlockDirectory, read_roster
from godwit.spark.checkpoint.history import History
from godwit.state.documents import make_directory, replace_document

ERROR = ProcessorTimeout("too long", operator="speed")


@dataclass(frozen=True)
class Kind:
    """`absent`: whether a garbled file counts as none; else it is an error."""

    path: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    absent: bool


def host(checkpoint: Path) -> Path:
    return checkpoint / "hosts" / "host-0"


def with_host(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def written(checkpoint: Path) -> None:
        host(checkpoint).mkdir(parents=True)
        write(host(checkpoint))

    return written


KINDS = {
    "lease": Kind(
        "hosts/host-0/lease.json",
        with_host(lambda d: write_lease(d, Lease(3, "127.0.0.1:5", 77, "first"))),
        lambda c: read_lease(host(c)),
        True,
    ),
    "obituary": Kind(
        "hosts/host-0/obituary.json",
        with_host(lambda d: write_obituary(d, 3, ERROR)),
        lambda c: read_obituary(host(c), 3),
        True,
    ),
    "failure": Kind(
        "hosts/host-0/failure.json",
        with_host(lambda d: write_failure(d, ERROR)),
        lambda c: read_failure(host(c)),
        True,
    ),
    "owner": Kind("owner.json", lambda c: write_owner(str(c), "first"), lambda c: check_owner(str(c), "first"), False),
    "will": Kind(
        "wills/host-0.json",
        lambda c: write_will(host(c), "will-1", {"host-1": {"speed": Units(frozenset({3, 4}))}}, {1: 9}),
        lambda c: read_will(host(c)),
        False,
    ),
    "record": Kind(
        "backups/host-0/1.json",
        lambda c: Records(str(c), "host-0").next(None, "kept", "host-1", 1),
        lambda c: Records(str(c), "host-0").newest(),
        False,
    ),
    "routing": Kind(
        "routing/speed.mp",
        lambda c: write_routing(str(c), "speed", Routing.spread(["host-0", "host-1"], 16)),
        lambda c: read_routing(str(c), "speed"),
        False,
    ),
    "flock": Kind(
        "flock.json", lambda c: FlockDirectory.open(c, 2, 16), lambda c: FlockDirectory.open(c, 2, 16), False
    ),
    "roster": Kind("roster.json", lambda c: FlockDirectory.open(c, 2, 16).write_roster(["host-0"]), read_roster, False),
}
GARBAGE = [b"", b"{", b"[]", b"{}", b"null", b"7", b'"text"', b"\xff\xfe\x00", b"\x00" * 64, b'{"generation": "x"}']


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def look(kind: Kind, checkpoint: Path) -> GodwitError | None:
    """An error of ours, or nothing; every other one fails the test."""
    try:
        kind.read(checkpoint)
    except GodwitError as error:
        return error
    return None


def test_cut_short_anywhere_or_replaced_by_garbage(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path)
    path = tmp_path / kind.path
    whole = path.read_bytes()
    assert look(kind, tmp_path) is None
    for content in [*(whole[:end] for end in range(len(whole))), *GARBAGE]:
        path.write_bytes(content)
        error = look(kind, tmp_path)
        if kind.absent:
            assert error is None
            assert kind.read(tmp_path) is None
        else:
            assert isinstance(error, (CheckpointCorrupt, CheckpointUnusable)), content
            assert path.name in str(error)
            assert error.todo
    path.write_bytes(whole)
    assert look(kind, tmp_path) is None


def test_a_torn_owner_says_how_to_go_on_and_that_works(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_bytes(b'{"incarn')
    with pytest.raises(
        CheckpointUnusable, match=r"owner\.json does not say which flock.*Open a Flock on the checkpoint"
    ):
        check_owner(str(tmp_path), "first")
    write_owner(str(tmp_path), "second")
    check_owner(str(tmp_path), "second")


def test_a_history_with_bytes_that_are_no_text_is_read_without_that_line(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add("first")
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\xfd")
    history.add("second")
    assert [line["event"] for line in history.lines()] == ["first", "second"]


# ---- what survives a power cut


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed from now on, in this order, by name."""
    noted: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        noted.append(("sync", Path(f"/proc/self/fd/{fd}").resolve().name))
        fsync(fd)

    def renamed(source: Any, target: Any, **options: Any) -> None:
        noted.append(("rename", Path(target).name))
        replace(source, target, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return noted


@pytest.mark.parametrize("name", ["lease", "obituary", "failure", "owner", "will", "flock", "roster"])
def test_content_then_name_are_synced(name: str, tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    kind = KINDS[name]
    kind.write(tmp_path)
    path = tmp_path / kind.path
    at = calls.index(("rename", path.name))
    assert calls[at - 1][0] == "sync", "the content, before it gets its name"
    assert calls[at - 1][1].startswith(path.name), "the content, before it gets its name"
    assert calls[at + 1] == ("sync", path.parent.name), "the name"


def test_new_directories_are_synced_in_their_parents(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    assert calls == [("sync", tmp_path.name), ("sync", "a"), ("sync", "b")]
    calls.clear()
    make_directory(tmp_path / "a" / "b" / "c")
    assert calls == []


def test_two_who_replace_a_file_at_once_leave_one_of_them_whole(tmp_path: Path) -> None:
    contents = [json.dumps({"writer": writer, "filler": "x" * 20_000 * writer}) for writer in range(1, 5)]

    def write(content: str) -> None:
        for _ in range(30):
            replace_document(tmp_path / "owner.json", content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "owner.json").exists():
            assert (tmp_path / "owner.json").read_text() in contents
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["owner.json"]


# ---- leases


@pytest.mark.parametrize("successor_comes", ["before", "between", "after"])
def test_a_host_that_stops_late_leaves_the_lease_of_its_successor(tmp_path: Path, successor_comes: str) -> None:
    mine, other = Lease(3, "127.0.0.1:5", 77, "first"), Lease(4, "127.0.0.1:6", 78, "first")
    write_lease(tmp_path, mine)
    if successor_comes == "before":
        write_lease(tmp_path, other)
    if successor_comes == "between":
        read_lease(tmp_path)  # it still is its own
        write_lease(tmp_path, other)
    end_lease(tmp_path, 3)
    if successor_comes == "after":
        assert read_lease(tmp_path) is None
        write_lease(tmp_path, other)
    assert read_lease(tmp_path) == other
    end_lease(tmp_path, 3)
    assert read_lease(tmp_path) == other
    end_lease(tmp_path, 4)
    assert read_lease(tmp_path) is None


def test_marks_of_leases_that_ended_do_not_pile_up(tmp_path: Path) -> None:
    for generation in range(1, 12):
        write_lease(tmp_path, Lease(generation, "127.0.0.1:5", 77))
        end_lease(tmp_path, generation)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lease-00000000000000000011.ended", "lease.json"]
