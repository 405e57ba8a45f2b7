"""Loads second by second, and what an oracle would have used."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.elasticity.curves import day, host_seconds, oracle, step


def test_step_is_calm_and_then_full() -> None:
    assert step(2, 3, 0.2) == [0.2, 0.2, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("seconds", [60, 300, 1440])
def test_day_has_a_night_a_noon_and_spikes(seconds: int) -> None:
    curve = day(seconds)
    assert len(curve) == seconds
    assert max(curve) == 1.0
    assert min(curve) == curve[0] > 0.1
    jumps = [b - a for a, b in pairwise(curve) if abs(b - a) > 0.15]
    assert [jump > 0 for jump in jumps] == [True, False, True, False], "two spikes, up and down"


def test_oracle_has_the_fewest_hosts_that_do() -> None:
    assert oracle([0, 799, 800, 801, 2400], true_rate=1000, useful_max=0.8) == [1, 1, 1, 2, 3]


def test_host_seconds_end_with_the_run() -> None:
    assert host_seconds([(0.0, 1), (10.0, 3), (20.0, 2)], 30.0) == 10 + 30 + 20
    assert host_seconds([(0.0, 2), (50.0, 9)], 30.0) == 60
