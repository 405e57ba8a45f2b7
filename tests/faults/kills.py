"""Kills at named points: a processor that, once opened in a host, arms that host's own code.

The points stand where a crash could part what belongs together: user code has run but nothing is merged; merged but not
in the log; in line for the log but not written; written but not answered; before and after a lane's last word. Each
(host, point) kills once, remembered in a directory that outlives the process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark.cloudpickle

from tests.spark.flocks import Count

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])

POINTS = ("staged", "merged", "in line", "written", "finishing", "finished")


class KilledCount(Count):
    """Counts; its host is killed at each of the points given, by batch."""

    def __init__(self, plan: dict[str, int], marks: Path) -> None:
        self.plan = plan
        self.marks = marks

    def open(self) -> None:
        arm(self.plan, self.marks)


def arm(plan: dict[str, int], marks: Path) -> None:
    from godwit.runtime.host.exchange import LaneExchange
    from godwit.runtime.instance.instance import Instance
    from godwit.state.changelog import Changelog

    here: dict[str, Any] = {"host": "", "batch": -1}

    def strike(point: str) -> None:
        if plan.get(point) != here["batch"]:
            return
        try:
            (marks / f"{here['host']}-{point}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: type, name: str, before: str = "", after: str = "") -> None:
        plain: Callable[..., Any] = getattr(owner, name)
        if getattr(plain, "armed", False):
            return

        def armed(self: Any, *args: Any, **given: Any) -> Any:
            strike(before)
            result = plain(self, *args, **given)
            strike(after)
            return result

        armed.armed = True  # type: ignore[attr-defined]
        setattr(owner, name, armed)

    plain_worked = LaneExchange.worked

    def worked(self: Any, shared: Any, job: Any) -> Any:
        def noted(instance: Instance) -> Any:
            here.update(host=self._services.host, batch=instance.progress.batch)
            return job(instance)

        return plain_worked(self, shared, noted)

    LaneExchange.worked = worked  # type: ignore[method-assign]
    around(Instance, "_record", before="staged")
    around(Instance, "apply", after="merged")
    around(Changelog, "append", after="in line")
    around(LaneExchange, "answer", before="written")
    around(LaneExchange, "_finish", before="finishing", after="finished")
