"""The whole application killed with SIGKILL at named points and started again from both checkpoints; tasks that fail."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.driver import App
from tests.spark.flocks import assert_exact

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
KILLED = -signal.SIGKILL


def assert_whole(app: App) -> None:
    """Output and state are those of a run without any fault."""
    truth = app.counted.truth()
    assert_exact(app.sink.rows(), truth)
    assert dict(app.says("state")) == truth


def test_application_killed_in_the_middle_of_a_batch_goes_on_exactly(tmp_path: Path) -> None:
    """With rows half worked on in a host."""
    app = App(str(tmp_path), die={"working": 500})
    assert app.run() == KILLED, app.log()
    assert app.sink.batches() == [0]
    assert app.run() == 0, app.log()
    assert_whole(app)


@pytest.mark.long
@pytest.mark.parametrize("batch", [0, 2])
def test_application_killed_at_every_step_of_a_batch(tmp_path: Path, batch: int) -> None:
    """Offsets logged but nothing run; all applied but nothing written; all written but not committed."""
    points = ("planned", "evaluated", "written")
    app = App(str(tmp_path), die=dict.fromkeys(points, batch), master="local[4]")
    for _ in points:
        assert app.run() == KILLED, app.log()
    assert app.run() == 0, app.log()
    assert_whole(app)


@pytest.mark.long
@pytest.mark.parametrize("point", ["before the will", "after the will"])
def test_application_killed_while_a_lost_hosts_keys_get_new_owners(tmp_path: Path, point: str) -> None:
    """Its heirs have prepared their shares: the next opening finds a will, or a host that owns everything."""
    app = App(str(tmp_path), hosts=3, recovery="parallel", kill={"host-1": 1}, die={point: 0})
    assert app.run() == KILLED, app.log()
    will = tmp_path / "godwit/wills/host-1.json"
    assert will.exists() == (point == "after the will")
    assert app.run() == 0, app.log()
    assert_whole(app)
    owners = dict(app.says("owners"))
    assert ("host-1" in owners) == (point == "before the will")
    assert len(owners) == 3, "as many as it is opened with"


@pytest.mark.long
def test_a_host_that_spark_itself_starts_again_asks_whether_it_is_still_needed(tmp_path: Path) -> None:
    """Where tasks may fail several times, the driver hears of the loss from the next attempt."""
    app = App(str(tmp_path), hosts=3, master="local[7,4]", recovery="parallel", kill={"host-1": 1})
    assert app.run() == 0, app.log()
    assert_whole(app)
    assert [line["recovery"] for line in app.says("history") if line["event"] == "lost"] == ["taken over"]
    assert "host-1" not in dict(app.says("owners"))


@pytest.mark.long
def test_tasks_that_fail_once_behind_the_operator_are_repeated_exactly(tmp_path: Path) -> None:
    app = App(str(tmp_path), master="local[6,4]", fail_tasks=True, rows=900)
    assert app.run() == 0, app.log()
    assert_whole(app)
    assert len(list(tmp_path.glob("failed-*"))) >= 6, "both lanes failed in all three batches"
    assert app.says("status")["operators"]["count"]["replayed"] > 0


@pytest.mark.long
def test_speculative_copies_of_tasks_change_state_once(tmp_path: Path) -> None:
    """One lane is slow by itself, so Spark starts a second attempt of it beside the first."""
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "50ms",
    }
    app = App(str(tmp_path), master="local-cluster[2,4,1024]", conf=conf, rows=1200, lanes=4)
    assert app.run() == 0, app.log()
    assert_whole(app)
