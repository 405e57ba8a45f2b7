"""Fencing where names and writes are cached: a host that was paused answers nothing after others took over."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointUnusable, StaleGeneration
from godwit.model.units import Units
from godwit.runtime.liveness.wills import check_alive, read_will, write_will
from godwit.state.changelog import Changelog
from godwit.state.fencing import Fence, Permit, claim
from godwit.state.frames import Part
from godwit.state.mirroring import Mirror
from godwit.state.mounts import mount_of
from godwit.state.segments import list_names
from tests.unit.clients import Clients


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clients:
    return Clients(monkeypatch, tmp_path, "a", "b", "c")


def state(number: int) -> Part:
    return Part({"kind": "state", "op": "op", "batch": 0, "n": number}, b"x" * 100)


def answered(log: Changelog, number: int) -> None:
    """What a host does before a task may end: see `LaneExchange._finish`."""
    log.sync(log.append([state(number)]))
    if log.fenced():
        raise StaleGeneration("replaced")


def opened(directory: Path) -> tuple[Changelog, list[int]]:
    log, recovered = Changelog.open(directory, "process")
    return log, [part.info["n"] for part in recovered.parts() if part.info["kind"] == "state"]


def test_a_paused_host_answers_nothing_after_others_took_over(clients: Clients) -> None:
    paused, _ = opened(clients.at("a") / "host")
    answered(paused, 1)
    assert not paused.fenced(), "and its client remembers that there is no newer claim"
    successor, _ = opened(clients.at("b") / "host")
    with pytest.raises(StaleGeneration):
        answered(paused, 2)
    assert paused.fenced()
    answered(successor, 3)
    assert opened(clients.at("c") / "host")[1] == [1, 3]


def test_what_was_answered_is_seen_by_others_while_the_host_is_only_paused(clients: Clients) -> None:
    paused, _ = opened(clients.at("a") / "host")
    answered(paused, 1)
    _, seen = opened(clients.at("b") / "host")
    assert seen == [1]


def test_what_is_synced_after_a_takeover_is_not_acknowledged(clients: Clients) -> None:
    """A hand-over's `released` counts when it is synced: written before and synced after, its successor has not read it."""
    paused, _ = opened(clients.at("a") / "host")
    answered(paused, 1)
    lsn = paused.append([state(2)])
    paused.flush(lsn)
    _, seen = opened(clients.at("b") / "host")
    assert seen == [1]
    with pytest.raises(StaleGeneration):
        paused.sync(lsn)


def test_a_host_that_is_not_paused_goes_on_answering(clients: Clients) -> None:
    log, _ = opened(clients.at("a") / "host")
    for number in range(20):
        answered(log, number)
    assert not log.fenced()


