"""The changelog: order, group commit, fencing between processes, and what a failure or a crash leaves behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import (
    CheckpointCorrupt,
    CheckpointUnusable,
    CheckpointVersion,
    GodwitError,
    InvariantBroken,
    StaleGeneration,
)
from godwit.state.changelog import Changelog, Durability, Part, Recovered
from godwit.state.fencing import claim
from godwit.state.frames import FILE_HEADER, Draft, FrameReader, Info
from godwit.state.snapshot import Compactor

Open = Callable[..., tuple[Changelog, Recovered]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "hosts" / "host-1"


@pytest.fixture
def opened(directory: Path) -> Iterator[Open]:
    """Open the directory, as often as wanted; whatever is still open is closed at the end."""
    logs: list[Changelog] = []

    def open_log(durability: Durability = "process", **options: Any) -> tuple[Changelog, Recovered]:
        log, recovered = Changelog.open(directory, durability, **options)
        logs.append(log)
        return log, recovered

    yield open_log
    for log in logs:
        with suppress(GodwitError):
            log.close()


def state(number: int, body: bytes = b"") -> Part:
    return Part({"kind": "state", "op": "a", "batch": number}, body)


def mark(number: int, op: str = "a") -> Part:
    return Part({"kind": "mark", "op": op, "number": number})


def define(op: str = "a") -> Part:
    return Part({"kind": "define", "op": op, "schema": "none"})


def write(log: Changelog, *frames: Sequence[Part]) -> int:
    lsn = 0
    for parts in frames:
        lsn = log.append(parts)
    log.flush(lsn)
    return lsn


def numbers(recovered: Recovered) -> list[int]:
    return [part.info["batch"] for part in recovered.parts() if part.info["kind"] == "state"]


def files(directory: Path, kind: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.startswith(kind))


def infos(path: Path) -> list[list[Info]]:
    with FrameReader(path) as reader:
        return [[part.info for part in frame.parts] for frame in reader.frames()]


# ---- order and recovery


def test_new_directory_holds_nothing(opened: Open) -> None:
    log, recovered = opened()
    assert list(recovered.parts()) == []
    assert (recovered.generation, recovered.next_lsn, recovered.starts) == (1, 1, [(1, 1)])
    assert (log.generation, log.fenced()) == (1, False)


def test_parts_come_back_in_order_over_generations(opened: Open) -> None:
    for generation in range(1, 4):
        log, recovered = opened()
        before = [part.info["batch"] for part in recovered.parts()]
        assert before == list(range(5 * (generation - 1)))
        assert recovered.generation == generation
        last = write(log, *([state(number)] for number in range(len(before), len(before) + 5)))
        assert last == log.append([]) - 1
        log.close()


def test_bodies_and_parts_of_a_frame_come_back(opened: Open) -> None:
    log, _ = opened()
    parts = [state(1, b"x" * 100_000), state(1), Part({"kind": "ledger", "op": "a", "batch": 1}, b"\x00")]
    write(log, parts)
    assert [Part(info, bytes(body)) for info, body in opened()[1].parts()] == parts


def test_frame_that_was_not_flushed_is_gone_after_a_crash(opened: Open) -> None:
    log, _ = opened()
    write(log, [state(1)])
    log.append([state(2)])
    assert numbers(opened()[1]) == [1]


def test_close_writes_what_stands_in_line(opened: Open) -> None:
    log, _ = opened()
    log.append([state(1)])
    log.close()
    assert numbers(opened()[1]) == [1]


def test_closed_log_refuses_work(opened: Open) -> None:
    log, _ = opened()
    log.close()
    log.close()
    with pytest.raises(CheckpointUnusable, match="closed"):
        log.append([state(1)])


def test_append_before_recovered_parts_are_read_is_refused(opened: Open) -> None:
    write(opened()[0], [state(1)])
    log, recovered = opened()
    with pytest.raises(InvariantBroken):
        log.append([state(2)])
    assert log.sealed() == []
    assert numbers(recovered) == [1]
    log.append([state(2)])
    assert len(log.sealed()) == 1


def test_torn_tail_is_cut_and_the_next_generation_goes_on_there(directory: Path, opened: Open) -> None:
    log, _ = opened()
    write(log, [state(1)], [state(2, b"x" * 500)])
    [segment] = files(directory, "log")
    os.truncate(segment, segment.stat().st_size - 1)
    log, recovered = opened()
    assert numbers(recovered) == [1]
    write(log, [state(3)])
    assert numbers(opened()[1]) == [1, 3]


def test_segment_that_was_being_begun_is_left_out(directory: Path, opened: Open) -> None:
    for begun in (b"", FILE_HEADER[:3], FILE_HEADER, FILE_HEADER + b"GWF1"):
        log, recovered = opened()
        before = numbers(recovered)
        last = write(log, [state(len(before))])
        (directory / f"log-{log.generation:08d}-00000002").write_bytes(begun)
        _, recovered = opened()
        assert numbers(recovered) == [*before, len(before)]
        assert recovered.next_lsn == last + 1


def test_damage_in_a_sealed_segment_is_corruption_not_a_torn_tail(directory: Path, opened: Open) -> None:
    log, _ = opened()
    write(log, [define(), state(1)])
    log.rotate()
    write(log, [state(2)])
    first = files(directory, "log")[0]
    os.truncate(first, first.stat().st_size - 1)
    _, recovered = opened()
    with pytest.raises(CheckpointCorrupt) as caught:
        list(recovered.parts())
    assert caught.value.fields["file"] == str(first)


def test_damage_before_the_tail_of_the_newest_segment_stops_the_takeover(directory: Path, opened: Open) -> None:
    log, _ = opened()
    write(log, [state(1, b"xxxx")], [state(2)])
    [segment] = files(directory, "log")
    segment.write_bytes(segment.read_bytes().replace(b"xxxx", b"xxyx"))
    with pytest.raises(CheckpointCorrupt) as caught:
        opened()
    assert caught.value.fields["operators"] == "a"


# ---- segments


def test_segments_stay_below_their_maximum_and_keep_order(directory: Path, opened: Open) -> None:
    log, _ = opened(segment_bytes_max=2000)
    write(log, *([state(number, b"x" * 300)] for number in range(50)))
    sizes = [path.stat().st_size for path in files(directory, "log")]
    assert len(sizes) > 8
    assert max(sizes) <= 2000
    assert numbers(opened()[1]) == list(range(50))


def test_segment_without_frames_is_not_rotated(directory: Path, opened: Open) -> None:
    log, _ = opened()
    log.rotate()
    assert files(directory, "log") == []
    write(log, [define()])
    log.rotate()
    log.rotate()
    assert len(files(directory, "log")) == 2
    assert log.sealed() == files(directory, "log")[:1]


def test_frame_larger_than_a_segment_gets_one_to_itself(directory: Path, opened: Open) -> None:
    log, _ = opened(segment_bytes_max=1000)
    write(log, [state(0)], [state(1, b"x" * 5000)], [state(2)])
    assert len(files(directory, "log")) == 3
    assert numbers(opened()[1]) == [0, 1, 2]


def test_every_segment_begins_with_what_stands(directory: Path, opened: Open) -> None:
    log, _ = opened()
    write(log, [define("a"), define("b")], [mark(1, "a")], [mark(2, "a"), mark(3, "b")])
    log.rotate()
    write(log, [Part({"kind": "drop", "op": "b"})], [mark(4, "a")])
    log.rotate()
    first, second, third = (infos(path)[0] for path in files(directory, "log"))
    assert first == []
    assert second == [define("a").info, mark(2, "a").info, define("b").info, mark(3, "b").info]
    assert third == [define("a").info, mark(4, "a").info]


def test_first_segment_of_a_generation_begins_with_what_stands(directory: Path, opened: Open) -> None:
    write(opened()[0], [define("a"), mark(1)])
    log, recovered = opened()
    list(recovered.parts())
    write(log, [mark(2)])
    assert infos(files(directory, "log")[1]) == [[define("a").info, mark(1).info], [mark(2).info]]


def test_what_a_segment_repeats_is_not_recovered_twice(opened: Open) -> None:
    log, _ = opened()
    write(log, [define(), mark(1)], [state(1)])
    log.rotate()
    write(log, [mark(2)])
    log.rotate()
    found = [part.info for part in opened()[1].parts()]
    assert found == [define().info, mark(1).info, state(1).info, mark(2).info]


def test_missing_segment_between_others_is_corruption(directory: Path, opened: Open) -> None:
    log, _ = opened()
    for number in range(3):
        write(log, [state(number)])
        log.rotate()
    files(directory, "log")[1].unlink()
    with pytest.raises(CheckpointCorrupt, match="log-00000001-00000002"):
        opened()


# ---- threads


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_threads_keep_their_order_and_lose_nothing(opened: Open, durability: Durability) -> None:
    log, _ = opened(durability, segment_bytes_max=20_000)
    lsns: dict[int, list[int]] = {}

    def work(thread: int) -> None:
        lsns[thread] = []
        for number in range(100):
            lsn = log.append([Part({"kind": "state", "op": str(thread), "batch": number}, b"x" * 100)])
            lsns[thread].append(lsn)
            log.sync(lsn)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    found = [part.info for part in opened()[1].parts()]
    assert len(found) == 800
    for thread in range(8):
        assert [info["batch"] for info in found if info["op"] == str(thread)] == list(range(100))
        assert lsns[thread] == sorted(lsns[thread])
    assert len({lsn for row in lsns.values() for lsn in row}) == 800


class Gate:
    """Holds every gathered write until it is opened, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.writes = 0
        self.error: OSError | None = None
        self._writev = os.writev
        monkeypatch.setattr(os, "writev", self._held)

    def _held(self, fd: int, buffers: Sequence[memoryview]) -> int:
        self.writes += 1
        self.reached.set()
        assert self.open.wait(20)
        if self.error:
            raise self.error
        return self._writev(fd, buffers)


