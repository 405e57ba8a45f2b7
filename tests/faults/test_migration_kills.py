"""The whole application killed with SIGKILL while keys are on their way: what is opened again settles it from the logs."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.driver import App
from tests.faults.test_application_kills import assert_whole
from tests.spark.flocks import OPERATOR

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]

SLOW: dict[str, Any] = {"step_units": 8, "rate_bytes_per_s": 300_000}
SCALE_OUT: dict[str, Any] = {"call": "scale", "hosts": 3}
# Steps of copies are handed over at one time: only their number makes it last.
HAND_OVER: dict[str, Any] = {
    "call": "move", "operator": OPERATOR, "groups": list(range(0, 512, 2)), "to": "host-1", "step_units": 1
}  # fmt: skip


@pytest.mark.parametrize("protocol", ["pause", "fetch", "push", "live", "live-unordered", "standby"])
def test_an_application_killed_between_two_steps_goes_on_exactly(tmp_path: Path, protocol: str) -> None:
    """State is heavy and the link narrow, so that the end comes between the first and the last step."""
    change = (HAND_OVER if protocol == "standby" else SCALE_OUT | SLOW) | {"protocol": protocol}
    app = App(str(tmp_path), master="local[7]", change=change, die={"between steps": 2}, ballast_bytes=48 << 10)
    assert app.run() == -signal.SIGKILL, app.log()
    again = replace(app, hosts=change.get("hosts", app.hosts))
    assert again.run() == 0, again.log()
    assert_whole(again)
    groups = dict.fromkeys([f"host-{at}" for at in range(again.hosts)], 0)
    for host, count in again.says("owners"):
        groups[host] += count
    assert sum(groups.values()) == 1024, "every group has one owner"
    assert_told(again.says("history"), groups, change["call"])


def assert_told(history: list[dict[str, Any]], groups: dict[str, int], kind: str) -> None:
    """The request has no end of its own, but one that the next application found in the hosts' logs."""
    (asked,) = [line for line in history if line["event"] == "requested" and line["kind"] == kind]
    lines = {line["event"]: line for line in history if line.get("migration") == asked["migration"]}
    assert "ended" not in lines
    found = lines["recovered"]
    assert found["outcome"] == "incomplete"
    assert found["units_moved"] > 0, "killed after the first step"
    assert found["units_stayed"] > 0, "killed before the last step"
    before = {"scale": {"host-2": 0}, "move": {"host-1": 512}}[kind]
    for host, count in before.items():
        assert groups[host] == count + found["units_moved"]
