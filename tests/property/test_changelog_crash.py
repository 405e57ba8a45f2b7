"""Random work on a changelog, crashes included, against a list of what was appended.

Whatever happens: frames survive in order and without gaps, all that was flushed survives the process, all that
was synced survives the machine, and what is replayed gives the state that the surviving frames describe.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from godwit.errors import StaleGeneration
from godwit.state.changelog import Changelog, Durability, Part, Recovered
from godwit.state.changes import CLEAR, PUT, REMOVE, changes_schema, latest
from godwit.state.frames import Draft
from godwit.state.keys import KeyCodec
from godwit.state.snapshot import Compactor

SCHEMA = changes_schema(KeyCodec(pa.schema([("k", pa.int64())])))
OPERATORS = ["a", "b"]

Row = tuple[int, int, int, bytes | None, bytes | None]  # key, var, op, sub, value
Cells = dict[tuple[int, int, bytes | None], bytes | None]


def row(key: int, var: int, op: int, sub: bytes, value: bytes) -> Row:
    return key, var, op, None if op == CLEAR else sub, value if op == PUT else None


rows = st.lists(
    st.builds(
        row,
        st.integers(0, 4),
        st.integers(0, 1),
        st.sampled_from([PUT, PUT, PUT, REMOVE, CLEAR]),
        st.sampled_from([b"s", b"t"]),
        st.binary(max_size=30),
    ),
    max_size=6,
)


def define(op: str) -> Part:
    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    return Part({"kind": "define", "op": op, "schema": schema})


def state(op: str, batch: int, changes: Sequence[Row]) -> Part:
    columns = list(zip(*changes, strict=True)) or [()] * 5
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    body = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA).serialize().to_pybytes()
    return Part({"kind": "state", "op": op, "batch": batch}, body)


def since_drop(parts: Iterable[Part], op: str) -> list[Part]:
    """What the parts say of one operator since it was last dropped."""
    kept: list[Part] = []
    for part in parts:
        if part.info["op"] == op:
            kept = [] if part.info["kind"] == "drop" else [*kept, part]
    return kept


def modelled(parts: Sequence[Part]) -> Cells:
    cells: Cells = {}
    for batch in batches(parts):
        for key, var, op, sub, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if op == PUT:
                cells[key, var, sub] = value
            elif op == REMOVE:
                cells.pop((key, var, sub), None)
            else:
                cells = {cell: kept for cell, kept in cells.items() if cell[:2] != (key, var)}
    return cells


def replayed(parts: Sequence[Part]) -> Cells:
    table = latest(pa.Table.from_batches(batches(parts), SCHEMA), ["k"])
    columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
    keys, variables, ops, subs, values = columns
    assert set(ops) <= {PUT}
    return dict(zip(zip(keys, variables, subs, strict=True), values, strict=True))


def batches(parts: Sequence[Part]) -> list[pa.RecordBatch]:
    bodies = [body for info, body in parts if info["kind"] == "state"]
    return [pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA) for body in bodies]


def as_it_was(parts: Sequence[Part], settled: int) -> list[tuple[Any, bytes]]:
    """What a restarted host must get back unchanged: all of batches not known to be settled, and the last mark.

    A mark that repeats the one before it says nothing, so the first of them is the one that counts.
    """
    kept: list[tuple[Any, bytes]] = []
    mark = None
    for info, body in parts:
        if info["kind"] == "mark" and info != mark:
            kept = [(i, b) for i, b in kept if i["kind"] != "mark"]
            mark = info
            kept.append((info, bytes(body)))
        elif info.get("batch", -1) > settled:
            kept.append((info, bytes(body)))
    return kept


class ChangelogMachine(RuleBasedStateMachine):
    @initialize(
        durability=st.sampled_from(["process", "disk"]),
        segment_bytes_max=st.sampled_from([600, 3000, 1 << 20]),
        slice_bytes=st.sampled_from([200, 1 << 20]),
    )
    def begin(self, durability: Durability, segment_bytes_max: int, slice_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="changelog-"))
        self.durability: Durability = durability
        self.segment_bytes_max = segment_bytes_max
        self.slice_bytes = slice_bytes
        self.frames: dict[int, list[Part]] = {}  # by lsn
        self.batch = dict.fromkeys(OPERATORS, 1)
        self.compacted = False
        self.flushed = self.synced = 0
        self.safe: dict[str, int] = {}  # by file, how much of it the disk was told to keep
        self._fsync, os.fsync = os.fsync, self.fsynced
        self.log, recovered = self.open()
        assert list(recovered.parts()) == []

    def fsynced(self, fd: int) -> None:
        self.safe[str(Path(f"/proc/self/fd/{fd}").resolve())] = os.fstat(fd).st_size

    def open(self) -> tuple[Changelog, Recovered]:
        self.marks: list[tuple[int, Path, int]] = []  # (flushed lsn, newest segment, its size then)
        return Changelog.open(self.directory, self.durability, segment_bytes_max=self.segment_bytes_max)

    def append(self, parts: list[Part]) -> None:
        self.frames[self.log.append(parts)] = parts

    @property
    def last(self) -> int:
        return max(self.frames, default=0)

    @property
    def newest_segment(self) -> Path | None:
        return max(self.directory.glob(f"log-{self.log.generation:08d}-*"), default=None)

    # ---- work

    @rule(op=st.sampled_from(OPERATORS), changes=rows, answers=st.binary(max_size=400))
    def apply(self, op: str, changes: list[Row], answers: bytes) -> None:
        batch = self.batch[op]
        parts = [state(op, batch, changes), Part({"kind": "ledger", "op": op, "batch": batch}, answers)]
        known = since_drop((part for frame in self.frames.values() for part in frame), op)
        defined = any(part.info["kind"] == "define" for part in known)
        self.append(parts if defined else [define(op), *parts])

    @rule(op=st.sampled_from(OPERATORS), number=st.integers(0, 3))
    def mark(self, op: str, number: int) -> None:
        self.append([Part({"kind": "mark", "op": op, "number": number})])

    @rule(op=st.sampled_from(OPERATORS))
    def drop(self, op: str) -> None:
        self.append([Part({"kind": "drop", "op": op})])

    @rule()
    def flush(self) -> None:
        self.log.flush(self.last)
        self.note_flush()

    @rule()
    def sync(self) -> None:
        self.log.sync(self.last)
        self.note_flush()
        self.synced = self.last

    @rule(op=st.sampled_from(OPERATORS))
    def settle(self, op: str) -> None:
        """A batch is over only when all of it is durable."""
        self.sync()
        self.batch[op] += 1

    @rule()
    def rotate(self) -> None:
        self.log.rotate()
        self.note_flush()
        self.synced = self.last  # a segment is synced before the next one begins

    @rule()
    def compact(self) -> None:
        settled = {op: batch - 1 for op, batch in self.batch.items()}
        compactor = Compactor(self.log.generation, slice_bytes=self.slice_bytes)
        compactor.compact(self.directory, self.log.sealed(), settled)
        self.compacted = True

    def note_flush(self) -> None:
        self.flushed = self.last
        if segment := self.newest_segment:
            self.marks.append((self.flushed, segment, segment.stat().st_size))

    # ---- the end of a process

    @rule()
    def close(self) -> None:
        self.log.close()
        self.restart(self.last, self.last)

    @rule()
    def kill(self) -> None:
        """Frames in line are lost, and a stale process that wakes up later writes them in vain."""
        self.restart(self.flushed, self.flushed)

    @precondition(lambda self: self.newest_segment is not None)
    @rule(data=st.data(), changes=rows)
    def kill_while_writing(self, data: st.DataObject, changes: list[Row]) -> None:
        self.flush()
        parts = [state("a", self.batch["a"], changes)]
        lsn = self.log.append(parts)
        whole = b"".join(map(bytes, Draft(parts).numbered(lsn)))
        segment = self.newest_segment
        assert segment is not None
        with segment.open("ab") as file:
            file.write(whole[: data.draw(st.integers(0, len(whole) - 1), "bytes written")])
        self.restart(self.flushed, self.flushed)

    @precondition(lambda self: self.durability == "disk" and self.newest_segment is not None)
    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        """Of the newest segment, any byte that the disk was not told to keep may be missing at the end."""
        segment = self.newest_segment
        assert segment is not None
        here = [(lsn, size) for lsn, path, size in self.marks if path == segment]
        cut = data.draw(st.integers(self.safe.get(str(segment.resolve()), 0), segment.stat().st_size), "bytes left")
        os.truncate(segment, cut)
        whole = max((lsn for lsn, size in here if size <= cut), default=0)
        self.restart(max(whole, self.synced), self.flushed)

    def restart(self, at_least: int, at_most: int) -> None:
        """Reopen; what must be there is, what cannot be there is not, and the rest is gone for good."""
        stale, before = self.log, self.log.generation
        self.log, recovered = self.open()
        with suppress(StaleGeneration):
            stale.close()
        found = [Part(info, bytes(body)) for info, body in recovered.parts()]
        lost = [lsn for lsn in self.frames if lsn >= recovered.next_lsn]
        for lsn in self.frames:
            assert self.log.survived(before, lsn) or lsn in lost or lsn < recovered.starts[-2][1]
        assert all(at_least < lsn for lsn in lost)
        assert all(lsn in lost for lsn in self.frames if lsn > at_most)
        for lsn in lost:
            assert not self.log.survived(before, lsn)
            del self.frames[lsn]
        self.flushed = self.synced = self.last
        self.check(found)

    def check(self, found: Sequence[Part]) -> None:
        kept = [part for frame in self.frames.values() for part in frame]
        for op in OPERATORS:
            expected, actual = since_drop(kept, op), since_drop(found, op)
            assert replayed(actual) == modelled(actual) == modelled(expected)
            settled = self.batch[op] - 1
            assert as_it_was(actual, settled) == as_it_was(expected, settled)
            defines = [[p.info for p in parts if p.info["kind"] == "define"][-1:] for parts in (expected, actual)]
            assert defines[0] == defines[1]
        if not self.compacted:
            bodies = [[p for p in parts if p.info["kind"] in ("state", "ledger", "drop")] for parts in (kept, found)]
            assert bodies[0] == bodies[1]

    # ---- always

    @invariant()
    def no_leftovers(self) -> None:
        assert not list(self.directory.glob("*.tmp"))
        assert len(list(self.directory.glob("claim-*"))) == 1
        assert len(list(self.directory.glob("manifest-*"))) == 1

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            try:
                self.kill()
                self.log.close()
            finally:
                os.fsync = self._fsync
                shutil.rmtree(self.directory)


TestChangelog = ChangelogMachine.TestCase
TestChangelog.settings = settings(stateful_step_count=30)
