"""Rules of the autoscaler, as data: which metric is read, above or below which number, for how long, and the action then.

Ready rules: a bottleneck above 70 % useful time (SEEP), sizing in one pass from true rates (DS2: rows that come in, divided by
the rows that an instance applies in a second of useful time), hot keys, memory, idleness. `scaling_decisions` decides when a
rule acts, `rule_checks` which rules can work.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from godwit.control.load_measures import shown
from godwit.errors import DefinitionError

OUT, IN, SIZE, SPREAD = "scale-out", "scale-in", "size", "spread"
ACTIONS: Final = {
    OUT: "one host more",
    IN: "one host fewer",
    SIZE: "as many hosts as the load needs, in one pass",
    SPREAD: "move hot keys and groups from the busiest host to others",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """When `metric` has been `above` or `below` a number for `for_s`, do `action`.

    cool_down_s: for so long after the last change of the flock, by whomever, the rule does not act.
    at_least, at_most: hosts that this rule leaves; None is what the flock allows.
    operator: whose metric is read; None for all operators together.
    aim: with action "size", the share of their time in which hosts are to work afterwards.
    """

    name: str
    metric: str
    action: str
    above: float | None = None
    below: float | None = None
    for_s: float = 5.0
    cool_down_s: float = 30.0
    at_least: int = 1
    at_most: int | None = None
    operator: str | None = None
    aim: float = 0.7

    @property
    def threshold(self) -> float:
        bound = self.above if self.above is not None else self.below
        assert bound is not None, "a checked rule has one"
        return bound

    def holds(self, value: float) -> bool:
        return value > self.threshold if self.above is not None else value < self.threshold

    @property
    def grows(self) -> bool:
        return self.above is not None and self.action in (OUT, SIZE)

    @property
    def shrinks(self) -> bool:
        return self.below is not None and self.action in (IN, SIZE)

    def condition(self) -> str:
        return f"{self.metric} {'above' if self.above is not None else 'below'} {shown(self.threshold)}"


# -- ready rules -----------------------------------------------------------------------------------------------------


def bottleneck(above: float = 0.7, **more: Any) -> Rule:
    """One host more when the busiest works most of the time."""
    return replace(Rule("bottleneck", "useful", OUT, above=above, for_s=3.0, cool_down_s=10.0), **more)


def idle(below: float = 0.3, **more: Any) -> Rule:
    """One host fewer when all have little to do."""
    return replace(Rule("idle", "useful_mean", IN, below=below, for_s=30.0, cool_down_s=60.0), **more)


def sizing(aim: float = 0.7, above: float = 0.8, below: float = 0.5, **more: Any) -> list[Rule]:
    """As many hosts as the load needs, in one pass, when it leaves the band between the two; soon when it grows."""
    grow = Rule("size-out", "load", SIZE, above=above, for_s=2.0, cool_down_s=5.0, aim=aim)
    shrink = Rule("size-in", "load", SIZE, below=below, for_s=20.0, cool_down_s=20.0, aim=aim)
    return [replace(rule, **more) for rule in (grow, shrink)]


def hot_keys(above: float = 0.5, **more: Any) -> Rule:
    """Move keys apart when one has more than so much of a host's even share of the rows."""
    return replace(Rule("hot-keys", "hot_share", SPREAD, above=above, for_s=10.0, cool_down_s=60.0), **more)


def memory_pressure(above: float, **more: Any) -> Rule:
    """One host more when the fullest has more than so many bytes of state."""
    return replace(Rule("memory", "state_bytes", OUT, above=above, for_s=5.0, cool_down_s=30.0), **more)


READY: Final[Mapping[str, Callable[..., Rule | list[Rule]]]] = {
    "bottleneck": bottleneck,
    "idle": idle,
    "sizing": sizing,
    "hot-keys": hot_keys,
    "memory": memory_pressure,
}


def ready(*names: str) -> list[Rule]:
    """Ready rules by name, with their default settings."""
    rules: list[Rule] = []
    for name in names:
        rules += _ready(name, {})
    return rules


def _ready(name: Any, given: Mapping[str, Any]) -> list[Rule]:
    if name not in READY:
        raise DefinitionError(f"there is no ready rule {name!r}", todo=f"There are: {', '.join(READY)}")
    if name == "memory" and "above" not in given:
        raise DefinitionError("how many bytes are too many is not known", todo="Give above=", rule=name)
    try:
        made = READY[name](**given)
    except TypeError:
        raise _unknown_field(str(name), given) from None
    return made if isinstance(made, list) else [made]


# -- from a file -----------------------------------------------------------------------------------------------------


def parsed(text: str, where: str = "the rules") -> list[Rule]:
    """Rules from TOML: a table `[[rule]]` each, with the fields of `Rule`; `ready = "idle"` begins from a ready one."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{where} cannot be read as TOML: {error}", todo="Correct the file") from error
    tables = data.pop("rule", [])
    if data or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not tables:
        odd = f"has {next(iter(data))!r}" if data else "has no [[rule]]"
        raise DefinitionError(f"{where} {odd}", todo="Write a table [[rule]] for each rule, and nothing else")
    return [rule for table in tables for rule in _from_table(table)]


def _from_table(table: Mapping[str, Any]) -> list[Rule]:
    given = dict(table)
    if "ready" in given:
        return _ready(given.pop("ready"), given)
    try:
        return [Rule(**given)]
    except TypeError:
        raise _unknown_field(str(given.get("name", "?")), given) from None


def _unknown_field(rule: str, given: Mapping[str, Any]) -> DefinitionError:
    known = [field.name for field in fields(Rule)]
    odd = [name for name in given if name not in known]
    missing = [name for name in ("name", "metric", "action") if name not in given]
    what = f"there is no field {odd[0]!r}" if odd else f"the field {missing[0]!r} is missing"
    return DefinitionError(what, todo=f"The fields are: {', '.join(known)}", rule=rule)
