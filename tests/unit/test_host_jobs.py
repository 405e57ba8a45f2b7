"""What is said of a host whose task ends before it serves."""

from __future__ import annotations

import pytest

from godwit.errors import CheckpointUnusable, HostUnavailable
from godwit.runtime.controller import Controller, DriverAnswers
from godwit.runtime.messages import RunAdmitted
from godwit.spark.hosts.host_jobs import _error_line

SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted: Traceback (most recent call last):
  File "serializers.py", line 457, in loads
ModuleNotFoundError: No module named 'pyarrow'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1097)
Caused by: java.lang.Something
"""
OWN = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 1.0 (TID 1) (vm executor driver): org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] \
An exception was thrown from the Python worker: \
godwit.errors.StaleGeneration: [GODWIT-STALE-GENERATION] generation 1 of host-1 is replaced
 SQLSTATE: 38000
\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1097)
"""
CANCELLED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job 3 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:3122)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SPARK, "ModuleNotFoundError: No module named 'pyarrow'"),
        (OWN, "godwit.errors.StaleGeneration: [GODWIT-STALE-GENERATION] generation 1 of host-1 is replaced"),
        (CANCELLED, "Job 3 cancelled as part of cancellation of all jobs"),
        ("cancelled", "cancelled"),
        ("", "no error text"),
    ],
)
def test_the_line_that_names_the_error_is_found(text: str, said: str) -> None:
    assert _error_line(text) == said


def test_who_waits_for_a_host_that_was_given_up_hears_why() -> None:
    controller = Controller("127.0.0.1", "token", DriverAnswers(lambda _: RunAdmitted(), list))
    try:
        controller.gave_up("host-0", HostUnavailable("never served"))
        with pytest.raises(HostUnavailable, match="never served"):
            controller.wait_hosts(["host-0"], 60.0)
        controller._failures["host-1"] = CheckpointUnusable("its own word")
        controller.gave_up("host-1", HostUnavailable("never served"))
        with pytest.raises(CheckpointUnusable):
            controller.wait_hosts(["host-1"], 60.0)
    finally:
        controller.close()
