"""The whole application killed with SIGKILL while keys are on their way: what is opened again settles it from the logs."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.driver import App
from tests.faults.test_application_kills import assert_whole

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("protocol", ["live", "push", "pause"])
def test_an_application_killed_in_mid_migration_goes_on_exactly(tmp_path: Path, protocol: str) -> None:
    """Slowed down, so that the end comes between the first and the last step."""
    scale = {"hosts": 3, "protocol": protocol, "step_units": 8, "rate_bytes_per_s": 2_000}
    app = App(str(tmp_path), master="local[7]", scale=scale, die={"evaluated": 1})
    assert app.run() == -signal.SIGKILL, app.log()
    again = replace(app, hosts=3)
    assert again.run() == 0, again.log()
    assert_whole(again)
    groups = dict.fromkeys(["host-0", "host-1", "host-2"], 0)
    for host, count in again.says("owners"):
        groups[host] += count
    assert sum(groups.values()) == 1024, "every group has one owner"
    events = [line["event"] for line in again.says("history")]
    assert "recovered" in events, events
