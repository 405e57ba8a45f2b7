"""A log and its mirror under random work, restarts and cuts: what was acknowledged is there, and it can always be opened."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from godwit.state.changelog import Changelog, Part
from godwit.state.mirroring import Feed, Mirror, has_log
from godwit.state.snapshot import Compactor
from tests.property.test_changelog_crash import (
    OPERATORS,
    Row,
    as_it_was,
    define,
    modelled,
    replayed,
    rows,
    since_drop,
    state,
)


class MirrorMachine(RuleBasedStateMachine):
    @initialize(segment_bytes_max=st.sampled_from([900, 3000]), piece_bytes_max=st.sampled_from([300, 1 << 20]))
    def begin(self, segment_bytes_max: int, piece_bytes_max: int) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="mirror-"))
        self.segment_bytes_max = segment_bytes_max
        self.piece_bytes_max = piece_bytes_max
        self.frames: dict[int, list[Part]] = {}  # by lsn
        self.batch = dict.fromkeys(OPERATORS, 1)
        self.acked = 0
        self.feed: Feed | None = None
        self.opened()

    def opened(self) -> None:
        self.log, recovered = Changelog.open(self.place / "origin", segment_bytes_max=self.segment_bytes_max)
        list(recovered.parts())
        self.frames = {lsn: parts for lsn, parts in self.frames.items() if lsn < recovered.next_lsn}

    @property
    def last(self) -> int:
        return max(self.frames, default=0)

    # -- the origin --------------------------------------------------------------------------------------------------

    @rule(op=st.sampled_from(OPERATORS), changes=rows, answers=st.binary(max_size=400), flushed=st.booleans())
    def apply(self, op: str, changes: list[Row], answers: bytes, flushed: bool) -> None:
        batch = self.batch[op]
        parts = [state(op, batch, changes), Part({"kind": "ledger", "op": op, "batch": batch}, answers)]
        known = since_drop((part for frame in self.frames.values() for part in frame), op)
        parts = parts if known else [define(op), *parts]
        self.frames[self.log.append(parts)] = parts
        if flushed:
            self.log.flush(self.last)

    @rule(op=st.sampled_from(OPERATORS))
    def settle(self, op: str) -> None:
        self.log.flush(self.last)
        self.batch[op] += 1

    @rule()
    def rotate(self) -> None:
        self.log.rotate()

    @rule(rotated=st.booleans())
    def compact(self, rotated: bool) -> None:
        if rotated:
            self.log.rotate()
        settled = {op: batch - 1 for op, batch in self.batch.items()}
        Compactor(self.log.generation).compact(self.log.directory, self.log.sealed(), settled)

    @rule()
    def restart_origin(self) -> None:
        """Killed: what stands in line is lost."""
        self.feed = None
        self.opened()

    # -- between the two ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.feed is None)
    @rule()
    def connect(self) -> None:
        self.mirror = Mirror(self.place / "mirror", self.log.generation)
        self.feed = Feed(self.log.directory, self.log.generation, self.mirror.have(), self.piece_bytes_max)
        assert not self.feed.conflicts()

    @precondition(lambda self: self.feed is not None)
    @rule(count=st.integers(1, 12))
    def send(self, count: int) -> None:
        assert self.feed is not None
        for _ in range(count):
            at = self.log.written()
            piece = self.feed.next(at)
            if piece is None:
                assert self.feed.reaches(at)
                assert self.feed.lag_bytes(at) == 0
                self.acked = at.lsn
                return
            if piece.manifest:
                self.mirror.replace_manifest(piece.data)
            else:
                self.mirror.write(piece.file, piece.offset, piece.data, piece.ahead)
            self.feed.took(piece)
            if self.feed.reaches(at):
                self.acked = at.lsn

    @precondition(lambda self: self.feed is not None)
    @rule(part=st.floats(0, 1), written=st.booleans())
    def cut(self, part: float, written: bool) -> None:
        """The last message is written, in part or whole, and never acknowledged; or it does not come at all."""
        assert self.feed is not None
        piece = self.feed.next(self.log.written())
        if piece is not None and written:
            if piece.manifest:
                self.mirror.replace_manifest(piece.data)
            else:
                self.mirror.write(piece.file, piece.offset, piece.data[: int(part * len(piece.data))], piece.ahead)
        self.feed = None

    # -- always ------------------------------------------------------------------------------------------------------

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        if not hasattr(self, "place") or not has_log(self.place / "mirror"):
            assert not getattr(self, "acked", 0)
            return
        copy = self.place / "copy"
        shutil.copytree(self.place / "mirror", copy)
        try:
            log, recovered = Changelog.open(copy)
            found = [Part(info, bytes(body)) for info, body in recovered.parts()]
            log.close()
        finally:
            shutil.rmtree(copy)
        assert recovered.next_lsn > self.acked
        kept = [part for lsn, frame in self.frames.items() if lsn < recovered.next_lsn for part in frame]
        for op in OPERATORS:
            expected, actual = since_drop(kept, op), since_drop(found, op)
            assert replayed(actual) == modelled(actual) == modelled(expected)
            settled = self.batch[op] - 1
            assert as_it_was(actual, settled) == as_it_was(expected, settled)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.log.close()
            shutil.rmtree(self.place)


TestMirror = MirrorMachine.TestCase
TestMirror.settings = settings(max_examples=40, stateful_step_count=40)
