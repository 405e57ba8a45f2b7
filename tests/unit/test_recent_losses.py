"""When a host counts as bad, and when something is bad for all."""

from __future__ import annotations

from godwit.control.recent_losses import FLAPS_MAX, PAUSE_S_MAX, STORM_MAX, WINDOW_S, RecentLosses


def after(*losses: tuple[str, float]) -> RecentLosses:
    seen = RecentLosses()
    for host, at_s in losses:
        seen.add(host, at_s)
    return seen


def test_a_host_that_is_lost_again_and_again_flaps() -> None:
    often = [("a", float(at)) for at in range(FLAPS_MAX)]
    assert not after(*often[:-1]).flaps("a")
    assert after(*often).flaps("a")
    assert not after(*often).flaps("b")


def test_what_is_long_ago_does_not_count() -> None:
    seldom = [("a", at * WINDOW_S) for at in range(5)]
    assert after(*seldom).of("a") == 1


def test_many_losses_are_nobodys_fault_and_slow_down_starts() -> None:
    seen = after(*((f"h{at % 3}", float(at)) for at in range(STORM_MAX - 1)))
    assert (seen.storm, seen.pause_s) == (False, 0.0)
    pauses = []
    for at in range(8):
        seen.add("h0", STORM_MAX + at)
        assert seen.storm
        assert not seen.flaps("h0"), "others would fare no better"
        pauses.append(seen.pause_s)
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_S_MAX
