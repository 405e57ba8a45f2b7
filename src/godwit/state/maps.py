"""A variable that holds a map per key.

Decides how maps are staged, installed and undone, entry by entry: neither a write nor its undo costs more than
the entries it touches. Entries keep their order of insertion, a removed one that comes back goes to the
end. (A committed view taken after removals shows the entries brought back last.) It must not know what is
in an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgpack
import pyarrow as pa

from godwit.state.changes import CLEAR, PUT, REMOVE, Changes
from godwit.state.deadlines import Expiry, Now, expiry_ms
from godwit.state.images import Form, Images
from godwit.state.keys import Key, KeyCodec
from godwit.state.shelf import Payload
from godwit.state.table import Imaged, InstalledKeys, InstallStage, Ops, Row, saved

Entries: TypeAlias = dict[bytes, bytes]

_ENTRY_BYTES: Final = 130  # two bytes objects' headers and their place in the dictionary


def _size(entries: Entries) -> int:
    return sum(map(len, entries)) + sum(map(len, entries.values())) + _ENTRY_BYTES * len(entries)


_FORM: Payload[Entries] = Payload(size=_size, pack=msgpack.packb, unpack=msgpack.unpackb)


@dataclass(slots=True)
class _StagedMap:
    """Changed entries (None: removed) over the base, or over an empty map if the base was cleared.

    `reborn` are entries of the base that were removed and then put again, and so come last.
    """

    cleared: bool = False
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    reborn: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class _MapUndo:
    """A base map, which may change in place, and what the changed entries held (None: nothing).

    `order`: the entries as they stood before the first one was removed, because one that is put back has to be in its place.
    """

    base: Entries
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    order: list[bytes] | None = None

    def before(self) -> Entries:
        entries = dict(self.base)
        for sub, old in self.entries.items():
            if old is None:
                entries.pop(sub, None)
            else:
                entries[sub] = old
        return entries if self.order is None else {sub: entries[sub] for sub in self.order if sub in entries}


# The base is that of the shelf as long as it is in memory; what changed entries held is counted as they come.
_IMAGE: Form[_MapUndo] = Form(
    size=lambda _: 0,
    pack=lambda image: msgpack.packb(image.before()),
    unpack=lambda data: _MapUndo(msgpack.unpackb(data)),
)


class MapTable(Imaged[Entries, _MapUndo]):
    """Maps of encoded user key to payload, by key. An empty map is no entry."""

    def __init__(self, var: int, key_codec: KeyCodec, ttl_ms: int | None, now: Now) -> None:
        super().__init__(var, _FORM, _IMAGE, key_codec)
        self._expiry: Expiry[tuple[Key, bytes]] | None = None if ttl_ms is None else Expiry(ttl_ms, now)
        self._stage: dict[Key, _StagedMap] = {}

    def get(self, key: Key, sub: bytes) -> bytes | None:
        payload = self._raw(key, sub)
        return payload if payload is None or self._expiry is None else self._expiry.live(payload)

    def items(self, key: Key) -> list[tuple[bytes, bytes]]:
        return list(self._live(key))

    def exists(self, key: Key) -> bool:
        return next(self._live(key), None) is not None

    def put(self, key: Key, sub: bytes, payload: bytes) -> None:
        staged = self._staged(key)
        if self._expiry is not None:
            payload = self._expiry.stamp(payload)
            if self.get(key, sub) is None:
                self.remove(key, sub)  # an expired entry counts as removed, so the new one comes last
        self._put(staged, sub, payload)

    def remove(self, key: Key, sub: bytes) -> None:
        staged = self._staged(key)
        staged.entries.pop(sub, None)
        staged.reborn.discard(sub)
        if self._in_base(key, staged, sub):
            staged.entries[sub] = None

    def clear(self, key: Key) -> None:
        self._stage[key] = _StagedMap(True)

    def clear_many(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.clear(key)

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        rows: Iterable[Any] = zip(ops.tolist(), keys, subs.to_pylist(), values.to_pylist(), strict=True)
        for op, key, sub, value in rows:
            if op == PUT:
                self._put(self._staged(key), sub, value)
            elif op == REMOVE:
                self.remove(key, sub)
            else:
                self.clear(key)

    def expire(self, now_ms: int) -> None:
        if self._expiry is None:
            return
        for key, sub in self._expiry.due(now_ms):
            payload = self._raw(key, sub)
            if payload is not None and expiry_ms(payload) <= now_ms:
                self.remove(key, sub)
            elif payload is not None:
                self._expiry.watch((key, sub), expiry_ms(payload))

    def prepare(self, changes: Changes) -> InstallStage:
        stage = self._stage
        bases = dict(zip(stage, self.shelf.get_many(list(stage)), strict=True))
        cleared = {key: old for key, old in bases.items() if old is not None and stage[key].cleared}
        bases |= dict.fromkeys(cleared)
        gone, puts = _removes(stage, bases), _puts(stage)
        changes.add(self.var, CLEAR, list(cleared))
        _note(changes, self.var, REMOVE, gone)
        _note(changes, self.var, PUT, puts)

        def install() -> InstalledKeys:
            self._stage = {}
            self._install_clears(cleared)
            self._install_removes(gone, bases)
            added = self._install_puts(puts, bases)
            emptied = [key for key in gone if bases[key] == {}]
            self.shelf.remove_many(emptied, [{}] * len(emptied))
            if self._expiry is not None:
                self._expiry.keep()
            return InstalledKeys(added, [*cleared, *emptied])

        return install

    def rollback(self) -> None:
        self._stage = {}
        if self._expiry is not None:
            self._expiry.forget()

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        return saved(
            self._stage, keys, lambda staged: _StagedMap(staged.cleared, dict(staged.entries), set(staged.reborn))
        )

    def rows(self, committed: bool) -> Iterator[Row]:
        undo: Images[_MapUndo] | dict[Key, None] = self._undo if committed else {}
        for key, entries in self.shelf.items():
            if key not in undo:
                yield from ((key, sub, payload) for sub, payload in entries.items())
        for key, old in undo.items():
            if old is not None:
                yield from ((key, sub, payload) for sub, payload in old.before().items())

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        states: list[tuple[Key, Entries]] = []
        for key in keys:
            undo = self._undo[key] if committed and key in self._undo else _MapUndo(self.shelf.get(key) or {})
            if undo is not None:
                states.append((key, undo.before()))
        return ((key, sub, payload) for key, entries in states for sub, payload in entries.items())

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        self._undo.update(dict.fromkeys(cleared))
        for key, sub, value in rows:
            undo = self._undo[key] or _MapUndo({})
            undo.base[sub or b""] = value or b""
            self._undo[key] = undo
            self._undo.grew(_size({sub or b"": value or b""}))

    def _staged(self, key: Key) -> _StagedMap:
        staged = self._stage.get(key)
        if staged is None:
            staged = self._stage[key] = _StagedMap()
        return staged

    def _in_base(self, key: Key, staged: _StagedMap, sub: bytes) -> bool:
        return not staged.cleared and sub in (self.shelf.get(key) or ())

    def _put(self, staged: _StagedMap, sub: bytes, payload: bytes) -> None:
        if sub in staged.entries and staged.entries[sub] is None:
            del staged.entries[sub]
            staged.reborn.add(sub)
        staged.entries[sub] = payload

    def _raw(self, key: Key, sub: bytes) -> bytes | None:
        staged = self._stage.get(key)
        if staged is not None and (staged.cleared or sub in staged.entries):
            return staged.entries.get(sub)
        base = self.shelf.get(key)
        return None if base is None else base.get(sub)

    def _all(self, key: Key) -> Iterator[tuple[bytes, bytes]]:
        """Entries as the stage shows them, in order."""
        staged = self._stage.get(key, _StagedMap())
        base = {} if staged.cleared else self.shelf.get(key) or {}
        for sub, payload in base.items():
            shown = staged.entries.get(sub, payload)
            if shown is not None and sub not in staged.reborn:
                yield sub, shown
        for sub, entry in staged.entries.items():
            if entry is not None and (sub not in base or sub in staged.reborn):
                yield sub, entry

    def _live(self, key: Key) -> Iterator[tuple[bytes, bytes]]:
        if self._expiry is None:
            yield from self._all(key)
            return
        for sub, payload in self._all(key):
            live = self._expiry.live(payload)
            if live is not None:
                yield sub, live

    def _install_clears(self, olds: dict[Key, Entries]) -> None:
        for key, old in olds.items():
            self._remember(key, old, ())
        self.shelf.remove_many(list(olds), list(olds.values()))

    def _install_removes(self, gone: dict[Key, Entries], bases: dict[Key, Entries | None]) -> None:
        for key, entries in gone.items():
            base = bases[key]
            assert base is not None, "only what is there is removed"
            self._remember(key, base, entries, removed=True)
            for sub in entries:
                del base[sub]
            self.shelf.grew(-_size(entries))

    def _install_puts(self, puts: dict[Key, Entries], bases: dict[Key, Entries | None]) -> list[Key]:
        fresh: dict[Key, Entries] = {}
        for key, entries in puts.items():
            self._watch(key, entries)
            base = bases[key]
            self._remember(key, base, entries)
            if base is None:
                fresh[key] = entries
            else:
                self.shelf.grew(_size(entries) - _size({sub: base[sub] for sub in entries if sub in base}))
                base.update(entries)
        added = list(fresh)
        self.shelf.put_many(fresh, ())
        return added

    def _watch(self, key: Key, entries: Entries) -> None:
        if self._expiry is not None:
            for sub, payload in entries.items():
                self._expiry.watch((key, sub), expiry_ms(payload))

    def _remember(self, key: Key, base: Entries | None, subs: Iterable[bytes], removed: bool = False) -> None:
        self._undo.remember(key, None if base is None else _MapUndo(base))
        undo = self._undo.in_memory(key)
        # A base that was replaced (cleared, or read back from disk) is no longer changed by anyone.
        if undo is not None and undo.base is base:
            if removed and undo.order is None:
                undo.order = list(base)
                self._undo.grew(8 * len(undo.order))
            fresh = {sub: base.get(sub) for sub in subs if sub not in undo.entries}
            undo.entries.update(fresh)
            self._undo.grew(sum(_ENTRY_BYTES + len(old or b"") for old in fresh.values()))


def _removes(stage: dict[Key, _StagedMap], bases: dict[Key, Entries | None]) -> dict[Key, Entries]:
    """By key, the entries of the base that the stage removes."""
    gone: dict[Key, Entries] = {}
    for key, staged in stage.items():
        base = bases[key]
        if base is not None:
            subs = [sub for sub, entry in staged.entries.items() if entry is None or sub in staged.reborn]
            if subs:
                gone[key] = {sub: base[sub] for sub in subs}
    return gone


def _puts(stage: dict[Key, _StagedMap]) -> dict[Key, Entries]:
    puts: dict[Key, Entries] = {}
    for key, staged in stage.items():
        entries = {sub: payload for sub, payload in staged.entries.items() if payload is not None}
        if entries:
            puts[key] = entries
    return puts


def _note(changes: Changes, var: int, op: int, by_key: dict[Key, Entries]) -> None:
    keys = [key for key, entries in by_key.items() for _ in entries]
    subs = [sub for entries in by_key.values() for sub in entries]
    values = [payload for entries in by_key.values() for payload in entries.values()] if op == PUT else None
    changes.add(var, op, keys, subs, values)