def test_frames_that_come_during_a_write_are_written_together(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened()
    first = write(log, [state(0)]) + 1
    gate = Gate(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        assert log.append([state(1)]) == first
        leader = pool.submit(log.flush, first)
        assert gate.reached.wait(20)
        later = [log.append([state(number)]) for number in range(2, 9)]  # appending waits for nobody
        followers = [pool.submit(log.flush, lsn) for lsn in later]
        assert not leader.done()
        gate.open.set()
        for future in (leader, *followers):
            future.result(20)
    assert gate.writes == 2
    assert numbers(opened()[1]) == list(range(9))


def test_every_waiting_thread_learns_of_a_failed_write(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened()
    write(log, [state(0)])
    gate = Gate(monkeypatch)
    gate.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with ThreadPoolExecutor(4) as pool:
        leader = pool.submit(log.flush, log.append([state(1)]))
        assert gate.reached.wait(20)
        followers = [pool.submit(log.flush, log.append([state(number)])) for number in (2, 3)]
        gate.open.set()
        errors = [future.exception(20) for future in (leader, *followers)]
    assert gate.writes == 1
    assert all(isinstance(error, CheckpointUnusable) for error in errors)
    assert len({str(error) for error in errors}) == 1


def test_much_in_line_is_written_without_being_asked(directory: Path, opened: Open) -> None:
    log, _ = opened()
    body = bytes(8 << 20)
    for number in range(6):
        log.append([state(number, body)])
    assert sum(path.stat().st_size for path in files(directory, "log")) > 32 << 20


# ---- durability


def fsynced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are synced from now on."""
    names: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        names.append(Path(f"/proc/self/fd/{fd}").resolve().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_disk_durability_syncs_file_and_directory(
    directory: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened("disk")
    names = fsynced(monkeypatch)
    log.sync(log.append([state(1)]))
    assert names == [directory.name, "log-00000001-00000001"]
    log.sync(log.append([state(2)]))
    log.flush(log.append([state(3)]))
    assert names[2:] == ["log-00000001-00000001"]
    log.rotate()
    assert names[3:] == ["log-00000001-00000001", directory.name]


def test_frame_already_synced_is_not_synced_again(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened("disk")
    first, second = log.append([state(1)]), log.append([state(2)])
    log.sync(second)
    names = fsynced(monkeypatch)
    log.sync(first)
    log.sync(second)
    assert names == []


def test_segment_stays_open_while_it_is_being_synced(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened("disk")
    lsn = write(log, [state(1)])
    reached, proceed, fsync = threading.Event(), threading.Event(), os.fsync

    def held(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        reached.set()
        assert proceed.wait(20)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", held)
    with ThreadPoolExecutor(2) as pool:
        sync = pool.submit(log.sync, lsn)
        assert reached.wait(20)
        rotate = pool.submit(log.rotate)
        with pytest.raises(TimeoutError):
            rotate.result(0.3)
        proceed.set()
        sync.result(20)
        rotate.result(20)
    assert numbers(opened()[1]) == [1]


def test_process_durability_never_syncs(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened("process")
    names = fsynced(monkeypatch)
    log.sync(log.append([state(1)]))
    log.rotate()
    assert names == []


def test_takeover_syncs_what_the_last_writer_may_not_have(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened("disk")
    log.flush(log.append([state(1)]))
    names = fsynced(monkeypatch)
    opened("disk")
    assert "log-00000001-00000001" in names


def test_failed_sync_fails_the_log(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened("disk")
    log.sync(log.append([state(1)]))

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(CheckpointUnusable, match="Input/output error"):
        log.sync(log.append([state(2)]))
    monkeypatch.undo()
    with pytest.raises(CheckpointUnusable, match="Input/output error"):
        log.append([state(3)])


def test_writes_that_the_system_cuts_short_are_completed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda fd, buffers: os.write(fd, b"".join(buffers)[:7]))
    log, _ = opened()
    bodies = [bytes([number]) * number * 40 for number in range(20)]
    write(log, [state(number, body) for number, body in enumerate(bodies)], [state(99, b"y" * 20_000)])
    assert [bytes(part.body) for part in opened()[1].parts()] == [*bodies, b"y" * 20_000]


def test_more_buffers_than_one_call_takes_are_all_written(opened: Open) -> None:
    log, _ = opened()
    write(log, [state(number, bytes([number % 256]) * 20) for number in range(3000)] + [state(0, bytes(20_000))])
    assert len(list(opened()[1].parts())) == 3001


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_failed_write_fails_the_log_for_good(opened: Open, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    log, _ = opened()
    last = write(log, [state(1)])

    def broken(fd: int, buffers: Sequence[memoryview]) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "writev", broken)
    with pytest.raises(CheckpointUnusable) as first:
        write(log, [state(2)])
    monkeypatch.undo()
    assert os.strerror(number) in str(first.value)
    assert "log-00000001-00000001" in str(first.value)
    calls: list[Callable[[], object]] = [
        lambda: log.append([state(3)]),
        lambda: log.flush(last),
        lambda: log.sync(last),
        log.rotate,
    ]
    for call in calls:
        with pytest.raises(CheckpointUnusable) as later:
            call()
        assert str(later.value) == str(first.value)
    assert numbers(opened()[1]) == [1]


def test_directory_that_cannot_be_made_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointUnusable, match="Not a directory"):
        Changelog.open(tmp_path / "file" / "host", "process")


# ---- generations


def test_older_generation_is_fenced_and_what_it_appends_is_ignored(opened: Open) -> None:
    old, _ = opened()
    write(old, [state(1)])
    new, recovered = opened()
    assert (old.fenced(), new.fenced()) == (True, False)
    with pytest.raises(StaleGeneration):
        write(old, [state(2)])
    with pytest.raises(StaleGeneration):
        old.append([state(3)])
    assert numbers(recovered) == [1]
    write(new, [state(4)])
    assert numbers(opened()[1]) == [1, 4]


def test_new_segments_of_a_fenced_writer_are_ignored_and_removed(directory: Path, opened: Open) -> None:
    old, _ = opened(segment_bytes_max=300)
    write(old, [state(1)])
    new, recovered = opened()
    with pytest.raises(StaleGeneration):
        write(old, [state(2, bytes(500))], [state(3)])
    assert "log-00000001-00000003" in [path.name for path in files(directory, "log")]
    with pytest.raises(StaleGeneration):
        old.sealed()
    assert numbers(recovered) == [1]
    new.close()
    assert numbers(opened()[1]) == [1]
    assert [path.name for path in files(directory, "log")] == ["log-00000001-00000001"]


def test_fence_holds_when_the_claims_in_between_are_gone(directory: Path, opened: Open) -> None:
    first, _ = opened()
    write(first, [state(1)])
    opened()
    opened()
    assert [path.name for path in files(directory, "claim")] == ["claim-00000003"]
    assert first.fenced()
    with pytest.raises(StaleGeneration):
        write(first, [state(2)])


def test_write_that_a_takeover_overtook_is_not_acknowledged(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = opened()
    write(old, [state(1)])
    writev = os.writev

    def overtaken(fd: int, buffers: Sequence[memoryview]) -> int:
        monkeypatch.undo()
        opened()
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", overtaken)
    with pytest.raises(StaleGeneration):
        write(old, [state(2)])
    assert numbers(opened()[1]) == [1]


def test_generations_claimed_at_once_are_all_different(tmp_path: Path) -> None:
    """Who is overtaken before its claim is complete hears so at once."""
    barrier = threading.Barrier(8)

    def race(_: int) -> list[int]:
        barrier.wait()
        taken = []
        for _ in range(20):
            with suppress(StaleGeneration):
                taken.append(claim(tmp_path))
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [generation for row in pool.map(race, range(8)) for generation in row]
    assert len(set(taken)) == len(taken) >= 8
    assert max(taken) == 160 == len(files(tmp_path, "claim"))


def test_takeover_that_is_itself_overtaken_stops(
    directory: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(opened()[0], [state(1)])
    replace = Path.replace

    def overtaken(self: Path, target: Path) -> Path:
        monkeypatch.undo()
        log, recovered = opened()
        assert numbers(recovered) == [1]
        write(log, [state(2)])
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    with pytest.raises(StaleGeneration):
        opened()
    assert numbers(opened()[1]) == [1, 2]


def test_survived_says_what_later_generations_kept(opened: Open) -> None:
    first, _ = opened()
    kept = write(first, [state(1)])
    lost = first.append([state(2)])
    second, recovered = opened()
    assert numbers(recovered) == [1]
    mine = write(second, [state(3)])
    third, recovered = opened()
    assert recovered.starts == [(1, 1), (2, kept + 1), (3, mine + 1)]
    for log in (second, third):
        assert log.survived(1, kept)
        assert not log.survived(1, lost)
        assert log.survived(2, mine)
    assert not third.survived(2, mine + 1)
    assert not third.survived(9, 1)
    list(recovered.parts())
    assert third.survived(3, third.append([state(4)]))


def test_generation_that_never_got_to_write_kept_nothing(directory: Path, opened: Open) -> None:
    write(opened()[0], [state(1)])
    claim(directory)
    log, recovered = opened()
    assert log.generation == 3
    assert [generation for generation, _ in recovered.starts] == [1, 3]
    assert not log.survived(2, 1)


# ---- the manifest and its files


def manifest_path(directory: Path) -> Path:
    return files(directory, "manifest")[-1]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"version": 1}', b"\xff\xfe"])
def test_unreadable_manifest_is_corruption(directory: Path, opened: Open, damage: bytes) -> None:
    write(opened()[0], [state(1)])
    manifest_path(directory).write_bytes(damage)
    with pytest.raises(CheckpointCorrupt) as caught:
        opened()
    assert "manifest-00000001.json" in str(caught.value)
    assert "every operator" in str(caught.value)


def test_changed_digit_in_the_manifest_is_seen(directory: Path, opened: Open) -> None:
    write(opened()[0], [state(1)])
    opened()
    path = manifest_path(directory)
    document = json.loads(path.read_text())
    document["content"]["segments"][0]["bytes"] -= 1
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointCorrupt, match="checksum"):
        opened()


def test_manifest_of_a_newer_format_is_refused(directory: Path, opened: Open) -> None:
    opened()
    path = manifest_path(directory)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(CheckpointVersion) as caught:
        opened()
    assert (caught.value.fields["version"], caught.value.fields["supported"]) == (2, 1)


def test_files_without_a_manifest_are_corruption(directory: Path, opened: Open) -> None:
    write(opened()[0], [state(1)])
    manifest_path(directory).unlink()
    with pytest.raises(CheckpointCorrupt, match="log-00000001-00000001"):
        opened()


@pytest.mark.parametrize("shorten", [True, False])
def test_segment_that_is_gone_or_short_is_named_with_its_operators(
    directory: Path, opened: Open, shorten: bool
) -> None:
    log, _ = opened()
    for number in range(3):
        write(log, [define("clicks"), state(number)])
        log.rotate()
    opened()
    segment = files(directory, "log")[1]
    if shorten:
        os.truncate(segment, 100)
    else:
        segment.unlink()
    with pytest.raises(CheckpointCorrupt) as caught:
        opened()
    assert caught.value.fields["file"] == str(segment)
    assert "clicks" in caught.value.fields["operators"]


def test_leftovers_are_removed_and_foreign_files_stay(directory: Path, opened: Open) -> None:
    write(opened()[0], [state(1)])
    for name in ("snap-00000001-00000001.tmp", "manifest-00000001.json.tmp", "snap-00000001-00000007"):
        (directory / name).write_bytes(b"half")
    (directory / "notes.txt").write_text("mine")
    opened()
    assert sorted(path.name for path in directory.iterdir()) == [
        "claim-00000002",
        "log-00000001-00000001",
        "manifest-00000002.json",
        "notes.txt",
        "serving-00000002",
    ]


def test_fenced_compaction_cannot_undo_a_takeover(directory: Path, opened: Open) -> None:
    """The older process had read its list of files and merged them; then the newer one took over."""
    old, _ = opened()
    write(old, [Part({"kind": "ledger", "op": "a", "batch": 1}, b"1")])
    old.rotate()

    def take_over(step: str) -> None:
        if step == "snapshot named":
            log, recovered = opened()
            assert [bytes(part.body) for part in recovered.parts()] == [b"1"]
            write(log, [Part({"kind": "ledger", "op": "a", "batch": 2}, b"2")])

    with pytest.raises(StaleGeneration):
        Compactor(old.generation, on_step=take_over).compact(directory, old.sealed(), {})
    assert [bytes(part.body) for part in opened()[1].parts()] == [b"1", b"2"]


# ---- real processes

WRITER = """
    import sys
    from pathlib import Path
    from godwit.state.changelog import Changelog

    log, recovered = Changelog.open(Path(sys.argv[1]), sys.argv[2], segment_bytes_max=200_000)
    before = sum(1 for part in recovered.parts())
    number = before
    while True:
        lsn = log.append([({"kind": "state", "op": "a", "batch": number}, bytes(number % 5000))])
        if number % 3 == 0:
            log.sync(lsn)
            print(lsn, number, flush=True)
        number += 1
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_killed_writer_keeps_all_that_it_flushed(directory: Path, opened: Open, durability: Durability) -> None:
    for _ in range(3):
        with start(WRITER, str(directory), durability) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(100)]
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
            assert process.stderr is not None
            assert said[0], process.stderr.read()
        lsn, number = map(int, [line for line in said if line.endswith("\n")][-1].split())
        log, recovered = opened(durability)
        found = numbers(recovered)
        assert found == list(range(len(found)))
        assert len(found) > number
        assert recovered.next_lsn > lsn
        log.close()


def test_running_writer_is_fenced_by_a_second_process(directory: Path, opened: Open) -> None:
    with start(WRITER, str(directory), "process") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline(), process.stderr.read()
        log, recovered = opened()  # while the other one is writing as fast as it can
        said = process.stdout.readlines()
        assert "StaleGeneration" in process.stderr.read()
        assert process.wait(20) == 1
    found = numbers(recovered)
    assert found == list(range(len(found)))
    acknowledged = int(said[-1].split()[1]) if said else 0
    assert len(found) > acknowledged
    write(log, [state(len(found))])
    assert numbers(opened()[1]) == list(range(len(found) + 1))


LIMITED = """
    import resource, sys
    from pathlib import Path
    from godwit.errors import GodwitError
    from godwit.state.changelog import Changelog

    log, _ = Changelog.open(Path(sys.argv[1]), "process")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for number in range(1000):
        try:
            log.flush(log.append([({"kind": "state", "op": "a", "batch": number}, bytes(3000))]))
            print(number, flush=True)
        except GodwitError as error:
            print(error.code, error.fields["reason"], flush=True)
"""


def test_file_system_that_takes_no_more_fails_the_log_and_loses_nothing(directory: Path, opened: Open) -> None:
    with start(LIMITED, str(directory)) as process:
        assert process.stdout is not None
        said = process.stdout.read().splitlines()
    written = [line for line in said if line.isdigit()]
    assert len(said) == 1000
    assert set(said[len(written) :]) == {"GODWIT-CHECKPOINT-UNUSABLE File too large"}
    assert files(directory, "log")[0].stat().st_size == 100_000  # the last frame is half there
    assert numbers(opened()[1]) == list(range(len(written)))


def test_frame_bytes_in_the_file_are_those_of_the_draft(directory: Path, opened: Open) -> None:
    log, _ = opened()
    lsn = write(log, [state(5, b"body")])
    [segment] = files(directory, "log")
    assert segment.read_bytes().endswith(b"".join(map(bytes, Draft([state(5, b"body")]).numbered(lsn))))
