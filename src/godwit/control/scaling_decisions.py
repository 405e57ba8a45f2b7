"""Decides when rules act: measures and the time in, at most one decision out, with the reason in words.

A condition must be true without a break, the measures must show the effect of the last change before the next one, and nothing
is decided while keys move or a host gives no answer. Hosts are removed only if the load of the rest is predicted to stay a
margin below the threshold that would add them again; this and the cool-down prevent oscillation. A change with little gain is
not made. Knows no clock, no Spark and no hosts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from godwit.control.costs import Cost, Costs
from godwit.control.load_measures import METRICS, Sample, numbered, shown
from godwit.control.planner import TOLERANCE
from godwit.control.rules import IN, OUT, SIZE, SPREAD, Rule

SCALE, REBALANCE = "scale", "rebalance"
MARGIN: Final = (
    0.1  # how far below the threshold of a growing rule the predicted load must stay after hosts are removed
)
SETTLE_S: Final = 5.0  # the window of the measures: until it has passed they include the time before the change
LIMITS_S: Final = 30.0  # between two tries to bring the number of hosts within its limits
PAY_BACK_S: Final = 300.0  # a change must gain in this time what it costs
ALONE: Final = 0.9  # a key with so much of the work of its host is nearly alone there: no other keys are left to move


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: a number of hosts, or a rebalance of the keys of an operator."""

    at_s: float
    rule: str
    action: str
    hosts_before: int
    hosts: int
    why: str
    cost: Cost
    operator: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def what(self) -> str:
        if self.action == REBALANCE:
            return f"rebalance {self.operator}"
        return f"scale from {self.hosts_before} to {self.hosts} hosts"

    def to_dict(self) -> dict[str, Any]:
        """In the form of the history, where an event without an operator concerns all of them."""
        return {
            "rule": self.rule,
            "action": self.action,
            **({} if self.operator is None else {"operator": self.operator}),
            "hosts_before": self.hosts_before,
            "hosts": self.hosts,
            "reason": f"{self.what()}: {self.why}",
            "figures": {name: round(value, 4) for name, value in self.figures.items()},
            "cost": {**asdict(self.cost), "time_s": round(self.cost.time_s, 3)},
        }


@dataclass(slots=True)
class _HoldingCondition:
    """A condition that is true: since when, and the recent demand, with the times at which it was measured."""

    since_s: float
    wanted: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, now_s: float, demand: float, for_s: float) -> None:
        self.wanted.append((now_s, demand))
        while self.wanted[0][0] < now_s - for_s:
            self.wanted.popleft()

    @property
    def demand_max(self) -> float:
        return max((demand for _, demand in self.wanted), default=0.0)


