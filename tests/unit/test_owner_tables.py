"""The driver's tables follow what hosts say, in whichever order it is heard."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from godwit.model.routing import Routing
from godwit.model.units import Unit
from godwit.spark.hosts.owner_tables import OwnerTables

ONE = Unit("group", 1)


@pytest.fixture
def owners(tmp_path: Path) -> OwnerTables:
    first = Routing.spread(["a", "b"], 4)
    directory: Any = SimpleNamespace(path=tmp_path, routing=first, roster=lambda: ("a", "b"))
    history: Any = SimpleNamespace(add=lambda *_, **__: None)
    made = OwnerTables(directory, None, history)  # type: ignore[arg-type]
    made.define("op")
    return made


def test_newer_move_that_is_heard_first_stays(owners: OwnerTables) -> None:
    """Before: that the unit was back at its first host was no news, and then the older move was taken for the newest."""
    first = owners.table("op").owner_of(ONE)
    other = "b" if first == "a" else "a"
    owners.moved("op", {ONE: 3}, first)
    owners.moved("op", {ONE: 2}, other)
    assert owners.table("op").owner_of(ONE) == first


def test_move_to_a_host_that_has_left_since_changes_nothing(owners: OwnerTables) -> None:
    owners.moved("op", dict.fromkeys(owners.table("op").units_of("b"), 2), "a")
    owners.parted(["b"])
    before = owners.table("op")
    owners.moved("op", {}, "b")
    owners.moved("op", {ONE: 2}, "b")
    assert owners.table("op") == before
