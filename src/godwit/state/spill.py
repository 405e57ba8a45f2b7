"""State that does not fit in memory, on local disk.

Decides how entries lie in an LMDB file. The file is scratch, never read by another process or after a
restart (the changelog is what survives), so nothing is synced and its name is removed at once: the space
comes back however the process ends. It must not know what payloads mean nor when they move between memory
and disk.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias, cast

import lmdb

from godwit.errors import StateTooLarge

KeyAndRecord: TypeAlias = tuple[bytes, bytes]

_MAP_BYTES: Final = 1 << 30  # the first size of the mapping; it doubles when full
_PAGE_ROWS: Final = 1_000
_VAR = struct.Struct(">H")
_LENGTH = struct.Struct("<I")
_LONG: Final = b"\xc1"  # begins no packed key: msgpack never uses this byte
_KEY_BYTES_MAX: Final = 511  # LMDB's own limit; one byte less is used, so that a key's successor fits as well


class Spill:
    """Entries by variable and packed key. One thread at a time."""

    def __init__(self, directory: Path, map_bytes: int = _MAP_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = tempfile.mkdtemp(prefix="spill-", dir=directory)
        try:
            # Without LMDB's own locks no reader may be open while a write is under way: every access here is a
            # short transaction of its own.
            self._env = lmdb.open(
                path, map_size=map_bytes, lock=False, sync=False, metasync=False, readahead=False, meminit=False
            )
        finally:
            shutil.rmtree(path)
        self._directory = directory
        self._map_bytes = map_bytes

    def get(self, var: int, packed: bytes) -> bytes | None:
        with self._env.begin() as txn:
            record = txn.get(_disk_key(var, packed))
        return None if record is None else _payload(packed, record)

    def contains(self, var: int, packed: bytes) -> bool:
        with self._env.begin(buffers=True) as txn:
            return txn.get(_disk_key(var, packed)) is not None

    def put_many(self, var: int, entries: Iterable[KeyAndRecord]) -> None:
        records = sorted((_disk_key(var, packed), _record(packed, data)) for packed, data in entries)
        self._grow_until(lambda: self._written(records))

    def _written(self, records: list[KeyAndRecord]) -> bool:
        def put(txn: lmdb.Transaction) -> None:
            with txn.cursor() as cursor:
                cursor.putmulti(records)

        return self._transacted(put)

    def _transacted(self, write: Callable[[lmdb.Transaction], None]) -> bool:
        """False if the mapping is too small for it, and nothing has changed."""
        try:
            with self._env.begin(write=True) as txn:
                write(txn)
        except lmdb.MapFullError:
            return False
        except lmdb.Error as error:
            raise StateTooLarge(
                f"state that does not fit in memory could not be written to disk: {error}",
                todo="Free space there, name another spill directory, or raise the memory limit",
                directory=str(self._directory),
            ) from error
        return True

    def delete_many(self, var: int, keys: Iterable[bytes]) -> None:
        disk_keys = [_disk_key(var, packed) for packed in keys]

        def delete(txn: lmdb.Transaction) -> None:
            for disk_key in disk_keys:
                txn.delete(disk_key)

        self._grow_until(lambda: self._transacted(delete))

    def _grow_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._map_bytes *= 2
            self._env.set_mapsize(self._map_bytes)

    def scan(self, var: int) -> Iterator[KeyAndRecord]:
        """All entries of a variable, page by page: writes may happen between two of them."""
        start = _VAR.pack(var)
        while page := self._page(start, var):
            yield from (_entry(disk_key, record) for disk_key, record in page)
            start = page[-1][0] + b"\x00"

    def _page(self, start: bytes, var: int) -> list[KeyAndRecord]:
        page: list[KeyAndRecord] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            if cursor.set_range(start):
                for disk_key, record in cursor:
                    if len(page) == _PAGE_ROWS or not disk_key.startswith(_VAR.pack(var)):
                        break
                    page.append((disk_key, record))
        return page

    def close(self) -> None:
        self._env.close()


def _is_long(packed: bytes) -> bool:
    return len(packed) + _VAR.size >= _KEY_BYTES_MAX


def _disk_key(var: int, packed: bytes) -> bytes:
    return _VAR.pack(var) + (_LONG + hashlib.sha256(packed).digest() if _is_long(packed) else packed)


def _record(packed: bytes, data: bytes) -> bytes:
    """The payload; after a key of which only the digest fits LMDB's, the key and then the payload."""
    return _LENGTH.pack(len(packed)) + packed + data if _is_long(packed) else data


def _payload(packed: bytes, record: bytes) -> bytes:
    return record[_LENGTH.size + len(packed) :] if _is_long(packed) else record


def _entry(disk_key: bytes, record: bytes) -> KeyAndRecord:
    packed = disk_key[_VAR.size :]
    if not packed.startswith(_LONG):
        return packed, record
    end = _LENGTH.size + cast(int, _LENGTH.unpack_from(record)[0])
    return record[_LENGTH.size : end], record[end:]
