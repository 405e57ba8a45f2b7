"""Upkeep beside the work: what it does about failures, those that may pass and those that will not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointCorrupt, CheckpointUnusable, GodwitError
from godwit.runtime import upkeep as upkeep_module
from godwit.runtime.upkeep import Upkeep

WAIT_S = 30.0


class Log:
    """A changelog that fails as told and then holds still."""

    generation = 1
    directory = Path("/nowhere")

    def __init__(self, *failures: GodwitError) -> None:
        self.upkeep: Upkeep
        self.seen: list[Any] = []
        self.quiet = threading.Event()
        self._failures = list(failures)

    def sealed(self) -> list[Path]:
        self.seen.append(self.upkeep.failure)
        if self._failures:
            raise self._failures.pop(0)
        if len(self.seen) > 1 and self.upkeep.failure is None:
            self.quiet.set()
        return []


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "INTERVAL_S", 0.001)
    monkeypatch.setattr(upkeep_module, "AGAIN_S", 0.001)


def started(log: Log) -> Upkeep:
    log.upkeep = Upkeep(log, dict)  # type: ignore[arg-type]
    log.upkeep.start()
    return log.upkeep


def test_a_full_disk_is_told_and_tried_again_until_there_is_room() -> None:
    full = CheckpointUnusable("no room")
    log = Log(full, full)
    upkeep = started(log)
    assert log.quiet.wait(WAIT_S)
    upkeep.stop()
    assert log.seen[:4] == [None, full, full, None], "what upkeep showed when it looked again"
    assert upkeep.failure is None


def test_what_will_not_pass_ends_upkeep_and_stays_told() -> None:
    corrupt = CheckpointCorrupt("damaged")
    log = Log(corrupt)
    upkeep = started(log)
    upkeep._thread.join(WAIT_S)
    assert not upkeep._thread.is_alive()
    assert upkeep.failure is corrupt
    assert log.seen == [None]
    upkeep.stop()
