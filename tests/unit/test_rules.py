"""Rules as data: which are ready, how a file says them, and which are refused, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from godwit.control.rule_checks import checked
from godwit.control.rules import (
    READY,
    Rule,
    bottleneck,
    hot_keys,
    idle,
    memory_pressure,
    parsed,
    ready,
    sizing,
)
from godwit.errors import DefinitionError

GOOD = Rule("busy", "useful", "scale-out", above=0.7)


def refused(rules: Any, minimum: int = 1, maximum: int = 8, operators: tuple[str, ...] = ()) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        checked(rules, minimum, maximum, operators)
    assert caught.value.todo, "says what to do"
    return caught.value


def test_ready_rules_go_together() -> None:
    everything = [bottleneck(), idle(), *sizing(), hot_keys(), memory_pressure(1e9)]
    assert checked(everything, 1, 8) == everything
    assert {rule.name for rule in everything} == {"bottleneck", "idle", "size-out", "size-in", "hot-keys", "memory"}
    assert ready("sizing", "idle") == [*sizing(), idle()]


def test_lists_of_rules_and_single_rules_are_taken() -> None:
    assert checked([bottleneck(), sizing()], 1, 4) == [bottleneck(), *sizing()]
    assert checked(idle(), 1, 4) == [idle()]


# -- alone -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metric": "cpu"}, "there is no metric 'cpu'"),
        ({"action": "explode"}, "there is no action 'explode'"),
        ({"operator": "nobody"}, "there is no operator 'nobody'"),
        ({"above": None}, "above= or below="),
        ({"below": 0.2}, "above= or below="),
        ({"above": -0.1}, "above=-0.1 is not allowed"),
        ({"above": float("nan")}, "above=nan is not allowed"),
        ({"above": "much"}, "above='much' is not allowed"),
        ({"above": True}, "above=True is not allowed"),
        ({"for_s": -1.0}, "for_s=-1.0 is not allowed"),
        ({"cool_down_s": float("inf")}, "cool_down_s=inf is not allowed"),
        ({"aim": 0.0}, "aim=0.0 is not allowed"),
        ({"at_least": 0}, "at_least=0 is not allowed"),
        ({"at_most": 0}, "at_most=0 is not allowed"),
        ({"at_least": 5, "at_most": 3}, "at_least=5 is above at_most=3"),
        ({"at_least": 9}, "at_least=9 is above the flock's maximum=8"),
        ({"above": None, "below": 0.7}, "would make the load worse"),
        ({"action": "scale-in"}, "would make the load worse"),
        ({"action": "size", "metric": "load", "aim": 0.8}, "the rule acts above 0.7 and aims at 0.8"),
        ({"action": "size"}, "the action size uses the metric load"),
        ({"name": ""}, "a rule has no name"),
    ],
    ids=str,
)
def test_impossible_rule_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    error = refused([replace(GOOD, **change)], operators=("count",))
    assert said in str(error)


def test_error_says_which_rule_and_what_there_is_instead() -> None:
    error = refused([GOOD, replace(GOOD, name="odd", metric="cpu")])
    assert error.fields["rule"] == "odd"
    assert "useful_mean" in error.todo


@pytest.mark.parametrize(
    ("minimum", "maximum", "said"),
    [(3, 2, "minimum=3 is above maximum=2"), (0, 2, "minimum=0"), (1, True, "maximum=True")],
)
def test_impossible_limits_are_refused(minimum: Any, maximum: Any, said: str) -> None:
    assert said in str(refused([GOOD], minimum, maximum))


def test_rule_that_the_flocks_limits_never_let_act_is_refused() -> None:
    assert "below the flock's minimum=4" in str(refused([replace(GOOD, at_most=3)], minimum=4))


@pytest.mark.parametrize("rules", [[], None, 7, ["bottleneck"], [GOOD, None]], ids=str)
def test_what_is_no_rule_is_refused(rules: Any) -> None:
    refused(rules)


# -- together --------------------------------------------------------------------------------------------------------


def test_two_of_a_name_are_refused() -> None:
    assert "two rules are named 'busy'" in str(refused([GOOD, GOOD]))


def test_scale_in_above_scale_out_is_refused() -> None:
    error = refused([bottleneck(above=0.5), idle(below=0.6)])
    assert "both act" in str(error)
    assert error.fields["rule"] == "idle"


def test_rules_that_would_undo_each_other_are_refused() -> None:
    error = refused([bottleneck(above=0.7), idle(below=0.4)])
    assert "undo each other" in str(error)
    assert "0.35" in error.todo, "one host at 70 % makes two at 35 %"


def test_more_hosts_at_least_leave_room_for_a_higher_threshold() -> None:
    pair = [bottleneck(above=0.7), idle(below=0.4)]
    assert checked(pair, 3, 8) == pair, "three at 70 % make four at 52 %"
    kept = [bottleneck(above=0.7), idle(below=0.4, at_least=2)]
    assert checked(kept, 1, 8) == kept


def test_sizing_that_shrinks_to_what_others_grow_at_is_refused() -> None:
    assert "undo each other" in str(refused([bottleneck(above=0.6), *sizing(aim=0.7)]))
    assert "undo each other" in str(refused([*sizing(aim=0.5), idle(below=0.3)])), (
        "one more of one host halves its load"
    )


def test_rules_of_two_operators_do_not_contradict_each_other() -> None:
    pair = [bottleneck(above=0.5, operator="a"), idle(below=0.6, operator="b")]
    assert checked(pair, 1, 8, ("a", "b")) == pair
    refused([bottleneck(above=0.5, operator="a"), idle(below=0.6)], operators=("a", "b"))


def test_metrics_that_do_not_compare_are_left_alone() -> None:
    pair = [memory_pressure(1e9), idle()]
    assert checked(pair, 1, 8) == pair


# -- from a file -----------------------------------------------------------------------------------------------------

FILE = """
[[rule]]
ready = "bottleneck"
above = 0.8
at_most = 6

[[rule]]
name = "slow"
metric = "wait_ms"
above = 50
for_s = 3
cool_down_s = 20
action = "scale-out"
operator = "speed"

[[rule]]
ready = "sizing"
"""


def test_file_says_the_same_as_python() -> None:
    slow = Rule("slow", "wait_ms", "scale-out", above=50, for_s=3, cool_down_s=20, operator="speed")
    assert parsed(FILE) == [bottleneck(above=0.8, at_most=6), slow, *sizing()]


@pytest.mark.parametrize("name", READY)
def test_every_ready_rule_can_be_named_in_a_file(name: str) -> None:
    more = "above = 1e9" if name == "memory" else ""
    assert checked(parsed(f'[[rule]]\nready = "{name}"\n{more}'), 1, 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]\n", "cannot be read as TOML"),
        ("", "has no [[rule]]"),
        ("rules = 1", "has 'rules'"),
        ("rule = 3", "has no [[rule]]"),
        ('[[rule]]\nready = "greed"', "there is no ready rule 'greed'"),
        ('[[rule]]\nready = "memory"', "how many bytes"),
        ('[[rule]]\nready = "idle"\nuntil = 3', "there is no field 'until'"),
        ('[[rule]]\nname = "a"\nmetric = "useful"', "the field 'action' is missing"),
        ('[[rule]]\nname = "a"\nmetric = "useful"\naction = "scale-out"\nover = 1', "there is no field 'over'"),
    ],
)
def test_file_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        parsed(text, "rules.toml")
    assert said in str(caught.value)
    assert caught.value.todo
