"""Moves, of which a plan is made: units of one operator that go from one host to another; and how the history writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from godwit.model.units import Unit, Units


@dataclass(frozen=True, slots=True)
class Move:
    operator: str
    origin: str
    target: str
    units: Units


def gathered(operator: str, routes: Iterable[tuple[str, str, Unit]]) -> list[Move]:
    """One move per pair of hosts, from (origin, target, unit)."""
    pairs: dict[tuple[str, str], list[Unit]] = {}
    for origin, target, unit in routes:
        pairs.setdefault((origin, target), []).append(unit)
    return [Move(operator, origin, target, Units.of(*units)) for (origin, target), units in sorted(pairs.items())]


def units_by_operator(moves: Iterable[Move]) -> dict[str, Units]:
    units: dict[str, Units] = {}
    for move in moves:
        units[move.operator] = units.get(move.operator, Units()) | move.units
    return units


def group_count(moves: Iterable[Move]) -> int:
    return sum(len(move.units.groups) for move in moves)


def spans(groups: Iterable[int]) -> str:
    """Groups as text, for people and for the history: "0-255, 300"."""
    ranges: list[list[int]] = []
    for group in sorted(groups):
        if ranges and group == ranges[-1][1] + 1:
            ranges[-1][1] = group
        else:
            ranges.append([group, group])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def groups_in(text: str) -> frozenset[int]:
    """The groups of a text that `spans` wrote."""
    ends = [span.split("-") for span in text.split(", ") if span]
    return frozenset(group for span in ends for group in range(int(span[0]), int(span[-1]) + 1))


def record(move: Move) -> dict[str, object]:
    """A move in the form of the history."""
    return {
        "operator": move.operator,
        "origin": move.origin,
        "target": move.target,
        "groups": spans(move.units.groups),
        "keys": sorted(move.units.keys),
    }


def recorded(data: Mapping[str, object]) -> Move:
    keys = data["keys"]
    assert isinstance(keys, list), "a list of routing hashes"
    units = Units(groups_in(str(data["groups"])), frozenset(keys))
    return Move(str(data["operator"]), str(data["origin"]), str(data["target"]), units)
