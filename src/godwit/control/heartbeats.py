"""Which hosts have gone silent, from the times at which their heartbeats came. Pure: the time is an argument.

A host is not silent before its first beat: one that is being started has its own time limits, and where no beat gets through
nothing is concluded from that. How long a host may be silent follows from how it has been beating: what is ordinary on a busy
machine is no alarm there. Delays of whoever looks are no fault of the hosts, and do not count; and if all hosts fall silent at
once, it is rather the way to them that is broken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

TICK_S: Final = 0.2  # between beats, and between looks
WINDOW_S: Final = 60.0  # for which a long gap is remembered
GAPS: Final = 3.0  # so many times the longest gap is no gap any more
PATIENCE_S_MAX: Final = 10.0
TOGETHER_S: Final = 3 * TICK_S  # without a beat of anybody


class Silent(NamedTuple):
    host: str
    generation: int
    for_s: float


class Longest:
    """The longest gap of the last minute."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque()  # when it ended, and how long it was: ever shorter

    def add(self, at_s: float, gap_s: float) -> None:
        while self._gaps and self._gaps[-1][1] <= gap_s:
            self._gaps.pop()
        self._gaps.append((at_s, gap_s))

    def at(self, now_s: float) -> float:
        while self._gaps and self._gaps[0][0] <= now_s - WINDOW_S:
            self._gaps.popleft()
        return self._gaps[0][1] if self._gaps else 0.0


@dataclass(slots=True)
class _Pulse:
    """One generation of a host."""

    generation: int
    heard_s: float
    excused_s: float = 0.0  # of the time since: nobody was looking
    over: bool = False  # told of as silent, or forgotten
    gaps: Longest = field(default_factory=Longest)

    def unheard_s(self, now_s: float) -> float:
        return now_s - self.heard_s - self.excused_s


class Heartbeats:
    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._pulses: dict[str, _Pulse] = {}
        self._told: dict[tuple[str, int], float] = {}  # as silent: when they were last heard
        self._wrong = Longest()  # silences that were told of, and ended: of all hosts, because all run the same code
        self._looked_s: float | None = None

    def beat(self, host: str, generation: int, at_s: float) -> float | None:
        """If it was told of as silent, and is alive all the same: for how long nothing was heard of it."""
        back_s = self._back_s(host, generation, at_s)
        pulse = self._pulses.get(host)
        if pulse is None or generation > pulse.generation:
            self._pulses[host] = _Pulse(generation, at_s)
        elif generation == pulse.generation and not pulse.over:
            pulse.gaps.add(at_s, pulse.unheard_s(at_s))
            pulse.heard_s, pulse.excused_s = at_s, 0.0
        return back_s

    def _back_s(self, host: str, generation: int, at_s: float) -> float | None:
        heard_s = self._told.pop((host, generation), None)
        if heard_s is None:
            return None
        self._wrong.add(at_s, at_s - heard_s)
        return at_s - heard_s

    def silent(self, now_s: float) -> list[Silent]:
        """Hosts of which too long nothing was heard, each told once. To be asked every tick."""
        self._excuse(now_s)
        live = {host: pulse for host, pulse in self._pulses.items() if not pulse.over}
        # Hosts do not fall silent together; a network does.
        together = len(live) > 1 and all(pulse.unheard_s(now_s) >= TOGETHER_S for pulse in live.values())
        found = []
        for host, pulse in live.items():
            patience_s = max(self.patience_s(host, now_s), PATIENCE_S_MAX if together else 0.0)
            if pulse.unheard_s(now_s) >= patience_s:
                pulse.over = True
                self._told[host, pulse.generation] = pulse.heard_s
                found.append(Silent(host, pulse.generation, now_s - pulse.heard_s))
        return found

    def _excuse(self, now_s: float) -> None:
        """A look that comes late says that this process was starved, so beats may have come late for the same reason."""
        late_s = 0.0 if self._looked_s is None else now_s - self._looked_s - TICK_S
        self._looked_s = now_s
        if late_s > TICK_S:
            for pulse in self._pulses.values():
                pulse.excused_s = min(pulse.excused_s + late_s, now_s - pulse.heard_s)

    def patience_s(self, host: str, now_s: float) -> float:
        """How long this host may be silent as it has been beating lately."""
        pulse = self._pulses.get(host)
        gap_s = max(self._wrong.at(now_s), 0.0 if pulse is None else pulse.gaps.at(now_s))
        return max(self._silent_s, min(GAPS * gap_s, PATIENCE_S_MAX))

    def forget(self, host: str) -> None:
        """It ends on purpose, or has ended: what still comes of this generation says nothing."""
        if host in self._pulses:
            self._pulses[host].over = True
