"""Nothing is left behind, however an application ends: no process, no port, no thread, no temporary file."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.runtime.liveness.leases import Lease, host_directory, read_lease
from tests.faults.driver import App
from tests.faults.processes import files_under, listens, processes_of
from tests.spark.flocks import OPERATOR, Count, Kept, KeyCount, drain, kill_host, start, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def godwit_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("godwit")]


def leases_under(checkpoint: Path) -> list[Lease]:
    found = [read_lease(directory) for directory in (checkpoint / "hosts").iterdir()]
    return [lease for lease in found if lease is not None]


def test_close_ends_hosts_threads_and_ports_and_removes_spilled_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    counted = KeyCount(rows=600, per_batch=300)
    before = godwit_threads()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit", memory_max_bytes=20_000) as flock:
        counts = flock.process(counted.stream(spark), "key", Count(), name=OPERATOR)
        drain(start(counts, Kept(), tmp_path / "spark"))
        hosts = flock.status()["hosts"].values()
        pids, addresses = [host["pid"] for host in hosts], [host["address"] for host in hosts]
        controller = flock._running.controller.address
        assert all(map(listens, [*addresses, controller]))
    assert not any(map(listens, [*addresses, controller]))
    assert godwit_threads() == before
    assert not [query for query in spark.streams.active if query.name == OPERATOR]
    # Spark keeps idle Python workers for the next task; a host must not go on inside one.
    assert not [
        t
        for pid in pids
        if psutil.pid_exists(pid)
        for t in psutil.Process(pid).net_connections("tcp")
        if t.status == "LISTEN"
    ]
    flock.close()


def test_close_removes_the_lease_of_a_host_that_could_not_say_good_bye(spark: SparkSession, tmp_path: Path) -> None:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        (job, _) = flock._running.hosts.jobs()
        job.stop()
        kill_host(flock, job.config.host)
        assert read_lease(host_directory(str(tmp_path / "godwit"), job.config.host)) is not None
    assert leases_under(tmp_path / "godwit") == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL", "SIGTERM"])
def test_an_application_that_is_ended_leaves_nothing(tmp_path: Path, how: str) -> None:
    """Ended while it has a flock, state on disk beyond its memory limit, and a query that has processed rows."""
    (tmp_path / "temp").mkdir()
    app = App(str(tmp_path), rows=4000, keys=4000, per_batch=2000, stay=True, memory_max_bytes=50_000)
    process = app.begin()
    try:
        wait_until(lambda: app.says("status") or process.poll() is not None, 400, "the application is at its end")
        assert process.poll() is None, app.log()
        hosts = list(app.says("hosts").values())
        assert all(map(listens, hosts))
        assert len(processes_of(tmp_path)) >= 4, "driver, JVM, daemon and hosts are found by their mark"
        process.send_signal(getattr(signal, how))
        process.wait(120)
        wait_until(lambda: not processes_of(tmp_path), 60, "all its processes are gone")
    finally:
        process.kill()
        process.wait()
    assert not any(map(listens, hosts))
    assert [path for path in files_under(tmp_path / "temp") if "godwit" in str(path) or "spill" in str(path)] == []
    if how == "SIGINT":
        assert leases_under(tmp_path / "godwit") == [], "hosts said good-bye"
