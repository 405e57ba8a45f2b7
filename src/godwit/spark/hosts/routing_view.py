"""The routing table of an operator for people: who owns what, since when, and by which migration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from godwit.control.moves import groups_in, spans
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.spark.results.result_record import aligned


@dataclass(frozen=True)
class RoutingView:
    """The owners of the groups and single keys of an operator. Iterate it for rows, or print it."""

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
        lines = [
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
        return "\n".join([f"{self.operator}, table {self.version}", *aligned(head, lines)])


def _short(text: str, chars_max: int = 40) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 4] + " ..."


def routing_view(operator: str, table: Routing, lines: list[dict[str, Any]]) -> RoutingView:
    """A row for each host and each migration that brought units to the host."""
    defined_at = next((line["at"] for line in lines if line["event"] == "defined"), None)
    arrivals = owners_by_history(lines)
    units_by_arrival: dict[tuple[str, str, str], list[Unit]] = {}
    for host in table.hosts:
        units = table.units_of(host)
        if not units:
            units_by_arrival[host, "", ""] = []
        for unit in units:
            owner, since, migration = arrivals.get(unit, (host, defined_at or "", None))
            arrival = (since, migration or "") if owner == host else ("", "")
            units_by_arrival.setdefault((host, *arrival), []).append(unit)
    rows = [_row(*key, Units.of(*units)) for key, units in sorted(units_by_arrival.items())]
    return RoutingView(operator, table.version, tuple(rows))


def owners_by_history(lines: list[dict[str, Any]]) -> dict[Unit, tuple[str, str, str | None]]:
    """The last recorded move of each unit: to which host, when, by which migration."""
    arrivals: dict[Unit, tuple[str, str, str | None]] = {}
    for line in lines:
        if line["event"] == "moved":
            units = Units(groups_in(line["groups"]), frozenset(line["keys"]))
            arrivals.update(dict.fromkeys(units, (line["target"], line["at"], line.get("migration"))))
    return arrivals


def _row(host: str, since: str, migration: str, units: Units) -> dict[str, Any]:
    return {
        "host": host,
        "groups": spans(units.groups),
        "group_count": len(units.groups),
        "keys": sorted(units.keys),
        "since": since or None,
        "migration": migration or None,
    }
