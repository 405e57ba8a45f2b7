"""Hosts on executors of their own: a local cluster and a standalone one, with hosts killed on the way."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.faults.driver import App
from tests.faults.processes import listens, processes_of
from tests.spark.flocks import assert_exact, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]
SPARK_HOME = Path(pyspark.__file__).parent


def assert_whole_and_gone(app: App) -> None:
    truth = app.counted.truth()
    assert_exact(app.sink.rows(), truth)
    assert dict(app.says("state")) == truth
    hosts = app.says("status")["hosts"]
    assert all(found["state"] == "serving" for found in hosts.values())
    assert sum(found["generation"] for found in hosts.values()) == 2 + len(app.kill)
    wait_until(lambda: not any(map(listens, app.says("hosts").values())), 60, "no host listens any more")


def test_hosts_on_a_local_cluster_are_exact_although_one_is_killed(tmp_path: Path) -> None:
    app = App(str(tmp_path), master="local-cluster[2,2,1024]", rows=900, kill={"host-1": 1})
    assert app.run() == 0, app.log()
    assert_whole_and_gone(app)
    wait_until(lambda: not processes_of(tmp_path), 60, "driver and executors are gone")


@pytest.mark.parametrize("recovery", ["storage", "parallel"])
def test_an_executor_that_is_killed_takes_its_hosts_and_tasks_with_it(tmp_path: Path, recovery: str) -> None:
    """The query goes on: Spark repeats the tasks that were hit, and what waits for the host waits."""
    app = App(
        str(tmp_path),
        master="local-cluster[3,2,1024]",
        rows=1500,
        kill_executor={"host-1": 1},
        recovery=recovery,
    )
    assert app.run() == 0, app.log()
    assert_exact(app.sink.rows(), app.counted.truth())
    assert dict(app.says("state")) == app.counted.truth()
    lost = [line for line in app.says("history") if line["event"] == "lost"]
    assert "host-1" in [line["host"] for line in lost], lost


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and a worker with four cores, from the jars that pip installed."""
    log = tmp_path / "cluster.log"
    env = os.environ | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    started: list[subprocess.Popen[bytes]] = []

    def begin(*given: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), *given, "--host", "127.0.0.1", "--webui-port", "0"]
        with log.open("ab") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=out, env=env))

    try:
        begin("org.apache.spark.deploy.master.Master", "--port", "0")
        found = wait_until(lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()), 120)
        worker = ("--cores", "4", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
        begin("org.apache.spark.deploy.worker.Worker", found[1], *worker)
        wait_until(lambda: "Successfully registered with master" in log.read_text(), 120, "the worker is registered")
        yield found[1]
    finally:
        for process in started:
            process.terminate()
            process.wait()


def test_hosts_on_a_standalone_cluster_are_exact_although_one_is_killed(tmp_path: Path, standalone: str) -> None:
    app = App(str(tmp_path), master=standalone, rows=900, kill={"host-0": 1})
    assert app.run() == 0, app.log()
    assert_whole_and_gone(app)


def test_an_application_that_is_killed_leaves_no_host_on_a_standalone_cluster(tmp_path: Path, standalone: str) -> None:
    """Executors end when their driver is gone, and hosts with them; a second application goes on exactly."""
    app = App(str(tmp_path), master=standalone, rows=900, die={"evaluated": 1})
    assert app.run() < 0, app.log()
    hosts = app.says("hosts").values()
    wait_until(lambda: not any(map(listens, hosts)), 120, "no host listens any more")
    assert app.run() == 0, app.log()
    truth = app.counted.truth()
    assert_exact(app.sink.rows(), truth)
    assert dict(app.says("state")) == truth
