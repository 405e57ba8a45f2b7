"""A host lost where Spark has fewer free task slots than the query has partitions: routers make room for its successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.narrow import Narrow
from tests.spark.flocks import assert_exact

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
# The aim is 5 s on a machine of its own; a task waits 60 s for a host before it fails, so this tells the two apart.
WAITED_S_MAX = 20.0


def assert_goes_on(app: Narrow) -> dict[str, Any]:
    assert app.run() == 0, app.log()
    outcome: dict[str, Any] = app.outcome()
    truth = app.counted.truth()
    assert_exact(app.sink.rows(), truth)
    if not app.batch_query:
        assert dict(outcome["state"]) == truth
    assert outcome["struck"] == len(app.victims)
    assert outcome["waited_s"] < WAITED_S_MAX, outcome
    assert "quarantined" not in [line["event"] for line in outcome["history"]], "each was lost once"
    return outcome


def test_a_lost_host_gets_a_slot_although_routers_hold_all(tmp_path: Path) -> None:
    """Two hosts, two slots for tasks, twelve partitions, and no retry of tasks that fail."""
    assert_goes_on(Narrow(str(tmp_path)))


@pytest.mark.long
@pytest.mark.parametrize(
    "app",
    [
        pytest.param({"master": "local[4,4]"}, id="spark-starts-it-again"),
        pytest.param({"master": "local[3]"}, id="one-slot"),
        pytest.param({"victims": ("host-0", "host-1")}, id="both-hosts"),
        pytest.param({"victims": ("host-0", "host-1"), "master": "local[3]"}, id="both-hosts-one-slot"),
        pytest.param({"recovery": "parallel"}, id="parallel"),
        pytest.param({"recovery": "parallel", "victims": ("host-0", "host-1")}, id="parallel-without-heirs"),
        pytest.param(
            {"recovery": "parallel", "hosts": 1, "victims": ("host-0",), "master": "local[2]"}, id="only-host"
        ),
        pytest.param({"batch_query": True}, id="batch-query"),
        pytest.param({"how": "SIGSTOP"}, id="stopped"),
        pytest.param({"conf": {"spark.scheduler.mode": "FAIR"}}, id="fair"),
        pytest.param(
            {"conf": {"spark.scheduler.mode": "FAIR"}, "hosts": 4, "master": "local[5]"}, id="fair-many-hosts"
        ),
        pytest.param({"master": "local-cluster[2,2,1024]"}, id="cluster"),
    ],
)
def test_whatever_the_slots_the_query_goes_on(tmp_path: Path, app: dict[str, Any]) -> None:
    assert_goes_on(Narrow(str(tmp_path), **app))
