"""An instance that the threads of a host share: its lock, its listeners, and how long rows waited for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from godwit import ports
from godwit.migration.events import Event
from godwit.model.ownership import Ownership
from godwit.model.units import Units
from godwit.runtime.instance.instance import Instance
from godwit.runtime.load.gauges import Gauges
from godwit.runtime.pacing.chunks_inside import ChunksInside
from godwit.state.keys import Key, KeyCodec

STALLS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Stall:
    """Rows that waited here for state or ownership."""

    at_ms: float  # when the wait ended, by the wall clock
    waited_ms: float
    rows: int


@dataclass(slots=True)
class SharedInstance:
    """`lock` is held for everything that reads or changes the instance. `changed` uses that lock.

    `changed` is signalled when the ownership of the instance has changed, or something else that rows may wait for.
    """

    instance: Instance
    lock: ports.Lock = field(default_factory=ports.lock)
    changed: ports.Condition = field(init=False)
    event_listeners: list[Callable[[Event], None]] = field(default_factory=list)  # movers: a batch began, rows wait
    want_listeners: list[Callable[[Units], None]] = field(default_factory=list)  # receivers: rows wait for these units
    # By migration: the units of which it may have copies here.
    accepted_units: dict[str, Units] = field(default_factory=dict)
    # By migration: the groups of which it may have state here, each with the keys that are apart from it.
    copied_groups: dict[str, dict[int, frozenset[int]]] = field(default_factory=dict)
    inheriting: bool = False  # keys of a lost host are being taken over
    paused: bool = False  # no batch begins, because the checkpoint of the flock is being copied
    stalls: deque[Stall] = field(default_factory=lambda: deque(maxlen=STALLS_MAX))
    gauges: Gauges = field(default_factory=lambda: Gauges(time.perf_counter()))
    # Of all instances of the process: their threads share one interpreter.
    chunks: ChunksInside = field(default_factory=lambda: ports.of_process(ChunksInside))

    def check_locked(self) -> None:
        """For what is only done with the lock of the instance."""
        assert self.lock.locked(), "done without the lock of the instance"

    @property
    def ownership(self) -> Ownership:
        """Of an instance whose keys can move: only such instances take part in migrations."""
        assert self.instance.ownership is not None, "only instances with an ownership take part in migrations"
        return self.instance.ownership

    @property
    def lsn(self) -> int:
        """The frame of the changelog up to which all is written that the instance rests on."""
        return self.instance.lsn

    def stalled(self, waited_ms: float, rows: int) -> None:
        self.stalls.append(Stall(time.time() * 1000, waited_ms, rows))

    def waits(self, since_ms: float) -> list[list[float]]:
        """Waits of rows that ended since then: [milliseconds, rows] each."""
        return [[round(stall.waited_ms, 3), stall.rows] for stall in list(self.stalls) if stall.at_ms >= since_ms]

    def __post_init__(self) -> None:
        self.changed = ports.condition(self.lock)
        self.instance.memory.hot = self.gauges.hot

    def status(self) -> dict[str, Any]:
        """The instance's counts, and what it has been doing lately."""
        gauges = self.gauges.report(time.perf_counter())
        for hot in gauges["hot"]["keys"]:
            hot["key"] = _shown(self.instance.key_codec, hot["key"])
        return self.instance.status() | {"gauges": gauges}


def _shown(key_codec: KeyCodec, key: Key) -> list[Any]:
    """A key as its user knows it, in types that JSON has."""
    plain = (str, int, float, bool, type(None))
    return [value if isinstance(value, plain) else str(value) for value in key_codec.public(key)]
