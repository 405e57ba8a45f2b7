"""Some hundred schedules hold, every kind of fault happens in them, and the same seed is the same schedule."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.__main__ import main, results
from tests.sim.faults import KINDS
from tests.sim.moves import PROTOCOLS
from tests.sim.run import Result, Run

SEEDS = 300  # with what else is run here and in test_recorded about 90 s of one core
JOBS = 2


def held(result: Result) -> Result:
    assert not result.breach, f"seed {result.seed}: {result.breach}\n" + "\n".join(result.story[-60:])
    return result


@pytest.mark.timeout(900)
def test_schedules_hold() -> None:
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for result in map(held, results(0, SEEDS, None, JOBS)):
        faults += result.faults
        outcomes += result.outcomes
    assert {*KINDS, "takeover"} <= set(faults), "some kind of fault never happened"
    assert outcomes["done"] > SEEDS / 4
    assert outcomes["stayed"] > SEEDS / 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_protocol_comes_to_both_ends(protocol: str) -> None:
    outcomes: Counter[str] = Counter()
    for result in map(held, results(5_000, 20, protocol, JOBS)):
        outcomes += result.outcomes
    assert outcomes["done"]
    assert outcomes["stayed"]


def test_same_seed_is_the_same_schedule() -> None:
    one, other = Run(7), Run(7)
    one.run()
    other.run()
    assert one.kernel.told() == other.kernel.told()
    assert one.kernel.turns == other.kernel.turns


def test_same_seed_is_the_same_schedule_in_every_process() -> None:
    assert list(results(0, 4, None, jobs=2)) == list(results(0, 4, None, jobs=1))


def test_failing_seed_is_told_with_the_way_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Result(3, Counter(), Counter(), 10, "I1: two owners", "I1", ["something happened"])
    monkeypatch.setattr("tests.sim.__main__.results", lambda *_: iter([broken]))
    monkeypatch.setattr("sys.argv", ["sim", "--seeds", "5", "--first", "0", "--failures", "1"])
    assert main() == 1
    told = capsys.readouterr().out
    assert "breaks I1" in told
    assert "python -m tests.sim --seed 3" in told
