"""What a plan is made of: units of one operator that go from one host to another."""

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


def gathered(operator: str, found: Iterable[tuple[str, str, Unit]]) -> list[Move]:
    """One move per pair of hosts, from (origin, target, unit)."""
    pairs: dict[tuple[str, str], list[Unit]] = {}
    for origin, target, unit in found:
        pairs.setdefault((origin, target), []).append(unit)
    return [Move(operator, origin, target, Units.of(*units)) for (origin, target), units in sorted(pairs.items())]


def units_by_operator(moves: Iterable[Move]) -> dict[str, Units]:
    found: dict[str, Units] = {}
    for move in moves:
        found[move.operator] = found.get(move.operator, Units()) | move.units
    return found


def group_count(moves: Iterable[Move]) -> int:
    return sum(len(move.units.groups) for move in moves)


def spans(groups: Iterable[int]) -> str:
    """Groups for people and for the history: "0-255, 300"."""
    found: list[list[int]] = []
    for group in sorted(groups):
        if found and group == found[-1][1] + 1:
            found[-1][1] = group
        else:
            found.append([group, group])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def groups_in(text: str) -> frozenset[int]:
    """What `spans` wrote."""
    ends = [span.split("-") for span in text.split(", ") if span]
    return frozenset(group for span in ends for group in range(int(span[0]), int(span[-1]) + 1))


def record(move: Move) -> dict[str, object]:
    """A move as the history has it."""
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
