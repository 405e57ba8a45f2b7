"""The thread that follows rules: what it asks of a flock, what it tells first, and that trouble does not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from godwit.control.load_measures import InstanceLoad, OperatorLoad, Sample
from godwit.control.rules import Rule, bottleneck, hot_keys
from godwit.errors import HostUnavailable, NotEnoughSlots
from godwit.spark.change.autoscaler import Autoscaler, AutoscalerSettings
from godwit.spark.checkpoint.history import History
from tests.spark.flocks import wait_until

NOW = bottleneck(for_s=0.0, cool_down_s=3600.0)


class Flock:
    """Measures as the test sets them, and a record of what was asked."""

    def __init__(self, *useful: float) -> None:
        self.useful = list(useful)
        self.asked: list[tuple[Any, ...]] = []
        self.trouble: Exception | None = None
        self.refusal: Exception | None = None
        self.moving = False
        self.empty = 0
        self.warming = Done()
        self.looks = 0

    def sample(self) -> Sample:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        loads = {
            f"host-{at}": InstanceLoad(useful=u, rows_per_s=u, true_rows_per_s=1.0) for at, u in enumerate(self.useful)
        }
        return Sample(float(self.looks), tuple(loads), {"count": OperatorLoad(loads)})

    def roster(self) -> tuple[int, int]:
        return len(self.useful), self.empty

    def keys_move(self) -> bool:
        return self.moving

    def arrange(self, hosts: int, warm: int, given: Any) -> Any:
        self.asked.append(("arrange", hosts, warm))
        if self.refusal is not None:
            raise self.refusal
        return Done()

    def rebalance(self, operator: str, given: Any) -> Any:
        self.asked.append(("rebalance", operator))
        return Done()

    def warm(self, count: int, given: Any) -> Any:
        self.asked.append(("warm", count))
        return self.warming

    def looked(self, more: int = 3) -> None:
        before = self.looks
        wait_until(lambda: self.looks >= before + more, what="further looks")


class Done:
    """A migration that joined for 2 s and then moved 50 MB in 1 s."""

    ended = False

    def report(self) -> Any:
        phases = (("queued", 0.0), ("joining", 0.5), ("moving", 2.5), ("done", 3.5))
        stall = SimpleNamespace(max_ms=4.0)
        return SimpleNamespace(bytes=50_000_000, reconfiguration_s=3.5, phases=phases, stall=stall)


class Scene:
    def __init__(self, root: Path) -> None:
        self.history = History(root)
        self._started: list[Autoscaler] = []

    def follow(self, flock: Flock, *rules: Rule, dry_run: bool = False, warm: int = 0, maximum: int = 4) -> Autoscaler:
        port: Any = flock
        request = AutoscalerSettings(list(rules), 1, maximum, 0.01, warm, dry_run)
        self._started.append(Autoscaler(request, port, port, self.history))
        return self._started[-1]

    def close(self) -> None:
        for scaler in self._started:
            scaler.stop()
            assert not scaler.running


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_decision_is_told_and_then_asked_for(scene: Scene) -> None:
    flock = Flock(0.9)
    scaler = scene.follow(flock, NOW, warm=1)
    wait_until(lambda: flock.asked)
    assert flock.asked[0] == ("arrange", 2, 1)
    (line,) = [line for line in scene.history.lines() if line["event"] == "decided"]
    assert (line["rule"], line["dry_run"], line["hosts"]) == ("bottleneck", False, 2)
    assert line["reason"] in scaler.explain()


def test_dry_run_asks_for_nothing(scene: Scene) -> None:
    flock = Flock(0.9)
    scaler = scene.follow(flock, NOW, dry_run=True, warm=1)
    wait_until(scaler.decisions)
    flock.looked()
    assert flock.asked == []
    assert scaler.decisions()[0]["dry_run"]


def test_uneven_load_moves_keys_of_the_operator(scene: Scene) -> None:
    flock = Flock(0.9, 0.1)
    scene.follow(flock, NOW)
    wait_until(lambda: flock.asked)
    assert flock.asked == [("rebalance", "count")]


def test_nothing_is_asked_while_keys_move(scene: Scene) -> None:
    flock = Flock(0.9)
    flock.moving = True
    scaler = scene.follow(flock, NOW, warm=1)
    flock.looked()
    assert flock.asked == []
    assert "while keys move" in scaler.explain()


def test_trouble_is_told_and_does_not_end_it(scene: Scene) -> None:
    flock = Flock(0.9)
    flock.trouble = HostUnavailable("host-0 is away")
    scaler = scene.follow(flock, NOW)
    wait_until(lambda: "trouble: [GODWIT-HOST-UNAVAILABLE] host-0 is away" in scaler.explain())
    flock.trouble = KeyError("odd")
    wait_until(lambda: "trouble: KeyError: 'odd'" in scaler.explain())
    flock.trouble = None
    wait_until(lambda: flock.asked)
    wait_until(lambda: "trouble" not in scaler.explain())


def test_request_that_is_refused_is_in_the_history(scene: Scene) -> None:
    flock = Flock(0.9)
    flock.refusal = NotEnoughSlots("no room")
    scene.follow(flock, NOW)
    refused = wait_until(lambda: [line for line in scene.history.lines() if line["event"] == "refused"])
    assert refused[0]["rule"] == "bottleneck"
    assert "no room" in refused[0]["reason"]
    flock.looked()
    assert len(flock.asked) == 1, "it waits for its cool-down"


@pytest.mark.parametrize(("owning", "empty", "warm", "asked"), [(1, 0, 1, 1), (3, 0, 2, 1), (1, 2, 1, 1), (4, 1, 1, 0)])
def test_warm_hosts_are_kept_within_the_maximum(scene: Scene, owning: int, empty: int, warm: int, asked: int) -> None:
    flock = Flock(*[0.5] * owning)
    flock.empty = empty
    scene.follow(flock, hot_keys(), warm=warm, maximum=4)
    wait_until(lambda: flock.asked)
    flock.looked()
    assert flock.asked == [("warm", asked)], "once, while it is under way"
    flock.empty, flock.warming.ended = asked, True
    flock.looked()
    assert flock.asked == [("warm", asked)], "and then there are as many as wanted"


def test_as_many_as_wanted_are_left_alone(scene: Scene) -> None:
    flock = Flock(0.5)
    flock.empty = 1
    scene.follow(flock, hot_keys(), warm=1)
    flock.looked()
    assert flock.asked == []


def test_cost_is_learned_from_what_was_done(scene: Scene) -> None:
    flock = Flock(0.9)
    scaler = scene.follow(flock, NOW)
    before_s = 0.2 + 100e6 / 20e6 + 3.0  # as guessed
    wait_until(lambda: scaler._decider.costs.of(100e6, joins=True).time_s < before_s)
    found = scaler._decider.costs.of(100e6, joins=True)
    assert found.time_s == pytest.approx(0.2 + 100e6 / 35e6 + 2.5), "half-way to 50 MB/s and to a join of 2 s"
    assert found.stall_ms == pytest.approx(27.0)
