"""Who gets what of a lost host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointUnusable, StaleGeneration
from godwit.model.ownership import Ownership
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.liveness.wills import read_will
from godwit.runtime.takeover.rescue import LostHost, divide, hand_to_heirs
from godwit.state import documents
from godwit.state.fencing import claim
from godwit.state.segments import FileName
from godwit.transport import typed

ALL = Units(frozenset(range(6)), frozenset({100, 200}))


def counts(shares: dict[str, dict[str, Units]]) -> dict[str, int]:
    return {heir: len(share["op"]) for heir, share in shares.items()}


def test_all_is_dealt_out_evenly() -> None:
    shares = divide({"op": ALL}, ["a", "b", "c"], {})
    assert counts(shares) == {"a": 3, "b": 3, "c": 2}
    found = [unit for share in shares.values() for unit in share["op"]]
    assert sorted(found) == sorted(ALL)


def test_who_has_copies_gets_what_they_are_of_and_nothing_else() -> None:
    copied = Units(frozenset({0, 1, 2, 9}))
    shares = divide({"op": ALL}, ["a", "b"], {"op": {"b": copied}})
    assert shares["b"]["op"] == Units(frozenset({0, 1, 2}))
    assert shares["a"]["op"] == ALL - shares["b"]["op"]


def test_the_last_host_gets_all_of_it_whatever_it_has_copies_of() -> None:
    shares = divide({"op": ALL}, ["b"], {"op": {"b": Units.of(Unit("group", 0))}})
    assert shares == {"b": {"op": ALL}}


def estate_in(directory: Path) -> LostHost:
    directory.mkdir()
    (directory / str(FileName("claim", 2))).touch()
    owned = {"op": Ownership.initial("lost", Routing.spread(["lost"], 4))}
    return LostHost("lost", directory, 2, 1, owned, ("op",))


def test_nobody_takes_over_from_a_host_whose_changelog_lacks_an_operator_of_its_keys(tmp_path: Path) -> None:
    """The host was lost before it had written that it owns keys of the operator: they would have no owner."""
    lost_host = estate_in(tmp_path / "lost")
    assert lost_host.unsettled(["op"]) == ""
    assert lost_host.unsettled(["op", "later"]) == "its changelog does not have later yet"


class Heirs:
    """They say what is wanted of them, and note what they were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, host: str, request: typed.Request[Any]) -> Any:
        self.asked.append(f"{host} {request.kind}")
        if isinstance(request, messages.ReportTakeover):
            return messages.TakeoverReport("prepared", bytes=1)
        return messages.UnitsServed({"op": {}})


def test_what_timers_have_put_out_is_told_by_an_heir_that_has_a_share_of_the_operator(tmp_path: Path) -> None:
    """The first of all heirs may have none of it: copies of the whole operator stand on another."""
    told: dict[str, Any] = {}
    heirs = Heirs()

    def ask(host: str, request: typed.Request[Any]) -> Any:
        if isinstance(request, messages.PrepareTakeover):
            told[host] = request.timers
        return heirs.ask(host, request)

    (tmp_path / "hosts").mkdir()
    hand_to_heirs(estate_in(tmp_path / "hosts" / "lost"), {"a": {"other": ALL}, "b": {"op": ALL, "other": ALL}}, ask)
    assert told == {host: {"op": "b", "other": "a"} for host in ("a", "b")}


def test_heirs_give_up_if_there_is_no_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing)
    heirs = Heirs()
    with pytest.raises(CheckpointUnusable):
        hand_to_heirs(estate_in(tmp_path / "lost"), {"a": {"op": ALL}}, heirs.ask)
    assert heirs.asked == ["a prepare_takeover", "a report_takeover", "a abandon_takeover"]


def test_a_will_that_is_there_holds_whatever_failed_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lost host would not start any more, and were the heirs told to give up, its keys would be nobody's."""
    (tmp_path.parent / "wills").mkdir(exist_ok=True)
    monkeypatch.setattr(documents, "sync_directory", failing)
    heirs = Heirs()
    hand_to_heirs(estate_in(tmp_path / "lost"), {"a": {"op": ALL}}, heirs.ask)
    assert heirs.asked == ["a prepare_takeover", "a report_takeover", "a complete_takeover"]


def test_there_is_no_will_of_a_host_that_another_flock_has_started_meanwhile(tmp_path: Path) -> None:
    """Its driver was stopped in the middle of it, say, and goes on after somebody has opened the checkpoint anew."""
    (tmp_path / "hosts").mkdir()
    estate = estate_in(tmp_path / "hosts" / "lost")
    heirs = Heirs()

    def ask(host: str, request: typed.Request[Any]) -> Any:
        if isinstance(request, messages.ReportTakeover):
            claim(estate.directory)
        return heirs.ask(host, request)

    with pytest.raises(StaleGeneration):
        hand_to_heirs(estate, {"a": {"op": ALL}}, ask)
    assert heirs.asked == ["a prepare_takeover", "a report_takeover", "a abandon_takeover"]
    assert read_will(estate.directory) is None


def failing(*_: Any) -> None:
    raise OSError(5, "input/output error")
