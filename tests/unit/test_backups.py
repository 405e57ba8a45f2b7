"""Which backup counts, who may say so, and which answers wait for it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointCorrupt, GodwitError, StaleGeneration
from godwit.runtime.backup import restore as backup_restore
from godwit.runtime.backup import sender
from godwit.runtime.backup.acknowledgements import Acks
from godwit.runtime.backup.keeper import BackupKeeper
from godwit.runtime.backup.records import Records, mirror_directory
from godwit.runtime.backup.restore import restore_if_lost
from godwit.runtime.backup.sender import BackupSender
from godwit.runtime.host_services import HostServices
from godwit.runtime.liveness.leases import Lease, host_directory, write_lease
from godwit.runtime.messages import BackupOpened, ReplaceManifest, WriteBackup
from godwit.state.changelog import Changelog
from godwit.state.mirroring import Feed, Mirror, copy_mirror, has_log
from godwit.transport.typed import Message


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(str(tmp_path), "a")


# -- records ---------------------------------------------------------------------------------------------------------


def test_of_two_only_one_makes_the_next_record(records: Records) -> None:
    first = records.next(None, "none", None, 1)
    kept = records.next(first, "kept", "b", 1)
    with pytest.raises(StaleGeneration):
        records.next(first, "none", None, 1)
    assert records.newest() == kept


def test_a_number_that_was_trimmed_is_not_free(records: Records) -> None:
    first = newest = records.next(None, "none", None, 1)
    for generation in range(2, 12):
        newest = records.next(newest, "none", None, generation)
    with pytest.raises(StaleGeneration):
        records.next(first, "kept", "b", 1)
    assert records.newest() == newest


# -- restoring -------------------------------------------------------------------------------------------------------


def kept_at(checkpoint: Path, peer: str = "b") -> list[bytes]:
    """A log of host a, mirrored by a peer; its bodies."""
    directory = host_directory(str(checkpoint), "a")
    log, _ = Changelog.open(directory)
    bodies = [b"one", b"two"]
    for body in bodies:
        log.flush(log.append([({"kind": "ledger", "op": "x", "batch": 1}, body)]))
    mirror = Mirror(mirror_directory(str(checkpoint), peer, "a"), log.generation)
    feed = Feed(directory, log.generation, mirror.have())
    while (piece := feed.next(log.written())) is not None:
        if piece.manifest:
            mirror.replace_manifest(piece.data)
        else:
            mirror.write(piece.file, piece.offset, piece.data, piece.ahead)
        feed.took(piece)
    records = Records(str(checkpoint), "a")
    records.next(records.next(None, "none", None, 1), "kept", peer, 1)
    log.close()
    return bodies


def bodies_in(checkpoint: Path) -> list[bytes]:
    log, recovered = Changelog.open(host_directory(str(checkpoint), "a"))
    found = [bytes(part.body) for part in recovered.parts()]
    log.close()
    return found


@pytest.mark.parametrize("left", ["nothing", "a link to nowhere", "an empty disk", "files of a log without a manifest"])
def test_a_lost_directory_is_put_back(tmp_path: Path, left: str) -> None:
    bodies = kept_at(tmp_path)
    directory = host_directory(str(tmp_path), "a")
    assert not restore_if_lost(str(tmp_path), "a")
    if left == "files of a log without a manifest":
        next(directory.glob("manifest-*")).unlink()
    else:
        shutil.rmtree(directory)
    if left == "a link to nowhere":
        directory.symlink_to(tmp_path / "gone")
    if left == "an empty disk":
        directory.mkdir()
        (directory / "lease.json").touch()
    assert restore_if_lost(str(tmp_path), "a")
    assert not restore_if_lost(str(tmp_path), "a")
    assert bodies_in(tmp_path) == bodies
    assert not list(directory.parent.glob("*.restored-*"))
    newest = Records(str(tmp_path), "a").newest()
    assert newest is not None
    assert (newest.state, newest.peer) == ("restored", "b")


def test_whoever_wrote_to_the_mirror_is_fenced_and_the_next_generation_is_newer_than_all(tmp_path: Path) -> None:
    kept_at(tmp_path)
    mirror = Mirror(mirror_directory(str(tmp_path), "b", "a"), 5)
    shutil.rmtree(host_directory(str(tmp_path), "a"))
    assert restore_if_lost(str(tmp_path), "a")
    with pytest.raises(StaleGeneration):
        mirror.check()
    log, _ = Changelog.open(host_directory(str(tmp_path), "a"))
    assert log.generation == 7
    log.close()
    Mirror(mirror_directory(str(tmp_path), "b", "a"), log.generation)


@pytest.mark.parametrize("crash", ["claim", "copy_mirror", "_check_newest", "_put_in_place"])
def test_restoring_goes_on_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    bodies = kept_at(tmp_path)
    shutil.rmtree(host_directory(str(tmp_path), "a"))

    def crashes(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backup_restore, crash, crashes)
        with pytest.raises(KeyboardInterrupt):
            restore_if_lost(str(tmp_path), "a")
    assert not has_log(host_directory(str(tmp_path), "a"))
    assert restore_if_lost(str(tmp_path), "a")
    assert bodies_in(tmp_path) == bodies
    assert not list((tmp_path / "hosts").glob("*.restored-*"))


def test_without_a_backup_that_counts_nothing_is_put_back(tmp_path: Path) -> None:
    assert not restore_if_lost(str(tmp_path), "a"), "a host that is new"
    kept_at(tmp_path)
    records = Records(str(tmp_path), "a")
    shutil.rmtree(host_directory(str(tmp_path), "a"))
    shutil.rmtree(host_directory(str(tmp_path), "b"))
    with pytest.raises(CheckpointCorrupt, match="so is its backup on b"):
        restore_if_lost(str(tmp_path), "a")
    none = records.next(records.newest(), "none", "b", 2)
    with pytest.raises(CheckpointCorrupt, match=re.escape(f"since {none.at}")):
        restore_if_lost(str(tmp_path), "a")


def test_a_directory_from_before_the_host_went_on_elsewhere_is_refused(tmp_path: Path) -> None:
    kept_at(tmp_path)
    directory = host_directory(str(tmp_path), "a")
    directory.rename(tmp_path / "away")
    assert restore_if_lost(str(tmp_path), "a")
    log, _ = Changelog.open(directory)
    records = Records(str(tmp_path), "a")
    records.next(records.newest(), "none", "b", log.generation)
    log.close()
    assert not restore_if_lost(str(tmp_path), "a")
    shutil.rmtree(directory)
    (tmp_path / "away").rename(directory)
    with pytest.raises(CheckpointCorrupt, match="is of generation 1, but the host has already reached generation 3"):
        restore_if_lost(str(tmp_path), "a")


def test_a_host_that_others_took_over_does_not_come_back(tmp_path: Path) -> None:
    kept_at(tmp_path)
    Records(str(tmp_path), "a").end()
    shutil.rmtree(host_directory(str(tmp_path), "a"))
    with pytest.raises(CheckpointCorrupt):
        restore_if_lost(str(tmp_path), "a")


def test_a_peer_removes_what_no_record_names_it_for(tmp_path: Path) -> None:
    kept_at(tmp_path)
    keeping = BackupKeeper(str(tmp_path), "b", lambda: False)
    keeping.tidy()
    assert keeping.bytes_by_origin()["a"] > 0
    Records(str(tmp_path), "a").end()
    keeping.tidy()
    assert keeping.bytes_by_origin() == {}


# -- answers ---------------------------------------------------------------------------------------------------------


class Answering:
    """A thread that answers when the backup has an lsn."""

    def __init__(self, acks: Acks, lsn: int, synced: bool = False) -> None:
        self.error: BaseException | None = None
        self._acks, self._lsn, self._synced = acks, lsn, synced
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while acks.longest_wait_s() == 0.0 and self._thread.is_alive():
            self._thread.join(0.001)

    def _run(self) -> None:
        try:
            self._acks.wait(self._lsn, self._synced)
        except StaleGeneration as error:
            self.error = error

    def waits(self) -> bool:
        """Still, after it has had the time to find out that it need not."""
        self._thread.join(0.1)
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def acks(noted: list[str]) -> Acks:
    acks = Acks(lambda: noted.append("none"))
    acks.connected()
    acks.begin()
    acks.stand(lambda: noted.append("kept"))
    return acks


def test_an_answer_waits_until_the_peer_has_it(acks: Acks) -> None:
    answer = Answering(acks, 5)
    acks.reached(4, False)
    assert answer.waits()
    acks.reached(5, False)
    answer.join()


def test_one_that_must_be_durable_waits_until_it_is(acks: Acks) -> None:
    answer = Answering(acks, 5, synced=True)
    acks.reached(5, False)
    assert acks.sync_wanted()
    assert answer.waits()
    acks.reached(5, True)
    answer.join()
    assert not acks.sync_wanted()


def test_that_there_is_no_backup_is_written_down_before_anything_is_answered_without(
    noted: list[str], acks: Acks
) -> None:
    assert not acks.waited_ms()[0]
    answer = Answering(acks, 5)
    assert noted == ["kept"]
    acks.broke()
    answer.join()
    assert noted == ["kept", "none"]
    acks.wait(6, False)
    assert noted == ["kept", "none"]


def test_a_backup_whose_connection_broke_stands_until_something_is_answered(noted: list[str], acks: Acks) -> None:
    acks.reached(5, False)
    acks.broke()
    acks.wait(5, False)
    assert noted == ["kept"]
    acks.wait(6, False)
    assert noted == ["kept", "none"]


def test_nothing_is_answered_when_somebody_else_has_decided() -> None:
    def overtaken() -> None:
        raise StaleGeneration("somebody else has")

    acks = Acks(overtaken)
    acks.connected()
    acks.begin()
    acks.stand(lambda: None)
    answer = Answering(acks, 5)
    acks.broke()
    answer.join()
    assert answer.error is not None
    with pytest.raises(StaleGeneration):
        acks.wait(1, False)


class Preempted(Acks):
    """Whoever asks why nothing is answered any more is held up right after it has heard that all is well."""

    strikes = False
    told: GodwitError | None = None

    @property  # type: ignore[override]
    def _failure(self) -> GodwitError | None:
        told, strikes, self.strikes = self.told, self.strikes, False
        if strikes:
            self.give_up()
        return told

    @_failure.setter
    def _failure(self, failure: GodwitError | None) -> None:
        self.told = failure


def test_nothing_is_answered_either_when_that_was_decided_at_this_very_moment() -> None:
    def overtaken() -> None:
        raise StaleGeneration("somebody else has")

    acks = Preempted(overtaken)
    acks.connected()
    acks.begin()
    acks.stand(lambda: None)
    acks.strikes = True
    with pytest.raises(StaleGeneration):
        acks.wait(1, False)


# -- when it stands --------------------------------------------------------------------------------------------------


class Direct:
    """A connection without a network. While answers do not wait, one leaves each time before an acknowledgement comes."""

    log: Changelog
    mirror_at: Path
    waits: Callable[[], bool]
    answered = 0

    def __init__(self, address: str, token: str, host: str, generation: int) -> None:
        self.since_s = None
        self._mirror = Mirror(self.mirror_at, generation)

    def opened(self) -> BackupOpened:
        return BackupOpened(self._mirror.have())

    def send(self, message: Message, body: Any = None) -> None:
        if isinstance(message, WriteBackup):
            self._mirror.write(message.file, message.offset, body, message.ahead)
        elif isinstance(message, ReplaceManifest):
            self._mirror.replace_manifest(body)
        if not type(self).waits() and type(self).answered < 5:
            lsn = self.log.append([({"kind": "ledger", "op": "x", "batch": 1}, b"answered")])
            self.log.flush(lsn)
            type(self).answered += 1

    def cancel(self) -> None:
        return

    close = cancel


def test_all_that_was_answered_before_it_stood_is_there_when_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = str(tmp_path)
    log, _ = Changelog.open(host_directory(checkpoint, "a"))
    host_directory(checkpoint, "b").mkdir(parents=True)
    write_lease(host_directory(checkpoint, "b"), Lease(1, "nowhere", 1))
    record = Records(checkpoint, "a").next(None, "none", None, 1)
    found: list[int] = []
    stood = threading.Event()
    next_record = Records.next

    def noted_next(self: Records, after: Any, state: Any, *rest: Any) -> Any:
        if state == "kept":
            copy_mirror(Direct.mirror_at, tmp_path / "copy")
            copied, recovered = Changelog.open(tmp_path / "copy")
            found.append(sum(1 for part in recovered.parts() if part.body))
            copied.close()
            stood.set()
        return next_record(self, after, state, *rest)

    port = HostServices("a", checkpoint, "token", "", log, lambda: 0, lambda: False)
    backup = BackupSender(port, record, lambda: "b", lambda _: None)
    Direct.log, Direct.mirror_at, Direct.answered = log, mirror_directory(checkpoint, "b", "a"), 0
    Direct.waits = staticmethod(lambda: backup.acks.waits)
    monkeypatch.setattr(Records, "next", noted_next)
    monkeypatch.setattr(sender, "BackupConnection", Direct)
    backup.start()
    try:
        assert stood.wait(10)
    finally:
        backup.stop()
        log.close()
    assert found == [Direct.answered]
    assert Direct.answered > 0
