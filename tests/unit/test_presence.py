"""Whether the owner of a checkpoint lives, and what opening the checkpoint makes of the answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from godwit.errors import CheckpointInUse, DefinitionError
from godwit.runtime.liveness import presence
from godwit.runtime.liveness.leases import check_owner, write_owner
from godwit.runtime.liveness.presence import Owner, Presence, ask_owner, read_owner
from godwit.spark.checkpoint.checkpoint_in_use import check_not_in_use, owner_of_this_process


@pytest.fixture
def living() -> Iterator[Presence]:
    made = Presence("127.0.0.1", "abcd1234")
    yield made
    made.close()


def owner_at(address: str) -> Owner:
    return Owner("abcd1234", address, socket.gethostname(), os.getpid(), "local-1", "2026-01-01T00:00:00Z")


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def own(checkpoint: Path, owner: Owner) -> None:
    (checkpoint / "owner.json").write_text(json.dumps(asdict(owner)))


def test_a_flock_that_lives_answers_every_time(living: Presence) -> None:
    assert [ask_owner(owner_at(living.address)) for _ in range(3)] == ["lives"] * 3


def test_a_flock_that_was_closed_or_killed_is_gone(living: Presence) -> None:
    made = Presence("127.0.0.1", "abcd1234")
    made.close()
    assert ask_owner(owner_at(made.address)) == "gone"


def test_another_program_on_the_port_is_not_taken_for_the_flock(living: Presence) -> None:
    assert ask_owner(replace(owner_at(living.address), incarnation="ffff0000")) == "gone"


def test_who_accepts_and_says_nothing_may_live_unless_its_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        owner = owner_at(f"127.0.0.1:{silent.getsockname()[1]}")
        assert ask_owner(owner) == "silent"
        assert ask_owner(replace(owner, pid=ended_pid())) == "gone"


def test_loopback_of_another_machine_is_not_asked(living: Presence) -> None:
    assert ask_owner(replace(owner_at(living.address), machine="elsewhere")) == "elsewhere"


def test_a_machine_without_a_name_is_unreachable() -> None:
    assert ask_owner(owner_at("no-such-machine.invalid:4711")) == "unreachable"


def test_an_address_that_this_machine_has_not_is_refused() -> None:
    with pytest.raises(DefinitionError, match="cannot listen on"):
        Presence("192.0.2.1", "abcd1234")


def test_a_checkpoint_in_use_is_refused_by_name_unless_it_is_to_be_taken_over(living: Presence, tmp_path: Path) -> None:
    own(tmp_path, owner_at(living.address))
    said = rf"in use by application local-1 \(pid {os.getpid()} on .*{living.address}\) since 2026.*take_over=True"
    with pytest.raises(CheckpointInUse, match=said):
        check_not_in_use(tmp_path, take_over=False)
    assert "taken over from application local-1" in check_not_in_use(tmp_path, take_over=True)


@pytest.mark.parametrize("take_over", [False, True])
def test_a_checkpoint_that_nobody_has_is_free(living: Presence, tmp_path: Path, take_over: bool) -> None:
    assert check_not_in_use(tmp_path / "new", take_over) == ""
    gone = Presence("127.0.0.1", "abcd1234")
    gone.close()
    own(tmp_path, owner_at(gone.address))
    assert check_not_in_use(tmp_path, take_over) == ""
    own(tmp_path, replace(owner_at(living.address), closed=True))
    assert check_not_in_use(tmp_path, take_over) == ""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"incarnation": "a", "closed": false}'])
def test_an_owner_of_an_older_version_or_a_torn_file_is_not_asked(tmp_path: Path, content: str) -> None:
    (tmp_path / "owner.json").write_text(content)
    assert read_owner(tmp_path) is None
    assert check_not_in_use(tmp_path, take_over=False) == ""


def test_it_is_remembered_that_the_owner_could_not_be_asked(living: Presence, tmp_path: Path) -> None:
    own(tmp_path, replace(owner_at(living.address), machine="elsewhere"))
    assert "listens only there" in check_not_in_use(tmp_path, take_over=False)


def test_what_a_flock_writes_of_itself_is_what_is_read(living: Presence, tmp_path: Path) -> None:
    write_owner(str(tmp_path), "abcd1234", **owner_of_this_process("local-7", living.address))
    owner = read_owner(tmp_path)
    assert owner is not None
    assert (owner.application, owner.pid, owner.closed) == ("local-7", os.getpid(), False)
    assert ask_owner(owner) == "lives"
    check_owner(str(tmp_path), "abcd1234")
