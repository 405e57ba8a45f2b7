"""Checks of the arguments with which a user opens a flock or names keys, made before anything else happens."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from godwit.control.heartbeats import TICK_S
from godwit.errors import DefinitionError, NotEnoughSlots

SILENT_S_MIN = 0.5  # shorter, one late or lost heartbeat would count as silence
EXECUTORS_TIMEOUT_S = 30.0  # Spark itself waits so long for executors before it schedules


@dataclass(frozen=True, slots=True)
class FlockArguments:
    """Arguments of `Flock` that are wrong or right by themselves."""

    hosts: Any
    durability: Any
    groups: Any
    recovery: Any
    backup: Any
    take_over: Any
    wait_s: Any
    on_gap: Any
    token: Any
    memory_max_bytes: Any
    segment_bytes_max: Any

    def check(self) -> None:
        for name, value, good, allowed in (
            ("hosts", self.hosts, _is_count(self.hosts), "a number from 1 up"),
            ("durability", self.durability, self.durability in (None, "process", "disk"), "'process' or 'disk'"),
            ("groups", self.groups, _is_count(self.groups), "a number from 1 up"),
            ("recovery", self.recovery, self.recovery in ("storage", "parallel"), "'storage' or 'parallel'"),
            ("backup", self.backup, isinstance(self.backup, bool), "True or False"),
            ("take_over", self.take_over, isinstance(self.take_over, bool), "True or False"),
            ("wait_s", self.wait_s, _is_duration(self.wait_s), "seconds above 0"),
            ("memory_max_bytes", self.memory_max_bytes, _is_limit(self.memory_max_bytes), "bytes from 1 up, or None"),
            ("segment_bytes_max", self.segment_bytes_max, _is_count(self.segment_bytes_max), "bytes from 1 up"),
            ("on_gap", self.on_gap, self.on_gap in ("error", "accept"), "'error' or 'accept'"),
        ):
            if not good:
                raise DefinitionError(f"{name}={value!r} is not allowed", todo=f"Give {allowed}")
        if self.token is not None and not _is_token(self.token):
            raise DefinitionError(
                "token= is not text that can be sent",
                todo="Give printable ASCII text that is not empty, or leave token= out",
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_limit(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _is_token(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and bool(value.strip())


def check_silence(silent_s: Any) -> None:
    if silent_s is None:
        return
    if isinstance(silent_s, bool) or not isinstance(silent_s, (int, float)) or not SILENT_S_MIN <= silent_s < math.inf:
        raise DefinitionError(
            f"silent_s={silent_s!r} is not allowed",
            todo=f"Give {SILENT_S_MIN} seconds or more (heartbeats come every {TICK_S} s), or None to rely on Spark alone",
        )


def check_session(spark: Any) -> None:
    if not isinstance(spark, SparkSession):
        raise DefinitionError(
            f"a classic SparkSession is expected, not {type(spark).__module__}.{type(spark).__name__}",
            todo="Open the flock in the driver, not through Spark Connect: hosts are tasks of the application itself",
        )
    if spark.sparkContext._jsc is None:
        raise DefinitionError("this SparkSession has been stopped", todo="Make a new session and open the flock on it")


def check_slots(spark: SparkSession, hosts: int, taken: Mapping[str, int]) -> None:
    """Refuse more hosts than there are task slots: each host occupies one, and the query needs at least one.

    `taken`: slots that the hosts of other flocks of the application occupy, by checkpoint. A cluster may need some time to
    start executors, so the check waits for them; a local master has all its slots from the start.
    """
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    patience_s = 0.0 if str(spark.sparkContext.master).startswith("local[") else EXECUTORS_TIMEOUT_S
    deadline = time.monotonic() + patience_s
    needed = hosts + sum(taken.values()) + 1
    slots = context.maxNumConcurrentTasks(profile)
    while slots < needed and time.monotonic() < deadline:
        time.sleep(0.1)
        slots = context.maxNumConcurrentTasks(profile)
    if slots < needed:
        others = "".join(f", of which the flock in {path} takes {count}" for path, count in taken.items())
        raise NotEnoughSlots(
            f"{hosts} hosts need {hosts + 1} task slots (one each, and one or more for the query), Spark has {slots}{others}",
            todo=f"Use local[{needed + 1}] or more cores (master is {spark.sparkContext.master}), or fewer hosts",
        )


def slots_of(spark: SparkSession) -> int:
    """The number of task slots that Spark has now."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
