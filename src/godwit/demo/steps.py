"""What happens to the running query in the demo, step by step, and what each step came to."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import godwit
from godwit import Migration, MigrationSummary
from godwit.testing.open_loop import Running

HOT: Final = 10
SHOWN_EVERY_S: Final = 0.05

Show = Callable[[int], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scene:
    flock: godwit.Flock
    running: Running
    operator: str

    def hosts(self) -> dict[str, Any]:
        hosts: dict[str, Any] = self.flock.status()["hosts"]
        return hosts


@dataclass(frozen=True, slots=True)
class StepResult:
    name: str
    asked_s: float
    took_s: float
    report: MigrationSummary | None = None  # of a migration; None where nothing moved

    def summary(self) -> str:
        moved = f"{self.report.keys:,} keys, {self.report.bytes / 1e3:,.0f} kB in " if self.report else ""
        return f"{self.name}: {moved}{self.took_s:.2f} s"


def scale_out(scene: Scene, show: Show, say: Say) -> StepResult:
    return _moved("scale 2 to 3", lambda: scene.flock.scale(3, wait=False), scene, show, say)


def scale_in(scene: Scene, show: Show, say: Say) -> StepResult:
    return _moved("scale 3 to 2", lambda: scene.flock.scale(2, wait=False), scene, show, say)


def move_hottest(scene: Scene, show: Show, say: Say) -> StepResult:
    """The keys that had most rows so far, as the sink has seen them."""
    seen = Counter(scene.running.arrivals.rows().column("car").to_pylist())
    keys = [key for key, _ in seen.most_common(HOT)]
    to = sorted(scene.hosts())[-1]
    return _moved(
        f"{HOT} hottest to {to}",
        lambda: scene.flock.move(scene.operator, keys=keys, to=to, wait=False),
        scene,
        show,
        say,
    )


def drain(scene: Scene, show: Show, say: Say) -> StepResult:
    host = sorted(scene.hosts())[0]
    return _moved(f"drain {host}", lambda: scene.flock.drain(host, wait=False), scene, show, say)


def kill(scene: Scene, show: Show, say: Say) -> StepResult:
    """SIGKILL, until the next generation of the host serves."""
    host, before = sorted(scene.hosts().items())[0]
    say(f"kill {host} with SIGKILL")
    asked_s = time.time()
    os.kill(before["pid"], signal.SIGKILL)
    now: dict[str, Any] = {}
    while now.get("state") != "serving" or now["generation"] <= before["generation"]:
        scene.running.wait_until(time.time() + SHOWN_EVERY_S, show)
        now = scene.hosts()[host]
    return StepResult(f"kill {host}", asked_s, time.time() - asked_s)


def _moved(name: str, ask: Callable[[], Migration], scene: Scene, show: Show, say: Say) -> StepResult:
    say(name)
    asked_s = time.time()
    migration = ask()
    while not migration.wait(SHOWN_EVERY_S):
        show(scene.running.arrivals.count)
    report = migration.report()
    return StepResult(name, asked_s, report.reconfiguration_s, report)


STEPS: Final = (scale_out, scale_in, move_hottest, drain, kill)
