"""A log's mirror: what it gets in which order, what counts in it at every step, and who may write to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from godwit.errors import CheckpointUnusable, GodwitError, MalformedRequest, StaleGeneration
from godwit.state.changelog import Changelog
from godwit.state.changes import PUT
from godwit.state.fencing import claim
from godwit.state.log_copy import copy_log
from godwit.state.mirroring import Feed, LogPiece, Mirror, copy_mirror, has_log
from godwit.state.snapshot import Compactor
from tests.property.test_changelog_crash import define, modelled, state


class Pair:
    """An origin with a mirror; every frame puts its number into a cell of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.log = self.open()
        self.feed, self.mirror = self.connect()

    def open(self) -> Changelog:
        log, recovered = Changelog.open(self.place / "origin")
        list(recovered.parts())
        return log

    def connect(self) -> tuple[Feed, Mirror]:
        mirror = Mirror(self.place / "mirror", self.log.generation)
        self.mirror, self.feed = mirror, Feed(self.log.directory, self.log.generation, mirror.have())
        return self.feed, self.mirror

    def append(self, *numbers: int, rotated: bool = True) -> None:
        for number in numbers:
            put = state("a", 1, [(number, 0, PUT, b"s", b"v")])
            self.log.flush(self.log.append([define("a"), put] if number == 0 else [put]))
        if rotated:
            self.log.rotate()

    def send(self, count: int = 1000) -> list[str]:
        """So many messages; gives the files."""
        sent = []
        while len(sent) < count and (piece := self.feed.next(self.log.written())) is not None:
            self.take(piece)
            sent.append(piece.file)
        return sent

    def take(self, piece: LogPiece) -> None:
        if piece.manifest:
            self.mirror.replace_manifest(piece.data)
        else:
            self.mirror.write(piece.file, piece.offset, piece.data, piece.ahead)
        self.feed.took(piece)

    def mirrored(self) -> tuple[set[int], int]:
        """What a host would find that opens the mirror: the numbers, and the lsn it goes on with."""
        copy = self.place / "copy"
        shutil.copytree(self.place / "mirror", copy)
        try:
            log, recovered = Changelog.open(copy)
            cells = modelled([part for part in recovered.parts() if part.info["kind"] == "state"])
            log.close()
        finally:
            shutil.rmtree(copy)
        return {key for key, _, _ in cells}, recovered.next_lsn

    def compact(self, count: int | None = None) -> None:
        Compactor(self.log.generation).compact(self.log.directory, self.log.sealed()[:count], {"a": 1})


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    pair = Pair(tmp_path)
    pair.append(0, 1, rotated=False)
    pair.send()
    return pair


def test_the_tail_goes_before_what_was_merged(pair: Pair) -> None:
    pair.append(2)
    pair.send()
    pair.compact()
    pair.append(3, rotated=False)
    sent = pair.send()
    assert [file.partition("-")[0] for file in sent] == ["log", "snap", "manifest"]
    assert pair.mirrored()[0] == {0, 1, 2, 3}
    assert not list((pair.place / "mirror").glob("log-*-00000001")), "trimmed by what the origin has merged"


def test_what_was_acknowledged_stays_while_a_gap_is_closed(pair: Pair) -> None:
    """Segments were merged before they were sent: what is put behind the gap counts only with the manifest."""
    acked = pair.mirrored()
    pair.append(2)
    pair.append(3)
    pair.compact()
    pair.append(4, rotated=False)
    at = pair.log.written()
    while pair.send(1):
        numbers, next_lsn = pair.mirrored()
        assert numbers >= acked[0]
        assert next_lsn >= acked[1]
        assert (numbers == {0, 1, 2, 3, 4} and next_lsn > at.lsn) or not pair.feed.reaches(at)
    assert pair.feed.reaches(at)


def test_a_later_segment_of_an_older_generation_is_not_seen_before_its_manifest(pair: Pair) -> None:
    pair.append(2)
    pair.append(3)
    pair.append(4)
    pair.log.close()
    pair.log = pair.open()
    pair.compact(2)
    pair.connect()
    while pair.send(1):
        assert pair.mirrored()[0] >= {0, 1}
    assert pair.mirrored()[0] == {0, 1, 2, 3, 4}


