"""The autoscaler: a thread that reads the measures of the hosts, lets rules decide, and requests what they decide.

Decides when to look and how many empty hosts stay started. What a rule decides is in `control.scaling_decisions`; how keys move
is in `request_queue`. One decision is carried out at a time, and written to the history before that.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.control import rules as ready_rules
from godwit.control.rule_checks import checked
from godwit.control.rules import Rule, parsed
from godwit.control.scaling_decisions import REBALANCE, Decision, ScalingDecider
from godwit.errors import DefinitionError, GodwitError
from godwit.spark.change.migration_handle import Migration
from godwit.spark.change.request_queue import RequestQueue
from godwit.spark.checkpoint.history import History
from godwit.spark.define.arguments import check_slots, slots_of
from godwit.spark.hosts.host_measures import HostMeasures

RulesGiven = Rule | Iterable[Rule | list[Rule]] | str | os.PathLike[str] | None
FOR_TASKS: Final = 2  # task slots that are left to the query unless a maximum is given
STOP_S: Final = 30.0
_log = logging.getLogger("godwit.autoscale")


@dataclass(frozen=True, slots=True)
class FlockRoom:
    """What limits an autoscaler. `taken`: task slots of other flocks; `hosts`: the hosts of this flock now."""

    spark: SparkSession
    taken: Mapping[str, int]
    hosts: int
    operators: Sequence[str]

    def hosts_max(self) -> int:
        """The most hosts that leave two task slots to the query, and no fewer than there are."""
        return max(self.hosts, slots_of(self.spark) - sum(self.taken.values()) - FOR_TASKS)


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """The arguments of `Flock.autoscale`, checked."""

    rules: list[Rule]
    minimum: int
    maximum: int
    every_s: float
    warm: int
    dry_run: bool = False


def checked_settings(
    room: FlockRoom, given: RulesGiven, minimum: Any, maximum: Any, every_s: Any, warm: Any, dry_run: bool
) -> AutoscalerSettings:
    most = room.hosts_max() if maximum is None else maximum
    rules = checked(_read(given), minimum, most, room.operators)
    check_slots(room.spark, most, room.taken)
    if not isinstance(every_s, (int, float)) or isinstance(every_s, bool) or not 0.05 <= every_s <= 3600:
        raise DefinitionError(f"every_s={every_s!r} is not allowed", todo="Give seconds, from 0.05 to 3600")
    if not isinstance(warm, int) or isinstance(warm, bool) or not 0 <= warm < most:
        raise DefinitionError(
            f"warm={warm!r} is not allowed with at most {most} hosts", todo=f"Give a number from 0 to {most - 1}"
        )
    return AutoscalerSettings(rules, minimum, most, float(every_s), warm, dry_run)


def _read(given: RulesGiven) -> Any:
    if given is None:
        return [*ready_rules.sizing(), ready_rules.hot_keys()]
    if not isinstance(given, (str, os.PathLike)):
        return given
    try:
        return parsed(Path(given).read_text(encoding="utf-8"), str(given))
    except OSError as error:
        raise DefinitionError(
            f"the rules file {given} cannot be read: {error.strerror}", todo="Give the path of a TOML file"
        ) from error


class Autoscaler:
    """What `Flock.autoscale` returns. stop() ends it; a request that was submitted before is still carried out."""

    def __init__(
        self, settings: AutoscalerSettings, measures: HostMeasures, requests: RequestQueue, history: History
    ) -> None:
        self._settings = settings
        self._measures = measures
        self._requests = requests
        self._history = history
        self._decider = ScalingDecider(settings.rules, settings.minimum, settings.maximum, warm=settings.warm > 0)
        self._made: list[dict[str, Any]] = []
        self._migration: Migration | None = None
        self._warming: Migration | None = None
        self._trouble = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="godwit-autoscale", daemon=True)
        self._thread.start()

    # -- for the user ------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the autoscaler. Calling it again does nothing."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)

    def decisions(self) -> list[dict[str, Any]]:
        """All decisions, also those of a dry run, oldest first, with rule, figures, cost and reason."""
        return list(self._made)

    def explain(self) -> str:
        """The state of each rule and the last decision, in words."""
        lines = [f"{name}: {look}" for name, look in dict(self._decider.looks).items()] or [
            "no rule has been looked at yet"
        ]
        if self._made:
            lines.append(f"last: {self._made[-1]['reason']}")
        return "\n".join([*lines, *([f"trouble: {self._trouble}"] if self._trouble else [])])

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._settings.every_s):
            try:
                self._look()
                self._trouble = ""
            except Exception as error:  # noqa: BLE001 explain() shows it; the next look may work
                trouble = str(error) if isinstance(error, GodwitError) else f"{type(error).__name__}: {error}"
                if trouble != self._trouble:
                    _log.warning("%s", trouble)
                self._trouble = trouble

    def _look(self) -> None:
        moving = self._requests.keys_move()
        if not moving:
            self._learn()
        decision = self._decider.tick(self._measures.sample(), moving)
        if decision is not None:
            self._act_on(decision)
        elif not moving and not self._settings.dry_run:
            self._keep_warm()

    def _act_on(self, decision: Decision) -> None:
        line = decision.to_dict() | {"dry_run": self._settings.dry_run}
        self._history.add("decided", **line)
        self._made.append(line)
        _log.info("%s%s", "dry run: " if self._settings.dry_run else "", line["reason"])
        if self._settings.dry_run or self._stop.is_set():
            return
        try:
            self._migration = self._submitted(decision)
        except GodwitError as error:
            self._history.add("refused", rule=decision.rule, reason=str(error))
            raise

    def _submitted(self, decision: Decision) -> Migration:
        if decision.action == REBALANCE:
            assert decision.operator is not None, "a rebalance is for one operator"
            return self._requests.rebalance(decision.operator, {"wait": False})
        return self._requests.arrange(decision.hosts, self._settings.warm, {"wait": False})

    def _learn(self) -> None:
        """Use the cost of the last change for the next estimate."""
        migration, self._migration = self._migration, None
        if migration is None:
            return
        report = migration.report()
        phases = dict(reversed(report.phases))
        joined_s = phases.get("moving", 0.0)
        join_s = joined_s - phases["joining"] if "joining" in phases else None
        moving_s = max(0.0, report.reconfiguration_s - joined_s)
        self._decider.costs.learn(report.bytes, moving_s, report.stall.max_ms, join_s)

    def _keep_warm(self) -> None:
        """Start or stop empty hosts, after others were emptied or got keys."""
        if not self._settings.warm or self._stop.is_set() or (self._warming is not None and not self._warming.ended):
            return
        owning, empty = self._measures.roster()
        wanted = max(0, min(self._settings.warm, self._settings.maximum - owning))
        if owning and empty != wanted:
            self._warming = self._requests.warm(wanted, {"wait": False})
