"""Merging changelog files: many parts of an operator's state in, the rows that still matter out.

Decides, operator by operator, which parts are merged (state of settled batches), which are carried as they
are (whatever later batches may still undo or answer from) and which are dropped. It must not know how keys
and values are coded (the define part brings the schema of the rows), nor which files there are.

Rows are merged slice by slice (see slices.py), so that of a large snapshot only one slice is in memory:
about `slice_bytes` from each file, and a few times that while rows are matched. What is not yet in slices,
the segments of the log, is in memory as a whole. All rows of one key are in one slice, however many they are.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import InvariantBroken
from godwit.state.changes import COLUMN_VAR, latest
from godwit.state.damage import corrupt
from godwit.state.frames import Body, FrameReader, Info, Part
from godwit.state.slices import split

SLICES_MAX: Final = 4096
_PART_BYTES: Final = 1 << 20  # rows go into parts of about this size, so that a replay needs little memory


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part in a file: in memory already, or to be read when it is needed."""

    info: Info
    size_bytes: int
    reader: FrameReader
    offset: int
    position: int
    body: Body | None = None

    def load(self) -> Part:
        if self.body is not None:
            return Part(self.info, self.body)
        return self.reader.sound_frame_at(self.offset).parts[self.position]

    @property
    def slice(self) -> tuple[int, int] | None:
        """(index, count) if the rows are of one slice, as those of an earlier merge are."""
        index, count = self.info.get("slice", (0, 0))
        return (index, count) if count else None

    @property
    def source(self) -> object:
        """Parts with the same source that follow each other are read together."""
        return (self.reader.path, self.slice[1]) if self.slice else None


@dataclass(slots=True)
class OperatorParts:
    """What some files hold of one operator, in order, from its last drop on."""

    dropped: StoredPart | None = None
    define: StoredPart | None = None
    own: StoredPart | None = None
    mark: StoredPart | None = None  # the newest; older ones are among the pieces, too
    pieces: list[StoredPart] = field(default_factory=list)

    def add(self, piece: StoredPart) -> None:
        match piece.info["kind"]:
            case "define":
                self.define = piece
            case "own":
                self.own = piece
            case "mark":
                # A new segment repeats the newest mark; the mark counts from its first place.
                if self.mark is None or self.mark.load() != piece.load():
                    self.mark = piece
                    self.pieces.append(piece)
            case _:
                self.pieces.append(piece)

    def stands(self) -> bool:
        return bool(self.define or self.own or self.pieces)

    def _outlasts(self, piece: StoredPart) -> bool:
        """Whether it is a ledger part whose rows outlast their batch. The newest mark says which of them are left."""
        if not piece.info.get("lasting"):
            return False
        first = -1 if self.mark is None else self.mark.info.get("ledger_from")
        return first is not None and piece.info["batch"] >= first

    def divide(self, settled: int | None) -> tuple[list[StoredPart], list[StoredPart]]:
        """(to be merged, to be carried). Merged rows go first, so state after carried state is carried too.

        Rows that an earlier merge has merged are settled, even if `settled` is lower now.
        """
        merged_before = [piece.info["batch"] for piece in self.pieces if piece.slice]
        limit = max([*merged_before, *([] if settled is None else [settled])], default=None)
        merged: list[StoredPart] = []
        carried: list[StoredPart] = []
        state_carried = False
        begun = (-1, 0)
        for piece in self.pieces:
            kind = piece.info["kind"]
            over = limit is not None and piece.info.get("batch", limit + 1) <= limit
            if kind == "state" and over and not state_carried:
                merged.append(piece)
            elif kind == "mark":
                # The mark that begins a batch anew says that the ledger parts before it count no more.
                attempt = (piece.info.get("batch", -1), piece.info.get("attempt", 0))
                if piece is self.mark or (not over and attempt[1] and attempt > begun):
                    carried.append(piece)
                begun = max(begun, attempt)
            elif not (kind in ("ledger", "committed") and over) or self._outlasts(piece):
                carried.append(piece)
                state_carried = state_carried or kind == "state"
        return merged, carried


@dataclass(frozen=True, slots=True)
class FileParts:
    """The parts of a file; with `outline`, bodies stay in it until they are needed."""

    reader: FrameReader
    outline: bool

    def __enter__(self) -> FileParts:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def __iter__(self) -> Iterator[StoredPart]:
        if self.outline:
            for offset, _, infos in self.reader.outlines():
                for position, info in enumerate(infos):
                    yield StoredPart(info, info.pop("bytes"), self.reader, offset, position)
        else:
            for frame in self.reader.frames():
                for position, (info, body) in enumerate(frame.parts):
                    yield StoredPart(info, len(body), self.reader, frame.offset, position, body)


