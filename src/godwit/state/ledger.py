"""The ledger: which rows were applied in the batch in progress, and their outputs. Exactly-once rests on it.

A row's identity is (lane, row index) within a batch; of each row the ledger keeps the routing hash of its key, which is
enough to hand the entries of a key or group over with its state, and to notice an input that replays differently. Kept in
columns per lane, because a key-by-key ledger would cost more than the work it protects. Entries of a batch are dropped
when the next one starts, which proves that it is committed. A batch may be larger than memory: see `ledger_spill`.

If Spark tracks progress asynchronously, rows outlast their batch: entries stay until Spark's log names a batch that has read
their lane up to them (`reached`). Rows are numbered by their sequence then, however a batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.errors import NotReplayable
from godwit.state.ledger_spill import ENTRY_BYTES, Lane, Store, StoredEntry
from godwit.state.reached import Reached

Ints = npt.NDArray[np.int64]
Checks = npt.NDArray[np.int32]
ROW = "__godwit_row"  # the column with the input row after which an output leaves
JOINED_ROWS_MAX = 4_096
LEDGER_SHARE = 8  # the ledger gets one part in this many of the memory limit
MEMORY_BYTES_MAX = 256 << 20  # of a ledger in memory, unless a limit is given
COLUMN_LANE = "column-"  # prefix of lanes that are made of columns: any task may bring rows of them
TIMER_ROW = -(2**62)  # outputs of timers leave before all rows: row = TIMER_ROW + time, always negative

ROW_FIELD = pa.field(ROW, pa.int64(), nullable=False)
APPLIED = pa.schema([pa.field("row", pa.int64(), False), pa.field("hash", pa.int64(), False)])
CHECKED = APPLIED.append(pa.field("check", pa.int32(), False))


def memory_bytes_max(state_bytes_max: int | None) -> int:
    """The memory for a ledger: a share of the memory for the operator's state and ledger together."""
    return MEMORY_BYTES_MAX if state_bytes_max is None else state_bytes_max // LEDGER_SHARE


@lru_cache(maxsize=256)
def with_rows(schema: pa.Schema) -> pa.Schema:
    """An output schema with the row column in front."""
    return pa.schema([ROW_FIELD, *schema])


def no_tagged_outputs(schema: pa.Schema) -> pa.RecordBatch:
    wide = with_rows(schema)
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in wide], schema=wide)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined]


