"""The driver's routing tables: which host owns what of each operator, and the files from which routers read it.

A table follows the decisions of the hosts. It may be late, and it can be rebuilt from the logs of the hosts at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from godwit.control import table_from_hosts
from godwit.control.moves import recorded, spans
from godwit.errors import DefinitionError
from godwit.model.ownership import Ownership
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.router.routing_table import read_routing, write_routing
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.history import History
from godwit.spark.hosts.flock_hosts import Hosts
from godwit.spark.hosts.routing_view import RoutingView, owners_by_history, routing_view


class OwnerTables:
    def __init__(self, directory: FlockDirectory, hosts: Hosts, history: History) -> None:
        self._directory = directory
        self._hosts = hosts
        self._history = history
        self._lock = threading.RLock()
        self._tables: dict[str, Routing] = {}

    # -- reading -----------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The operators over streams: their state can move."""
        with self._lock:
            return sorted(self._tables)

    def table(self, operator: str) -> Routing:
        with self._lock:
            table = self._tables.get(operator)
        if table is None:
            raise DefinitionError(
                "this flock has no operator of this name over a stream",
                todo=f"The operators are: {', '.join(self.names()) or 'none yet'}",
                operator=operator,
            )
        return table

    def group_count(self) -> int:
        return len(self._directory.routing.owners)

    def owned(self, host: str) -> dict[str, Units]:
        """The units of a host by the tables, by operator; an operator of which the host owns nothing is left out."""
        owned = {operator: self.table(operator).units_of(host) for operator in self.names()}
        return {operator: units for operator, units in owned.items() if units}

    def ask(self, host: str, operator: str) -> Ownership | None:
        """What the host itself says that it owns; None if it does not know the operator."""
        try:
            ownership = self._hosts.ask(host, messages.ReportOwnership(operator)).ownership
        except DefinitionError:
            return None
        return None if ownership is None else Ownership.from_dict(host, ownership)

    def view(self, operator: str) -> RoutingView:
        return routing_view(operator, self.table(operator), self._history.lines(operator))

    # -- following the facts -----------------------------------------------------------------------------------------

    def define(self, operator: str) -> Routing:
        """The table of an operator that is being defined, written before hosts and routers learn of the operator."""
        with self._lock:
            if operator not in self._tables:
                self._write(operator, table_from_hosts.first_table(self._directory.routing, self._directory.roster()))
                self._history.add("defined", operator=operator, hosts=list(self._directory.roster()))
            return self._tables[operator]

    def moved(self, operator: str, epochs: Mapping[Unit, int], to: str) -> None:
        with self._lock:
            table = self._tables[operator]
            if to not in table.hosts:
                return  # the target has left since, and the tables have the owners after it
            after = table.moved(epochs, to)
            if not after.same_owners(table):
                self._write(operator, after)

    def joined(self, hosts: Sequence[str]) -> None:
        with self._lock:
            for operator, table in list(self._tables.items()):
                self._write(operator, table.joined(hosts))

    def parted(self, hosts: Sequence[str]) -> None:
        with self._lock:
            for operator, table in list(self._tables.items()):
                self._write(operator, table.parted(hosts))

    def rebuild(self) -> None:
        """Rebuild all tables from the logs of the hosts. The previous application may have ended at any point."""
        hosts = self._directory.roster()
        unfinished = self._history.unfinished()
        for operator in self._recorded_streams():
            known = read_routing(str(self._directory.path), operator) or table_from_hosts.first_table(
                self._directory.routing, hosts
            )
            answers = {host: self.ask(host, operator) for host in hosts}
            table = table_from_hosts.rebuilt(
                known, {host: own for host, own in answers.items() if own is not None}, hosts
            )
            self._write(operator, table)
            self._record_moves(operator, known, table, next(iter(unfinished), None))
        for name, lines in unfinished.items():
            self._history.add("recovered", migration=name, **self._outcome(lines))

    def _recorded_streams(self) -> list[str]:
        """The operators over streams that the checkpoint has a record of."""
        records = [(name, self._directory.operator(name)) for name in self._directory.operators()]
        return [name for name, record in records if record is not None and not record[0].ephemeral]

    def _record_moves(self, operator: str, known: Routing, table: Routing, migration: str | None) -> None:
        """Write to the history what has moved after the last line of an application that ended too early."""
        arrivals = owners_by_history(self._history.lines(operator))
        for host, changed in table_from_hosts.changed(known, table).items():
            units = Units.of(*(unit for unit in changed if unit not in arrivals or arrivals[unit][0] != host))
            if units:
                fields = {
                    "operator": operator,
                    "target": host,
                    "groups": spans(units.groups),
                    "keys": sorted(units.keys),
                }
                self._history.add("moved", migration=migration, by="the hosts' logs, found at opening", **fields)

    def _outcome(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """How far a request came that the end of an application interrupted."""
        moves = [recorded(move) for line in lines if line["event"] == "began" for move in line["moves"]]
        there = stayed = 0
        for move in moves:
            table = self._tables.get(move.operator)
            for unit in move.units if table is not None else ():
                there += table is not None and table.owner_of(unit) == move.target
                stayed += table is not None and table.owner_of(unit) == move.origin
        return {
            "outcome": "done" if there and not stayed else "incomplete",
            "reason": "the application ended before it did; the hosts have settled it from their logs",
            "units_moved": there,
            "units_stayed": stayed,
        }

    def _write(self, operator: str, table: Routing) -> None:
        write_routing(str(self._directory.path), operator, table)
        self._tables[operator] = table
