"""A variable that holds one value per key.

Decides how single values are staged, installed and undone, in bulk wherever it can: most state is of this kind
and whole chunks are read and written at once. It must not know what is in a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from godwit.state.changes import CLEAR, PUT, Changes
from godwit.state.columns import Mask, Payloads, rows_of_bytes
from godwit.state.deadlines import Expiry, Now, expiry_ms
from godwit.state.images import IMAGE_BYTES, Form, Images
from godwit.state.keys import Key, KeyCodec, Positions, keys_at
from godwit.state.shelf import Payload, Shelf
from godwit.state.spill import Spill
from godwit.state.table import InstalledKeys, InstallStage, Ops, Row, Shelved, saved

_NOTED_ROWS_MIN: Final = 10_000

_FORM: Payload[bytes] = Payload(size=len, pack=bytes, unpack=bytes)
_IMAGE: Form[bytes] = Form(size=len, pack=bytes, unpack=bytes)


class _ValueUndo:
    """The values of keys before their first change.

    Changes are only noted as they come and sorted out when someone asks, which is seldom. A batch may never
    end, so they are also sorted out whenever there are more of them than keys.
    """

    def __init__(self, var: int, key_codec: KeyCodec, shelf: Shelf[bytes]) -> None:
        self._before = Images(var, _IMAGE, key_codec)
        self._shelf = shelf
        self._replaced_bytes = shelf.replaced_bytes  # when changes were last sorted out
        self._noted: list[tuple[Sequence[Key], Sequence[bytes | None]]] = []
        self._noted_rows = 0

    def add(self, keys: Sequence[Key], olds: Sequence[bytes | None], key_count: int) -> None:
        self._noted.append((keys, olds))
        self._noted_rows += len(keys)
        if self._noted_rows > max(_NOTED_ROWS_MIN, key_count):
            self.before()

    @property
    def size_bytes(self) -> int:
        """In memory, roughly. What is only noted is what the shelf has replaced meanwhile: it has counted that already."""
        return self._before.size_bytes + self._noted_bytes + self._noted_rows * IMAGE_BYTES

    @property
    def _noted_bytes(self) -> int:
        return self._shelf.replaced_bytes - self._replaced_bytes

    def before(self) -> Images[bytes]:
        """The old values by key; None for a key without a value."""
        if not self._noted:
            return self._before
        noted: dict[Key, bytes | None] = {}
        for keys, olds in reversed(self._noted):  # so that of several changes the first one stays
            noted.update(zip(keys, olds, strict=True))
        self._before.remember_many(noted, self._noted_rows, self._noted_bytes)
        self._noted, self._noted_rows = [], 0
        self._replaced_bytes = self._shelf.replaced_bytes
        return self._before


class ValueTable(Shelved[bytes]):
    """Payloads by key; in the stage and in the undo, None means no payload."""

    def __init__(self, var: int, key_codec: KeyCodec, ttl_ms: int | None, now: Now) -> None:
        super().__init__(var, _FORM, key_codec)
        self._expiry: Expiry[Key] | None = None if ttl_ms is None else Expiry(ttl_ms, now)
        self._stage: dict[Key, bytes | None] = {}
        self._stage_clears = False  # spares a look through the stage where nothing was cleared
        self._undo = _ValueUndo(var, key_codec, self.shelf)

    def get(self, key: Key) -> bytes | None:
        payload = self._raw(key)
        return payload if self._expiry is None or payload is None else self._expiry.live(payload)

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        payloads = [self._raw(key) for key in keys] if self._stage else self.shelf.get_many(keys)
        if self._expiry is None:
            return payloads
        live = self._expiry.live
        return [None if payload is None else live(payload) for payload in payloads]

    def put(self, key: Key, payload: bytes) -> None:
        self._stage[key] = payload if self._expiry is None else self._expiry.stamp(payload)

    def put_many(self, keys: Sequence[Key], payloads: Sequence[bytes]) -> None:
        if self._expiry is not None:
            payloads = list(map(self._expiry.stamp, payloads))
        self._stage.update(zip(keys, payloads, strict=True))

    def read(self, keys: Sequence[Key], zero: bytes) -> tuple[Payloads, Mask]:
        """Payloads of one width, `zero` for a key that has none, and which keys have one."""
        payloads = self.get_many(keys)
        there = np.fromiter((payload is not None for payload in payloads), np.bool_, len(payloads))
        whole = b"".join(cast("list[bytes]", payloads) if there.all() else [payload or zero for payload in payloads])
        return np.frombuffer(whole, np.uint8).reshape(len(payloads), len(zero)), there

    def write(self, keys: Sequence[Key], positions: Positions, payloads: Payloads) -> None:
        """Stage payloads of one width for the keys at these positions."""
        self.put_many(keys_at(keys, positions), rows_of_bytes(payloads))

    def clear(self, key: Key) -> None:
        self._stage[key] = None
        self._stage_clears = True

    def clear_many(self, keys: Iterable[Key]) -> None:
        self._stage.update(dict.fromkeys(keys))
        self._stage_clears = True

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        # Only a PUT has a value, and the last row of a key is the one that counts: just what a stage is.
        self._stage.update(zip(keys, values.to_pylist(), strict=True))
        self._stage_clears |= values.null_count > 0

    def expire(self, now_ms: int) -> None:
        if self._expiry is None:
            return
        for key in self._expiry.due(now_ms):
            payload = self._raw(key)
            if payload is not None and expiry_ms(payload) <= now_ms:
                self.clear(key)
            elif payload is not None:
                self._expiry.watch(key, expiry_ms(payload))

    def prepare(self, changes: Changes) -> InstallStage:
        cleared = self._take_clears() if self._stage_clears else {}
        puts = cast("dict[Key, bytes]", self._stage)
        keys, payloads = list(puts), list(puts.values())
        olds = self.shelf.get_many(keys)
        changes.add(self.var, CLEAR, list(cleared))
        changes.add(self.var, PUT, keys, None, payloads)

        def install() -> InstalledKeys:
            self._stage, self._stage_clears = {}, False
            self._install_clears(cleared)
            return InstalledKeys(self._install_puts(puts, keys, payloads, olds), list(cleared))

        return install

    def rollback(self) -> None:
        self._stage = {}
        self._stage_clears = False
        if self._expiry is not None:
            self._expiry.forget()

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        return saved(self._stage, keys, lambda payload: payload)

    def settle(self) -> None:
        self._undo = _ValueUndo(self.var, self._key_codec, self.shelf)

    @property
    def undo_bytes(self) -> int:
        return self._undo.size_bytes

    def spill_undo(self, disk: Spill) -> None:
        self._undo.before().spill(disk)

    def rows(self, committed: bool) -> Iterator[Row]:
        undo: Images[bytes] | dict[Key, bytes | None] = self._undo.before() if committed else {}
        for key, payload in self.shelf.items():
            if key not in undo:
                yield key, None, payload
        for key, old in undo.items():
            if old is not None:
                yield key, None, old

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        undo: Images[bytes] | dict[Key, bytes | None] = self._undo.before() if committed else {}
        states = [(key, undo[key] if key in undo else self.shelf.get(key)) for key in keys]
        return ((key, None, payload) for key, payload in states if payload is not None)

    def touched(self) -> Collection[Key]:
        return self._undo.before()

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        undo = self._undo.before()
        undo.update(dict.fromkeys(cleared))
        undo.update({key: value for key, _, value in rows})

    def settle_keys(self, keys: Iterable[Key]) -> None:
        self._undo.before().discard_many(keys)

    def _raw(self, key: Key) -> bytes | None:
        return self._stage[key] if key in self._stage else self.shelf.get(key)

    def _take_clears(self) -> dict[Key, bytes]:
        """Take the clears out of the stage; returns the payloads that they clear."""
        cleared = [key for key, payload in self._stage.items() if payload is None]
        for key in cleared:
            del self._stage[key]
        olds = zip(cleared, self.shelf.get_many(cleared), strict=True)
        return {key: old for key, old in olds if old is not None}

    def _install_clears(self, olds: dict[Key, bytes]) -> None:
        if olds:
            keys, payloads = list(olds), list(olds.values())
            self._undo.add(keys, payloads, self.count)
            self.shelf.remove_many(keys, payloads)

    def _install_puts(
        self, puts: dict[Key, bytes], keys: list[Key], payloads: list[bytes], olds: list[bytes | None]
    ) -> list[Key]:
        self._undo.add(keys, olds, self.count)
        added_count = self.shelf.put_many(puts, olds)
        if self._expiry is not None:
            for key, payload in zip(keys, payloads, strict=True):
                self._expiry.watch(key, expiry_ms(payload))
            self._expiry.keep()
        if added_count in (0, len(keys)):
            return keys if added_count else []
        return [key for key, old in zip(keys, olds, strict=True) if old is None]
