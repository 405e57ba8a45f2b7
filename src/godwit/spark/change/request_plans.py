"""Which units have to move for a request, by the tables, the roster and the copies of standbys.

Only plans: nothing is changed here. A plan is made again when the turn of its request comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from godwit.control import planner
from godwit.control.migration_report import MoveProgress
from godwit.control.moves import Move, gathered
from godwit.control.reservations import Reservation
from godwit.errors import DefinitionError
from godwit.model.units import Units
from godwit.spark.change.chosen_units import checked_host
from godwit.spark.change.migration_handle import Migration
from godwit.spark.change.run_moves import MoveRunner
from godwit.spark.hosts.membership import Membership
from godwit.spark.hosts.owner_tables import OwnerTables


@dataclass(frozen=True, slots=True)
class Plan:
    """`standing`: the copies that become owners, for protocol "standby".

    `roster`: the plan depends on the roster, so no host may join or leave meanwhile by another request.
    """

    moves: list[Move]
    joining: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    minimum: int | None = None
    standing: list[tuple[Migration, MoveProgress]] = field(default_factory=list)
    roster: bool = False

    def reservation(self) -> Reservation:
        return Reservation.of(self.moves, self.leaving, roster=self.roster or bool(self.joining or self.leaving))


class RequestPlanner:
    """`copies`: the copies of all standbys."""

    def __init__(
        self,
        tables: OwnerTables,
        members: Membership,
        runner: MoveRunner,
        copies: Callable[[], list[tuple[Migration, MoveProgress]]],
    ) -> None:
        self._tables = tables
        self._members = members
        self._runner = runner
        self._copies = copies

    def scaled(self, count: int) -> Plan:
        now = list(self._members.hosts())
        self._members.check_slots(count)
        if count >= len(now):
            return self._spread([*now, *self._members.next_hosts(count - len(now))], now)
        newest_first = sorted(now, key=lambda host: (self._group_count(host), -now.index(host)))
        gone = newest_first[: len(now) - count]  # the hosts with the fewest groups, so that few groups move
        return self._spread([host for host in now if host not in gone], now)

    def arranged(self, count: int, warm: int) -> Plan:
        """`count` hosts that own something, if possible from the empty ones that are started; `warm` empty hosts stay."""
        now = list(self._members.hosts())
        owning = [host for host in now if self._tables.owned(host)]
        empty = [host for host in now if host not in owning]
        more = self._members.next_hosts(max(0, count - len(now)))
        fewest_first = sorted(owning, key=lambda host: (self._group_count(host), -now.index(host)))
        gone = fewest_first[: max(0, len(owning) - count)]
        chosen = [host for host in [*owning, *empty, *more] if host not in gone][:count]
        rest = [host for host in now if host not in chosen]
        self._members.check_slots(len(chosen) + len(rest))
        return replace(self._spread(chosen, [host for host in now if host not in rest[:warm]]), roster=True)

    def warmed(self, count: int) -> Plan:
        """`count` hosts that are started and own nothing: hosts join, or empty ones leave."""
        now = list(self._members.hosts())
        empty = [host for host in now if not self._tables.owned(host)]
        self._members.check_slots(len(now) + max(0, count - len(empty)))
        return Plan([], self._members.next_hosts(max(0, count - len(empty))), empty[count:])

    def _group_count(self, host: str) -> int:
        return sum(len(units.groups) for units in self._tables.owned(host).values())

    def without(self, host: Any) -> Plan:
        now = list(self._members.hosts())
        name = checked_host(host, now, "")
        return self._spread([one for one in now if one != name], now)

    def _spread(self, hosts: list[str], now: list[str]) -> Plan:
        if not hosts:
            raise DefinitionError(
                f"{now[0]} is the last host of this flock, so no other host can take its keys",
                todo="Call flock.scale() with more hosts first, or close the flock",
            )
        tables = {operator: self._tables.table(operator) for operator in self._tables.names()}
        moves = [move for name, table in tables.items() for move in planner.spread(name, table, hosts)]
        least = sum(planner.minimum(table, hosts) for table in tables.values())
        joining = [host for host in hosts if host not in now]
        return Plan(moves, joining, [host for host in now if host not in hosts], least)

    def moves(self, operator: str, units: Units, to: Any) -> list[Move]:
        table = self._tables.table(operator)
        target = checked_host(to, table.hosts, "to=")
        owners = [(table.owner_of(unit), target, unit) for unit in units]
        away = [route for route in owners if route[0] != target]
        if not away:
            raise DefinitionError(
                f"{target} already owns all of these keys", todo="Look at flock.routing()", operator=operator
            )
        return gathered(operator, away)

    def rebalanced(self, operator: str) -> Plan:
        table = self._tables.table(operator)
        hosts = [host for host in table.hosts if self._tables.owned(host)]  # a warm host stays empty
        measured = {host: self._runner.measure(host, operator) for host in hosts}
        return Plan(planner.rebalance(operator, table, hosts, measured))

    def copied(self, operator: str, units: Units | None, to: Any) -> Plan:
        table = self._tables.table(operator)
        target = checked_host(to, table.hosts, "to=")
        if units is None:
            units = Units()
            for host in table.hosts:
                units |= table.units_of(host) if host != target else Units()
        return Plan(self.moves(operator, units, to))

    def handed_over_from(self, host: Any) -> Plan:
        now = list(self._members.hosts())
        name = checked_host(host, now, "")
        wanted = [Move(operator, name, "", units) for operator, units in self._tables.owned(name).items()]
        return self.handed_over(wanted, leaving=[name])

    def handed_over(self, wanted: list[Move], leaving: Iterable[str] = ()) -> Plan:
        """The copies that together have exactly the wanted units. A copy is handed over as a whole."""
        standing: list[tuple[Migration, MoveProgress]] = []
        for move in wanted:
            copies = [pair for pair in self._copies() if _copy_of(pair[1].move, move)]
            missing = move.units
            for _, progress in copies:
                missing -= progress.move.units
            more = [progress for _, progress in copies if progress.move.units - move.units]
            if missing or more:
                what = (
                    f"{len(missing)} of {len(move.units)} units have no copy"
                    if missing
                    else "a copy has more units than these"
                )
                raise DefinitionError(
                    f"the copies cannot be handed over: {what}",
                    todo="Make copies of exactly these units with flock.standby(...), and wait for it",
                    operator=move.operator,
                    origin=move.origin,
                )
            standing += copies
        return Plan([progress.move for _, progress in standing], leaving=list(leaving), standing=standing)


def _copy_of(copy: Move, wanted: Move) -> bool:
    same = (copy.operator, copy.origin) == (wanted.operator, wanted.origin)
    return same and copy.target == (wanted.target or copy.target) and bool(copy.units & wanted.units)
