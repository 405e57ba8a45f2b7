"""When rules act: hold times, cool-downs, bounds, uneven load, cost; each decision with its reason in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from godwit.control.costs import Costs
from godwit.control.load_measures import METRICS, HotKey, InstanceLoad, OperatorLoad, Sample
from godwit.control.rules import Rule, bottleneck, hot_keys, idle, memory_pressure, sizing
from godwit.control.scaling_decisions import Decision, ScalingDecider


def operator(useful: list[float], offered: float | None = None, hot: float = 0.0, **more: Any) -> OperatorLoad:
    """Hosts that do 1,000 rows in a second of work each."""
    loads = {
        f"host-{at}": InstanceLoad(
            useful=share, rows_per_s=1000 * share, true_rows_per_s=1000 if share else None, **more
        )
        for at, share in enumerate(useful)
    }
    keys = (HotKey("C1", 17, "host-0", hot),) if hot else ()
    return OperatorLoad(loads, offered, keys)


def sample(at_s: float, *useful: float, offered: float | None = None, hot: float = 0.0, **more: Any) -> Sample:
    names = tuple(f"host-{at}" for at in range(len(useful)))
    return Sample(at_s, names, {"count": operator(list(useful), offered, hot, **more)})


def decider(*rules: Rule, minimum: int = 1, maximum: int = 8, **more: Any) -> ScalingDecider:
    return ScalingDecider(rules, minimum, maximum, **more)


def ticks(decides: ScalingDecider, seconds: int, *useful: float, begin: int = 0, **more: Any) -> list[Decision]:
    found = [decides.tick(sample(begin + at, *useful, **more)) for at in range(seconds)]
    return [decision for decision in found if decision is not None]


# -- time ------------------------------------------------------------------------------------------------------------


def test_acts_when_the_condition_has_held_long_enough() -> None:
    decides = decider(bottleneck(for_s=3.0))
    assert ticks(decides, 3, 0.9) == []
    decision = decides.tick(sample(3, 0.9))
    assert decision is not None
    assert (decision.action, decision.hosts_before, decision.hosts) == ("scale", 1, 2)


def test_a_break_begins_the_time_anew() -> None:
    decides = decider(bottleneck(for_s=3.0))
    ticks(decides, 3, 0.9)
    assert decides.tick(sample(3, 0.6)) is None
    assert ticks(decides, 3, 0.9, begin=4) == []
    assert ticks(decides, 1, 0.9, begin=7) != []


def test_threshold_itself_is_not_beyond_it() -> None:
    assert ticks(decider(bottleneck(above=0.7, for_s=0.0)), 5, 0.7) == []
    assert ticks(decider(idle(below=0.3, for_s=0.0)), 5, 0.3, 0.3) == []


def test_cool_down_counts_from_the_last_change() -> None:
    decides = decider(bottleneck(for_s=0.0, cool_down_s=20.0))
    found = ticks(decides, 41, 0.9)
    assert [decision.at_s for decision in found] == [0, 20, 40]


def test_nothing_is_decided_while_keys_move_and_the_cool_down_begins_when_they_have() -> None:
    decides = decider(bottleneck(for_s=0.0, cool_down_s=10.0))
    assert decides.tick(sample(0, 0.9)) is not None
    for second in range(1, 30):
        assert decides.tick(sample(second, 1.0), moving=True) is None
    assert "while keys move" in decides.looks["bottleneck"]
    assert ticks(decides, 10, 0.9, begin=30) == []
    assert ticks(decides, 1, 0.9, begin=40) != []


def test_host_that_gives_no_answer_is_not_taken_for_an_idle_one() -> None:
    decides = decider(idle(for_s=0.0, cool_down_s=10.0))
    for second in range(30):
        seen = replace(sample(second, 0.1, 0.1), silent=("host-1",))
        assert decides.tick(seen) is None
    assert decides.looks["idle"] == "nothing is decided while host-1 gives no answer"
    assert [decision.at_s for decision in ticks(decides, 12, 0.1, 0.1, begin=30)] == [40]


def test_measures_of_before_a_change_decide_nothing() -> None:
    """Even with no cool-down: they are means over the last seconds."""
    decides = decider(bottleneck(for_s=0.0, cool_down_s=0.0))
    assert [decision.at_s for decision in ticks(decides, 11, 0.9)] == [0, 5, 10]


def test_without_hosts_that_own_something_there_is_nothing_to_decide() -> None:
    assert decider(idle(for_s=0.0)).tick(Sample(0.0, (), {})) is None


# -- how many --------------------------------------------------------------------------------------------------------


def test_sizing_goes_to_what_is_needed_in_one_pass() -> None:
    (decision,) = ticks(decider(*sizing()), 3, 1.0, offered=3000.0)
    assert decision.hosts == 5, "3,000 rows/s at 1,000 a host and an aim of 70 %"
    assert decision.figures["demand"] == pytest.approx(3.0)


def test_sizing_needs_no_more_while_hosts_only_catch_up() -> None:
    assert ticks(decider(*sizing()), 10, 1.0, 1.0, 1.0, 1.0, offered=2500.0) == []


def test_limits_hold() -> None:
    decides = decider(*sizing(), maximum=3)
    assert [decision.hosts for decision in ticks(decides, 3, 1.0, offered=9000.0)] == [3]
    assert ticks(decider(bottleneck(for_s=0.0), maximum=2), 30, 0.9, 0.9) == []
    assert ticks(decider(idle(for_s=0.0), minimum=2), 30, 0.1, 0.1) == []
    assert ticks(decider(idle(for_s=0.0, at_least=3)), 30, 0.1, 0.1, 0.1) == []
    assert ticks(decider(bottleneck(for_s=0.0, at_most=2)), 30, 0.9, 0.9) == []


def test_number_outside_the_limits_is_mended_at_once() -> None:
    more = decider(idle(), minimum=3).tick(sample(0, 0.5))
    fewer = decider(idle(), maximum=2).tick(sample(0, 0.5, 0.5, 0.5, 0.5))
    assert more is not None
    assert fewer is not None
    assert (more.rule, more.hosts) == ("limits", 3)
    assert (fewer.rule, fewer.hosts) == ("limits", 2)
    tried = ticks(decider(idle(for_s=3600.0), minimum=3), 61, 0.5)
    assert [decision.at_s for decision in tried] == [0, 30, 60], "not every second, if it does not come about"


def test_growing_goes_before_shrinking() -> None:
    decides = decider(idle(for_s=0.0), memory_pressure(1e6, for_s=0.0))
    (decision, *_) = ticks(decides, 1, 0.1, 0.1, state_bytes=2_000_000)
    assert (decision.rule, decision.hosts) == ("memory", 3)


# -- no swinging -----------------------------------------------------------------------------------------------------


def test_hosts_stay_if_the_rest_would_come_near_to_what_brings_them_back() -> None:
    decides = decider(bottleneck(above=0.7), idle(below=0.34, for_s=0.0))
    assert ticks(decides, 5, 0.32, 0.32) == [], "one host would be at 64 %, and 63 % is a margin below 70 %"
    assert "would come near" in decides.looks["idle"]
    assert [d.hosts for d in ticks(decides, 1, 0.31, 0.31, begin=5)] == [1]


def test_memory_is_a_reason_to_keep_a_host_that_idles() -> None:
    decides = decider(memory_pressure(1_000_000), idle(for_s=0.0))
    assert ticks(decides, 5, 0.1, 0.1, state_bytes=600_000) == []
    assert [d.hosts for d in ticks(decides, 1, 0.1, 0.1, begin=5, state_bytes=400_000)] == [1]


def test_sizing_shrinks_to_what_was_wanted_at_most_meanwhile() -> None:
    decides = decider(*sizing())
    waves = [decides.tick(sample(at, *[0.3] * 6, offered=2700.0 if at == 12 else 1000.0)) for at in range(25)]
    (decision,) = [one for one in waves if one is not None]
    assert decision.hosts == 4, "2,700 rows/s need four, and they may come again"


def test_load_that_falls_for_long_is_followed_all_the_way() -> None:
    """What was wanted when the rule began to hold is no reason for ever: only the last `for_s` count."""
    decides = decider(*sizing(below=0.5, for_s=20.0))
    falling = (decides.tick(sample(at, *[0.49 - at / 500] * 3)) for at in range(100))
    decision = next((decision for decision in falling if decision is not None), None)
    assert decision is not None, decides.looks
    assert decision.hosts == 2


# -- uneven load -----------------------------------------------------------------------------------------------------


def test_one_busy_host_among_idle_ones_is_relieved_by_moving_keys() -> None:
    (decision,) = ticks(decider(bottleneck(for_s=0.0)), 1, 0.9, 0.2, 0.2)
    assert (decision.action, decision.operator, decision.hosts) == ("rebalance", "count", 3)


def test_if_that_did_not_help_a_host_is_added() -> None:
    found = ticks(decider(bottleneck(for_s=0.0, cool_down_s=5.0)), 6, 0.9, 0.2, 0.2)
    assert [decision.action for decision in found] == ["rebalance", "scale"]


def test_key_that_fills_a_host_is_named_and_nothing_is_moved() -> None:
    decides = decider(bottleneck(for_s=0.0), hot_keys(for_s=0.0))
    assert ticks(decides, 5, 0.95, 0.2, hot=0.8, offered=1150.0) == []
    assert "key C1 of 'count' takes 0.92 of a host by itself" in decides.looks["bottleneck"]
    assert "1,250 rows/s are the most; a processor that declares a merge" in decides.looks["bottleneck"]


def test_sizing_asks_for_no_hosts_that_a_single_key_could_not_use() -> None:
    (decision,) = ticks(decider(*sizing()), 3, 1.0, offered=5000.0, hot=0.9)
    assert decision.hosts == 3, "the key wants 4.5 hosts and can have one; the rest wants half of one"


def test_hot_key_is_spread_only_if_hosts_differ() -> None:
    even = decider(hot_keys(for_s=0.0))
    assert ticks(even, 5, 0.5, 0.5, hot=0.4) == []
    assert "gain little" in even.looks["hot-keys"]
    (decision,) = ticks(decider(hot_keys(for_s=0.0)), 1, 0.8, 0.3, hot=0.4)
    assert decision.action == "rebalance"
    assert "the hottest key is C1 on host-0 with 40 % of the rows" in decision.why


def test_one_host_has_nowhere_to_move_keys() -> None:
    decides = decider(hot_keys(for_s=0.0))
    assert ticks(decides, 5, 0.9, hot=0.9) == []
    assert "no other host" in decides.looks["hot-keys"]


# -- cost ------------------------------------------------------------------------------------------------------------


def test_cost_is_estimated_from_state_and_earlier_changes() -> None:
    costs = Costs()
    before = costs.of(100e6)
    for _ in range(12):
        costs.learn(100_000_000, 1.0, 5.0, join_s=1.0)
    after = costs.of(100e6, joins=True)
    assert after.time_s == pytest.approx(0.2 + 1.0 + 1.0, rel=0.05)
    assert after.stall_ms == pytest.approx(5.0, rel=0.05)
    assert before.time_s > after.time_s


def test_small_changes_teach_nothing_about_throughput() -> None:
    costs = Costs()
    costs.learn(1000, 10.0, 5.0)
    assert costs.of(20e6).time_s == Costs().of(20e6).time_s


def test_decision_has_the_bytes_that_move() -> None:
    (decision,) = ticks(decider(bottleneck(for_s=0.0)), 1, 0.9, 0.9, state_bytes=3_000_000)
    assert decision.cost.bytes == 2_000_000, "a third of all"
    warm = ticks(decider(bottleneck(for_s=0.0), warm=True), 1, 0.9, 0.9, state_bytes=3_000_000)[0]
    assert warm.cost.time_s < decision.cost.time_s, "it does not wait for a start"


def test_host_that_costs_more_to_empty_than_it_saves_stays() -> None:
    decides = decider(idle(for_s=0.0))
    assert ticks(decides, 5, 0.1, 0.1, state_bytes=10**11) == []
    assert "it would cost about" in decides.looks["idle"]


# -- words -----------------------------------------------------------------------------------------------------------


def test_reason_has_rule_figures_and_since_when() -> None:
    found = ticks(decider(bottleneck(for_s=3.0)), 4, 0.9)[0].to_dict()
    assert "scale from 1 to 2 hosts: rule 'bottleneck': useful above 0.7 for 3 s (useful 0.9," in found["reason"]
    assert found["figures"]["useful"] == 0.9
    assert found["cost"]["bytes"] == 0
    assert "operator" not in found, "it concerns all of them"


def test_every_rule_says_how_it_stands() -> None:
    decides = decider(bottleneck(), idle(), *sizing())
    decides.tick(sample(0, 0.75))
    assert decides.looks["bottleneck"] == "useful above 0.7 holds for 0 s (0.75); acts in 3 s"
    assert decides.looks["idle"] == "waits for useful_mean below 0.3: useful_mean is 0.75"


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_operators_of_a_host_add_up() -> None:
    both = Sample(0.0, ("host-0", "host-1"), {"a": operator([0.3, 0.1]), "b": operator([0.3, 0.2])})
    assert METRICS["useful"].of(both, None) == pytest.approx(0.6)
    assert METRICS["useful"].of(both, "b") == pytest.approx(0.3)
    assert METRICS["useful_mean"].of(both, None) == pytest.approx(0.45)
    assert METRICS["load"].of(both, None) == pytest.approx(0.45)


def test_what_is_not_known_is_none() -> None:
    for name in ("useful", "useful_mean", "load", "skew", "hot_share", "state_bytes"):
        assert METRICS[name].of(Sample(0.0, (), {}), None) is None
        assert METRICS[name].of(sample(0.0, 0.5), "nobody") is None, "not idle: not there"


def test_limiting_key_says_how_far_the_operator_can_go() -> None:
    one = operator([0.5, 0.5], offered=1000.0, hot=0.25)
    assert one.limiting_key() == {
        "key": "C1",
        "host": "host-0",
        "share": 0.25,
        "load": 0.25,
        "rows_per_s_max": 4000,
        "merge": "not declared",
    }
    assert replace(one, merges=True).limiting_key() == {**(one.limiting_key() or {}), "merge": "declared"}
    assert operator([0.5]).limiting_key() is None