def test_a_connection_that_breaks_begins_where_the_mirror_is(pair: Pair) -> None:
    pair.append(2, rotated=False)
    piece = pair.feed.next(pair.log.written())
    assert piece is not None
    pair.mirror.write(piece.file, piece.offset, piece.data[:7], piece.ahead)
    feed, _ = pair.connect()
    again = feed.next(pair.log.written())
    assert again is not None
    assert (again.file, again.offset) == (piece.file, piece.offset + 7)
    pair.send()
    assert pair.mirrored()[0] == {0, 1, 2}


def test_a_mirror_of_something_else_is_begun_anew(pair: Pair) -> None:
    file = next((pair.place / "mirror").glob("log-*"))
    with file.open("ab") as out:
        out.write(b"more than there ever was")
    feed, mirror = pair.connect()
    assert feed.conflicts()
    mirror.clear()
    assert mirror.have() == {}
    assert not pair.connect()[0].conflicts()


@pytest.mark.parametrize("what", ["piece", "manifest", "sync", "connection", "clear"])
def test_a_mirror_that_was_claimed_takes_nothing_more(pair: Pair, what: str) -> None:
    """Whoever claimed it reads what is there, so nothing that comes later may be acknowledged."""
    pair.append(2, rotated=False)
    piece = pair.feed.next(pair.log.written())
    assert piece is not None
    manifest = (pair.log.directory / "manifest-00000001.json").read_bytes()
    claim(pair.place / "mirror")
    doing: dict[str, Callable[[], object]] = {
        "piece": lambda: pair.take(piece),
        "manifest": lambda: pair.mirror.replace_manifest(manifest),
        "sync": pair.mirror.sync,
        "clear": pair.mirror.clear,
        "connection": pair.connect,
    }
    with pytest.raises(StaleGeneration):
        doing[what]()
    assert pair.mirrored()[0] >= {0, 1}


def test_a_mirror_that_was_removed_is_not_taken_for_a_newer_generation(pair: Pair) -> None:
    pair.append(2, rotated=False)
    shutil.rmtree(pair.place / "mirror")
    with pytest.raises(CheckpointUnusable):
        pair.send()


@pytest.mark.parametrize(
    "file", ["../lease.json", "claim-00000009", "log-00000002-00000001", "log-00000001-00000001.tmp"]
)
def test_files_that_no_log_of_the_origin_has_are_refused(pair: Pair, file: str) -> None:
    with pytest.raises(MalformedRequest):
        pair.mirror.write(file, 0, b"x", ahead=False)


def test_a_piece_that_does_not_follow_is_refused(pair: Pair) -> None:
    with pytest.raises(MalformedRequest, match="begins at 3"):
        pair.mirror.write("log-00000001-00000001", 3, b"x", ahead=False)


def test_a_manifest_whose_files_are_not_there_is_refused(pair: Pair) -> None:
    pair.append(2)
    pair.compact()
    with pytest.raises(MalformedRequest, match="snap-"):
        pair.mirror.replace_manifest((pair.log.directory / "manifest-00000001.json").read_bytes())
    assert pair.mirrored()[0] == {0, 1}


def test_what_counts_of_a_mirror_is_copied(pair: Pair) -> None:
    (pair.place / "mirror" / "snap-00000001-00000007.tmp").write_bytes(b"half of something")
    copy_mirror(pair.place / "mirror", pair.place / "again")
    log, recovered = Changelog.open(pair.place / "again")
    assert len([part for part in recovered.parts() if part.info["kind"] == "state"]) == 2
    log.close()
    assert not has_log(pair.place / "nowhere")
    with pytest.raises(GodwitError):
        copy_mirror(pair.place / "nowhere", pair.place / "again2")


def test_a_copy_of_a_log_does_not_take_backups_of_others_along(pair: Pair) -> None:
    Mirror(pair.log.directory / "backups" / "other", 1)
    copy_log(pair.log, pair.place / "copied")
    assert not (pair.place / "copied" / "backups").exists()