def test_a_takeover_that_crashed_after_its_claim_is_made_good_by_the_next_one(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, _ = opened(clients.at("a") / "host")
    answered(paused, 1)
    with monkeypatch.context() as crash:
        crash.setattr(Permit, "remove", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            opened(clients.at("b") / "host")
    answered(paused, 2)  # nobody has read anything yet
    _, seen = opened(clients.at("c") / "host")
    assert seen == [1, 2]
    with pytest.raises(StaleGeneration):
        answered(paused, 3)
    assert not list((clients.at("c") / "host").glob("serving-00000001"))


def test_a_claim_made_by_an_old_listing_is_given_back(clients: Clients) -> None:
    """Stopped between its look at the directory and its claim, a process wakes up to a number that others have passed."""
    late = clients.at("a") / "host"
    opened(late)[0].close()
    list_names(late)  # this is what client `a` goes by
    newest = [opened(clients.at("b") / "host")[0] for _ in range(3)][-1]
    answered(newest, 1)
    with pytest.raises(StaleGeneration):
        Changelog.open(late, "process")
    answered(newest, 2)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_an_answer_lost_on_the_way_fences_nobody(clients: Clients, lost: int) -> None:
    """The client asks again, and hears that the mark is there already, or gone already: it was its own doing."""
    log, _ = opened(clients.at("a") / "host")
    for number in range(6):
        clients.by_name["a"].lost_answers = lost
        answered(log, number)
    assert not log.fenced()


def test_a_directory_that_is_gone_fences_its_host(clients: Clients, tmp_path: Path) -> None:
    log, _ = opened(clients.at("a") / "host")
    (tmp_path / "server" / "host").rename(tmp_path / "server" / "elsewhere")
    assert log.fenced()


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_token_that_cannot_be_proved_is_no_proof(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log, _ = opened(clients.at("a") / "host")

    def broken(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", broken)
    monkeypatch.setattr(os, "rmdir", broken)
    with pytest.raises(CheckpointUnusable, match=os.strerror(number)):
        answered(log, 1)


def test_a_stale_handle_is_the_end_of_a_token(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened(clients.at("a") / "host")

    def staled(*_: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "mkdir", staled)
    monkeypatch.setattr(os, "rmdir", staled)
    assert log.fenced()


def test_removing_a_token_does_not_end_before_it_is_gone(clients: Clients) -> None:
    """Client `b` remembers that there is no mark; it must not believe that for ever."""
    directory = clients.at("a") / "host"
    claimed = directory.mkdir() or claim(directory)
    remembered = clients.at("b") / "host"
    assert not (remembered / f"serving-{claimed:08d}" / "mark").exists()
    fence = Fence(directory, claimed)
    assert not fence.down()
    Permit(remembered, claimed).remove()
    assert fence.down()


def test_a_token_is_removed_while_its_owner_goes_on_proving_it(clients: Clients) -> None:
    directory = clients.at("a") / "host"
    directory.mkdir()
    fence = Fence(directory, claim(directory))
    began, proofs = threading.Event(), 0

    def prove() -> None:
        nonlocal proofs
        while not fence.down():
            proofs += 1
            began.set()

    owner = threading.Thread(target=prove, daemon=True)
    owner.start()
    assert began.wait(20)
    claim(clients.at("b") / "host")
    owner.join(20)
    assert not owner.is_alive()
    assert proofs > 0


def test_threads_of_a_host_prove_side_by_side(clients: Clients) -> None:
    directory = clients.at("a") / "host"
    directory.mkdir()
    generation = claim(directory)
    fallen: list[int] = []

    def prove(number: int) -> None:
        fence = Fence(directory, generation)
        fallen.extend(number for _ in range(50) if fence.down())

    threads = [threading.Thread(target=prove, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert fallen == []


def test_a_backup_is_not_acknowledged_after_somebody_restores_from_it(clients: Clients) -> None:
    mirror = Mirror(clients.at("a") / "backup", 1)
    mirror.write("log-00000001-00000001", 0, b"rows", ahead=False)
    claim(clients.at("b") / "backup")
    with pytest.raises((StaleGeneration, CheckpointUnusable)):
        mirror.write("log-00000001-00000001", 4, b"more", ahead=False)


def test_what_a_backup_acknowledged_is_seen_by_whoever_restores(clients: Clients) -> None:
    mirror = Mirror(clients.at("a") / "backup", 1)
    mirror.write("log-00000001-00000001", 0, b"rows", ahead=False)
    assert (clients.at("b") / "backup" / "log-00000001-00000001").read_bytes() == b"rows"


def test_a_host_with_heirs_is_not_started_though_its_machine_remembers_that_there_was_no_will(clients: Clients) -> None:
    here, there = (clients.at(name) / "godwit" / "hosts" / "host-0" for name in ("a", "b"))
    write_will(there.with_name("host-7"), "other", {}, {})
    assert read_will(here) is None
    check_alive(here)
    write_will(there, "will-1", {"host-1": {"op": Units(frozenset({1}))}}, {1: 4})
    with pytest.raises(StaleGeneration, match="other hosts own its keys"):
        check_alive(here)


def test_a_directory_of_an_earlier_version_has_no_token_and_opens(clients: Clients, tmp_path: Path) -> None:
    log, _ = opened(clients.at("a") / "host")
    answered(log, 1)
    log.close()
    for permit in (tmp_path / "server" / "host").glob("serving-*"):
        (permit / "mark").rmdir() if (permit / "mark").exists() else None
        permit.rmdir()
    successor, seen = opened(clients.at("b") / "host")
    assert seen == [1]
    answered(successor, 2)


def test_local_directories_are_fenced_by_looks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel answers them: a look is as good as a change, and thirty times as fast."""
    assert not mount_of(tmp_path).network
    log, _ = opened(tmp_path / "host")
    monkeypatch.setattr(os, "mkdir", lambda *_: pytest.fail("a look is enough"))
    answered(log, 1)
    assert not log.fenced()


def test_everything_else_of_a_mount_counts_as_network(clients: Clients, tmp_path: Path) -> None:
    assert mount_of(clients.at("a") / "host").file_system == "nfs4"
    assert mount_of(clients.at("a")).network
    assert not mount_of(tmp_path / "server").network
