"""The course of a run, the same for every peer: fill state, load by the clock, a steady part, the request, what comes after.

Knows a peer only by what it has to do (`Peer`), and must not know an engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.peer_figures import Answers, Load, Moments, figures, keeps_up, not_sustained
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.running.watch import Watch

LOOK_EVERY_S: Final = 0.1
FILL_S_MAX: Final = 300.0
CATCH_UP_S_MAX: Final = 180.0

Spans = list[tuple[str, float, float]]


class Peer(Protocol):
    def begin(self) -> int:
        """Lets the load begin; returns when its first row is due (milliseconds since the epoch)."""

    def arrived(self) -> int:
        """How many outputs have come; raises when the job has failed."""

    def answers(self) -> Answers: ...

    def rescale(self) -> Spans:
        """Returns when the other parallelism serves: what it did, each from when to when (seconds since the epoch)."""

    def finish(self, limit_s: float) -> None:
        """All rows are out and in durable state."""

    def wrong_state(self, load: Load) -> int:
        """After `finish`: keys whose state is not what the load makes of it."""


def plan(settings: PeerSettings, start_file: Path, looks: int) -> dict[str, str]:
    """The options of `Plan.java`; `looks`: how many keys are to be looked at by rows after the load."""
    return {
        "keys": str(settings.keys),
        "rows": str(settings.rows),
        "rate": str(settings.rate),
        "looks": str(looks),
        "bytes": str(settings.state_bytes),
        "start": str(start_file),
        "seed": str(settings.seed),
        "skew": repr(settings.skew),
    }


def go_through(peer: Peer, settings: PeerSettings, watch: Watch) -> dict[str, Any]:
    """All figures of one run."""
    watch.phase("filling state")
    wait_for(lambda: peer.arrived() >= settings.keys, FILL_S_MAX, "all keys have state")
    load = Load(settings, peer.begin())
    steady_s = _steady_part(peer, settings, load, watch)
    so_far, until_now = peer.answers(), Moments(steady_s, time.time())
    if not keeps_up(load, so_far.first, until_now):
        return not_sustained(settings, load, so_far, until_now)
    watch.phase(f"reconfiguring ({settings.system} {settings.way})")
    request_s = time.time()
    spans = peer.rescale()
    moments = Moments(steady_s, request_s, time.time())
    watch.phase("after")
    _watch_until(peer, settings, load.start_s + settings.rows / settings.rate, watch)
    peer.finish(CATCH_UP_S_MAX)
    watch.phase("checking")
    line = figures(settings, load, peer.answers(), moments, peer.wrong_state(load))
    return line | {"spans": [_since(span, request_s) for span in spans]}


def _steady_part(peer: Peer, settings: PeerSettings, load: Load, watch: Watch) -> float:
    """When it began; returns when it is over."""
    watch.phase("warming up")
    steady_s = load.start_s + settings.steady_from_s
    _watch_until(peer, settings, steady_s, watch)
    watch.phase("steady")
    _watch_until(peer, settings, steady_s + settings.steady_s, watch)
    return steady_s


def begin_now(file: Path) -> int:
    """The load begins now, for those who read its start from a file. Whoever looks for the file must find it whole."""
    start_ms = time.time_ns() // 1_000_000
    whole = file.with_suffix(".whole")
    whole.write_text(str(start_ms))
    whole.rename(file)
    return start_ms


def _watch_until(peer: Peer, settings: PeerSettings, at_s: float, watch: Watch) -> None:
    while (left_s := at_s - time.time()) > 0:
        watch.rows(max(0, peer.arrived() - settings.keys), settings.rows)
        time.sleep(min(left_s, LOOK_EVERY_S))


def wait_for(condition: Callable[[], bool], limit_s: float, what: str, every_s: float = LOOK_EVERY_S) -> None:
    stop_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > stop_s:
            raise PeerFailed(f"after {limit_s:.0f} s it is still not so that {what}")
        time.sleep(every_s)


def _since(span: tuple[str, float, float], request_s: float) -> list[Any]:
    name, from_s, to_s = span
    return [name, round(from_s - request_s, 3), round(to_s - request_s, 3)]
