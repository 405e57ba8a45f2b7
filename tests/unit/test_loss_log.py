"""What is logged of a lost host: one WARNING for the loss and one for its end, and nothing of a host that starts."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import pytest

from godwit.errors import HostUnavailable, ProcessorFailed
from godwit.spark.change.loss_log import LossLog, TaskErrorLog


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_a_loss_and_its_end_are_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    log = LossLog("/data/ck")
    log.registered("host-0", 1)
    log.lost("host-0", "its task ended")
    log.lost("host-0", "no heartbeat for 1.2 s")
    log.registered("host-0", 2)
    log.registered("host-0", 3)
    lost, back = lines(caplog)
    assert lost == "host-0 of the flock in /data/ck is lost: its task ended. Rows of its keys wait"
    assert re.fullmatch(r"host-0 of the flock in /data/ck is back after 0\.\d s, as generation 2", back)


def test_a_host_whose_keys_others_own_is_not_said_to_be_back(caplog: pytest.LogCaptureFixture) -> None:
    log = LossLog("/data/ck")
    log.lost("host-1", "its task ended")
    log.taken_over("host-1")
    log.taken_over("host-1")
    assert [line.split(": ")[-1] for line in lines(caplog)][1:] == ["the other hosts have taken over its keys"]


def test_the_tasks_of_a_batch_that_fail_together_are_one_error(caplog: pytest.LogCaptureFixture) -> None:
    log = TaskErrorLog()
    for key in ("a", "b", "c"):
        log.failed(ProcessorFailed("no such car", operator="speed", batch=3, key=key))
    log.failed(ProcessorFailed("no such car", operator="count", batch=3))
    log.failed(HostUnavailable("host-0 is down", operator="count", batch=3))
    assert [line.split("] ")[1].split(",")[0] for line in lines(caplog)] == [
        "no such car (operator=speed",
        "no such car (operator=count",
        "host-0 is down (operator=count",
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING"]


PROGRAM = """
import sys
import godwit
from godwit.spark.change.loss_log import LossLog
log = LossLog("/data/ck")
if len(sys.argv) > 1:
    import logging
    logging.basicConfig(level=sys.argv[1], format="configured %(name)s %(message)s")
log.registered("host-1", 1)
log.lost("host-0", "its task ended")
"""


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ((), ["host-0 of the flock in /data/ck is lost: its task ended. Rows of its keys wait"]),
        (("ERROR",), []),
        (
            ("WARNING",),
            ["configured godwit.hosts host-0 of the flock in /data/ck is lost: its task ended. Rows of its keys wait"],
        ),
    ],
)
def test_a_program_that_configures_no_logging_sees_warnings_only(level: tuple[str, ...], written: list[str]) -> None:
    shown = subprocess.run([sys.executable, "-c", PROGRAM, *level], capture_output=True, text=True, check=True)
    assert shown.stderr.splitlines() == written
    assert not shown.stdout
