"""An instance with what lets many threads work with it: its lock, who waits for what, and who moves its keys."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from godwit import ports
from godwit.migration.events import Event
from godwit.model.units import Units
from godwit.runtime.instance.instance import Instance
from godwit.runtime.memory.gauges import Gauges
from godwit.state.keys import Key, KeyCodec

STALLS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Stall:
    """Rows that waited here for state or ownership, and for how long."""

    at_ms: float  # when the wait ended, on the clock on the wall
    waited_ms: float
    rows: int


@dataclass(slots=True)
class SharedInstance:
    """`changed` is signalled whenever the instance's ownership has changed; it holds the lock of the instance."""

    instance: Instance
    lock: ports.Lock = field(default_factory=ports.lock)
    changed: ports.Condition = field(init=False)
    told: list[Callable[[Event], None]] = field(default_factory=list)  # movers: told when a batch begins
    wanted: list[Callable[[Units], None]] = field(default_factory=list)  # receivers: told what rows wait for
    staging: dict[str, Units] = field(default_factory=dict)  # by migration: of what it has copies here
    inheriting: bool = False  # keys of a lost host are being taken over
    held: bool = False  # no batch begins: the flock is being copied
    stalls: deque[Stall] = field(default_factory=lambda: deque(maxlen=STALLS_MAX))
    gauges: Gauges = field(default_factory=lambda: Gauges(time.perf_counter()))

    @property
    def lsn(self) -> int:
        """Where in the changelog all is that the instance rests on."""
        return self.instance.lsn

    def stalled(self, waited_ms: float, rows: int) -> None:
        self.stalls.append(Stall(time.time() * 1000, waited_ms, rows))

    def waits(self, since_ms: float) -> list[list[float]]:
        """How long rows have waited here since then, and how many of them: [milliseconds, rows]."""
        return [[round(stall.waited_ms, 3), stall.rows] for stall in list(self.stalls) if stall.at_ms >= since_ms]

    def __post_init__(self) -> None:
        self.changed = ports.condition(self.lock)
        self.instance.memory.hot = self.gauges.hot

    def status(self) -> dict[str, Any]:
        """What the instance says of itself, and what it has been doing lately."""
        gauges = self.gauges.told(time.perf_counter())
        for hot in gauges["hot"]["keys"]:
            hot["key"] = _shown(self.instance.key_codec, hot["key"])
        return self.instance.status() | {"gauges": gauges}


def _shown(key_codec: KeyCodec, key: Key) -> list[Any]:
    """A key as its user knows it, in what JSON has room for."""
    plain = (str, int, float, bool, type(None))
    return [value if isinstance(value, plain) else str(value) for value in key_codec.public(key)]
