"""Two applications on one checkpoint: the newer goes on exactly, the older is fenced and says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.driver import App
from tests.spark.flocks import assert_exact, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]


def test_the_older_of_two_applications_is_fenced_and_the_newer_is_exact(tmp_path: Path) -> None:
    older = App(str(tmp_path), name="older", rows=100_000, per_batch=200, master="local[4]")
    newer = App(str(tmp_path), name="newer", rows=2_000, per_batch=200, master="local[4]")
    first = older.begin()
    try:
        wait_until(lambda: (older.says("batch") or 0) >= 1 or first.poll() is not None, 400, "the older one is at work")
        assert newer.run() == 0, newer.log()
        assert first.wait(400) != 0
    finally:
        first.kill()
        first.wait()
    assert "GODWIT-STALE" in older.says("error") or "GODWIT-STALE" in older.log()
    truth = newer.counted.truth()
    assert dict(newer.says("state")) == truth
    assert_exact(newer.sink.rows(), truth)
    shutil.rmtree(tmp_path)