def gather(files: Iterable[FileParts], breathe: Callable[[], None] = lambda: None) -> dict[str, OperatorParts]:
    """The shares of all operators. `breathe`: is called between two parts."""
    shares: dict[str, OperatorParts] = {}
    for piece in chain.from_iterable(files):
        breathe()
        operator = str(piece.info.get("op"))
        if piece.info["kind"] == "drop":
            shares[operator] = OperatorParts(dropped=piece)
        else:
            shares.setdefault(operator, OperatorParts()).add(piece)
    return shares


@dataclass(frozen=True, slots=True)
class CompactionMerge:
    """How shares become the parts of a snapshot."""

    settled: Mapping[str, int]
    before: Mapping[str, OperatorParts]  # in the files before those that are merged
    slice_bytes: int

    def parts(self, shares: Mapping[str, OperatorParts]) -> Iterator[Part]:
        for operator, share in shares.items():
            below = self.before.get(operator)
            below = below if below and below.stands() else None
            if share.dropped:
                if below:
                    yield share.dropped.load()
                below = None
            if share.define:
                yield share.define.load()
            if share.own:
                yield share.own.load()
            merged, carried = share.divide(self.settled.get(operator))
            if merged:
                define = share.define or (below.define if below else None)
                yield from self._rows(operator, define, merged, keep_removals=below is not None)
            yield from (piece.load() for piece in carried)

    def _rows(
        self, operator: str, define: StoredPart | None, merged: Sequence[StoredPart], keep_removals: bool
    ) -> Iterator[Part]:
        """Removals are of use only where there is something below to be removed."""
        if define is None:
            raise InvariantBroken("state was logged of an operator that was never defined", operator=operator)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(define.info["schema"])))
        newest = {int(number): last for number, last in define.info.get("newest", {}).items()}
        deleted = [number for number, last in newest.items() if last is None]
        sources = [_Source(list(pieces), schema) for _, pieces in groupby(merged, lambda p: p.source)]
        batch = max(piece.info["batch"] for piece in merged)
        count = slice_count(sum(piece.size_bytes for piece in merged), self.slice_bytes)
        for index in range(count):
            rows = pa.concat_tables([source.rows(index, count) for source in sources]).combine_chunks()
            if deleted:
                rows = rows.filter(
                    pc.invert(pc.is_in(rows.column(COLUMN_VAR + len(schema)), pa.array(deleted, pa.int16())))
                )
            rows = latest(rows, schema.names[:COLUMN_VAR], keep_removals, newest)
            info = {"kind": "state", "op": operator, "batch": batch, "slice": [index, count]}
            yield from (Part(info, body) for body in _serialized(rows))


class _Source:
    """State parts that follow each other: of one earlier merge, in its slices, or not in slices yet."""

    def __init__(self, pieces: Sequence[StoredPart], schema: pa.Schema) -> None:
        self._schema = schema
        self._count = 1
        self._pieces: dict[int, list[StoredPart]] = {}
        for piece in pieces:
            index, self._count = piece.slice or (0, 1)
            self._pieces.setdefault(index, []).append(piece)
        self._divided: dict[int, pa.Table] = {}

    def rows(self, index: int, count: int) -> pa.Table:
        """The rows of a slice; slices are asked for in order, each once."""
        if self._count >= count:
            ratio = self._count // count
            return self._read(range(index * ratio, (index + 1) * ratio))
        if index not in self._divided:
            ratio = count // self._count
            begin = index - index % ratio
            rows = self._read([index // ratio]).combine_chunks()
            finer = split(rows, len(self._schema) + COLUMN_VAR, count)
            self._divided = dict(enumerate(finer[begin : begin + ratio], begin))
        return self._divided.pop(index)

    def _read(self, indexes: Iterable[int]) -> pa.Table:
        pieces = [piece for index in indexes for piece in self._pieces.get(index, ())]
        return pa.Table.from_batches([self._batch(piece) for piece in pieces], self._schema)

    def _batch(self, piece: StoredPart) -> pa.RecordBatch:
        body = piece.load().body
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(body), self._schema)
        except (pa.ArrowInvalid, OSError) as error:
            flaw = f"rows are not readable ({error})"
            operators = [piece.info["op"]]
            raise corrupt(piece.reader.path, flaw, offset=piece.offset, operators=operators) from error


def slice_count(total_bytes: int, slice_bytes: int) -> int:
    """A power of two, so that a slice of one file is a part of one slice of another."""
    needed = -(-total_bytes // slice_bytes)
    return min(1 << max(needed - 1, 0).bit_length(), SLICES_MAX)


def _serialized(rows: pa.Table) -> Iterator[pa.Buffer]:
    if rows.num_rows:
        rows_max = max(1, rows.num_rows * _PART_BYTES // max(rows.nbytes, 1))
        for batch in rows.combine_chunks().to_batches(max_chunksize=rows_max):
            yield batch.serialize()
