"""Which hosts a flock that follows its load uses, keeps warm, starts and lets go; from tables alone."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.control.planner import shares
from godwit.errors import NotEnoughSlots
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.spark.change.request_plans import Plan, RequestPlanner

GROUPS = 64
SLOTS = 6


class Tables:
    """One operator, spread over the hosts that own something, and known to those that are warm."""

    def __init__(self, owning: list[str], warm: list[str]) -> None:
        self._table = Routing.spread(owning, GROUPS).joined([*owning, *warm])

    def names(self) -> list[str]:
        return ["count"]

    def table(self, operator: str) -> Routing:
        return self._table

    def owned(self, host: str) -> dict[str, Units]:
        units = self._table.units_of(host)
        return {"count": units} if units else {}


class Roster:
    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts

    def hosts(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    def next_hosts(self, count: int) -> list[str]:
        return [f"host-{len(self._hosts) + at}" for at in range(count)]

    def check_slots(self, hosts: int) -> None:
        if hosts > SLOTS:
            raise NotEnoughSlots(f"{hosts} hosts")


def plans(owning: int, warm: int) -> RequestPlanner:
    hosts = [f"host-{at}" for at in range(owning + warm)]
    tables: Any = Tables(hosts[:owning], hosts[owning:])
    roster: Any = Roster(hosts)
    runner: Any = None
    return RequestPlanner(tables, roster, runner, list)


def receivers(plan: Plan) -> set[str]:
    return {move.target for move in plan.moves}


@pytest.mark.parametrize(
    ("owning", "empty", "count", "warm", "gets", "joining", "leaving"),
    [
        (1, 0, 2, 0, {"host-1"}, ["host-1"], []),  # one must be started
        (1, 1, 2, 1, {"host-1"}, [], []),  # the warm one is taken
        (1, 1, 3, 1, {"host-1", "host-2"}, ["host-2"], []),  # the warm one first
        (3, 0, 2, 0, {"host-0", "host-1"}, [], ["host-2"]),  # the newest goes
        (3, 0, 2, 1, {"host-0", "host-1"}, [], []),  # it stays, empty
        (3, 1, 2, 1, {"host-0", "host-1"}, [], ["host-3"]),  # one warm host is enough
        (2, 2, 2, 1, set(), [], ["host-3"]),
    ],
)
def test_hosts_are_arranged(
    owning: int, empty: int, count: int, warm: int, gets: set[str], joining: list[str], leaving: list[str]
) -> None:
    plan = plans(owning, empty).arranged(count, warm)
    assert (receivers(plan), plan.joining, plan.leaving) == (gets, joining, leaving)


def test_arranging_moves_no_more_than_an_even_spread_needs() -> None:
    plan = plans(2, 1).arranged(3, 1)
    table = Routing.spread(["host-0", "host-1"], GROUPS)
    assert sum(len(move.units.groups) for move in plan.moves) == plan.minimum
    assert plan.minimum == shares(table, ["host-0", "host-1", "host-2"])["host-2"]


@pytest.mark.parametrize(
    ("empty", "count", "joining", "leaving"),
    [
        (0, 1, ["host-2"], []),
        (1, 1, [], []),
        (0, 2, ["host-2", "host-3"], []),
        (2, 1, [], ["host-3"]),
        (1, 0, [], ["host-2"]),
    ],
)
def test_so_many_are_kept_warm(empty: int, count: int, joining: list[str], leaving: list[str]) -> None:
    plan = plans(2, empty).warmed(count)
    assert (plan.moves, plan.joining, plan.leaving) == ([], joining, leaving)


def test_more_than_there_are_slots_is_refused() -> None:
    with pytest.raises(NotEnoughSlots):
        plans(2, 1).arranged(7, 1)
    with pytest.raises(NotEnoughSlots):
        plans(5, 0).warmed(2)
