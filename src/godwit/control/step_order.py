"""In which order units go: the steps of one move, and which moves run at the same time.

After Megaphone (VLDB'19): everything at once, unit by unit, or in batches in which no host sends to two others nor receives
from two. A step is handed over as one. With the order "hot-first", hot units go first; with "by-backlog", the origin chooses
among small steps, because only the origin sees how many rows wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from godwit.control.moves import Move
from godwit.model.units import Unit, Units

ORDERS = {
    "sudden": "everything in one step, all moves at once",
    "fluid": "unit by unit, one move after another",
    "batched": "steps of several units, no host in two moves of the same side at once",
    "hot-first": "batched, the units with most rows first",
    "by-backlog": "batched in small steps, of which the origin takes the one that is waited for most",
}
DEFAULT_ORDER = "batched"
STEP_UNITS = 256  # protocols that copy beside the work: fewer steps, fewer durable records
STEP_UNITS_SMALL = 4  # protocols whose rows wait for the state: small steps, so that rows wait for little
SMALL_STEPS = frozenset(("push", "fetch"))


def step_units(order: str, protocol: str, asked: int | None = None) -> int:
    """Units per step, unless the order itself says."""
    if asked is not None:
        return asked
    return STEP_UNITS_SMALL if order == "by-backlog" or protocol in SMALL_STEPS else STEP_UNITS


def steps(order: str, units: Units, size: int, rates: Mapping[Unit, float] | None = None) -> list[Units]:
    """The steps of one move, in the order in which they should go."""
    match order:
        case "sudden":
            return [units] if units else []
        case "fluid":
            return _cut(list(units), 1)
        case "hot-first":
            rate = rates or {}
            return _cut(sorted(units, key=lambda unit: -rate.get(unit, 0.0)), size)
        case _:
            return _cut(list(units), size)


def _cut(units: Sequence[Unit], size: int) -> list[Units]:
    return [Units.of(*units[start : start + size]) for start in range(0, len(units), size)]


def rounds(order: str, moves: Sequence[Move]) -> list[list[Move]]:
    """Moves that run at the same time, round after round."""
    match order:
        case "sudden":
            return [list(moves)] if moves else []
        case "fluid":
            return [[move] for move in moves]
        case _:
            return _matchings(moves)


def _matchings(moves: Sequence[Move]) -> list[list[Move]]:
    """As many moves as can run at once, again and again; moves with most units first, because they take longest."""
    left = sorted(moves, key=lambda move: -len(move.units))
    made = []
    while left:
        chosen = matching(left)
        made.append(chosen)
        left = [move for move in left if move not in chosen]
    return made


def matching(moves: Sequence[Move]) -> list[Move]:
    """A maximum matching: every origin and every target in at most one of the moves (augmenting paths)."""
    by_origin: dict[str, list[Move]] = {}
    for move in moves:
        by_origin.setdefault(move.origin, []).append(move)
    taken: dict[str, Move] = {}  # target -> the move that has it

    def place(origin: str, tried: set[str]) -> bool:
        for move in by_origin[origin]:
            if move.target not in tried:
                tried.add(move.target)
                if move.target not in taken or place(taken[move.target].origin, tried):
                    taken[move.target] = move
                    return True
        return False

    for origin in by_origin:
        place(origin, set())
    return [move for move in moves if move in taken.values()]
