"""Two applications on one checkpoint: the second is refused, or takes over exactly, and the first is fenced and says so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.driver import App
from tests.spark.flocks import assert_exact, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]


def test_the_older_of_two_applications_is_fenced_and_the_newer_is_exact(tmp_path: Path) -> None:
    """Rows enough for the older one to be at work when the newer has started, however long that takes."""
    older = App(str(tmp_path), name="older", rows=30_000, per_batch=200, master="local[4]")
    newer = replace(older, name="newer", take_over=True)
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


def test_a_second_application_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    first = App(str(tmp_path), name="first", rows=3_000, per_batch=200, master="local[4]", stay=True)
    second = App(str(tmp_path), name="second", rows=3_000, per_batch=200, master="local[4]")
    process = first.begin()
    try:
        wait_until(lambda: (first.says("batch") or 0) >= 1 or process.poll() is not None, 400, "the first is at work")
        assert second.run() != 0
        wait_until(lambda: first.says("status") or process.poll() is not None, 400, "the first one is through")
        assert process.poll() is None, first.log()
    finally:
        process.kill()
        process.wait()
    assert f"GODWIT-CHECKPOINT-IN-USE] the checkpoint {tmp_path / 'godwit'} is in use" in second.log()
    assert f"pid {first.says('pid')}" in second.log()
    truth = first.counted.truth()
    assert dict(first.says("state")) == truth
    assert_exact(first.sink.rows(), truth)
    assert second.run() == 0, second.log()  # the first was killed, so it is not in the way
    assert dict(second.says("state")) == truth
