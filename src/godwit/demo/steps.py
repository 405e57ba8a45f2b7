"""What happens to the running query in the demo, step by step, and what each step came to."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import godwit
from godwit.spark.change.migration_handle import Migration
from godwit.testing.open_loop import Running

HOT: Final = 10
SHOWN_EVERY_S: Final = 0.05

Show = Callable[[int], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    flock: godwit.Flock
    running: Running
    operator: str

    def hosts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.flock.status()["hosts"]
        return found


@dataclass(frozen=True, slots=True)
class Done:
    name: str
    asked_s: float
    took_s: float
    report: dict[str, Any] = field(default_factory=dict)  # of a migration; empty where nothing moved

    def told(self) -> str:
        moved = f"{self.report['keys']:,} keys, {self.report['bytes'] / 1e3:,.0f} kB in " if self.report else ""
        return f"{self.name}: {moved}{self.took_s:.2f} s"


def scale_out(stage: Stage, show: Show, say: Say) -> Done:
    return _moved("scale 2 to 3", lambda: stage.flock.scale(3, wait=False), stage, show, say)


def scale_in(stage: Stage, show: Show, say: Say) -> Done:
    return _moved("scale 3 to 2", lambda: stage.flock.scale(2, wait=False), stage, show, say)


def move_hottest(stage: Stage, show: Show, say: Say) -> Done:
    """The keys that had most rows so far, as the sink has seen them."""
    seen = Counter(stage.running.arrivals.rows().column("car").to_pylist())
    keys = [key for key, _ in seen.most_common(HOT)]
    to = sorted(stage.hosts())[-1]
    return _moved(
        f"{HOT} hottest to {to}",
        lambda: stage.flock.move(stage.operator, keys=keys, to=to, wait=False),
        stage,
        show,
        say,
    )


def drain(stage: Stage, show: Show, say: Say) -> Done:
    host = sorted(stage.hosts())[0]
    return _moved(f"drain {host}", lambda: stage.flock.drain(host, wait=False), stage, show, say)


def kill(stage: Stage, show: Show, say: Say) -> Done:
    """SIGKILL, until the next generation of the host serves."""
    host, before = sorted(stage.hosts().items())[0]
    say(f"kill {host} with SIGKILL")
    asked_s = time.time()
    os.kill(before["pid"], signal.SIGKILL)
    now: dict[str, Any] = {}
    while now.get("state") != "serving" or now["generation"] <= before["generation"]:
        stage.running.wait_until(time.time() + SHOWN_EVERY_S, show)
        now = stage.hosts()[host]
    return Done(f"kill {host}", asked_s, time.time() - asked_s)


def _moved(name: str, ask: Callable[[], Migration], stage: Stage, show: Show, say: Say) -> Done:
    say(name)
    asked_s = time.time()
    migration = ask()
    while not migration.wait(SHOWN_EVERY_S):
        show(stage.running.arrivals.count)
    report = migration.report()
    return Done(name, asked_s, report["reconfiguration_s"], report)


STEPS: Final = (scale_out, scale_in, move_hottest, drain, kill)
