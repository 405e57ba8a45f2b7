"""Checks which rules can work, alone and together, on a flock of so many hosts. Others are refused when they are set.

The error names the rule, the reason and the next step. `scaling_decisions` decides when a rule acts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, Final

from godwit.control.load_measures import METRICS, shown
from godwit.control.rules import ACTIONS, IN, OUT, SIZE, SPREAD, Rule
from godwit.errors import DefinitionError


def checked(rules: Any, minimum: int, maximum: int, operators: Sequence[str] = ()) -> list[Rule]:
    """The rules as a list, if all checks pass."""
    _check_limits(minimum, maximum)
    listed = _listed(rules)
    for rule in listed:
        _check_words(rule, operators)
        _check_numbers(rule)
        _check_hosts(rule, minimum, maximum)
    _check_names(listed)
    for one, other in combinations(listed, 2):
        _check_pair(one, other, minimum)
        _check_pair(other, one, minimum)
    return listed


def _check_limits(minimum: Any, maximum: Any) -> None:
    for name, value in (("minimum", minimum), ("maximum", maximum)):
        if not _count(value):
            raise DefinitionError(f"{name}={value!r} is not allowed", todo="Give a number of hosts from 1 up")
    if minimum > maximum:
        raise DefinitionError(
            f"minimum={minimum} is above maximum={maximum}, so no number of hosts is allowed",
            todo="Give a minimum that is not above the maximum",
        )


def _listed(rules: Any) -> list[Rule]:
    flat: list[Any] = []
    for rule in [rules] if isinstance(rules, Rule) else rules if isinstance(rules, Iterable) else [rules]:
        flat += rule if isinstance(rule, list) else [rule]
    odd = [rule for rule in flat if not isinstance(rule, Rule)]
    if odd or not flat:
        raise DefinitionError(
            f"{odd[0]!r:.80} is not a rule" if odd else "no rule was given",
            todo="Give a godwit.rules.Rule, a ready rule, or the path of a TOML file",
        )
    return flat


def _check_words(rule: Rule, operators: Sequence[str]) -> None:
    for what, value, known in (
        ("metric", rule.metric, METRICS),
        ("action", rule.action, ACTIONS),
        ("operator", rule.operator, operators if rule.operator is not None and operators else (rule.operator,)),
    ):
        if value not in known:
            raise DefinitionError(
                f"there is no {what} {value!r}", todo=f"Give one of: {', '.join(map(str, known))}", rule=rule.name
            )


def _check_numbers(rule: Rule) -> None:
    if (rule.above is None) == (rule.below is None):
        raise DefinitionError(
            "a rule needs either above= or below=", todo="Give one of the two, as a number", rule=rule.name
        )
    for name, value, least, most in (
        ("above", rule.above, 0.0, math.inf),
        ("below", rule.below, 0.0, math.inf),
        ("for_s", rule.for_s, 0.0, 86_400.0),
        ("cool_down_s", rule.cool_down_s, 0.0, 86_400.0),
        ("aim", rule.aim, 0.05, 1.0),
    ):
        if value is not None and not _between(value, least, most):
            todo = (
                f"Give a number from {least:g} to {most:g}" if most < math.inf else f"Give a number from {least:g} up"
            )
            raise DefinitionError(f"{name}={value!r} is not allowed", todo=todo, rule=rule.name)
    wrong_way = {OUT: rule.below, IN: rule.above, SPREAD: rule.below}.get(rule.action)
    if wrong_way is not None:
        way = "below" if rule.action != IN else "above"
        raise DefinitionError(
            f"{rule.action} when {rule.metric} is {way} {shown(wrong_way)} would make the load worse",
            todo=f"Give {'above' if way == 'below' else 'below'}=",
            rule=rule.name,
        )
    if rule.action == SIZE and rule.above is not None and rule.aim > rule.above:
        raise DefinitionError(
            f"the rule acts above {shown(rule.above)} and aims at {shown(rule.aim)}, so between the two it would do nothing",
            todo="Give aim= a value below above=",
            rule=rule.name,
        )
    if rule.action == SIZE and rule.metric != "load":
        raise DefinitionError(
            f"the action {SIZE} uses the metric load, not {rule.metric}",
            todo="Use metric='load', or another action",
            rule=rule.name,
        )


def _between(value: Any, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_hosts(rule: Rule, minimum: int, maximum: int) -> None:
    most = maximum if rule.at_most is None else rule.at_most
    for name, value in (("at_least", rule.at_least), ("at_most", most)):
        if not _count(value):
            raise DefinitionError(f"{name}={value!r} is not allowed", todo="Give a number of hosts", rule=rule.name)
    for what, low, high in (
        (f"at_least={rule.at_least} is above the flock's maximum={maximum}", rule.at_least, maximum),
        (f"at_least={rule.at_least} is above at_most={rule.at_most}", rule.at_least, most),
        (f"at_most={rule.at_most} is below the flock's minimum={minimum}", minimum, most),
    ):
        if low > high:
            raise DefinitionError(f"{what}, so it could never act", todo="Change one of the two", rule=rule.name)


def _check_names(rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for name in [rule.name for rule in rules]:
        if not name or name in seen:
            what = f"two rules are named {name!r}" if name else "a rule has no name"
            raise DefinitionError(what, todo="Give each rule its own name")
        seen.add(name)


SAME_SENSE: Final = frozenset(("useful", "useful_mean", "load"))  # shares of the same time: their thresholds compare


def _check_pair(grow: Rule, shrink: Rule, minimum: int) -> None:
    """Refused: a load at which both act, and one at which each brings about what the other acts on."""
    alike = grow.metric == shrink.metric or {grow.metric, shrink.metric} <= SAME_SENSE
    apart = None not in (grow.operator, shrink.operator) and grow.operator != shrink.operator
    if not (grow.grows and shrink.shrinks and alike) or apart:
        return
    up, down = shown(grow.threshold), shown(shrink.threshold)
    if shrink.threshold >= grow.threshold:
        raise DefinitionError(
            f"{shrink.name!r} takes hosts away below {down} and {grow.name!r} adds them above {up}: between the two both act",
            todo=f"Give {shrink.name!r} a threshold well below {up}",
            rule=shrink.name,
        )
    if METRICS[grow.metric].spread:
        _check_undone(grow, shrink, max(minimum, shrink.at_least))


def _check_undone(grow: Rule, shrink: Rule, hosts: int) -> None:
    """A further host brings a load at the upper threshold down to n / (n + 1) of it: furthest with the fewest hosts."""
    if shrink.action == SIZE:
        undone, after = shrink.aim > grow.threshold, shrink.aim
        todo = f"Give {shrink.name!r} an aim below {shown(grow.threshold)}"
    else:
        after = grow.aim / 2 if grow.action == SIZE else grow.threshold * hosts / (hosts + 1)
        undone, todo = shrink.threshold > after, f"Give {shrink.name!r} a threshold of {shown(after)} or less"
    if undone:
        first, second = (shrink, grow) if shrink.action == SIZE else (grow, shrink)
        raise DefinitionError(
            f"{grow.name!r} and {shrink.name!r} would undo each other: {first.name!r} may bring {first.metric} to "
            f"{shown(after)}, and {second.name!r} acts on {second.condition()}",
            todo=todo,
            rule=shrink.name,
        )
