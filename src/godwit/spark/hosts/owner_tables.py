"""The driver's tables: who owns what of each operator, as the hosts have told, and the files from which routers read it.

A table is written only after the hosts have decided; it may be late, and it may be made anew from the hosts' logs at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from godwit.control import table_from_hosts as recovery
from godwit.control.moves import groups_in, recorded, spans
from godwit.errors import DefinitionError
from godwit.model.ownership import Ownership
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.router.routing_table import read_routing, write_routing
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.history import History
from godwit.spark.hosts.host_jobs import Hosts


class OwnerTables:
    def __init__(self, home: FlockDirectory, hosts: Hosts, history: History) -> None:
        self._home = home
        self._hosts = hosts
        self._history = history
        self._lock = threading.RLock()
        self._tables: dict[str, Routing] = {}

    # -- looking -----------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The operators whose state can move."""
        with self._lock:
            return sorted(self._tables)

    def table(self, operator: str) -> Routing:
        with self._lock:
            found = self._tables.get(operator)
        if found is None:
            raise DefinitionError(
                "no operator of this name, over a stream, on this flock",
                todo=f"There are: {', '.join(self.names()) or 'none yet'}",
                operator=operator,
            )
        return found

    def group_count(self) -> int:
        return len(self._home.routing.owners)

    def owned(self, host: str) -> dict[str, Units]:
        """What the tables say that a host has, by operator; only operators of which it has something."""
        found = {operator: self.table(operator).units_of(host) for operator in self.names()}
        return {operator: units for operator, units in found.items() if units}

    def ask(self, host: str, operator: str) -> Ownership | None:
        """The host's own word; None if it has never heard of the operator."""
        try:
            ownership = self._hosts.ask(host, messages.ReportOwnership(operator)).ownership
        except DefinitionError:
            return None
        return None if ownership is None else Ownership.from_dict(host, ownership)

    def view(self, operator: str) -> RoutingView:
        return _view(operator, self.table(operator), self._history.lines(operator))

    # -- following the facts -----------------------------------------------------------------------------------------

    def define(self, operator: str) -> Routing:
        """The table of an operator that is being defined, written before hosts and routers hear of it."""
        with self._lock:
            if operator not in self._tables:
                self._write(operator, recovery.first_table(self._home.routing, self._home.roster()))
                self._history.add("defined", operator=operator, hosts=list(self._home.roster()))
            return self._tables[operator]

    def moved(self, operator: str, epochs: Mapping[Unit, int], to: str) -> None:
        with self._lock:
            table = self._tables[operator]
            if to not in table.hosts:
                return  # it has left since, and who has what it had is known
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
        """All tables anew from the hosts' logs, after an application that may have ended anywhere."""
        hosts = self._home.roster()
        unfinished = self._history.unfinished()
        for operator in self._kept():
            known = read_routing(str(self._home.path), operator) or recovery.first_table(self._home.routing, hosts)
            said = {host: self.ask(host, operator) for host in hosts}
            table = recovery.rebuilt(known, {host: own for host, own in said.items() if own is not None}, hosts)
            self._write(operator, table)
            self._note_found(operator, known, table, next(iter(unfinished), None))
        for name, lines in unfinished.items():
            self._history.add("recovered", migration=name, **self._became(lines))

    def _kept(self) -> list[str]:
        found = [(name, self._home.operator(name)) for name in self._home.operators()]
        return [name for name, kept in found if kept is not None and not kept[0].ephemeral]

    def _note_found(self, operator: str, known: Routing, table: Routing, migration: str | None) -> None:
        """What has moved, and nobody was left to write it down."""
        told = _told(self._history.lines(operator))
        for host, found in recovery.changed(known, table).items():
            units = Units.of(*(unit for unit in found if unit not in told or told[unit][0] != host))
            if units:
                fields = {
                    "operator": operator,
                    "target": host,
                    "groups": spans(units.groups),
                    "keys": sorted(units.keys),
                }
                self._history.add("moved", migration=migration, by="the hosts' logs, found at opening", **fields)

    def _became(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """How a request stands that an application's end cut short."""
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
        write_routing(str(self._home.path), operator, table)
        self._tables[operator] = table


# -- for people ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoutingView:
    """Who owns what of an operator, since when, and by which migration. Iterate it for rows, or print it."""

    operator: str
    version: int
    rows: tuple[dict[str, Any], ...]

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {"operator": self.operator, "version": self.version, "rows": [dict(row) for row in self.rows]}

    def __repr__(self) -> str:
        head = ("host", "groups", "of them", "keys apart", "since", "migration")
        lines = [head] + [
            (
                r["host"],
                _short(r["groups"]),
                str(r["group_count"]),
                str(len(r["keys"])),
                r["since"] or "",
                r["migration"] or "",
            )
            for r in self.rows
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([f"{self.operator}, table {self.version}", *shown])


def _short(text: str, chars_max: int = 40) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 4] + " ..."


def _view(operator: str, table: Routing, lines: list[dict[str, Any]]) -> RoutingView:
    """Rows by host and by the migration that brought it there."""
    began = next((line["at"] for line in lines if line["event"] == "defined"), None)
    known = _told(lines)
    found: dict[tuple[str, str, str], list[Unit]] = {}
    for host in table.hosts:
        units = table.units_of(host)
        if not units:
            found[host, "", ""] = []
        for unit in units:
            owner, since, migration = known.get(unit, (host, began or "", None))
            told = (since, migration or "") if owner == host else ("", "")
            found.setdefault((host, *told), []).append(unit)
    rows = [_row(*key, Units.of(*units)) for key, units in sorted(found.items())]
    return RoutingView(operator, table.version, tuple(rows))


def _told(lines: list[dict[str, Any]]) -> dict[Unit, tuple[str, str, str | None]]:
    """Where the history last saw each unit go: host, when, by which migration."""
    known: dict[Unit, tuple[str, str, str | None]] = {}
    for line in lines:
        if line["event"] == "moved":
            units = Units(groups_in(line["groups"]), frozenset(line["keys"]))
            known.update(dict.fromkeys(units, (line["target"], line["at"], line.get("migration"))))
    return known


def _row(host: str, since: str, migration: str, units: Units) -> dict[str, Any]:
    return {
        "host": host,
        "groups": spans(units.groups),
        "group_count": len(units.groups),
        "keys": sorted(units.keys),
        "since": since or None,
        "migration": migration or None,
    }