def in_row_order(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch in row order, from batches that are each in row order."""
    whole = joined(batches)
    return whole if len(batches) == 1 else whole.take(np.argsort(whole.column(0).to_numpy(), kind="stable"))


@dataclass(slots=True)
class Entry:
    """One chunk as it was applied: its rows (ascending), their key hashes, and its outputs (with the row column).

    Or the outputs of timers: then there are no rows, and `firing` names the firing, on whichever host the entry is.
    `checks`: 32 bits of each row's content; None if the router sent none.
    """

    rows: Ints
    hashes: Ints
    outputs: pa.RecordBatch
    firing: str = ""
    checks: Checks | None = None
    batch: int = -1  # in which the entry was recorded here
    outdated: bool = False  # its outputs had another schema, and are gone

    @property
    def first(self) -> int:
        return int(self.rows[0]) if len(self.rows) else 0

    @property
    def last(self) -> int:
        return int(self.rows[-1]) if len(self.rows) else -1

    @property
    def row_count(self) -> int:
        return len(self.rows)

    @property
    def timers(self) -> bool:
        """Whether there are outputs of timers among its outputs."""
        return bool((self.outputs.column(0).to_numpy() < 0).any())

    @property
    def size_bytes(self) -> int:
        """In memory. Outputs count with their whole buffers: `nbytes` would take a hundred times as long."""
        checks_bytes = 0 if self.checks is None else self.checks.nbytes
        own_bytes = self.rows.nbytes + self.hashes.nbytes + checks_bytes
        return ENTRY_BYTES + own_bytes + self.outputs.get_total_buffer_size()

    def part(self, op: str, batch: int, lane: str) -> tuple[dict[str, Any], bytes]:
        """The form in which an entry goes into the changelog."""
        columns = [pa.array(self.rows), pa.array(self.hashes)]
        columns += [] if self.checks is None else [pa.array(self.checks)]
        applied = pa.RecordBatch.from_arrays(columns, schema=CHECKED if len(columns) > 2 else APPLIED).serialize()
        outputs = self.outputs.serialize()
        info = {"kind": "ledger", "op": op, "batch": batch, "lane": lane, "applied_bytes": applied.size}
        info |= {"firing": self.firing} if self.firing else {}
        return info | ({"checked": True} if len(columns) > 2 else {}), b"".join((applied, outputs))

    def of(self, selected: Callable[[Ints], npt.NDArray[np.bool_]]) -> Entry:
        """The rows whose routing hashes are selected, with their outputs."""
        return _cut_out(self, selected(self.hashes))

    def then(self, other: Entry) -> Entry:
        """Both entries as one; the rows of the other entry come after these."""
        rows, hashes = (np.concatenate(pair) for pair in ((self.rows, other.rows), (self.hashes, other.hashes)))
        checks = None
        if self.checks is not None and other.checks is not None:
            checks = np.concatenate((self.checks, other.checks))
        batch, outdated = min(self.batch, other.batch), self.outdated or other.outdated
        return Entry(rows, hashes, joined([self.outputs, other.outputs]), "", checks, batch, outdated)

    def after(self, row: int) -> Entry:
        """The rows of the entry behind this one."""
        return _cut_out(self, self.rows > row)

    def joined_with(self, later: Entry, rows_max: int) -> Entry | None:
        """Both as one, if the rows of the other entry come later and there are not too many; None if not."""
        same = self._kind() == later._kind()
        fits = same and len(self.rows) + len(later.rows) <= rows_max and self.last < later.first
        return self.then(later) if fits else None

    def _kind(self) -> tuple[int, bool, bool]:
        return self.batch, self.outdated, self.checks is None

    def without_checks(self) -> Entry:
        """The entry, whose rows may come again with other values, such as the time at which a later run reads them."""
        return self if self.checks is None else replace(self, checks=None)

    def without_outputs(self, output_schema: pa.Schema) -> Entry:
        """The entry after the output schema has changed. If rows do not outlast their batch, nobody asks for its outputs."""
        outputs = no_tagged_outputs(output_schema)
        return Entry(self.rows, self.hashes, outputs, self.firing, self.checks, self.batch, True)

    def within(self, part: tuple[Mapping[str, Any], bytes]) -> Entry:
        """The same entry, as a view of its part.

        The present columns may be views of the chunk in which the rows came, which would keep the whole chunk in memory. A
        small entry stays as it is: it is soon joined with others, which copies it.
        """
        info, body = part
        small = len(self.rows) <= JOINED_ROWS_MAX // 16
        if small:
            return self
        return replace(Entry.from_part(info, memoryview(body), _without_rows(self.outputs.schema)), batch=self.batch)

    @classmethod
    def from_part(
        cls, info: Mapping[str, Any], body: memoryview, output_schema: pa.Schema, outputs_fit: bool = True
    ) -> Entry:
        """`outputs_fit`: the outputs of the part have this schema; if not, the entry has no outputs."""
        cut = info["applied_bytes"]
        checked = info.get("checked", False)
        applied = pa.ipc.read_record_batch(pa.py_buffer(body[:cut]), CHECKED if checked else APPLIED)
        outputs = no_tagged_outputs(output_schema)
        if outputs_fit:
            outputs = pa.ipc.read_record_batch(pa.py_buffer(body[cut:]), with_rows(output_schema))
        checks = applied.column(2).to_numpy() if checked else None
        rows, hashes = applied.column(0).to_numpy(), applied.column(1).to_numpy()
        return cls(rows, hashes, outputs, info.get("firing", ""), checks, outdated=not outputs_fit)


@dataclass(slots=True)
class Ledger:
    """The entries of the batch in progress, by lane."""

    output_schema: pa.Schema
    memory_bytes_max: int = MEMORY_BYTES_MAX
    lanes: dict[str, Lane] = field(default_factory=dict)
    finished: dict[str, int | None] = field(default_factory=dict)  # lanes that have sent all their rows, and how many
    begun: set[str] = field(default_factory=set)  # lanes that have brought rows, and must be finished
    mixed: set[str] = field(default_factory=set)  # lanes with rows that another host has applied
    batch: int = -1  # in which entries are recorded now
    reached: Reached = field(default_factory=Reached)
    _store: Store = field(init=False)

    def __post_init__(self) -> None:
        self._store = Store(partial(Entry.from_part, output_schema=self.output_schema))

    def clear(self) -> None:
        self.lanes = {}
        self.finished = {}
        self.begun = set()
        self.mixed = set()
        self.reached.clear()
        self._store.clear()

    # -- rows that outlast their batch -------------------------------------------------------------------------------

    def next_batch(self) -> None:
        """The next batch begins, and does not prove that the batch before is committed."""
        self.finished = {}
        self.begun = set()
        self.mixed = set()

    def next_run(self) -> None:
        """A later run reads rows again, in batches that are cut in other places. A row is known by lane and sequence alone."""
        self.reached.clear()
        for lane in self.lanes.values():
            lane.change_all(Entry.without_checks)

    def drop_committed(self, batch: int) -> None:
        """Spark's log names this batch of the present run: nobody reads its rows again, nor those of earlier batches."""
        for lane, row in self.reached.committed(batch):
            self._drop_through(lane, row)

    def _drop_through(self, lane: str, row: int) -> None:
        if lane in self.lanes:
            self.lanes[lane].drop_through(row)
            if not len(self.lanes[lane]):
                del self.lanes[lane]

    @property
    def oldest_batch(self) -> int | None:
        """The earliest batch in which an entry was recorded that is still here."""
        return min((oldest for lane in self.lanes.values() if (oldest := lane.oldest_batch) is not None), default=None)

    @property
    def by_columns(self) -> bool:
        """Whether all its rows are known by lane and sequence columns, wherever a batch is cut."""
        return all(lane.startswith(COLUMN_LANE) for lane in self.lanes)

    # -- entries -----------------------------------------------------------------------------------------------------

    def redefine(self, output_schema: pa.Schema) -> None:
        """The output schema has changed: entries stay without their outputs."""
        entries = [(lane, entry.without_outputs(output_schema)) for lane, entry in self.entries()]
        self.output_schema, self.lanes = output_schema, {}
        self._store.clear()
        self.__post_init__()
        for lane, entry in entries:
            self.record(lane, entry)

    def begin(self, lane: str) -> None:
        if not lane.startswith(COLUMN_LANE):
            self.begun.add(lane)

    @property
    def unfinished(self) -> list[str]:
        return sorted(self.begun - self.finished.keys())

    def last_row(self, lane: str) -> int:
        """The last row of the lane that was applied here; -1 if none was."""
        return self.lanes[lane].last if lane in self.lanes else -1

    def applied_here(self, lane: str) -> int | None:
        """How many rows of the lane were applied on this host; None if another host has applied some of the rows here."""
        return None if lane in self.mixed else self.lanes[lane].row_count if lane in self.lanes else 0

    def make_room(self) -> None:
        """If the ledger is above its memory limit, move entries to disk until it takes half of the limit.

        Called before rows are applied: this raises StateTooLarge if the disk is full, and no other method does.
        """
        if self._store.memory_bytes > self.memory_bytes_max:
            for entries in self.lanes.values():
                entries.spill(self.memory_bytes_max // 2)

    @property
    def memory_bytes(self) -> int:
        return self._store.memory_bytes

    @property
    def disk_bytes(self) -> int:
        return self._store.disk_bytes

    def record(self, lane: str, entry: Entry) -> None:
        """Record an entry. Small entries are joined: a batch of the real-time trigger may bring a few rows each for minutes."""
        if lane not in self.lanes:
            self.lanes[lane] = Lane(self._store)
        if entry.batch < 0:
            entry.batch = self.batch
        self.lanes[lane].append(entry, _joined)

    def unseen(self, lane: str, rows: Ints, hashes: Ints, checks: Checks | None = None) -> npt.NDArray[np.bool_] | None:
        """Which of the rows have not been applied; None, the usual case, if none of them has.

        Raises NotReplayable when a row that was applied now comes with another key, or with other values.
        """
        entries = self.lanes.get(lane)
        if not entries or len(rows) == 0 or rows[0] > entries.last:
            return None
        unseen = np.ones(len(rows), np.bool_)
        for entry in entries.between(int(rows[0]), int(rows[-1])):
            if len(entry.rows) == 0:
                continue
            at = np.searchsorted(entry.rows, rows)
            at[at == len(entry.rows)] = 0
            seen = entry.rows[at] == rows
            _check_same(lane, rows, seen & (entry.hashes[at] != hashes), "another key")
            if checks is not None and entry.checks is not None:
                _check_same(lane, rows, seen & (entry.checks[at] != checks), "other values")
            unseen &= ~seen
        return None if unseen.all() else unseen

    def recorded(self, lane: str, rows: Ints) -> list[pa.RecordBatch]:
        """The outputs of these rows, which were applied before."""
        recorded = []
        for entry in self._between(lane, rows):
            after = entry.outputs.column(0).to_numpy()
            asked_for = np.isin(after, rows)
            if entry.outdated and np.isin(entry.rows, rows).any():
                raise _outdated(lane, entry)
            if asked_for.any():
                recorded.append(entry.outputs.filter(pa.array(asked_for)))
        return recorded

    def timer_outputs(self, lane: str, known: Mapping[str, int] | None = None) -> list[pa.RecordBatch]:
        """Outputs of timers that leave through this lane. `known`: without firings up to this number, by host."""
        return [entry.outputs for entry in self._fired(lane, known)]

    def firings(self, lane: str, known: Mapping[str, int] | None = None) -> list[tuple[str, int]]:
        """Name and number of output rows of each firing, in the order of `timer_outputs`."""
        return [(entry.firing, len(entry.outputs)) for entry in self._fired(lane, known)]

    def _fired(self, lane: str, known: Mapping[str, int] | None) -> Iterator[Entry]:
        for entry in self.lanes[lane].with_timers() if lane in self.lanes else ():
            if not known or not _is_known(entry.firing, known):
                fired = entry.outputs.column(0).to_numpy() < 0
                yield Entry(_NONE, _NONE, entry.outputs.filter(pa.array(fired)), entry.firing)

    def of(self, selected: Callable[[Ints], npt.NDArray[np.bool_]]) -> Iterator[tuple[str, Entry]]:
        """The entries of the rows whose routing hashes are selected, for handing them over."""
        for lane, entry in self.entries():
            part = entry.of(selected)
            if len(part.rows):
                yield lane, part

    def stored(self) -> list[tuple[str, StoredEntry]]:
        """All entries as they are now, by lane, without reading any: for reading them one by one (`read`)."""
        return [(lane, each) for lane, entries in self.lanes.items() for each in entries.stored()]

    def read(self, stored: StoredEntry) -> Entry:
        """An entry of this batch. Not when the ledger has been cleared since."""
        return self._store.entry(stored)

    def timers(self) -> Iterator[tuple[str, Entry]]:
        """Outputs of timers, by the lane through which they left."""
        for lane in self.lanes:
            for entry in self._fired(lane, None):
                yield lane, entry

    def drop(self, selected: Callable[[Ints], npt.NDArray[np.bool_]]) -> None:
        """Drop the selected rows: another host answers for them. Outputs of timers stay."""
        for _ in self.dropping(selected):
            pass

    def dropping(self, selected: Callable[[Ints], npt.NDArray[np.bool_]]) -> Iterator[None]:
        """Drop the selected rows, an entry at a time. Rows that are selected must not be recorded meanwhile.

        From the last entry to the first: a row that is recorded meanwhile may join the last entries to one.
        """

        def left(entry: Entry) -> Entry | None:
            rest = _cut_out(entry, ~selected(entry.hashes), True)
            return rest if len(rest.rows) or len(rest.outputs) else None

        for lane, entries in list(self.lanes.items()):
            at = len(entries)
            while self.lanes.get(lane) is entries and (at := min(at, len(entries))):
                at -= 1
                entries.change(at, left)
                yield

    def take_over(self, lane: str, entry: Entry) -> Entry | None:
        """Record an entry of another host, without rows that the ledger has already because they were replayed here."""
        taken = self.missing(lane, entry)
        if taken is not None:
            self.mixed.add(lane)
            self.record(lane, taken)
        return taken

    def missing(self, lane: str, entry: Entry) -> Entry | None:
        """The rows of the entry that the ledger lacks."""
        known = [other.rows for other in self._between(lane, entry.rows)]
        if known:
            entry = _cut_out(entry, ~np.isin(entry.rows, np.concatenate(known)))
        if not len(entry.rows) and not len(entry.outputs):
            return None
        return entry

    def entries(self) -> Iterator[tuple[str, Entry]]:
        for lane, entries in self.lanes.items():
            for entry in entries:
                yield lane, entry

    @property
    def row_count(self) -> int:
        return sum(entries.row_count for entries in self.lanes.values())

    def _between(self, lane: str, rows: Ints) -> Iterator[Entry]:
        """Entries that may have some of these rows; the rows are ascending."""
        entries = self.lanes.get(lane)
        return entries.between(int(rows[0]), int(rows[-1])) if entries and len(rows) else iter(())


def numbered_firing(name: str) -> tuple[str, int]:
    """The host of a firing, and the number of the firing there; names are of the form host/batch/number."""
    host, _, number = name.rpartition("/")
    return host.partition("/")[0], int(number or 0)


def _is_known(firing: str, known: Mapping[str, int]) -> bool:
    host, number = numbered_firing(firing)
    return number <= known.get(host, 0)


def _cut_out(entry: Entry, chosen: npt.NDArray[np.bool_], timers: bool = False) -> Entry:
    """The entry with only the chosen rows and their outputs; `timers`: outputs of timers stay, too."""
    if chosen.all() and (timers or not len(entry.outputs) or len(entry.rows)):
        return entry
    rows = entry.rows[chosen]
    after = entry.outputs.column(0).to_numpy()
    stays = _among(after, rows) | ((after < 0) if timers else False)
    checks = None if entry.checks is None else entry.checks[chosen]
    outputs = entry.outputs.filter(pa.array(stays))
    return Entry(rows, entry.hashes[chosen], outputs, entry.firing, checks, entry.batch, entry.outdated)


def _outdated(lane: str, entry: Entry) -> NotReplayable:
    return NotReplayable(
        "a row that was applied before comes again, and its outputs had the columns of an earlier definition",
        todo="Define the operator with its earlier output columns. Let the query run with "
        "asyncProgressTrackingCheckpointIntervalMs=0 until it has read all rows again, then stop it and change the columns",
        lane=lane,
        row=entry.first,
    )


def _among(numbers: Ints, ascending: Ints) -> npt.NDArray[np.bool_]:
    """Which of the numbers are among the others. Nothing is sorted, which `np.isin` would do."""
    if not len(ascending):
        return np.zeros(len(numbers), np.bool_)
    at = np.searchsorted(ascending, numbers)
    at[at == len(ascending)] = 0
    found: npt.NDArray[np.bool_] = ascending[at] == numbers
    return found


def _check_same(lane: str, rows: Ints, changed: npt.NDArray[np.bool_], what: str) -> None:
    if changed.any():
        raise NotReplayable(
            f"a row that was applied before came again with {what}: the input does not replay in the same order",
            todo="Name lane and sequence columns for this source, or make the input before the operator deterministic",
            lane=lane,
            row=int(rows[changed][0]),
        )


def _joined(entry: Entry, later: Entry) -> Entry | None:
    """Join only neighbours of similar size: then each row is copied only a few times."""
    size, more = len(entry.rows), len(later.rows)
    fits = size and more and size <= 2 * more and size + more <= JOINED_ROWS_MAX and entry.rows[-1] < later.rows[0]
    alike = (entry.checks is None) == (later.checks is None)
    return entry.then(later) if fits and alike else None


def _without_rows(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(schema)[1:])


_NONE: Ints = np.empty(0, np.int64)
