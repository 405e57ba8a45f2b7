"""Compaction beside the work: what its thread does about failures, whatever they are."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from godwit.errors import Bug, CheckpointCorrupt, CheckpointUnusable, StaleGeneration
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.host import compaction as upkeep_module
from godwit.runtime.host.compaction import CompactionLoop
from godwit.runtime.pacing.turns import Breaths
from godwit.state.frames import FrameReader
from tests.property.bench_host import BenchHost, chunk_of, operator_of, request, welcome

WAIT_S = 30.0


class Log:
    """A changelog that fails as told and then holds still."""

    generation = 1
    directory = Path("/nowhere")

    def __init__(self, *failures: Exception) -> None:
        self.compaction: CompactionLoop
        self.seen: list[Any] = []
        self.quiet = threading.Event()
        self._failures = list(failures)

    def sealed(self) -> list[Path]:
        self.seen.append(self.compaction.failure)
        if self._failures:
            raise self._failures.pop(0)
        if len(self.seen) > 1 and self.compaction.failure is None:
            self.quiet.set()
        return []


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "INTERVAL_S", 0.001)
    monkeypatch.setattr(upkeep_module, "AGAIN_S_MAX", 0.002)


def started(log: Log) -> CompactionLoop:
    log.compaction = CompactionLoop(log, dict)  # type: ignore[arg-type]
    log.compaction.start()
    return log.compaction


def test_a_full_disk_is_told_and_tried_again_until_there_is_room() -> None:
    full = CheckpointUnusable("no room")
    log = Log(full, full)
    compaction = started(log)
    assert log.quiet.wait(WAIT_S)
    compaction.stop()
    assert log.seen[:4] == [None, full, full, None], "what compaction showed when it looked again"
    assert compaction.failure is None


@pytest.mark.parametrize(
    "error",
    [
        CheckpointCorrupt("damaged"),
        OSError(5, "Input/output error"),
        MemoryError(),
        pa.ArrowInvalid("not a batch"),
        KeyError("kind"),
        AssertionError("never"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_merge_fails_of_is_told_and_tried_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(*[error] * 5)
    with caplog.at_level(logging.WARNING, logger="godwit"):
        compaction = started(log)
        assert log.quiet.wait(WAIT_S), "the thread that merges has died"
        compaction.stop()
    shown = log.seen[1:6]
    assert all(type(failure) is (type(error) if hasattr(error, "todo") else Bug) for failure in shown)
    assert all(str(error) in str(failure) for failure in shown)
    assert compaction.failure is None
    assert len(caplog.records) == 1, "once, not with every attempt"
    assert "the log grows" in caplog.text


def test_a_fenced_host_shows_its_failure_and_warns_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(StaleGeneration("replaced"), StaleGeneration("replaced"))
    with caplog.at_level(logging.WARNING, logger="godwit"):
        compaction = started(log)
        assert log.quiet.wait(WAIT_S)
        compaction.stop()
    assert [type(failure) for failure in log.seen[1:3]] == [StaleGeneration] * 2
    assert caplog.records == [], "its log is no longer its own, and the newer generation compacts it"


def test_pauses_grow_and_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [upkeep_module._pause_s(failures) for failures in (0, 1, 2, 3, 6, 2000)] == [1.0, 2.0, 4.0, 8.0, 60.0, 60.0]


def test_a_batch_that_snapshots_take_for_committed_is_so_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: if the mark of the next batch was lost, there were rows of the batch without the ends of their lanes."""
    monkeypatch.setattr(upkeep_module, "SEALED_MIN", 1)
    host = BenchHost(tmp_path / "host", operator_of())
    host.log.durability = "disk"
    compaction = CompactionLoop(host.log, host.instances.settled)
    for batch, row_count in enumerate((300, 300, 2)):  # so that the last snapshot is not merged with those before
        host.do(lambda i, b=batch: i.open(request(b), "0", 1_000, welcome))  # type: ignore[misc]
        host.do(lambda i, b=batch, n=row_count: i.apply(request(b), "0", numbered(n)))  # type: ignore[misc]
        host.log.rotate()
        compaction._compact_sealed()  # in mid-batch
        host.do(lambda i, b=batch, n=row_count: i.finish(request(b), "0", n, None))  # type: ignore[misc]
    host.log.sync(host.shared.lsn)
    host.log.rotate()
    host.do(lambda i: i.open(request(3), "0", 1_000, welcome))
    host.settle()
    compaction._compact_sealed()
    cut_power(host)
    again = BenchHost(host.directory, host.operator)
    again.do(lambda i: i.open(request(3), "0", 1_000, welcome))
    again.close()


def test_compaction_gives_way_to_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks between the parts that it reads and those that it writes."""
    monkeypatch.setattr(upkeep_module, "SEALED_MIN", 1)
    host = BenchHost(tmp_path / "host", operator_of())
    compaction = CompactionLoop(host.log, host.instances.settled)
    asked: list[int] = []
    monkeypatch.setattr(Breaths, "__call__", lambda _: asked.append(len(list(host.directory.glob("snap-*.tmp")))))
    host.do(lambda i: i.open(request(0), "0", 1_000, welcome))
    for begin in range(20):
        host.do(lambda i, b=begin: i.apply(request(0), "0", chunk_of([(f"k{n}", n) for n in range(b, b + 1)], b)))  # type: ignore[misc]
    host.do(lambda i: i.finish(request(0), "0", 20, None))
    host.log.rotate()
    compaction._compact_sealed()
    assert asked.count(0) >= 20, "while it reads"
    assert asked.count(1) >= 1, "while it writes"
    host.close()


def numbered(row_count: int) -> Chunk:
    return chunk_of([(f"k{n}", n) for n in range(row_count)])


def cut_power(host: BenchHost) -> None:
    """What was written and not synced is gone."""
    synced_lsn = host.log._synced_lsn
    host.log.close()
    host.instances.close()
    newest = max(host.directory.glob("log-*"))
    with FrameReader(newest, None) as reader:
        lost = [frame.offset for frame in reader.frames() if frame.lsn > synced_lsn]
    if lost:
        os.truncate(newest, lost[0])
