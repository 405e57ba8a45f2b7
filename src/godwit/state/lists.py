"""A variable that holds a list per key.

Decides how lists are staged, installed and undone. An append costs what is appended: the base list is extended
in place, and the undo is the list and the length it had. It must not know what is in an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgpack
import pyarrow as pa

from godwit.state.changes import CLEAR, PUT, Changes, position, position_sub
from godwit.state.deadlines import Expiry, Now, expiry_ms
from godwit.state.images import Form, Images
from godwit.state.keys import Key, KeyCodec
from godwit.state.shelf import Payload
from godwit.state.table import Imaged, InstalledKeys, InstallStage, Ops, Row, saved

_ELEMENT_BYTES: Final = 41  # a bytes object's header and its place in the list


def _size(elements: Sequence[bytes]) -> int:
    return sum(map(len, elements)) + _ELEMENT_BYTES * len(elements)


_FORM: Payload[list[bytes]] = Payload(size=_size, pack=msgpack.packb, unpack=msgpack.unpackb)


def _unpacked(data: bytes) -> tuple[list[bytes], int]:
    elements: list[bytes] = msgpack.unpackb(data)
    return elements, len(elements)


# The list is the base's own as long as that is in memory.
_IMAGE: Form[tuple[list[bytes], int]] = Form(
    size=lambda _: 0, pack=lambda image: msgpack.packb(image[0][: image[1]]), unpack=_unpacked
)


@dataclass(slots=True)
class _StagedList:
    """Elements that follow the base, or take its place."""

    replaces: bool = False
    elements: list[bytes] = field(default_factory=list)


class ListTable(Imaged[list[bytes], tuple[list[bytes], int]]):
    """Lists of payloads by key. An empty list is no entry."""

    def __init__(self, var: int, key_codec: KeyCodec, ttl_ms: int | None, now: Now) -> None:
        super().__init__(var, _FORM, _IMAGE, key_codec)
        self._expiry: Expiry[Key] | None = None if ttl_ms is None else Expiry(ttl_ms, now)
        self._stage: dict[Key, _StagedList] = {}

    def get(self, key: Key) -> list[bytes]:
        elements = self._raw(key)
        if self._expiry is None:
            return elements
        return [live for element in elements if (live := self._expiry.live(element)) is not None]

    def put(self, key: Key, elements: Sequence[bytes]) -> None:
        self._stage[key] = _StagedList(True, self._stamped(elements))

    def append(self, key: Key, elements: Sequence[bytes]) -> None:
        self._staged(key).elements += self._stamped(elements)

    def clear(self, key: Key) -> None:
        self._stage[key] = _StagedList(True)

    def clear_many(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.clear(key)

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        """Stage rows. An element at a position that exists is not written again: rows may be replayed over their own result."""
        rows: Iterable[Any] = zip(ops.tolist(), keys, subs.to_pylist(), values.to_pylist(), strict=True)
        for op, key, sub, value in rows:
            if op == PUT:
                staged = self._staged(key)
                if position(sub) >= self._length(key, staged):
                    staged.elements.append(value)
            else:
                self.clear(key)

    def _length(self, key: Key, staged: _StagedList) -> int:
        base = None if staged.replaces else self.shelf.get(key)
        return len(staged.elements) + (0 if base is None else len(base))

    def expire(self, now_ms: int) -> None:
        if self._expiry is None:
            return
        for key in self._expiry.due(now_ms):
            elements = self._raw(key)
            live = [element for element in elements if expiry_ms(element) > now_ms]
            # A list is rewritten whole, so not before half of it has expired: that bounds both space and work.
            if 2 * len(live) <= len(elements):
                self._stage[key] = _StagedList(True, live)
            else:
                self._expiry.watch(key, max(now_ms + 1, expiry_ms(elements[len(elements) // 2])))

    def prepare(self, changes: Changes) -> InstallStage:
        stage = self._stage
        bases = dict(zip(stage, self.shelf.get_many(list(stage)), strict=True))
        cleared = {key: old for key, old in bases.items() if old is not None and stage[key].replaces}
        changes.add(self.var, CLEAR, list(cleared))
        self._note_appends(stage, bases, changes)

        def install() -> InstalledKeys:
            self._stage = {}
            self._install_clears(cleared)
            added = self._install_appends(stage, bases)
            self._install_expiry(stage)
            return InstalledKeys(added, list(cleared))

        return install

    def rollback(self) -> None:
        self._stage = {}
        if self._expiry is not None:
            self._expiry.forget()

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        return saved(self._stage, keys, lambda staged: _StagedList(staged.replaces, list(staged.elements)))

    def rows(self, committed: bool) -> Iterator[Row]:
        undo: Images[tuple[list[bytes], int]] | dict[Key, None] = self._undo if committed else {}
        for key, elements in self.shelf.items():
            if key not in undo:
                yield from _rows(key, elements, len(elements))
        for key, old in undo.items():
            if old is not None:
                yield from _rows(key, *old)

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        # A list only grows in place: its first elements stay what they are.
        states: list[tuple[Key, list[bytes], int]] = []
        for key in keys:
            if committed and key in self._undo:
                old = self._undo[key]
            else:
                base = self.shelf.get(key)
                old = None if base is None else (base, len(base))
            if old is not None:
                states.append((key, *old))
        return (row for key, elements, count in states for row in _rows(key, elements, count))

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        self._undo.update(dict.fromkeys(cleared))
        for key, _, value in rows:
            elements, count = self._undo[key] or ([], 0)
            elements.append(value or b"")
            self._undo[key] = (elements, count + 1)
            self._undo.grew(_size((value or b"",)))

    def _staged(self, key: Key) -> _StagedList:
        staged = self._stage.get(key)
        if staged is None:
            staged = self._stage[key] = _StagedList()
        return staged

    def _stamped(self, elements: Sequence[bytes]) -> list[bytes]:
        return list(elements) if self._expiry is None else list(map(self._expiry.stamp, elements))

    def _raw(self, key: Key) -> list[bytes]:
        staged = self._stage.get(key)
        if staged is not None and staged.replaces:
            return list(staged.elements)
        base = self.shelf.get(key) or []
        return base + staged.elements if staged is not None else list(base)

    def _note_appends(
        self, stage: dict[Key, _StagedList], bases: dict[Key, list[bytes] | None], changes: Changes
    ) -> None:
        keys: list[Key] = []
        subs: list[bytes] = []
        values: list[bytes] = []
        for key, staged in stage.items():
            base = None if staged.replaces else bases[key]
            start = 0 if base is None else len(base)
            keys += [key] * len(staged.elements)
            subs += map(position_sub, range(start, start + len(staged.elements)))
            values += staged.elements
        changes.add(self.var, PUT, keys, subs, values)

    def _install_clears(self, olds: dict[Key, list[bytes]]) -> None:
        for key, old in olds.items():
            self._remember(key, old)
        self.shelf.remove_many(list(olds), list(olds.values()))

    def _install_appends(self, stage: dict[Key, _StagedList], bases: dict[Key, list[bytes] | None]) -> list[Key]:
        fresh: dict[Key, list[bytes]] = {}
        for key, staged in stage.items():
            base = None if staged.replaces else bases[key]
            self._remember(key, base)
            if base is not None:
                base += staged.elements
                self.shelf.grew(_size(staged.elements))
            elif staged.elements:
                fresh[key] = staged.elements
        added = list(fresh)
        self.shelf.put_many(fresh, ())
        return added

    def _install_expiry(self, stage: dict[Key, _StagedList]) -> None:
        if self._expiry is None:
            return
        for key, staged in stage.items():
            if staged.elements:
                self._expiry.watch(key, expiry_ms(staged.elements[0]))
        self._expiry.keep()

    def _remember(self, key: Key, old: list[bytes] | None) -> None:
        # The base list may grow in place from here on, and what takes its place is another list: its first
        # elements stay what they are now.
        self._undo.remember(key, None if old is None else (old, len(old)))


def _rows(key: Key, elements: Sequence[bytes], count: int) -> Iterator[Row]:
    return ((key, position_sub(i), element) for i, element in enumerate(islice(elements, count)))
