"""The keyed state of one instance: every variable and the timers of every key.

Decides when state changes: a chunk works on a stage, `prepare` collects what the stage changes, `install` makes it count,
`rollback` drops all of it, and until `settle` the state of the last committed batch can still be exported. It must not know
batches, lanes or files. Of time it knows only `now_ms`, which decides what has outlived its time to live.

Callers name a variable by its place among the declared ones, change rows by its number (see `layout`). One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, assert_never, cast

import numpy as np
import pyarrow as pa

from godwit.errors import InvariantBroken
from godwit.state.change_batches import BLOCK_BYTES_MAX, BLOCK_ROWS_MAX, put_batches, replacing_batches
from godwit.state.changes import COLUMN_OP, COLUMN_SUB, COLUMN_VALUE, COLUMN_VAR, LETTERS, PUT, TIMERS, Changes
from godwit.state.codec import compile_codec
from godwit.state.columns import Mask, Payloads
from godwit.state.deadlines import Now
from godwit.state.keys import Key, KeyCodec, KeyColumns, Positions
from godwit.state.layout import FormReader, Layout, payload_conversion
from godwit.state.lists import ListTable
from godwit.state.maps import MapTable
from godwit.state.memory_limit import MemoryLimit, undo_bytes
from godwit.state.shelf import Shelf
from godwit.state.table import InstalledKeys, InstallStage, Row, Shelved, Table
from godwit.state.table_conversion import convert_table
from godwit.state.timers import TimerTable
from godwit.state.value_columns import ValueColumns
from godwit.state.values import ValueTable
from godwit.state.variables import Variable


class StagedChanges(NamedTuple):
    """What a stage changes, and how each table installs it."""

    changes: Changes
    installs: Sequence[tuple[Table, InstallStage]]


class KeyedState:
    """Staged access to variables and timers by key."""

    def __init__(
        self,
        layout: Layout | Sequence[Variable],
        key_codec: KeyCodec,
        spill_dir: Path | None = None,
        memory_max_bytes: int | None = None,
        in_columns: bool = False,
    ) -> None:
        """`in_columns`: many keys are read and written at once, so values of fixed width are in columns if memory allows."""
        self.key_codec = key_codec
        self.key_count = 0
        self._gone: dict[Key, int | None] = {}  # keys that lost all state since the last settled moment
        self._now = Now()
        self.memory_limit = MemoryLimit(spill_dir, memory_max_bytes)
        self._in_columns = in_columns and memory_max_bytes is None
        self._values: dict[int, ValueTable | ValueColumns] = {}  # by the place of the variable, as are lists and maps
        self._lists: dict[int, ListTable] = {}
        self._maps: dict[int, MapTable] = {}
        self._timers = TimerTable(key_codec)
        self._letters = ListTable(LETTERS, key_codec, None, self._now)
        self._tables: dict[int, Table] = {TIMERS: self._timers, LETTERS: self._letters}  # by number
        self._use(layout if isinstance(layout, Layout) else Layout.first(layout))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The declared variables: methods name one by its place here."""
        return self.layout.variables

    def redefine(self, layout: Layout) -> None:
        """Take the layout of a later definition: values of old forms are converted, variables that were deleted are dropped."""
        self._check_nothing_staged("redefine")
        before = self._tables
        self._use(layout)
        for number, table in before.items():
            if number in self._tables:
                continue
            newest = layout.newest.get(number)
            if newest is None:
                self._drop_table(table)
            else:
                convert = payload_conversion(layout, number)
                convert_table(table, self._tables[newest], convert, self.key_codec, self._make_room)
            if isinstance(table, Shelved):
                table.shelf.close()

    def _use(self, layout: Layout) -> None:
        """Have the tables of this layout: those that exist stay, new ones are empty."""
        declared = dict(zip(layout.numbers, layout.variables, strict=True))
        tables: dict[int, Table] = {number: self._tables[number] for number in (TIMERS, LETTERS)}
        for number, variable in (layout.dormant | declared).items():
            tables[number] = self._table(number, variable)
        self._tables = tables
        by_place = [tables[number] for number in layout.numbers]
        self._values = {
            place: table for place, table in enumerate(by_place) if isinstance(table, (ValueTable, ValueColumns))
        }
        self._lists = {place: table for place, table in enumerate(by_place) if isinstance(table, ListTable)}
        self._maps = {place: table for place, table in enumerate(by_place) if isinstance(table, MapTable)}
        self._shelves: list[Shelf[Any]] = [table.shelf for table in tables.values() if isinstance(table, Shelved)]
        self.layout = layout
        self._forms = FormReader(layout)

    def _table(self, number: int, variable: Variable) -> Table:
        table = self._tables.get(number)
        if isinstance(table, (ValueTable, ValueColumns, ListTable, MapTable)):
            table.set_ttl(variable.ttl_ms)
            return table
        given = (number, self.key_codec, variable.ttl_ms, self._now)
        match variable.kind:
            case "value":
                dtype = compile_codec(variable.schema).dtype if self._in_columns and variable.ttl_ms is None else None
                return ValueTable(*given) if dtype is None else ValueColumns(number, self.key_codec, dtype.itemsize)
            case "list":
                return ListTable(*given)
            case "map":
                return MapTable(*given)
        assert_never(variable.kind)

    def _drop_table(self, table: Table) -> None:
        keys = list(table.each_key())
        table.clear_many(keys)
        self._count_keys(table, table.prepare(Changes())())

    @property
    def now_ms(self) -> int:
        """Processing time: set before every call that reads or writes variables with a time to live."""
        return self._now.ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._now.ms = now_ms

    def value_get(self, var: int, key: Key) -> bytes | None:
        return self._values[var].get(key)

    def value_get_many(self, var: int, keys: Sequence[Key]) -> list[bytes | None]:
        return self._values[var].get_many(keys)

    def value_put(self, var: int, key: Key, payload: bytes) -> None:
        self._values[var].put(key, payload)

    def value_put_many(self, var: int, keys: Sequence[Key], payloads: Sequence[bytes]) -> None:
        self._values[var].put_many(keys, payloads)

    def value_read(self, var: int, keys: Sequence[Key], zero: bytes) -> tuple[Payloads, Mask]:
        """Payloads of the keys, all as wide as `zero`, and which keys have one. Those that have none are given zero."""
        table = self._values[var]
        if isinstance(table, ValueTable):
            return table.read(keys, zero)
        payloads, there = table.read(keys)
        if not there.all():
            payloads[~there] = np.frombuffer(zero, np.uint8)
        return payloads, there

    def value_write(self, var: int, keys: Sequence[Key], positions: Positions, payloads: Payloads) -> None:
        """Stage payloads, all of one width, for the keys at these positions. The keys are distinct."""
        self._values[var].write(keys, positions, payloads)

    def value_clear(self, var: int, key: Key) -> None:
        self._values[var].clear(key)

    def list_get(self, var: int, key: Key) -> list[bytes]:
        return self._lists[var].get(key)

    def list_put(self, var: int, key: Key, elements: Sequence[bytes]) -> None:
        self._lists[var].put(key, elements)

    def list_append(self, var: int, key: Key, elements: Sequence[bytes]) -> None:
        self._lists[var].append(key, elements)

    def list_clear(self, var: int, key: Key) -> None:
        self._lists[var].clear(key)

    def map_get(self, var: int, key: Key, sub: bytes) -> bytes | None:
        return self._maps[var].get(key, sub)

    def map_put(self, var: int, key: Key, sub: bytes, payload: bytes) -> None:
        self._maps[var].put(key, sub, payload)

    def map_remove(self, var: int, key: Key, sub: bytes) -> None:
        self._maps[var].remove(key, sub)

    def map_items(self, var: int, key: Key) -> Iterator[tuple[bytes, bytes]]:
        """Entries in order of insertion, as they are now: the map may be changed while they are read."""
        return iter(self._maps[var].items(key))

    def map_clear(self, var: int, key: Key) -> None:
        self._maps[var].clear(key)

    def map_exists(self, var: int, key: Key) -> bool:
        return self._maps[var].exists(key)

    def timer_put(self, key: Key, expiry_ms: int) -> None:
        self._timers.put(key, expiry_ms)

    def timer_remove(self, key: Key, expiry_ms: int) -> None:
        self._timers.remove(key, expiry_ms)

    def timer_list(self, key: Key) -> list[int]:
        return self._timers.get(key)

    def letter_add(self, key: Key, payload: bytes) -> None:
        """Add a dead letter to the state of this key."""
        self._letters.append(key, [payload])

    def letter_clear(self, keys: Sequence[Key]) -> None:
        self._letters.clear_many(keys)

    def letter_keys(self) -> list[Key]:
        return list(self._letters.each_key())

    @property
    def letter_count(self) -> int:
        """Letters of all keys, without those of the stage."""
        return sum(len(letters) for _, letters in self._letters.shelf.items()) if self._letters.count else 0

    def due(self, until_ms: int) -> list[tuple[int, Key]]:
        """Committed timers up to a time, by time and packed key. They stay until they are removed."""
        return self._timers.due(until_ms)

    def next_timer_ms(self) -> int | None:
        """When the first committed timer is due."""
        return self._timers.next_ms()

    def expire_ttl(self, now_ms: int) -> None:
        """Stage the removal of entries that have outlived their time."""
        for table in self._tables.values():
            table.expire(now_ms)

    def prepare(self) -> StagedChanges:
        """Collect what the stage changes, and do all that may fail. Nothing is installed: the stage can be rolled back."""
        self._make_room()
        changes = Changes()
        installs = [(table, table.prepare(changes)) for table in self._tables.values() if table.staged]
        return StagedChanges(changes, installs)

    def _make_room(self) -> None:
        self.memory_limit.free(self._tables, self._shelves)

    def install(self, prepared: StagedChanges) -> None:
        """Install the stage as it was prepared. This cannot be undone, not even if it fails halfway."""
        for table, install in prepared.installs:
            self._count_keys(table, install())

    def commit(self) -> Changes:
        """Prepare the stage and install it."""
        prepared = self.prepare()
        self.install(prepared)
        return prepared.changes

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        """Returns a function that restores the present stage of these keys; not valid once the stage is installed or gone."""
        restores = [table.savepoint(keys) for table in self._tables.values()]

        def restore() -> None:
            for each in restores:
                each()

        return restore

    def rollback(self) -> None:
        """Drop the stage."""
        for table in self._tables.values():
            table.rollback()

    def settle(self) -> None:
        """The batch is committed: a committed export shows what is installed now."""
        for table in self._tables.values():
            table.settle()
        self.memory_limit.drop_undo()
        self._gone = {}

    def replay(self, batch: pa.RecordBatch) -> None:
        """Stage and commit change rows. A committed export does not show them before `settle`."""
        self.stage(batch)
        self.commit()

    def stage(self, *batches: pa.RecordBatch) -> None:
        """Stage change rows as they are, in order."""
        self._check_nothing_staged("replay")
        for batch in batches:
            self._stage_batch(self._forms.current(batch))

    def check_forms(self, batch: pa.RecordBatch) -> None:
        """Raise if the rows have a form that the layout does not know."""
        self._forms.old_forms(batch)

    def _stage_batch(self, batch: pa.RecordBatch) -> None:
        rows_var = batch.columns[COLUMN_VAR].to_numpy()
        variables = np.unique(rows_var).tolist()
        for var in variables:
            # Rows of different variables do not touch each other, so each variable takes all of its rows at once.
            rows = batch if len(variables) == 1 else batch.take(np.flatnonzero(rows_var == var))
            self._stage_rows(var, rows)

    def drop(self, keys: Sequence[Key]) -> Changes:
        """Remove all state of these keys, at once."""
        self.stage_drop(keys)
        return self.commit()

    def stage_drop(self, keys: Sequence[Key]) -> None:
        """Stage the removal of all state of these keys."""
        self._check_nothing_staged("drop")
        for table in self._tables.values():
            table.clear_many(keys)

    def export(self, committed: bool, rows_max: int = BLOCK_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """All state as PUT rows: as it is installed now, or as it was when last settled. No change may happen meanwhile."""
        for table in self._tables.values():
            yield from put_batches(table.var, table.rows(committed), self.key_codec, rows_max)

    # -- moving keys -------------------------------------------------------------------------------------------------

    def export_keys(self, keys: Sequence[Key], rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """The current state of these keys, as changes that replace what the reader has; made while they are read."""
        parts = [(table, keys, table.rows_of(keys)) for table in self._tables.values()]
        return replacing_batches(parts, self.key_codec, rows_max, bytes_max)

    def export_committed(self, keys: Collection[Key], rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """The state at the last settled moment of those of the keys that have changed since; `amend` takes it up.

        Variables that have not changed are left out: a large one beside a small one that changes all the time costs nothing.
        """
        among = keys if isinstance(keys, (set, dict)) else set(keys)
        changed = [(table, _touched_among(table, among)) for table in self._tables.values()]
        parts = [(table, of_table, table.rows_of(of_table, committed=True)) for table, of_table in changed if of_table]
        return replacing_batches(parts, self.key_codec, rows_max, bytes_max)

    def gone(self) -> dict[Key, int]:
        """Keys that have lost all state since the last settled moment, with their routing hashes; some may have come back."""
        for key in [key for key, route_hash in self._gone.items() if route_hash is None]:
            self._gone[key] = self.key_codec.route_hash(key)
        return cast("dict[Key, int]", self._gone)

    def touched(self) -> set[Key]:
        """Keys that have changed since the last settled moment."""
        return {key for table in self._tables.values() for key in table.touched()}

    def stage_revert(self, keys: Collection[Key]) -> list[pa.RecordBatch]:
        """Stage that these keys are as they were at the last settled moment. Returns the changes that do it, in order."""
        batches = list(self.export_committed(keys, BLOCK_ROWS_MAX, BLOCK_BYTES_MAX))
        self.stage(*batches)
        return batches

    def amend(self, batch: pa.RecordBatch) -> None:
        """Take up one of the batches of `export_committed`, in their order."""
        batch = self._forms.current(batch)
        columns: list[list[Any]] = [column.to_pylist() for column in batch.columns[COLUMN_VAR:]]
        keys = self.key_codec.from_arrow(batch.columns[:COLUMN_VAR])
        cleared: dict[int, list[Key]] = {}
        rows: dict[int, list[Row]] = {}
        for key, var, op, sub, value in zip(keys, *columns, strict=True):
            if op == PUT:
                rows.setdefault(var, []).append((key, sub, value))
            else:
                cleared.setdefault(var, []).append(key)
        for table in self._tables.values():
            if table.var in cleared or table.var in rows:
                table.amend(cleared.get(table.var, ()), rows.get(table.var, ()))

    def settle_keys(self, keys: Sequence[Key]) -> None:
        """The current state of these keys is committed."""
        for table in self._tables.values():
            table.settle_keys(keys)
        for key in keys if self._gone else ():
            self._gone.pop(key, None)

    def contains(self, key: Key) -> bool:
        return any(table.contains(key) for table in self._tables.values())

    def keys(self) -> Iterator[Key]:
        """Keys with any variable or timer."""
        seen: list[Table] = []
        for table in self._tables.values():
            yield from _absent(list(table.each_key()), seen)
            seen.append(table)

    def key_lists(self) -> list[list[Key]]:
        """Keys by table, fast; a key may be in several tables."""
        return [table.key_list() for table in self._tables.values()]

    @property
    def bytes_estimate(self) -> int:
        """Bytes that all state would take in memory, whether it lies there or on disk."""
        columns = sum(t.bytes_estimate for t in self._tables.values() if isinstance(t, ValueColumns))
        return sum(shelf.bytes_estimate for shelf in self._shelves) + self._timers.bytes_estimate + columns

    @property
    def undo_bytes(self) -> int:
        """Bytes in memory of the state of the last committed batch, where it has changed since."""
        return undo_bytes(self._tables)

    def close(self) -> None:
        self.memory_limit.close()

    def _stage_rows(self, var: int, rows: pa.RecordBatch) -> None:
        columns = rows.columns
        keys = KeyColumns(self.key_codec, self.key_codec.stored_columns(columns[:COLUMN_VAR]))
        ops = columns[COLUMN_OP].to_numpy()
        self._tables[var].stage_rows(ops, keys, columns[COLUMN_SUB], columns[COLUMN_VALUE])

    def _count_keys(self, table: Table, moves: InstalledKeys) -> None:
        if not moves.added and not moves.removed:
            return
        others = [other for other in self._tables.values() if other is not table and other.count]
        gone = _absent(moves.removed, others)
        self.key_count += len(_absent(moves.added, others)) - len(gone)
        self._gone.update(dict.fromkeys(gone))

    def _check_nothing_staged(self, what: str) -> None:
        if any(table.staged for table in self._tables.values()):
            raise InvariantBroken(f"{what} was called with a stage that is neither committed nor rolled back")


def _both(some: Collection[Key], others: Collection[Key]) -> list[Key]:
    few, many = (some, others) if len(some) < len(others) else (others, some)
    return [key for key in few if key in many]


def _touched_among(table: Table, keys: Collection[Key]) -> list[Key]:
    return table.touched_among(list(keys)) if isinstance(table, ValueColumns) else _both(keys, table.touched())


def _absent(keys: Sequence[Key], tables: Sequence[Table]) -> Sequence[Key]:
    for table in tables:
        if isinstance(table, ValueColumns):
            keys = table.missing(keys)
        elif table.count:
            keys = [key for key in keys if not table.contains(key)]
    return keys
