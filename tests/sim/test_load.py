"""Rules on a flock that is a queue: steps, sines and a day. Few actions, no swinging, the target held at little cost."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.elasticity.curves import day, oracle
from godwit.control.rules import Rule, bottleneck, idle, sizing
from godwit.control.scaling_decisions import ScalingDecider
from tests.sim.load import LOADS, RULES, TARGET_S, USEFUL_MAX, Flock, compared, sine

TRUE_RATE = 1000.0
NOTE = Path(__file__).parents[2] / "design" / "008-following-the-load.md"


def flock(rules: list[Rule], hosts: int = 1, maximum: int = 30, change_s: int = 2) -> Flock:
    return Flock(ScalingDecider(rules, 1, maximum), hosts, TRUE_RATE, change_s)


def changes(sizes: list[int]) -> int:
    return sum(a != b for a, b in pairwise(sizes))


def test_step_is_answered_in_one_pass_and_so_is_its_end() -> None:
    run = flock(sizing()).run([500] * 100 + [3000] * 200 + [500] * 200)
    assert run.sizes() == [5, 1], "two actions are the least: 3,000 rows/s at an aim of 70 % are 5 hosts, 500 are 1"
    out = run.decisions[0]
    assert out.at_s - 100 <= 3, f"decided {out.at_s - 100:.0f} s after the step"
    late = [at for at, second in enumerate(run.past) if second.latency_s > TARGET_S]
    assert len(late) <= 10, f"{len(late)} s beyond the target after the step, until the backlog was worked off"


def test_step_with_one_host_at_a_time_takes_about_as_many_actions_as_hosts() -> None:
    run = flock([bottleneck(), idle()]).run([500] * 100 + [3000] * 200 + [500] * 500)
    least = (5 - 1) * 2  # 3,000 rows/s below 70 % are 5 hosts, and back to 1
    assert least <= len(run.decisions) <= least + 2, run.sizes()
    assert max(run.sizes()) <= 6, "the backlog may ask for one more than the load"
    assert run.sizes()[-1] == 1
    directions = [d.hosts > d.hosts_before for d in run.decisions]
    assert directions == sorted(directions, reverse=True), f"first up, then down: {run.sizes()}"


def test_steady_load_near_a_threshold_is_left_alone() -> None:
    noise = random.Random(1)
    for level in (0.69, 0.71, 0.79, 0.81):
        run = flock(sizing(), hosts=2).run([2 * TRUE_RATE * level + noise.uniform(-60, 60) for _ in range(600)])
        assert len(run.decisions) <= 1, f"at {level}: {run.sizes()}"
        run = flock([bottleneck(), idle()], hosts=2).run([2 * TRUE_RATE * level] * 600)
        assert len(run.decisions) <= 1, f"at {level}: {run.sizes()}"


@pytest.mark.parametrize(("low", "high", "period_s"), [(500, 3000, 600), (500, 3000, 300), (1000, 8000, 600)])
@pytest.mark.parametrize("rules", [sizing(), [bottleneck(), idle()]], ids=["sizing", "one by one"])
def test_sine_takes_no_more_actions_than_following_it_exactly(
    low: float, high: float, period_s: int, rules: list[Rule]
) -> None:
    rates = sine(low, high, period_s, 3)
    run = flock(rules).run(rates)
    exact = changes(oracle(rates, TRUE_RATE, USEFUL_MAX))
    told = f"{len(run.decisions)} actions, {exact} for the fewest hosts at any time, 6 at least for three waves: {run.sizes()}"
    assert len(run.decisions) <= exact, told
    assert run.reversals(within_s=30) == 0, told
    assert run.held(TARGET_S) >= 0.98, f"held in {100 * run.held(TARGET_S):.1f} % of seconds"


def test_sine_within_the_band_is_no_reason_for_anything() -> None:
    run = flock(sizing(), hosts=4).run(sine(2100, 3100, 120, 10))
    assert run.decisions == [], run.sizes()


@pytest.mark.parametrize("seed", range(4))
def test_a_day_holds_the_target_within_a_quarter_of_an_oracles_cost(seed: int) -> None:
    """1,440 s: a minute is a second. Sine, two spikes, and noise of 5 %. The oracle knows each second beforehand."""
    noise = random.Random(seed)
    curve = day(1440)
    rates = [10_000 * level * (1 + (noise.uniform(-0.05, 0.05) if seed else 0)) for level in curve]
    run = flock(sizing(), hosts=3).run(rates)
    best = sum(oracle(rates, TRUE_RATE, USEFUL_MAX))
    told = (
        f"target held in {100 * run.held(TARGET_S):.2f} % of seconds, {run.host_seconds():,} host-seconds, oracle {best:,} "
        f"({run.host_seconds() / best:.3f}), {len(run.decisions)} actions: {run.sizes()}"
    )
    assert run.held(TARGET_S) >= 0.99, told
    assert run.host_seconds() <= 1.25 * best, told
    assert run.reversals(within_s=60) == 0, told


def test_slow_changes_cost_latency_but_do_not_swing() -> None:
    run = flock(sizing(), change_s=20).run([500] * 100 + [3000] * 400)
    assert run.sizes() == [5], "nothing is decided while the change is under way"


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("load", LOADS)
def test_the_figures_in_the_design_note_are_those_of_the_simulation(load: str, rules: str) -> None:
    assert compared(load, rules) in NOTE.read_text()
