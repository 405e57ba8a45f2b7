"""Which requests may run at the same time: those with different units and hosts, of which at most one changes the roster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from godwit.control.moves import Move, units_by_operator
from godwit.model.units import Units


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request reserves until it has ended. `roster`: hosts join or leave by the request."""

    units: Mapping[str, Units] = field(default_factory=dict)
    targets: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    roster: bool = False

    @classmethod
    def of(cls, moves: Iterable[Move], leaving: Iterable[str] = (), roster: bool = False) -> Reservation:
        all_moves = list(moves)
        return cls(
            units_by_operator(all_moves), frozenset(move.target for move in all_moves), frozenset(leaving), roster
        )

    def conflict(self, other: Reservation, group_count: int) -> str:
        """Why both requests cannot run at the same time; empty if they can."""
        if self.roster and other.roster:
            return "hosts join or leave by this request too"
        left = (self.leaving & other.targets) | (other.leaving & self.targets)
        if left:
            return f"{', '.join(sorted(left))} would leave and get keys at the same time"
        for operator, units in self.units.items():
            if operator in other.units and units.overlaps(other.units[operator], group_count):
                return f"it moves some of the same keys of {operator!r}"
        return ""
