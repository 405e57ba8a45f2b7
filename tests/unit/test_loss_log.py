"""What is logged of a lost host: one WARNING for the loss and one for its end, and nothing of a host that starts."""

from __future__ import annotations

import logging
import re

import pytest

import godwit  # noqa: F401 attaches the handler
from godwit.spark.change.loss_log import LossLog


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


def test_nothing_is_written_unless_the_application_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("godwit").handlers)
    assert logging.getLogger("godwit").level == logging.NOTSET
