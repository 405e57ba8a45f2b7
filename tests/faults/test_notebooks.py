"""Notebooks: cells that are run again, interrupted, or forgotten, each in a real process with Spark and hosts of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.notebook import Notebook
from tests.faults.processes import processes_of
from tests.spark.flocks import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(300)]

OPEN = """
flock = godwit.Flock(spark, hosts=2, checkpoint=root / "flock")
counts = flock.process(KeyCount(rows=ROWS).stream(spark), "key", Count(), name="count")
sink = Files(root / "out")
query = start(counts, lambda frame, batch: sink.write(batch, frame.collect()), root / "spark")
"""
COUNTED = "drain(query); answer = (state_of(flock) == KeyCount(rows=ROWS).truth())"


def test_an_interrupted_cell_leaves_hosts_that_come_back_and_say_so(tmp_path: Path) -> None:
    """PySpark cancels all jobs on SIGINT, so the jobs of hosts too."""
    with Notebook(tmp_path) as notebook:
        notebook.run("ROWS = 20_000")
        notebook.run(OPEN)
        notebook.begin(
            "wait_until(lambda: len(sink.batches()) >= 3); open(root / 'sleeps', 'w').close(); time.sleep(600)"
        )
        wait_until((tmp_path / "sleeps").exists, what="the cell sleeps")
        assert notebook.interrupt()["error"] == "KeyboardInterrupt"
        notebook.run("wait_until(lambda: len(warnings) >= 4, 60, 'both hosts are back')")
        lost_and_back = notebook.run("answer = sorted(warnings)")
        assert [line.split(" of the flock")[0] for line in lost_and_back] == ["host-0", "host-0", "host-1", "host-1"]
        assert [("is back after" in line, "is lost: its task ended (" in line) for line in lost_and_back] == [
            (True, False),
            (False, True),
        ] * 2
        assert all("cancel" in line for line in lost_and_back if "is lost" in line), lost_and_back
        assert len(notebook.run("answer = sink.batches()")) < 40, "the query was interrupted, too"
        notebook.run("query.stop()\n" + OPEN.splitlines()[-1])
        assert notebook.run(COUNTED), "the same flock goes on"
        notebook.run("assert_exact(sink.rows(), KeyCount(rows=ROWS).truth())")
        notebook.run("flock.close()")
        assert notebook.leave() == 0
    wait_until(lambda: not processes_of(tmp_path), 60, "all its processes are gone")


def test_start_stop_start_and_two_flocks_in_a_session(tmp_path: Path) -> None:
    with Notebook(tmp_path) as notebook:
        notebook.run("ROWS = 1000")
        notebook.run(OPEN)
        assert notebook.run(COUNTED)
        notebook.run("query.stop()\n" + OPEN.splitlines()[-1])
        assert notebook.run(COUNTED)
        notebook.run("other = godwit.Flock(spark, hosts=1, checkpoint=root / 'other')")
        notebook.run("""
            more = other.process(KeyCount(rows=ROWS).stream(spark), "key", Count(), name="count")
            second = start(more, lambda frame, batch: frame.collect(), root / "spark-other")
            drain(second)
            answer = state_of(other) == KeyCount(rows=ROWS).truth() == state_of(flock)
        """)
        assert notebook.run("other.close(); answer = len(spark.streams.active)") == 1, "the query of the first runs"
        notebook.run("flock.close()")
        notebook.run("ROWS = 2000")
        notebook.run(OPEN)
        assert notebook.run(COUNTED)
        assert notebook.run("answer = warnings") == []


@pytest.mark.parametrize("before", ["", "spark.stop()", "del flock, counts, query", "query.stop()"])
def test_a_forgotten_close_ends_with_the_interpreter(tmp_path: Path, before: str) -> None:
    with Notebook(tmp_path) as notebook:
        notebook.run("ROWS = 1000")
        notebook.run(OPEN)
        assert notebook.run(COUNTED)
        notebook.run(before)
        assert notebook.leave() == 0
        log = notebook.log.read_text()
        assert "Traceback" not in log, log[log.index("Traceback") :]
    wait_until(lambda: not processes_of(tmp_path), 60, "all its processes are gone")


def test_a_kernel_that_is_killed_leaves_no_host(tmp_path: Path) -> None:
    with Notebook(tmp_path) as notebook:
        notebook.run("ROWS = 1000")
        notebook.run(OPEN)
        os.kill(notebook.process.pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(tmp_path), 60, "all its processes are gone")
