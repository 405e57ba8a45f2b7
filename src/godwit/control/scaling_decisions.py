"""When rules act: measures and the time in, at most one decision out, with the reason in words.

A condition must hold without a break, a change must have had its effect on the measures before the next one, and nothing is
decided while keys move or a host gives no answer. Hosts are taken away only if what is left will, by prediction, stay a margin
below what would bring them back; that and the cool-down are why it does not swing. A change that gains little is not made.
Knows no clock, no Spark and no hosts; carrying a decision out, or only telling it, is for others.
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
MARGIN: Final = 0.1  # how far below a growing rule's threshold the load must stay, by prediction, after hosts have gone
SETTLE_S: Final = 5.0  # the window of the measures: until it is over they still tell of the time before the change
LIMITS_S: Final = 30.0  # between two tries to have as many hosts as are allowed
PAY_BACK_S: Final = 300.0  # a change that does not earn in that time what it costs is not worth it
ALONE: Final = 0.9  # a key with so much of its host's work has it nearly for itself: spreading has nothing left to move


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done: so many hosts, or keys of an operator moved apart."""

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
        """For the history, where a line that names no operator concerns all of them."""
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
    """A condition that holds: since when, and the hosts' time that was wanted lately, by the second it was seen."""

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
    """One flock's. `looks` tells of every rule how it stood when it was looked at last."""

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
        self._spread_last = False  # whether the last change only moved keys: if that did not help, hosts must
        self.looks: dict[str, str] = {}

    def tick(self, sample: Sample, moving: bool = False) -> Decision | None:
        """Look once. `moving`: keys are on their way, whoever asked for it, so measures tell of no settled time."""
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
        why = f"{now} hosts are there, and {self._minimum} to {self._maximum} are allowed; costs {cost}"
        return Decision(sample.at_s, "limits", SCALE, now, hosts, why, cost)

    # -- one rule ----------------------------------------------------------------------------------------------------

    def _look(self, rule: Rule, sample: Sample) -> Decision | None:
        value = METRICS[rule.metric].of(sample, rule.operator)
        if value is None or not rule.holds(value):
            self._holds.pop(rule.name, None)
            told = "nothing is known yet" if value is None else f"{rule.metric} is {shown(value)}"
            self.looks[rule.name] = f"waits for {rule.condition()}: {told}"
            return None
        hold = self._holds.setdefault(rule.name, _HoldingCondition(sample.at_s))
        held_s = sample.at_s - hold.since_s
        if held_s >= min(SETTLE_S, rule.for_s / 2):  # what is measured before that tells of the time before it held
            hold.note(sample.at_s, sample.demand(rule.operator), rule.for_s)
        wait_s = self._wait_s(rule, sample.at_s, held_s)
        if wait_s > 0:
            self.looks[rule.name] = (
                f"{rule.condition()} holds for {held_s:.0f} s ({shown(value)}); acts in {wait_s:.0f} s"
            )
            return None
        found = self._found(rule, sample, hold)
        if isinstance(found, str):
            self.looks[rule.name] = f"{rule.condition()} holds ({shown(value)}), and nothing is done: {found}"
            return None
        self.looks[rule.name] = found.why
        return found

    def _wait_s(self, rule: Rule, now_s: float, held_s: float) -> float:
        """How much longer it has to wait: for its own time, for the cool-down, and for measures of after the change."""
        since_s = math.inf if self._changed_s is None else now_s - self._changed_s
        return max(rule.for_s - held_s, max(rule.cool_down_s, SETTLE_S) - since_s)

    def _found(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> Decision | str:
        """The decision, or why there is none."""
        if rule.action == SPREAD:
            return self._spread(rule, sample, hold)
        if rule.action == OUT:
            better = self._instead(rule, sample, hold)
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
            return f"{now} hosts are what is needed, or with fewer the load would come near to what brings them back"
        return f"{hosts} hosts would be needed, {now} are there, and {low} to {high} are allowed"

    def _wanted(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> int:
        now = len(sample.hosts)
        match rule.action:
            case "scale-out":
                return now + 1
            case "scale-in":
                return now - 1
            case _:
                # What was wanted at most in the last `for_s`: a trough between two waves is no reason to shrink.
                wanted = math.ceil(hold.demand_max / rule.aim - 1e-9)
                return max(now, wanted) if rule.above is not None else min(now, wanted)

    def _safe(self, sample: Sample, now: int, hosts: int) -> int:
        """As few as asked for, or more: with which no growing rule would come near to acting."""
        found = max(hosts, 1)
        while found < now and any(self._near(rule, sample, now / found) for rule in self._rules if rule.grows):
            found += 1
        return found

    def _near(self, rule: Rule, sample: Sample, factor: float) -> bool:
        metric = METRICS[rule.metric]
        value = metric.of(sample, rule.operator)
        return metric.spread and value is not None and value * factor > rule.threshold * (1.0 - MARGIN)

    # -- uneven load -------------------------------------------------------------------------------------------------

    def _instead(self, rule: Rule, sample: Sample, hold: _HoldingCondition) -> Decision | str | None:
        """One host is busy and the others are not: moving keys helps as much as a host more, if there are keys to move."""
        mean = METRICS["useful_mean"].of(sample, rule.operator) or 0.0
        found = sample.most_skewed(rule.operator)
        if rule.metric != "useful" or len(sample.hosts) < 2 or found is None or found[1] <= 2 * TOLERANCE:
            return None
        alone = self._alone(sample, found[0])
        if alone is not None:
            return alone
        if mean > rule.threshold * (1.0 - MARGIN) or self._spread_last:
            return None
        return self._spread(rule, sample, hold)

    def _alone(self, sample: Sample, operator: str) -> str | None:
        """Why no move helps: one key makes nearly all of the busiest host's work."""
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
        found = sample.most_skewed(rule.operator)
        if found is None or len(sample.hosts) < 2:
            return "there is no other host to move keys to"
        operator, skew = found
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
        held_s = sample.at_s - hold.since_s
        why = (
            f"rule {rule.name!r}: {rule.condition()} for {held_s:.0f} s ({', '.join(numbered(figures))}); costs {cost}"
        )
        hot = [one.hot[0] for name, one in sample.operators.items() if one.hot and operator in (None, name)]
        if action == REBALANCE and hot:
            why += f"; the hottest key is {hot[0].key} on {hot[0].host} with {100 * hot[0].share:.0f} % of the rows"
        figures["held_s"] = held_s
        now = len(sample.hosts)
        return Decision(sample.at_s, rule.name, action, now, hosts, why, cost, operator or rule.operator, figures)


def _urgency(rule: Rule) -> int:
    """More hosts before moved keys before fewer hosts."""
    return 0 if rule.grows else 1 if rule.action == SPREAD else 2


def _state_bytes(sample: Sample) -> int:
    return sum(one.state_bytes for one in sample.operators.values())


__all__ = ["IN", "OUT", "REBALANCE", "SCALE", "SIZE", "SPREAD", "Decision", "ScalingDecider"]
