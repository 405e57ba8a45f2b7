"""Who joins may be waiting for a host that is lost: neither must wait for the other."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from godwit.errors import HostUnavailable
from godwit.runtime.messages import SetRoster
from godwit.spark.hosts.membership import Membership


def test_a_lost_host_is_gone_before_its_place_on_the_roster_is(tmp_path: Path) -> None:
    parted = threading.Event()
    kept: list[list[str]] = []
    directory: Any = SimpleNamespace(path=tmp_path, roster=lambda: ("host-0", "host-1"), write_roster=kept.append)
    hosts: Any = SimpleNamespace(remove=lambda _: parted.set(), ask_now=lambda *_: None)
    owners: Any = SimpleNamespace(parted=lambda _: None)
    nothing: Any = None
    members = Membership(directory, hosts, owners, nothing, nothing, nothing)
    with members.changing:  # as while a host joins, which asks all others how far they are
        losing = threading.Thread(target=members.lost, args=("host-1",), daemon=True)
        losing.start()
        assert parted.wait(10), "so whoever asks it hears that it does not come back"
        assert not kept
    losing.join(10)
    assert kept == [["host-0"]]


def test_a_host_that_has_just_been_lost_too_need_not_hear_who_is_there() -> None:
    informed: list[tuple[str, SetRoster]] = []

    def ask(host: str, request: SetRoster) -> None:
        if host == "host-0":
            raise HostUnavailable("host-0 has ended and is not started again", host=host)
        informed.append((host, request))

    directory: Any = SimpleNamespace(roster=lambda: ("host-0", "host-1"))
    asked: Any = SimpleNamespace(ask=ask)
    nothing: Any = None
    Membership(directory, asked, nothing, nothing, nothing, nothing).tell_roster()
    assert informed == [("host-1", SetRoster(("host-0", "host-1")))]
