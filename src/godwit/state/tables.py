"""The keyed state of one instance: every variable and the timers of every key.

Decides when state changes: a chunk works on a stage, `prepare` says what it changes, `merge` merges all of it,
`rollback` drops all of it, and until `settle` the state of the last committed batch can still be exported.
It must not know batches, lanes or files; of time it knows only the `now_ms` it is told, which says what has
outlived its time to live.

Variables are named by their position. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, assert_never, cast

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError, InvariantBroken
from godwit.state.changes import CLEAR, COLUMN_OP, COLUMN_SUB, COLUMN_VALUE, COLUMN_VAR, LETTERS, PUT, TIMERS, Changes
from godwit.state.deadlines import Now
from godwit.state.keys import Key, KeyCodec
from godwit.state.lists import ListTable
from godwit.state.maps import MapTable
from godwit.state.shelf import Shelf
from godwit.state.spill import Spill
from godwit.state.table import MergedKeys, MergeStage, Row, Table
from godwit.state.timers import TimerTable
from godwit.state.values import ValueTable
from godwit.state.variables import Variable

UNDO_SHARE: Final = 8  # one so-many-th of the memory limit is for before-images
_EXPORT_ROWS_MAX: Final = 50_000
_EXPORT_BYTES_MAX: Final = 64 << 20


class StagedChanges(NamedTuple):
    """What a stage changes, and how each table merges it."""

    changes: Changes
    merges: Sequence[tuple[Table, MergeStage]]


class KeyedState:
    """Staged access to variables and timers by key."""

    def __init__(
        self,
        variables: Sequence[Variable],
        key_codec: KeyCodec,
        spill_dir: Path | None = None,
        memory_max_bytes: int | None = None,
    ) -> None:
        if memory_max_bytes is not None and spill_dir is None:
            raise DefinitionError("a memory limit needs a directory to spill to", todo="Name a spill directory")
        self.key_codec = key_codec
        self.key_count = 0
        self._gone: dict[Key, int | None] = {}  # of which nothing is left since the last settled moment
        self._now = Now()
        self._spill_dir = spill_dir
        self.memory_max_bytes = memory_max_bytes
        self.beside_bytes: Callable[[], int] = lambda: 0  # what else takes of that memory
        self._spill: Spill | None = None
        self._undo_spill: Spill | None = None
        self.undo_disk_bytes = 0  # what is there, as it was counted in memory
        self._values: dict[int, ValueTable] = {}
        self._lists: dict[int, ListTable] = {}
        self._maps: dict[int, MapTable] = {}
        self._timers = TimerTable(key_codec)
        self._shelves: list[Shelf[Any]] = []
        self._tables: dict[int, Table] = {}
        self._tables[TIMERS] = self._timers
        self._letters = self._tables[LETTERS] = ListTable(LETTERS, key_codec, None, self._now)
        self._shelves.append(self._letters.shelf)
        self.variables: tuple[Variable, ...] = ()
        self.extend(variables)

    def extend(self, variables: Sequence[Variable]) -> None:
        """Take up further variables, numbered after those there are: a definition may gain some over time."""
        for var, variable in enumerate(variables, len(self.variables)):
            table = self._new_table(var, variable)
            self._tables[var] = table
            self._shelves.append(table.shelf)
        self.variables += tuple(variables)

    def _new_table(self, var: int, variable: Variable) -> ValueTable | ListTable | MapTable:
        given = (var, self.key_codec, variable.ttl_ms, self._now)
        match variable.kind:
            case "value":
                return self._values.setdefault(var, ValueTable(*given))
            case "list":
                return self._lists.setdefault(var, ListTable(*given))
            case "map":
                return self._maps.setdefault(var, MapTable(*given))
        assert_never(variable.kind)

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
        """Set something aside for this key: a dead letter."""
        self._letters.append(key, [payload])

    def letter_clear(self, keys: Sequence[Key]) -> None:
        self._letters.clear_many(keys)

    def letter_keys(self) -> list[Key]:
        return list(self._letters.each_key())

    @property
    def letter_count(self) -> int:
        """Merged letters of all keys."""
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
        """Say what the stage changes, and do all that may fail; nothing is merged, so the stage can still be rolled back."""
        self._free_memory()
        changes = Changes()
        merges = [(table, table.prepare(changes)) for table in self._tables.values() if table.staged]
        return StagedChanges(changes, merges)

    def merge(self, prepared: StagedChanges) -> None:
        """MergeStage the stage as it was prepared. There is no way back from here, not even from half of it."""
        for table, merge in prepared.merges:
            self._count_keys(table, merge())

    def commit(self) -> Changes:
        """MergeStage the stage."""
        prepared = self.prepare()
        self.merge(prepared)
        return prepared.changes

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        """What makes the stage of these keys again what it is now; not after a rollback or a merge."""
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
        """The batch is committed: what is merged now is what a committed export shows."""
        for table in self._tables.values():
            table.settle()
        if self._undo_spill is not None:
            self._undo_spill.close()
            self._undo_spill, self.undo_disk_bytes = None, 0
        self._gone = {}

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply change rows; like a commit, and undone in a committed export like one."""
        self.stage(batch)
        self.commit()

    def stage(self, *batches: pa.RecordBatch) -> None:
        """Stage change rows as they are, in order."""
        self._check_nothing_staged("replay")
        for batch in batches:
            self._stage_batch(batch)

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
        """Stage that nothing is left of these keys."""
        self._check_nothing_staged("drop")
        for table in self._tables.values():
            table.clear_many(keys)

    def export(self, committed: bool, rows_max: int = _EXPORT_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """All state as PUT rows, merged or as it was when last settled. No change may happen meanwhile."""
        for table in self._tables.values():
            for block in _blocks(table.rows(committed), rows_max):
                yield self._put_batch(table.var, block)

    # -- moving keys -------------------------------------------------------------------------------------------------

    def export_keys(self, keys: Sequence[Key], rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """What these keys hold now, as rows that take the place of whatever is there; made as they are asked for."""
        parts = [(table, keys, table.rows_of(keys)) for table in self._tables.values()]
        return self._of(parts, rows_max, bytes_max)

    def export_committed(self, keys: Collection[Key], rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """What those of the keys that have changed since the last settled moment held then; `amend` takes it up.

        Variables that have not changed are left out: a large one beside a small one that changes all the time costs nothing.
        """
        among = keys if isinstance(keys, (set, dict)) else set(keys)
        found = [(table, _both(among, table.touched())) for table in self._tables.values()]
        parts = [(table, changed, table.rows_of(changed, committed=True)) for table, changed in found if changed]
        return self._of(parts, rows_max, bytes_max)

    def _of(
        self, parts: Sequence[tuple[Table, Sequence[Key], Iterator[Row]]], rows_max: int, bytes_max: int
    ) -> Iterator[pa.RecordBatch]:
        clears = Changes()
        for table, keys, _ in parts:
            if keys:
                clears.add(table.var, CLEAR, keys)
        if not len(clears):
            return
        yield clears.to_batch(self.key_codec)
        for table, _, rows in parts:
            for block in _blocks(rows, rows_max, bytes_max):
                yield self._put_batch(table.var, block)

    def gone(self) -> dict[Key, int]:
        """Keys of which nothing is left since the last settled moment, with their routing hashes; some may have come back."""
        for key in [key for key, route_hash in self._gone.items() if route_hash is None]:
            self._gone[key] = self.key_codec.route_hash(key)
        return cast("dict[Key, int]", self._gone)

    def touched(self) -> set[Key]:
        """Keys that have changed since the last settled moment."""
        return {key for table in self._tables.values() for key in table.touched()}

    def stage_revert(self, keys: Collection[Key]) -> list[pa.RecordBatch]:
        """Stage that these keys are as they were at the last settled moment. Gives the change rows that say so, in order."""
        batches = list(self.export_committed(keys, _EXPORT_ROWS_MAX, _EXPORT_BYTES_MAX))
        self.stage(*batches)
        return batches

    def amend(self, batch: pa.RecordBatch) -> None:
        """Take up one of the batches that `export_committed` gave, in their order."""
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
        """What these keys hold now is committed."""
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
            yield from (key for key in table.each_key() if not any(other.contains(key) for other in seen))
            seen.append(table)

    def key_lists(self) -> list[list[Key]]:
        """Keys by table, some in several, taken as fast as can be."""
        return [list(table.each_key()) for table in self._tables.values()]

    @property
    def bytes_estimate(self) -> int:
        """What all state would take in memory, whether it lies there or on disk."""
        return sum(shelf.bytes_estimate for shelf in self._shelves) + self._timers.bytes_estimate

    @property
    def undo_bytes(self) -> int:
        """What the state of the last committed batch takes in memory, where it has changed since."""
        return sum(table.undo_bytes for table in self._tables.values())

    def close(self) -> None:
        for spill in (self._spill, self._undo_spill):
            if spill is not None:
                spill.close()
        self._spill = self._undo_spill = None

    def _free_memory(self) -> None:
        limit, directory = self.memory_max_bytes, self._spill_dir
        if limit is None or directory is None:
            return
        if UNDO_SHARE * self.undo_bytes > limit:
            self._free_undo(directory)
        # What is hot may take half of the limit, less the rest, because what was hot before takes up to the other half.
        room = limit // 2 - self.undo_bytes - self.beside_bytes()
        if sum(shelf.hot_bytes_estimate for shelf in self._shelves) > room:
            self._free_undo(directory)  # which has payloads in common with what goes now, and would keep them in memory
            self._spill = self._spill or Spill(directory)
            for shelf in self._shelves:
                shelf.age(self._spill)

    def _free_undo(self, directory: Path) -> None:
        self._undo_spill = self._undo_spill or Spill(directory)
        before_bytes = self.undo_bytes
        for table in self._tables.values():
            table.spill_undo(self._undo_spill)
        self.undo_disk_bytes += before_bytes - self.undo_bytes

    def _stage_rows(self, var: int, rows: pa.RecordBatch) -> None:
        columns = rows.columns
        keys = self.key_codec.from_arrow(columns[:COLUMN_VAR])
        ops = columns[COLUMN_OP].to_numpy()
        self._tables[var].stage_rows(ops, keys, columns[COLUMN_SUB], columns[COLUMN_VALUE])

    def _put_batch(self, var: int, block: Sequence[Row]) -> pa.RecordBatch:
        subs: list[Any] = [row[1] for row in block]
        values: list[Any] = [row[2] for row in block]
        no_subs, no_values = subs[0] is None, values[0] is None  # one variable has them in all rows or in none
        changes = Changes()
        changes.add(var, PUT, [row[0] for row in block], None if no_subs else subs, None if no_values else values)
        return changes.to_batch(self.key_codec)

    def _count_keys(self, table: Table, moves: MergedKeys) -> None:
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


def _absent(keys: Sequence[Key], tables: Sequence[Table]) -> Sequence[Key]:
    if not tables:
        return keys
    return [key for key in keys if not any(table.contains(key) for table in tables)]


def _blocks(rows: Iterable[Row], rows_max: int, bytes_max: int = _EXPORT_BYTES_MAX) -> Iterator[list[Row]]:
    block: list[Row] = []
    size_bytes = 0
    for row in rows:
        block.append(row)
        size_bytes += len(row[2] or b"")
        if len(block) == rows_max or size_bytes >= bytes_max:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block
