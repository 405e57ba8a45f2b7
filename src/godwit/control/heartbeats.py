"""Which hosts have gone silent, from the times at which their heartbeats came. Pure: the time is an argument.

A host cannot be silent before its first heartbeat: a host that starts has its own time limit, and heartbeats may not get
through at all. The allowed silence grows with the gaps between recent heartbeats of a host, so that a busy machine causes no
alarm. Delays of the observer do not count. If all hosts fall silent at once, the network is the more likely cause.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

TICK_S: Final = 0.2  # between heartbeats, and between looks
WINDOW_S: Final = 60.0  # how long a gap is remembered
GAPS: Final = 3.0  # a silence of so many times the longest recent gap is an alarm
PATIENCE_S_MAX: Final = 10.0
TOGETHER_S: Final = 3 * TICK_S  # without a heartbeat of any host


class Silent(NamedTuple):
    host: str
    generation: int
    for_s: float


class Longest:
    """The longest gap of the last minute."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque()  # (end, length), in descending order of length

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
    last_beat_s: float
    excused_s: float = 0.0  # the part of the time since in which nobody looked
    over: bool = False  # reported as silent, or forgotten
    gaps: Longest = field(default_factory=Longest)

    def silence_s(self, now_s: float) -> float:
        return now_s - self.last_beat_s - self.excused_s


class Heartbeats:
    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._pulses: dict[str, _Pulse] = {}
        self._reported: dict[tuple[str, int], float] = {}  # hosts reported as silent: the time of the last heartbeat
        self._wrong = Longest()  # reported silences that ended, of all hosts, because all run the same code
        self._looked_s: float | None = None

    def beat(self, host: str, generation: int, at_s: float) -> float | None:
        """Take a heartbeat. If the host was reported as silent: for how long it was; else None."""
        back_s = self._back_s(host, generation, at_s)
        pulse = self._pulses.get(host)
        if pulse is None or generation > pulse.generation:
            self._pulses[host] = _Pulse(generation, at_s)
        elif generation == pulse.generation and not pulse.over:
            pulse.gaps.add(at_s, pulse.silence_s(at_s))
            pulse.last_beat_s, pulse.excused_s = at_s, 0.0
        return back_s

    def _back_s(self, host: str, generation: int, at_s: float) -> float | None:
        last_beat_s = self._reported.pop((host, generation), None)
        if last_beat_s is None:
            return None
        self._wrong.add(at_s, at_s - last_beat_s)
        return at_s - last_beat_s

    def silent(self, now_s: float) -> list[Silent]:
        """Hosts that have been silent for too long, each reported once. To be called every tick."""
        self._excuse(now_s)
        live = {host: pulse for host, pulse in self._pulses.items() if not pulse.over}
        # Hosts rarely fall silent together; a broken network silences all.
        together = len(live) > 1 and all(pulse.silence_s(now_s) >= TOGETHER_S for pulse in live.values())
        silent = []
        for host, pulse in live.items():
            patience_s = max(self.patience_s(host, now_s), PATIENCE_S_MAX if together else 0.0)
            if pulse.silence_s(now_s) >= patience_s:
                pulse.over = True
                self._reported[host, pulse.generation] = pulse.last_beat_s
                silent.append(Silent(host, pulse.generation, now_s - pulse.last_beat_s))
        return silent

    def _excuse(self, now_s: float) -> None:
        """A late look shows that this process was delayed, and heartbeats may have come late for the same reason."""
        late_s = 0.0 if self._looked_s is None else now_s - self._looked_s - TICK_S
        self._looked_s = now_s
        if late_s > TICK_S:
            for pulse in self._pulses.values():
                pulse.excused_s = min(pulse.excused_s + late_s, now_s - pulse.last_beat_s)

    def patience_s(self, host: str, now_s: float) -> float:
        """How long this host may be silent, given its recent heartbeats."""
        pulse = self._pulses.get(host)
        gap_s = max(self._wrong.at(now_s), 0.0 if pulse is None else pulse.gaps.at(now_s))
        return max(self._silent_s, min(GAPS * gap_s, PATIENCE_S_MAX))

    def forget(self, host: str) -> None:
        """Ignore this generation from now on: the host ends on purpose, or has ended."""
        if host in self._pulses:
            self._pulses[host].over = True
