"""The autoscaler: a thread that reads the measures of the hosts, lets rules decide, and requests what they decide.

Decides when to look and how many empty hosts stay started. What a rule decides is in `control.scaling_decisions`; how keys move
is in `request_queue`. One decision is carried out at a time, and written to the history before that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.control import rules as ready
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
FOR_TASKS: Final = 2  # slots that are left to the query unless a maximum is given
STOP_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """What is asked of an autoscaler, checked."""

    rules: list[Rule]
    minimum: int
    maximum: int
    every_s: float
    warm: int


def checked_settings(
    spark: SparkSession,
    taken: Mapping[str, int],
    hosts: int,
    operators: Sequence[str],
    given: RulesGiven,
    minimum: Any,
    maximum: Any,
    every_s: Any,
    warm: Any,
) -> AutoscalerSettings:
    most = max(hosts, slots_of(spark) - sum(taken.values()) - FOR_TASKS) if maximum is None else maximum
    rules = checked(_read(given), minimum, most, operators)
    check_slots(spark, most, taken)
    if not isinstance(every_s, (int, float)) or isinstance(every_s, bool) or not 0.05 <= every_s <= 3600:
        raise DefinitionError(f"every_s={every_s!r} is not allowed", todo="Give seconds, from 0.05 to 3600")
    if not isinstance(warm, int) or isinstance(warm, bool) or not 0 <= warm < most:
        raise DefinitionError(
            f"warm={warm!r} is not allowed with at most {most} hosts", todo=f"Give a number from 0 to {most - 1}"
        )
    return AutoscalerSettings(rules, minimum, most, float(every_s), warm)


def _read(given: RulesGiven) -> Any:
    if given is None:
        return [*ready.sizing(), ready.hot_keys()]
    if not isinstance(given, (str, os.PathLike)):
        return given
    try:
        return parsed(Path(given).read_text(encoding="utf-8"), str(given))
    except OSError as error:
        raise DefinitionError(
            f"{given} cannot be read: {error.strerror}", todo="Give the path of a TOML file"
        ) from error


class Autoscaler:
    """What `Flock.autoscale` gives. stop() ends it; what has been asked for by then is still carried out."""

    def __init__(
        self, asked: AutoscalerSettings, dry_run: bool, measuring: HostMeasures, changes: RequestQueue, history: History
    ) -> None:
        self._asked_for = asked
        self._dry_run = dry_run
        self._measuring = measuring
        self._changes = changes
        self._history = history
        self._decider = ScalingDecider(asked.rules, asked.minimum, asked.maximum, warm=asked.warm > 0)
        self._made: list[dict[str, Any]] = []
        self._migration: Migration | None = None
        self._warming: Migration | None = None
        self._trouble = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="godwit-autoscale", daemon=True)
        self._thread.start()

    # -- what a user does --------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Look no more. Calling it again does nothing."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)

    def decisions(self) -> list[dict[str, Any]]:
        """All that was decided, or in a dry run would have been, oldest first, with rule, figures, cost and reason."""
        return list(self._made)

    def explain(self) -> str:
        """How each rule stands now, and what was decided last, in words."""
        lines = [f"{name}: {look}" for name, look in dict(self._decider.looks).items()] or [
            "nothing has been looked at yet"
        ]
        if self._made:
            lines.append(f"last: {self._made[-1]['reason']}")
        return "\n".join([*lines, *([f"trouble: {self._trouble}"] if self._trouble else [])])

    # -- what it does ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(self._asked_for.every_s):
            try:
                self._look()
                self._trouble = ""
            except Exception as error:  # noqa: BLE001 told by explain(); what fails now may work at the next look
                self._trouble = str(error) if isinstance(error, GodwitError) else f"{type(error).__name__}: {error}"

    def _look(self) -> None:
        moving = self._changes.keys_move()
        if not moving:
            self._learn()
        decision = self._decider.tick(self._measuring.sample(), moving)
        if decision is not None:
            self._carry_out(decision)
        elif not moving and not self._dry_run:
            self._keep_warm()

    def _carry_out(self, decision: Decision) -> None:
        line = decision.to_dict() | {"dry_run": self._dry_run}
        self._history.add("decided", **line)
        self._made.append(line)
        if self._dry_run or self._stop.is_set():
            return
        try:
            self._migration = self._submitted(decision)
        except GodwitError as error:
            self._history.add("refused", rule=decision.rule, reason=str(error))
            raise

    def _submitted(self, decision: Decision) -> Migration:
        if decision.action == REBALANCE:
            assert decision.operator is not None, "keys of one operator are moved apart"
            return self._changes.rebalance(decision.operator, {"wait": False})
        return self._changes.arrange(decision.hosts, self._asked_for.warm, {"wait": False})

    def _learn(self) -> None:
        """What the last change came to, for the next estimate."""
        migration, self._migration = self._migration, None
        if migration is None:
            return
        told = migration.report()
        phases = dict(reversed(told["phases"]))
        joined_s = phases.get("moving", 0.0)
        join_s = joined_s - phases["joining"] if "joining" in phases else None
        moving_s = max(0.0, told["reconfiguration_s"] - joined_s)
        self._decider.costs.learn(told["bytes"], moving_s, told["stall"]["max_ms"], join_s)

    def _keep_warm(self) -> None:
        """Hosts that were emptied or taken into use change how many are warm."""
        if not self._asked_for.warm or self._stop.is_set() or (self._warming is not None and not self._warming.ended):
            return
        owning, empty = self._measuring.roster()
        wanted = max(0, min(self._asked_for.warm, self._asked_for.maximum - owning))
        if owning and empty != wanted:
            self._warming = self._changes.warm(wanted, {"wait": False})