class ScalingDecider:
    """Decides for one flock. `looks`: the state of every rule at the last look, in words."""

    def __init__(
        self, rules: Sequence[Rule], minimum: int, maximum: int, costs: Costs | None = None, warm: bool = False
    ) -> None:
        self._rules = sorted(rules, key=_urgency)
        self._minimum, self._maximum = minimum, maximum
        self._warm = warm
        self.costs = costs or Costs()
        self._holds: dict[str, _HoldingCondition] = {}
        self._changed_s: float | None = None
        self._unsettled = False
        self._spread_last = False  # whether the last change was a rebalance: if it did not help, hosts are added
        self.looks: dict[str, str] = {}

    def tick(self, sample: Sample, moving: bool = False) -> Decision | None:
        """Look once. `moving`: keys are being moved by any request, so the measures are not steady."""
        unsettled = "keys move" if moving else f"{', '.join(sample.silent)} gives no answer" if sample.silent else ""
        if unsettled or not sample.hosts:
            self._unsettled = self._unsettled or bool(unsettled)
            self._holds.clear()
            self.looks = {rule.name: f"nothing is decided while {unsettled}" for rule in self._rules if unsettled}
            return None
        if self._unsettled:
            self._unsettled, self._changed_s = False, sample.at_s
        decision = self._within_limits(sample)
        for rule in self._rules:
            decision = decision or self._look(rule, sample)
        if decision is not None:
            self._spread_last = decision.action == REBALANCE
            self._changed_s = sample.at_s
            self._holds.clear()
        return decision

    def _within_limits(self, sample: Sample) -> Decision | None:
        now = len(sample.hosts)
        hosts = max(self._minimum, min(self._maximum, now))
        lately = self._changed_s is not None and sample.at_s - self._changed_s < LIMITS_S
        if hosts == now or lately:
            return None
        cost = self.costs.of(_state_bytes(sample) * abs(hosts - now) / max(hosts, now), hosts > now and not self._warm)
        why = f"there are {now} hosts, and {self._minimum} to {self._maximum} are allowed; costs {cost}"
        return Decision(sample.at_s, "limits", SCALE, now, hosts, why, cost)

    # -- one rule ----------------------------------------------------------------------------------------------------

    def _look(self, rule: Rule, sample: Sample) -> Decision | None:
        value = METRICS[rule.metric].of(sample, rule.operator)
        if value is None or not rule.holds(value):
            self._holds.pop(rule.name, None)
            reading = "nothing is known yet" if value is None else f"{rule.metric} is {shown(value)}"
            self.looks[rule.name] = f"waits for {rule.condition()}: {reading}"
            return None
        hold = self._holds.setdefault(rule.name, _HoldingCondition(sample.at_s))
        lasted_s = sample.at_s - hold.since_s
        if lasted_s >= min(SETTLE_S, rule.for_s / 2):  # earlier measures include the time before
            hold.note(sample.at_s, sample.demand(rule.operator), rule.for_s)
        wait_s = self._wait_s(rule, sample.at_s, lasted_s)
        if wait_s > 0:
            self.looks[rule.name] = (
                f"{rule.condition()} holds for {lasted_s:.0f} s ({shown(value)}); acts in {wait_s:.0f} s"
            )
            return None
        outcome = self._decide(rule, sample, hold)
        if isinstance(outcome, str):
            self.looks[rule.name] = f"{rule.condition()} holds ({shown(value)}), and nothing is done: {outcome}"
            return None
        self.looks[rule.name] = outcome.why
        return outcome

    def _wait_s(self, rule: Rule, now_s: float, lasted_s: float) -> float:
        """How much longer the rule waits: for its own duration, the cool-down, and steady measures after the last change."""
        since_s = math.inf if self._changed_s is None else now_s - self._changed_s
        return max(rule.for_s - lasted_s, max(rule.cool_down_s, SETTLE_S) - since_s)

    def _decide(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> Decision | str:
        """The decision, or the reason why there is none."""
        if rule.action == SPREAD:
            return self._spread(rule, sample, hold)
        if rule.action == OUT:
            better = self._rebalance_instead(rule, sample, hold)
            if better is not None:
                return better
        hosts = self._wanted(rule, sample, hold)
        now = len(sample.hosts)
        if hosts < now:
            hosts = self._safe(sample, now, hosts)
        low, high = max(self._minimum, rule.at_least), min(self._maximum, rule.at_most or self._maximum)
        bounded = max(low, min(high, hosts))
        if bounded == now or (bounded > now) != (hosts > now):
            return self._bounded(now, hosts, low, high)
        moved = _state_bytes(sample) * abs(bounded - now) / max(bounded, now)
        cost = self.costs.of(moved, joins=bounded > now and not self._warm)
        if bounded < now and cost.time_s * now > (now - bounded) * PAY_BACK_S:
            return f"it would cost {cost}, and save {now - bounded} of {now} hosts"
        return self._decision(rule, sample, hold, SCALE, bounded, cost)

    def _bounded(self, now: int, hosts: int, low: int, high: int) -> str:
        if hosts == now:
            return f"{now} hosts are needed: with fewer the load would come near the threshold that adds hosts"
        return f"{hosts} hosts would be needed, there are {now}, and {low} to {high} are allowed"

    def _wanted(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> int:
        now = len(sample.hosts)
        match rule.action:
            case "scale-out":
                return now + 1
            case "scale-in":
                return now - 1
            case _:
                # The greatest demand of the last `for_s`: a low point between two peaks is no reason to shrink.
                wanted = math.ceil(hold.demand_max / rule.aim - 1e-9)
                return max(now, wanted) if rule.above is not None else min(now, wanted)

    def _safe(self, sample: Sample, now: int, hosts: int) -> int:
        """The fewest hosts, but at least so many, with which no growing rule would come near its threshold."""
        fewest = max(hosts, 1)
        while fewest < now and any(self._near(rule, sample, now / fewest) for rule in self._rules if rule.grows):
            fewest += 1
        return fewest

    def _near(self, rule: Rule, sample: Sample, factor: float) -> bool:
        metric = METRICS[rule.metric]
        value = metric.of(sample, rule.operator)
        return metric.spread and value is not None and value * factor > rule.threshold * (1.0 - MARGIN)

    # -- uneven load -------------------------------------------------------------------------------------------------

    def _rebalance_instead(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> Decision | str | None:
        """If only one host is busy, a rebalance instead of a new host, or the reason why no move helps."""
        mean = METRICS["useful_mean"].of(sample, rule.operator) or 0.0
        skewed = sample.most_skewed(rule.operator)
        if rule.metric != "useful" or len(sample.hosts) < 2 or skewed is None or skewed[1] <= 2 * TOLERANCE:
            return None
        alone = self._alone(sample, skewed[0])
        if alone is not None:
            return alone
        if mean > rule.threshold * (1.0 - MARGIN) or self._spread_last:
            return None
        return self._spread(rule, sample, hold)

    def _alone(self, sample: Sample, operator: str) -> str | None:
        """The reason why no move helps, if one key causes nearly all the work of the busiest host."""
        one = sample.operators[operator]
        limit = one.limiting_key()
        busiest = max((load.useful for load in one.instances.values()), default=0.0)
        if limit is None or limit["load"] < ALONE * busiest:
            return None
        more = "" if one.merges else "; a processor that declares a merge would need to apply only a few of them"
        return (
            f"key {limit['key']} of {operator!r} takes {shown(limit['load'])} of a host by itself, and one host applies a key: "
            f"{limit['rows_per_s_max']:,} rows/s are the most{more}"
        )

    def _spread(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> Decision | str:
        skewed = sample.most_skewed(rule.operator)
        if skewed is None or len(sample.hosts) < 2:
            return "there is no other host to move keys to"
        operator, skew = skewed
        if skew <= TOLERANCE:
            return f"the busiest host is only {100 * skew:.0f} % above the mean, so a move would gain little"
        alone = self._alone(sample, operator)
        if alone is not None:
            return alone
        state_bytes = sample.operators[operator].state_bytes
        cost = self.costs.of(state_bytes * min(1.0, skew) / len(sample.hosts))
        if cost.time_s > PAY_BACK_S * skew:
            return f"it would cost {cost}, for a host that is {100 * skew:.0f} % above the mean"
        return self._decision(rule, sample, hold, REBALANCE, len(sample.hosts), cost, operator)

    def _decision(
        self,
        rule: Rule,
        sample: Sample,
        hold: _HoldingCondition,
        action: str,
        hosts: int,
        cost: Cost,
        operator: str | None = None,
    ) -> Decision:
        shown_of = dict.fromkeys((rule.metric, "useful", "useful_mean", "load", "rows_per_s"))
        values = {name: METRICS[name].of(sample, rule.operator) for name in shown_of}
        figures = {name: value for name, value in values.items() if value is not None}
        figures["demand"] = sample.demand(rule.operator)
        lasted_s = sample.at_s - hold.since_s
        why = f"rule {rule.name!r}: {rule.condition()} for {lasted_s:.0f} s ({', '.join(numbered(figures))}); costs {cost}"
        hot = [one.hot[0] for name, one in sample.operators.items() if one.hot and operator in (None, name)]
        if action == REBALANCE and hot:
            why += f"; the hottest key is {hot[0].key} on {hot[0].host} with {100 * hot[0].share:.0f} % of the rows"
        figures["held_s"] = lasted_s
        now = len(sample.hosts)
        return Decision(sample.at_s, rule.name, action, now, hosts, why, cost, operator or rule.operator, figures)


def _urgency(rule: Rule) -> int:
    """More hosts before moved keys before fewer hosts."""
    return 0 if rule.grows else 1 if rule.action == SPREAD else 2


def _state_bytes(sample: Sample) -> int:
    return sum(one.state_bytes for one in sample.operators.values())


__all__ = ["IN", "OUT", "REBALANCE", "SCALE", "SIZE", "SPREAD", "Decision", "ScalingDecider"]
